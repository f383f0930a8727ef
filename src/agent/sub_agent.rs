//! An agent as a tool of another one.
//!
//! A call starts an agent, follows its run, and returns its answer. In a session of a manager, the agent is that of
//! another session, which the manager opens and closes. Otherwise, it exists in memory. One loop follows both. It never
//! waits for the parent: progress is dropped if there is no room for it, pauses are a list that replaces the former one,
//! and decisions arrive through a channel ([`delegation`](super::delegation)).

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use schemars::JsonSchema;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc::UnboundedReceiver},
    time::{Instant, sleep_until},
};

use super::{
    Agent, AgentBuilder, Error, ExistingOrNewRun, FollowTarget, PendingUse, Prompt, PromptId, Response,
    ResumeDecisions, RunStep, Running,
    core::UNCERTAIN,
    delegation::{
        ForwardedDecision, NewSubAgent, ParentCall, RunningSubAgent, SubAgentHandle, SubAgentTerminator,
    },
    running::value_of,
};
use crate::{
    message::ToolUse,
    provider::{OutputSchema, StopReason},
    run::{ErrorKind, RunAt, RunSpec},
    tool::{
        Decision, QuestionWaitGuard, Replay, Schema, Tool, ToolCallAgentLink, ToolContext, ToolError,
        ToolOutput,
    },
};

/// The shortest time between two reports of new text.
const REPORT_EVERY: Duration = Duration::from_millis(250);

/// The number of bytes of the answer that a report of progress contains.
const SHOWN: usize = 200;

/// The member of a progress report that describes a sub-agent.
const REPORT: &str = "sub_agent";

type SubAgentBuilderFn = Box<dyn Fn(&ToolContext) -> AgentBuilder + Send + Sync>;
type SubAgentPromptFn = Box<dyn Fn(Value) -> Result<Prompt, ToolError> + Send + Sync>;

/// An agent as a tool: a model delegates a task to it and gets its answer.
///
/// Each call starts a new agent without a history, by a closure that gets the context of the call. The agent has its own
/// model, tools, callbacks and limits. In a session of a [`Manager`](crate::Manager), the agent gets a new
/// session, whose conversation is stored with the labels of the caller. It can be watched while it runs, and read later.
/// Otherwise, or [`in_memory`](Self::in_memory), it exists for the call only. These belong to both agents:
///
/// - **Decisions.** A pause of the sub-agent is a question of the call: [`PendingUse::sub_agent`](crate::run::PendingUse)
///   describes it, and [`Agent::resume`] decides it, at each level up to the root. Meanwhile, the clocks of the call and of
///   the parent's turn stand still.
/// - **Costs.** The sub-agent draws from the budget of the parent's prompt and from the shared budgets of both. The parent
///   emits the usage of each request as [`Event::Usage`](super::Event::Usage) with
///   [`Purpose::SubAgent`](crate::message::Purpose::SubAgent).
/// - **The end.** When the call ends, for whatever reason, the sub-agent ends, and it starts no tool and no request any
///   more.
///
/// The result is the text of the last answer. If the model did not stop by itself, a note states the reason. A failure is
/// an error result. While the sub-agent works, the call reports its progress as
/// `{"sub_agent": {"name", "conversation", "step", "tool", "text"}}`, and that of a sub-agent below it in the member
/// `below`.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # use serde_json::json;
/// # let lead = ScriptedProvider::new([
/// #     Step::new().then_tool_use("1", "search", json!({ "task": "Rivers" }))
/// #         .then_tool_use("2", "files", json!({ "task": "Delete a.txt" })).stop(),
/// #     Step::text("Both are done."),
/// # ]).model();
/// # let small = ScriptedProvider::new([Step::text("The Nile.")]).model();
/// # let careful =
/// #     ScriptedProvider::new([Step::tool_use("d", "delete", json!("a.txt")), Step::text("Deleted.")]).model();
/// # let delete = || omni_agent::tool_fn("delete", "Deletes.", |_: serde_json::Value, _| async { Ok("ok") });
/// use omni_agent::{Agent, Tool, agent::{RunStep, SubAgent}, budget::{Budget, SharedBudget}};
///
/// let team = SharedBudget::new(Budget::requests(20));
/// let search = SubAgent::new("search", "Answers a question.", move |_| Agent::builder().model(small.clone()));
/// let files = SubAgent::new("files", "Works on files.", move |_| {
///     Agent::builder().model(careful.clone()).tool(delete().needs_approval())
/// });
/// let agent = Agent::builder().model(lead).tool(search).tool(files).shared_budget(&team).budget(Budget::requests(9));
/// let agent = agent.start().await?;
///
/// let mut run = agent.run("Ask for rivers, and delete a.txt.").follow().await?;
/// while let Some(step) = run.next().await? {
///     if let RunStep::Pause(pause) = step {
///         assert_eq!((&*pause.tool_use.name, &*pause.sub_agent.as_ref().unwrap().name), ("delete", "files"));
///         pause.approve().await?;
///     }
/// }
/// assert_eq!(run.response().await?.text(), "Both are done.");
/// assert_eq!(team.spent().requests, 5);
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a sub-agent does nothing until it is added to an agent"]
pub struct SubAgent {
    name: Arc<str>,
    description: String,
    schema: Schema,
    input: SubAgentPromptFn,
    start: SubAgentBuilderFn,
    output: Option<OutputSchema>,
    depth: u8,
    parallel: usize,
    in_memory: bool,
    /// For each depth, the places of calls. Calls of different depths do not wait for each other.
    lines: OnceLock<Vec<Semaphore>>,
}

/// The default input.
#[derive(Deserialize, JsonSchema)]
struct SubAgentTaskInput {
    /// The task, with everything that is needed to do it. Nothing else of this conversation is known there.
    task: String,
}

impl SubAgent {
    /// Creates a tool that runs an agent. The model calls the tool by this name, and reads the description. The closure
    /// returns the builder of the agent, for each call.
    ///
    /// The input is `{ "task": string }`, unless [`with_input`](Self::with_input) sets another one.
    pub fn new(
        name: impl Into<Arc<str>>,
        description: impl Into<String>,
        agent: impl Fn(&ToolContext) -> AgentBuilder + Send + Sync + 'static,
    ) -> Self {
        let sub_agent = Self {
            name: name.into(),
            description: description.into(),
            schema: Schema::of_input::<SubAgentTaskInput>(),
            input: Box::new(|_| Ok(Prompt::default())),
            start: Box::new(agent),
            output: None,
            depth: 3,
            parallel: 8,
            in_memory: false,
            lines: OnceLock::new(),
        };
        sub_agent.with_input(|input: SubAgentTaskInput| Prompt::new(input.task))
    }

    /// Sets the type of the input, and the prompt that is made from it. If the sub-agent is a session, its prompt gets
    /// another id, by which a repeated call finds the prompt.
    pub fn with_input<I: DeserializeOwned + JsonSchema>(
        mut self,
        prompt: impl Fn(I) -> Prompt + Send + Sync + 'static,
    ) -> Self {
        self.schema = Schema::of_input::<I>();
        self.input = Box::new(move |input| {
            let input = serde_json::from_value(input);
            input
                .map(&prompt)
                .map_err(|error| ToolError::invalid_input(format!("The input could not be read: {error}")))
        });
        self
    }

    /// Sets the type of the answer. The result of the tool is its JSON.
    pub fn with_output<O: JsonSchema>(mut self) -> Self {
        self.output = Some(OutputSchema::of::<O>());
        self
    }

    crate::setters::setters! {
        /// Sets how many agents may be above the sub-agent. The default is 3. A call at a greater depth gets an error
        /// result.
        pub fn with_depth(self, depth: u8) { self.depth = depth }

        /// Sets how many calls run at the same time, at each depth. The default is 8. Further calls wait.
        pub fn with_parallel(self, parallel: usize) { self.parallel = parallel }

        /// Runs the sub-agent in memory, even in a session of a manager. Nothing of it is stored except its usage.
        pub fn in_memory(self) { self.in_memory = true }
    }

    /// Waits for a place.
    async fn wait_in_line(&self, depth: u8) -> Result<impl Drop + '_, ToolError> {
        let parallel = self.parallel.clamp(1, Semaphore::MAX_PERMITS);
        let lines = self.lines.get_or_init(|| (0..self.depth).map(|_| Semaphore::new(parallel)).collect());
        let Some(line) = depth.checked_sub(1).and_then(|index| lines.get(usize::from(index))) else {
            let text = format!(
                "{:?} can't run here: at most {} agents may be above it, and {depth} are. Do the task yourself.",
                self.name, self.depth
            );
            return Err(ToolError::new(text));
        };
        line.acquire().await.map_err(|error| ToolError::caused_by(&error))
    }

    /// Returns the result of the call.
    fn result(&self, response: &Arc<Response>) -> Result<ToolOutput, ToolError> {
        let (text, reason) = (response.text(), &response.stop_reason);
        if self.output.is_some() {
            let value = value_of::<Value>(Arc::clone(response)).map(ToolOutput::from);
            return value.map_err(|error| ToolError::new(format!("{:?} has failed: {error}", self.name)));
        }
        match reason {
            _ if text.trim().is_empty() => {
                Err(ToolError::new(format!("{:?} has ended without an answer: {reason}", self.name)))
            }
            StopReason::Refusal => Err(ToolError::new(text)),
            StopReason::Stop => Ok(text.into()),
            _ => Ok(format!("{text}\n\n[{:?} has ended early: {reason}]", self.name).into()),
        }
    }
}

#[async_trait]
impl Tool for SubAgent {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Cow<'_, str> {
        (&*self.description).into()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The sub-agent has its own limits.
    fn timeout(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }

    fn idle_timeout(&self) -> Option<Duration> {
        Some(Duration::MAX)
    }

    /// After a restart, a repeated call continues its session. A sub-agent in memory is gone, and its tools may have had
    /// effects.
    fn replay(&self) -> Replay {
        if self.in_memory { Replay::Never } else { Replay::Keyed }
    }

    async fn call(&self, input: Value, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let mut prompt = (self.input)(input)?;
        if let Some(output) = &self.output {
            prompt.options.set_output(Some(output.clone()));
        }
        let _place = self.wait_in_line(ParentCall::depth_below(&context)).await?;
        let host = ParentCall::host(&context).filter(|_| !self.in_memory);
        if host.is_none() && context.is_repeated() {
            return Err(ToolError::new(UNCERTAIN));
        }
        if host.is_none() && !self.in_memory {
            // Another process may run sub-agents as sessions, and would not find this one.
            ParentCall::forbid_repetition(&context).await;
        }
        // The guard exists before the child, so a call that is dropped at any point leaves nothing behind.
        let (guard, mut decisions) = ParentCall::begin(&context, host.is_some());
        let failed = |error: Error| ToolError::new(format!("{:?} has failed: {error}", self.name));
        let key = PromptId::new(guard.0.key());
        match &host {
            // A repeated call finds its prompt by the key.
            Some(_) => prompt.id = Some(key),
            None => prompt.id = prompt.id.or(Some(key)),
        }
        let agent = || (self.start)(&context).extension(Arc::clone(&guard.0));
        let mut is_known = context.is_repeated();
        loop {
            let child = match &host {
                Some(host) => {
                    let (name, call) = (Arc::clone(&self.name), Arc::clone(&guard.0));
                    host.open(NewSubAgent { name, agent: &agent, call, is_known }).await
                }
                None => agent().start().await.map(RunningSubAgent::in_memory),
            };
            let child = child.map_err(failed)?;
            let call = RunningSubAgentCall {
                name: &self.name,
                parent: &guard.0,
                target: &*child.target,
                conversation: child.conversation.as_ref(),
                context: &context,
            };
            let ended = call.run(prompt.clone(), &mut decisions).await;
            let continues = |error: &Error| match error.kind() {
                ErrorKind::Draining => host.is_some(),
                // The session has ended, and its run has not.
                ErrorKind::Ended => child.is_recorded,
                _ => false,
            };
            let continues = ended.as_ref().is_err_and(continues);
            child.end.end(continues).await;
            if !continues {
                return self.result(&ended.map_err(failed)?);
            }
            guard.0.reopens();
            guard.0.set_at_work(true);
            is_known = true;
        }
    }
}

crate::debug::impl_debug!(SubAgent(self) { name: self.name, depth: self.depth, parallel: self.parallel, .. });

impl RunningSubAgent {
    fn in_memory(agent: Agent) -> Self {
        let target = Box::new(agent.clone());
        Self { target, conversation: None, is_recorded: false, end: Box::new(CancelSubAgentOnDrop(agent)) }
    }
}

/// Cancels the run of a sub-agent in memory when the call ends, because others can have handles of the agent.
struct CancelSubAgentOnDrop(Agent);

#[async_trait]
impl SubAgentTerminator for CancelSubAgentOnDrop {
    async fn end(self: Box<Self>, _: bool) {}
}

impl Drop for CancelSubAgentOnDrop {
    fn drop(&mut self) {
        self.0.cancel_now();
    }
}

/// A call whose sub-agent runs.
struct RunningSubAgentCall<'a> {
    name: &'a Arc<str>,
    parent: &'a ParentCall,
    target: &'a dyn SubAgentHandle,
    conversation: Option<&'a Arc<str>>,
    context: &'a ToolContext,
}

/// The progress of a sub-agent.
#[derive(Default)]
struct SubAgentProgressTracker {
    step: u32,
    /// The tool uses of the last answer.
    uses: Vec<ToolUse>,
    /// The end of the answer so far.
    text: String,
    last: Option<Instant>,
    /// The time of the next report, if there is new text.
    due: Option<Instant>,
}

impl<'a> RunningSubAgentCall<'a> {
    /// Sends the prompt, and follows its run to the end. A prompt that was sent by an earlier process is not sent again.
    async fn run(
        &self,
        prompt: Prompt,
        decisions: &mut UnboundedReceiver<ForwardedDecision>,
    ) -> Result<Arc<Response>, Error> {
        // The run is followed before it starts, so the reader sees its end as an event, with the whole response.
        let id = prompt.id.clone().unwrap_or_else(|| PromptId::new(self.parent.key()));
        let run = ExistingOrNewRun::Existing(FollowTarget::Prompt(id));
        let running = self.target.follow(run).await?;
        self.target.start(RunSpec::new(RunAt::Head, prompt)).await?;
        self.follow(running, decisions).await
    }

    /// Follows the run to its end.
    async fn follow(
        &self,
        mut running: Running,
        decisions: &mut UnboundedReceiver<ForwardedDecision>,
    ) -> Result<Arc<Response>, Error> {
        let mut deciding = FuturesUnordered::new();
        let (mut progress, mut clock, mut shown) = (SubAgentProgressTracker::default(), None, Vec::new());
        loop {
            let due = progress.due.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                Some(()) = deciding.next() => {}
                Some(forwarded) = decisions.recv() => {
                    deciding.push(forwarded.decide(|resume| self.target.decide(resume)));
                }
                step = running.next() => match step {
                    Ok(Some(RunStep::Pause(_) | RunStep::PauseEnded(_))) if shown == running.pauses() => {}
                    Ok(Some(RunStep::Pause(_) | RunStep::PauseEnded(_))) => {
                        shown = running.pauses().to_vec();
                        clock = self.pause(&shown).await;
                    }
                    Ok(Some(step)) => self.note(step, &mut progress),
                    // The response has the error, too.
                    Ok(None) | Err(_) => break,
                },
                () = sleep_until(due), if progress.due.is_some() => self.report(&mut progress, None, None),
            }
        }
        drop(clock);
        // The agent has received these decisions, and answers each.
        while deciding.next().await.is_some() {}
        running.response().await
    }

    /// Shows the pauses as questions of the call. While there are some, the clock of the call is stopped.
    async fn pause(&self, pauses: &[Arc<PendingUse>]) -> Option<QuestionWaitGuard<'a>> {
        let of_sub_agent =
            |pause: &Arc<PendingUse>| pause.of_sub_agent(Arc::clone(self.name), self.conversation.cloned());
        let own = pauses.iter().map(of_sub_agent).collect();
        if !self.parent.set_pauses(own) {
            for pause in pauses {
                let declined = (pause.tool_use.id.clone(), Decision::reject("no agent is available to ask"));
                let resume = ResumeDecisions { decisions: vec![declined], turn: Some(pause.turn), by: None };
                // If the tool use no longer waits, nothing is left to decline.
                let _ = self.target.decide(resume).await;
            }
        }
        self.context.agent().filter(|_| !pauses.is_empty()).map(ToolCallAgentLink::stop_clock)
    }

    /// Takes note of a step of the run, and reports it if it is of interest.
    fn note(&self, step: RunStep, progress: &mut SubAgentProgressTracker) {
        let mut tool = None;
        let mut below = None;
        match step {
            RunStep::Request { step, .. } => {
                (progress.step, progress.text) = (step, String::new());
            }
            RunStep::Text { new, .. } => {
                progress.text.push_str(&new);
                let excess = progress.text.len().saturating_sub(SHOWN);
                progress.text.drain(..progress.text.ceil_char_boundary(excess));
                let next = progress.last.map_or_else(Instant::now, |last| last + REPORT_EVERY);
                progress.due.get_or_insert(next);
                return;
            }
            RunStep::Answer(message) => {
                progress.uses = message.tool_uses().cloned().collect();
                return;
            }
            RunStep::ToolStarted(tool_use) => tool = Some(tool_use.id),
            RunStep::ToolProgress { id, mut data } if data.get(REPORT).is_some() => {
                (tool, below) = (Some(id), Some(data[REPORT].take()));
            }
            _ => return,
        }
        let tool = tool.and_then(|id| progress.uses.iter().find(|own| own.id == id));
        let tool = tool.map(|tool| tool.name.clone());
        self.report(progress, tool, below);
    }

    fn report(&self, progress: &mut SubAgentProgressTracker, tool: Option<String>, below: Option<Value>) {
        (progress.due, progress.last) = (None, Some(Instant::now()));
        let mut report = json!({ "name": self.name, "step": progress.step });
        if let Some(conversation) = self.conversation {
            report["conversation"] = (**conversation).into();
        }
        if let Some(tool) = tool {
            report["tool"] = tool.into();
        }
        if !progress.text.is_empty() {
            report["text"] = progress.text.as_str().into();
        }
        if let Some(below) = below {
            report["below"] = below;
        }
        self.context.try_progress(json!({ REPORT: report }));
    }
}
