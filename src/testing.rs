//! A scripted provider, for tests of applications built on this crate (feature `test-util`).
//!
//! A [`ScriptedProvider`] answers each request with the next [`Step`] of its script, and keeps a record of
//! the requests it got. Steps stream text, thinking and tool uses, wait, ask, fail and break off, at any
//! delta.
//!
//! ```
//! use omni_agent::provider::Request;
//! use omni_agent::testing::{ScriptedProvider, Step};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//!
//! let provider = ScriptedProvider::new([Step::text("Paris.")]);
//! let answer = provider.model().generate(Request::prompt("The capital of France?")).await?;
//! assert_eq!(answer.message.text(), "Paris.");
//! assert_eq!(provider.requests()[0].history.len(), 1);
//! # Ok::<(), omni_agent::provider::ProviderError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::VecDeque,
    fmt,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream;
use serde_json::Value;
use tokio::{sync::Semaphore, time::sleep};

use crate::{
    message::{ToolUse, Usage},
    provider::{
        BlockStart, Delta, DeltaStream, ErrorKind, MessageDelta, Model, Part, Provider, ProviderError,
        Request, RequestContext, StopReason,
    },
    tool::Decision,
};

/// A provider that answers from a script. Clones share script and record.
#[derive(Clone)]
pub struct ScriptedProvider(Arc<Inner>);

struct Inner {
    script: Mutex<VecDeque<Step>>,
    requests: Mutex<Vec<Request>>,
    decisions: Mutex<Vec<Decision>>,
}

impl ScriptedProvider {
    /// A provider that answers with these steps, in order. A request beyond them is an error.
    pub fn new(script: impl IntoIterator<Item = Step>) -> Self {
        Self(Arc::new(Inner {
            script: Mutex::new(script.into_iter().collect()),
            requests: Mutex::default(),
            decisions: Mutex::default(),
        }))
    }

    /// The model that this provider serves.
    pub fn model(&self) -> Model {
        Model::new(Arc::new(self.clone()), "scripted")
    }

    /// Adds a step at the end.
    pub fn push(&self, step: Step) {
        lock(&self.0.script).push_back(step);
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.0.requests).clone()
    }

    /// The decisions that [`Step::decide`] got so far.
    pub fn decisions(&self) -> Vec<Decision> {
        lock(&self.0.decisions).clone()
    }

    /// How many steps are left.
    pub fn steps_left(&self) -> usize {
        lock(&self.0.script).len()
    }
}

/// A lock that a panic elsewhere does not spoil: what it guards is never half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn name(&self) -> &str {
        "test"
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        lock(&self.0.requests).push(request.clone());
        let step = lock(&self.0.script).pop_front();
        let mut step = step.ok_or_else(|| {
            ProviderError::new(ErrorKind::InvalidRequest, "the script has no step for this request")
        })?;
        if let Some(make) = step.make.take() {
            step = make(&request);
        }
        if let Some(error) = step.refuse {
            return Err(error);
        }
        let state = (step.actions.into_iter(), self.clone(), context);
        Ok(Box::pin(stream::unfold(state, |(mut actions, provider, context)| async move {
            let item = loop {
                match actions.next()? {
                    Action::Delta(delta) => break Ok(delta),
                    Action::Fail(error) => break Err(error),
                    Action::Wait(delay) => sleep(delay).await,
                    Action::Gate(gate) => gate.pass().await,
                    Action::Hang => pending().await,
                    Action::Panic(words) => std::panic::panic_any(words),
                    Action::Decide(tool_use) => {
                        let decision = context.decide(tool_use).await;
                        lock(&provider.0.decisions).push(decision);
                    }
                }
            };
            Some((item, (actions, provider, context)))
        })))
    }
}

impl fmt::Debug for ScriptedProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedProvider").field("steps_left", &self.steps_left()).finish_non_exhaustive()
    }
}

/// One answer of a [`ScriptedProvider`].
///
/// Built from left to right; [`stop`](Step::stop) ends it. An answer that is built without an end breaks off
/// there, as a connection does that is cut.
#[derive(Default)]
pub struct Step {
    actions: Vec<Action>,
    blocks: usize,
    uses_tools: bool,
    refuse: Option<ProviderError>,
    make: Option<Box<dyn FnOnce(&Request) -> Step + Send>>,
}

enum Action {
    Delta(Delta),
    Fail(ProviderError),
    Wait(Duration),
    Gate(Gate),
    Hang,
    Panic(String),
    Decide(ToolUse),
}

impl Step {
    /// An answer that brings nothing and does not end; build on it.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole answer of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new().then_text([text.into()]).stop()
    }

    /// A whole answer of one tool use.
    pub fn tool_use(id: &str, name: &str, input: Value) -> Self {
        Self::new().then_tool_use(id, name, input).stop()
    }

    /// A request that is refused before it streams.
    pub fn error(error: ProviderError) -> Self {
        Self { refuse: Some(error), ..Self::default() }
    }

    /// An answer that depends on the request.
    pub fn from_fn(make: impl FnOnce(&Request) -> Step + Send + 'static) -> Self {
        Self { make: Some(Box::new(make)), ..Self::default() }
    }

    fn block(mut self, block: BlockStart, parts: impl IntoIterator<Item = Part>) -> Self {
        let index = self.blocks;
        self.blocks += 1;
        self = self.delta(Delta::Start { index, block });
        for part in parts {
            self = self.delta(Delta::Extend { index, part });
        }
        self
    }

    /// Goes on with any delta.
    pub fn delta(mut self, delta: Delta) -> Self {
        self.actions.push(Action::Delta(delta));
        self
    }

    /// Goes on with a text block, a delta a piece.
    pub fn then_text<T: Into<String>>(self, pieces: impl IntoIterator<Item = T>) -> Self {
        let parts = pieces.into_iter().map(|piece| Part::Text(piece.into()));
        self.block(BlockStart::Text, parts)
    }

    /// Goes on with more of the last block.
    pub fn more(self, part: Part) -> Self {
        let index = self.blocks.saturating_sub(1);
        self.delta(Delta::Extend { index, part })
    }

    /// Goes on with a thinking block, signed if `signature` is not empty.
    pub fn then_thinking(self, text: &str, signature: &str) -> Self {
        let mut parts = vec![Part::Text(text.to_owned())];
        if !signature.is_empty() {
            parts.push(Part::Signature(signature.to_owned()));
        }
        let step = self.block(BlockStart::Thinking, parts);
        let index = step.blocks - 1;
        step.delta(Delta::End { index })
    }

    /// Goes on with a tool use.
    pub fn then_tool_use(self, id: &str, name: &str, input: Value) -> Self {
        self.then_raw_tool_use(id, name, &[&input.to_string()])
    }

    /// Goes on with a tool use whose input is any text, a delta a piece.
    pub fn then_raw_tool_use(mut self, id: &str, name: &str, pieces: &[&str]) -> Self {
        self.uses_tools = true;
        let start = BlockStart::ToolUse { id: id.into(), name: name.to_owned() };
        self.block(start, pieces.iter().map(|piece| Part::Input((*piece).to_owned())))
    }

    /// Goes on with the usage of the request so far.
    pub fn usage(self, usage: Usage) -> Self {
        self.delta(Delta::Message(Box::new(MessageDelta { usage: Some(usage), ..MessageDelta::default() })))
    }

    /// Waits.
    pub fn wait(mut self, delay: Duration) -> Self {
        self.actions.push(Action::Wait(delay));
        self
    }

    /// Waits until the gate is opened.
    pub fn gate(mut self, gate: &Gate) -> Self {
        self.actions.push(Action::Gate(gate.clone()));
        self
    }

    /// Asks the agent for a decision on a tool that the service runs itself; see
    /// [`ScriptedProvider::decisions`].
    pub fn decide(mut self, tool_use: ToolUse) -> Self {
        self.actions.push(Action::Decide(tool_use));
        self
    }

    /// Ends the answer in the ordinary way: with [`StopReason::ToolUse`] if it uses tools, else with
    /// [`StopReason::Stop`].
    pub fn stop(self) -> Self {
        let reason = if self.uses_tools { StopReason::ToolUse } else { StopReason::Stop };
        self.stop_with(reason)
    }

    /// Ends the answer for this reason.
    pub fn stop_with(self, reason: StopReason) -> Self {
        self.delta(Delta::stop(reason))
    }

    /// Breaks off with an error.
    pub fn fail(mut self, error: ProviderError) -> Self {
        self.actions.push(Action::Fail(error));
        self
    }

    /// Stays silent for ever.
    pub fn hang(mut self) -> Self {
        self.actions.push(Action::Hang);
        self
    }

    /// Panics.
    pub fn panic(mut self, words: &str) -> Self {
        self.actions.push(Action::Panic(words.to_owned()));
        self
    }

    /// Breaks off after so many deltas, waits and other actions, without an end: a connection that was cut.
    pub fn cut_after(mut self, actions: usize) -> Self {
        self.actions.truncate(actions);
        self
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("actions", &self.actions.len()).finish_non_exhaustive()
    }
}

/// Holds a script, a tool or a callback up until a test lets it go on.
#[derive(Clone, Debug)]
pub struct Gate(Arc<(Semaphore, Semaphore)>);

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }

    /// Lets one through, now or when it comes.
    pub fn open(&self) {
        self.0.0.add_permits(1);
    }

    /// Waits until somebody stands at the gate, or stood there.
    pub async fn reached(&self) {
        take(&self.0.1).await;
    }

    /// Stands at the gate until it is opened.
    pub async fn pass(&self) {
        self.0.1.add_permits(1);
        take(&self.0.0).await;
    }
}

async fn take(semaphore: &Semaphore) {
    let permit = semaphore.acquire().await.expect("a gate's semaphores are never closed");
    permit.forget();
}
