//! A chat in the terminal: streaming, a tool that asks for approval, branches, and storage on request.
//!
//! ```sh
//! cargo run --example chat
//! cargo run --example chat -- --session mountains     # run it again to continue the conversation
//! cargo run --example chat -- --trace                 # shows the spans of each run
//! cargo run --example chat -- --model anthropic:claude-sonnet-5
//! cargo run --example chat -- --model local:some-model --base-url http://localhost:8000
//! cargo run --example chat --features mcp -- --mcp "npx -y @modelcontextprotocol/server-filesystem ." --mcp uvx-server
//! echo 'What can you do?' | cargo run --example chat
//! ```
//!
//! This example shows how an application follows a session. One loop reads the session's events, the lines that the
//! user types, and Ctrl-C. A line that is typed while the agent works is staged for the next turn. `/now` adds a line
//! to the turn in flight instead. Ctrl-C interrupts the agent and keeps the response so far.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "chat/commands.rs"]
mod commands;
#[path = "chat/conversation.rs"]
mod conversation;
#[path = "chat/question.rs"]
mod question;
#[path = "support/support.rs"]
mod support;
#[path = "chat/tool.rs"]
mod tool;
#[path = "chat/trace.rs"]
mod trace;

use std::{
    collections::{HashSet, VecDeque},
    error::Error,
    process::ExitCode,
    sync::Arc,
};

use conversation::Conversation;
use omni_agent::{
    ErrorKind,
    agent::{Event, Status},
    message::{Message, Role, ToolUseId},
    provider::StopReason,
    run::{Accepted, Decided, PendingUse, Prompt, PromptState},
    session::{Mode, SessionEvent, StoreReport},
    subscription::Update,
    tool::Decision,
};
use question::Question;
use serde_json::{Value, json};
use support::{Interrupts, Lines, Printer, explain, first_words};
use tool::COMMAND_TOOL;
use trace::{TRACE, Trace};

const ABOUT: &str = "A chat in the terminal: streaming, a tool that asks for approval, and branches.";

#[tokio::main]
async fn main() -> ExitCode {
    match chat().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn chat() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model_with(ABOUT, conversation::FLAGS).await?;
    let trace = picked.value(&TRACE).map(|_| Trace::start());
    let mut printer = Printer::default();
    let words = picked.words.join(" ");
    let conversation = conversation::open(picked, &mut printer).await?;
    let mut chat = Chat {
        conversation,
        printer,
        trace,
        user: std::env::var("USER").unwrap_or_else(|_| "user".to_owned()),
        runs: 0,
        waiting: VecDeque::new(),
        questions: HashSet::new(),
        decided: HashSet::new(),
        question: None,
        unanswered: None,
        failed: None,
    };
    // A stored conversation may have ended with a prompt that got no response.
    if let Some(run) = &chat.conversation.session.snapshot().await?.agent.last_run {
        chat.keep(&run.unanswered);
        for prompt in &run.staged {
            chat.printer.note(&format!("[not sent: {}]", text_of(prompt)));
        }
    }
    let followed = chat.follow(&words).await;
    // The conversation is saved even if the chat has ended with an error.
    conversation::close(chat.conversation, &mut chat.printer).await?;
    // The session holds the span of a run until it is saved, which may be later than the event of its last turn.
    if let Some(trace) = &chat.trace {
        trace.show(&mut chat.printer);
    }
    followed?;
    chat.failed.map_or(Ok(()), Err)
}

struct Chat {
    conversation: Conversation,
    printer: Printer,
    trace: Option<Trace>,
    /// The name under which this terminal decides about tool uses.
    user: String,
    /// The number of runs that have started and have not ended yet.
    runs: u32,
    /// The tool uses that wait for decisions, and the questions of running tools. The user is asked about the first of
    /// them.
    waiting: VecDeque<Arc<PendingUse>>,
    /// The ids of the questions that running tools have asked in this run.
    questions: HashSet<ToolUseId>,
    /// The ids of the tool uses that the user has decided on in this run.
    decided: HashSet<ToolUseId>,
    /// The question of a running tool that the user is answering.
    question: Option<Question>,
    /// The last prompt that was cancelled or failed before it had a response.
    unanswered: Option<String>,
    /// The last run's failure, which decides the exit code of non-interactive use.
    failed: Option<Box<dyn Error>>,
}

impl Chat {
    async fn follow(&mut self, words: &str) -> Result<(), omni_agent::Error> {
        let session = self.conversation.session.clone();
        let mut lines = Lines::new();
        let mut interrupts = Interrupts::new();
        let mut events = session.subscribe(Mode::Controller).await?;
        if lines.interactive {
            self.printer.note("/help tells what you can type here.");
        }
        if !words.is_empty() {
            self.say(words).await?;
        }
        let (mut ended, mut warned) = (false, false);
        self.show_prompt();
        // When the input has ended, the loop still waits for the end of the current run.
        while !ended || self.runs > 0 {
            // Piped lines wait until the previous response is complete.
            let listens = !ended && (lines.interactive || self.runs == 0 || !self.waiting.is_empty());
            tokio::select! {
                biased;
                () = interrupts.next() => {
                    if self.runs == 0 {
                        if warned || !self.conversation.is_lost_at_the_end().await? {
                            break;
                        }
                        warned = true;
                        self.printer.line("");
                        self.printer.note("[this conversation is not stored; press Ctrl-C again to end it]");
                        self.show_prompt();
                        continue;
                    }
                    // If the run has just ended, the interrupt has no effect.
                    match session.interrupt().await {
                        Err(error) if error.kind() != ErrorKind::Idle => return Err(error),
                        _ => {}
                    }
                }
                update = events.next() => match update {
                    Some(Update::Event(numbered)) => match &*numbered.event {
                        SessionEvent::Agent(event) => self.event(event),
                        SessionEvent::Store(report) => self.report(report),
                        _ => {}
                    },
                    // This terminal was too slow. Only the output of the missed events is lost.
                    Some(Update::Resync(snapshot)) => {
                        self.runs = u32::from(snapshot.agent.status != Status::Idle);
                        let is_open = |pause: &&Arc<PendingUse>| !self.decided.contains(&pause.tool_use.id);
                        self.waiting = snapshot.agent.pauses.iter().filter(is_open).cloned().collect();
                        let questions = self.waiting.iter().filter(|pause| pause.is_question());
                        self.questions = questions.map(|pause| pause.tool_use.id.clone()).collect();
                        self.question = None;
                        self.printer.note("[some output was skipped]");
                        self.show_prompt();
                    }
                    _ => break,
                },
                line = lines.next(), if listens => match line {
                    Some(line) if line.trim() == "/quit" => break,
                    Some(line) => {
                        warned = false;
                        if !lines.interactive {
                            self.printer.line(&line);
                        }
                        self.line(line.trim()).await;
                    }
                    None => ended = true,
                },
            }
            while ended && let Some(pause) = self.waiting.pop_front() {
                let decision = Decision::reject("no user is present to allow it");
                self.resume(&pause, decision).await?;
            }
        }
        self.printer.line("");
        if lines.interactive {
            self.failed = None;
        }
        Ok(())
    }

    /// Shows the outcome of a write if the write failed.
    fn report(&mut self, report: &StoreReport) {
        let Some(error) = report.error() else { return };
        // The report can arrive while the prompt is shown, so the prompt is shown again.
        self.printer.line("");
        match report {
            StoreReport::Failed { retry_in, .. } => {
                self.printer.note(&format!("! not saved: {error}; tried again in {retry_in:?}"));
            }
            _ => self.printer.line(&format!("error: {error}")),
        }
        self.show_prompt();
    }

    fn event(&mut self, event: &Event) {
        self.printer.event(event);
        match event {
            Event::Status { pauses, .. } => {
                // The events of decisions list the other tool uses again, also some that were decided since.
                let is_open = |pause: &&Arc<PendingUse>| !self.decided.contains(&pause.tool_use.id);
                let pauses: VecDeque<_> = pauses.iter().filter(is_open).cloned().collect();
                if pauses == self.waiting {
                    return;
                }
                for pause in pauses.iter().filter(|pause| !self.waiting.contains(pause)) {
                    let PendingUse { tool_use, reason, .. } = &**pause;
                    // The question is shown as JSON, so that control characters from the model cannot hide the question.
                    let shown = if pause.is_question() {
                        self.questions.insert(tool_use.id.clone());
                        question::shown(pause)
                    } else {
                        let of = pause
                            .sub_agent
                            .as_ref()
                            .map_or_else(String::new, |own| format!("{}: ", own.name));
                        format!("{of}{} {} waits: {reason}", tool_use.name, tool_use.input)
                    };
                    self.printer.line(&shown);
                }
                if self.waiting.front() != pauses.front() {
                    self.question = None;
                }
                self.waiting = pauses;
                return self.show_prompt();
            }
            Event::Prompt { state: PromptState::Returned, prompt: Some(prompt), .. } => {
                return self.printer.note(&format!("[not sent: {}]", text_of(prompt)));
            }
            Event::Prompt { prompt: Some(prompt), .. } => {
                let text = first_words(&text_of(prompt), 40);
                return self
                    .printer
                    .note(&format!("[queued: {text}; /queue shows all, /unqueue takes it back]"));
            }
            Event::Decided(decided) => {
                let is_question = self.questions.remove(&decided.tool_use_id);
                self.printer.note(&decision_line(decided, is_question));
                return self.show_prompt();
            }
            Event::Turn { response, continues: false } => {
                self.failed = None;
                match response.stop_reason {
                    StopReason::Interrupted => {
                        self.printer.note("[interrupted; the response so far is kept]");
                    }
                    StopReason::MaxSteps => {
                        self.printer.note("[stopped after 20 requests; say \"continue\"]");
                    }
                    _ => {}
                }
            }
            Event::Error { failure, response, committed } => {
                self.printer.line(&format!("error: {}", explain(failure)));
                self.failed = Some("a request failed".into());
                if *committed {
                    self.printer.note("[the work so far is kept; say \"continue\"]");
                } else {
                    self.keep(&response.messages);
                }
            }
            Event::Cancelled { response } => self.keep(&response.messages),
            _ => return,
        }
        if let Some(trace) = &self.trace {
            trace.show(&mut self.printer);
        }
        self.runs = self.runs.saturating_sub(1);
        self.waiting.clear();
        self.question = None;
        self.questions.clear();
        self.decided.clear();
        self.show_prompt();
    }

    /// Keeps the prompt of a run that ended without a response, which is the first message of the run.
    fn keep(&mut self, messages: &[Arc<Message>]) {
        let question = messages.first().filter(|message| message.role == Role::User);
        self.unanswered = question.map(|message| message.text()).filter(|text| !text.is_empty());
        if let Some(question) = &self.unanswered {
            let question = first_words(question, 40);
            self.printer.note(&format!("[no response to \"{question}\"; /again sends it again]"));
        }
    }

    async fn say(&mut self, prompt: impl Into<Prompt>) -> Result<(), omni_agent::Error> {
        match self.conversation.session.prompt(prompt).await? {
            // A staged prompt is shown when its event `Prompt` arrives. A known prompt starts no run.
            Accepted::Staged { .. } | Accepted::Known { .. } => {}
            _ => self.runs += 1,
        }
        Ok(())
    }

    /// Reads a line as the decision on the first tool use that waits.
    async fn decide(&mut self, line: &str) -> Result<(), omni_agent::Error> {
        let (answer, rest) = line.split_once(' ').unwrap_or((line, ""));
        let Some(first) = self.waiting.front() else { return Ok(()) };
        let is_question = first.is_question();
        let decision = match answer {
            _ if is_question => {
                let question = self.question.get_or_insert_with(|| Question::of(first));
                let Some(decision) = question.answer(line) else { return Ok(()) };
                decision
            }
            "y" | "yes" => Decision::Execute,
            "n" | "no" if rest.is_empty() => Decision::reject("The user said no."),
            "n" | "no" => Decision::reject(format!("The user said no: {rest}")),
            "e" | "edit" if !rest.is_empty() => match self.edited(rest) {
                Ok(input) => Decision::ExecuteWith(input),
                Err(error) => {
                    self.printer.note(&format!("[the input must be a JSON object: {error}]"));
                    return Ok(());
                }
            },
            // The line is not a valid answer, so the question is asked again.
            _ => return Ok(()),
        };
        self.question = None;
        let Some(pause) = self.waiting.pop_front() else { return Ok(()) };
        self.resume(&pause, decision).await
    }

    /// Sends a decision. The id makes sure that a late decision never applies to another tool use. Somebody else may have
    /// decided before.
    async fn resume(&mut self, pause: &Arc<PendingUse>, decision: Decision) -> Result<(), omni_agent::Error> {
        let id = pause.tool_use.id.clone();
        self.decided.insert(id.clone());
        match self.conversation.session.resume_as(id, decision, &*self.user).await {
            Err(error) if matches!(error.kind(), ErrorKind::NotPaused | ErrorKind::StaleDecision) => Ok(()),
            Err(error) => {
                // The tool use still waits, for example because the decision was nested too deeply.
                self.decided.remove(&pause.tool_use.id);
                self.waiting.push_front(Arc::clone(pause));
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Returns the input that the user typed to replace that of the first waiting tool use. For the chat's own tool,
    /// the text may be a command. For other tools, it must be a JSON object.
    fn edited(&self, text: &str) -> Result<Value, serde_json::Error> {
        match serde_json::from_str::<serde_json::Map<String, Value>>(text) {
            Ok(input) => Ok(input.into()),
            Err(_) if self.waiting.front().is_some_and(|pause| pause.tool_use.name == COMMAND_TOOL) => {
                Ok(json!({ "command": text }))
            }
            Err(error) => Err(error),
        }
    }

    fn show_prompt(&mut self) {
        if let Some(pause) = self.waiting.front().filter(|pause| pause.is_question()) {
            let question = self.question.get_or_insert_with(|| Question::of(pause));
            self.printer.prompt(&question.prompt());
        } else if let Some(tool_use) = self.waiting.front().map(|pause| &pause.tool_use) {
            let question = match self.waiting.len() {
                1 => String::new(),
                count => format!("1 of {count}: {} {}: ", tool_use.name, tool_use.input),
            };
            let input = if tool_use.name == COMMAND_TOOL { "COMMAND" } else { "JSON" };
            self.printer.prompt(&format!("{question}yes, no [REASON], or edit {input}? "));
        } else if self.runs == 0 {
            self.printer.prompt("> ");
        }
    }
}

fn text_of(prompt: &Prompt) -> String {
    prompt.content.0.iter().filter_map(|block| block.as_text()).collect()
}

/// Returns a line that states who made which decision. `is_question` states whether it is the answer to a question of a
/// running tool.
fn decision_line(decided: &Decided, is_question: bool) -> String {
    let what = match &decided.decision {
        Decision::Execute | Decision::ExecuteWith(_) if is_question => "answered",
        Decision::Reject(_) if is_question => "declined",
        Decision::Execute => "allowed",
        Decision::ExecuteWith(_) => "allowed with another input",
        Decision::Reject(_) => "rejected",
        _ => "answered",
    };
    match &decided.by {
        Some(by) => format!("[{what} by {by}]"),
        None if decided.expired => format!("[{what}, because nobody decided in time]"),
        None => format!("[{what}]"),
    }
}
