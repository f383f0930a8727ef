//! The loop of a chat: events of the session, entries of the person, and their effects.

use std::{
    collections::{HashSet, VecDeque},
    pin::Pin,
    sync::Arc,
};

use futures_util::StreamExt;
use serde_json::{Map, Value};

use super::{
    Chat, Entry,
    editor::Entries,
    printer::{Printer, first_words, total_line},
    question::{self, Question},
};
use crate::{
    agent::{Event, Status},
    error_chain,
    message::{Content, Message, Role, ToolUseId},
    provider::{PartialBlock, StopReason},
    run::{Accepted, Decided, Error, ErrorKind, PendingUse, Prompt, PromptState},
    session::{Mode, Session, SessionEvent, SessionSnapshot, StoreReport},
    subscription::Update,
    tool::Decision,
};

/// A compaction that the person has asked for.
type Compacting = Pin<Box<dyn Future<Output = Result<Arc<Message>, Error>> + Send>>;

/// A chat in progress.
pub(super) struct Talk {
    pub(super) chat: Chat,
    pub(super) printer: Printer,
    /// The last prompt that was cancelled or failed before it had a response.
    pub(super) unanswered: Option<String>,
    pub(super) compacting: Option<Compacting>,
    /// The number of runs that have started and have not ended yet.
    pub(super) runs: u32,
    /// The failure of the last run.
    pub(super) failed: Option<Error>,
    /// The tool uses that wait for decisions, and the questions of running tools. The person is asked about the first of
    /// them.
    waiting: VecDeque<Arc<PendingUse>>,
    /// The ids of the questions that running tools have asked in this run.
    questions: HashSet<ToolUseId>,
    /// The ids of the tool uses that the person has decided on in this run.
    decided: HashSet<ToolUseId>,
    /// The question of a running tool that the person is answering.
    question: Option<Question>,
}

impl Talk {
    pub(super) fn new(chat: Chat, printer: Printer) -> Self {
        let (unanswered, compacting, failed, question) = (None, None, None, None);
        let (waiting, questions, decided) = (VecDeque::new(), HashSet::new(), HashSet::new());
        Self { chat, printer, unanswered, compacting, runs: 0, failed, waiting, questions, decided, question }
    }

    pub(super) async fn follow(&mut self, mut input: Entries, mut signals: Entries) -> Result<(), Error> {
        let session = self.chat.session.clone();
        let mut events = session.subscribe(Mode::Controller).await?;
        if let Some(snapshot) = events.snapshot().cloned() {
            self.greet(&snapshot);
        }
        if !self.chat.is_piped {
            self.printer.note("/help tells what you can type here.");
        }
        if let Some(first) = self.chat.first.take()
            && let Err(error) = self.say(first).await
        {
            self.printer.line(&error_chain(&error));
        }
        let (mut has_input, mut is_warned) = (true, false);
        self.ask().await?;
        // After the end of the input, the loop still waits for the end of the run.
        while (has_input || self.is_busy()) && !self.printer.is_closed() {
            let listens = has_input && (!self.chat.is_piped || !self.is_busy() || !self.waiting.is_empty());
            let entry = tokio::select! {
                biased;
                Some(interrupt) = signals.next() => Some(interrupt),
                ended = compacted(&mut self.compacting) => {
                    self.compacting = None;
                    // Events show the other failures.
                    let is_shown = |error: &Error| matches!(error.kind(), ErrorKind::Failed | ErrorKind::Cancelled);
                    if let Err(error) = ended && !is_shown(&error) {
                        self.printer.line(&error_chain(&error));
                    }
                    self.ask().await?;
                    continue;
                }
                update = events.next() => {
                    match update {
                        Some(Update::Event(numbered)) => match &*numbered.event {
                            SessionEvent::Agent(event) => self.event(event).await?,
                            SessionEvent::Store(report) => self.report(report).await?,
                            _ => {}
                        },
                        // The output was too slow. Only the output of the missed events is lost.
                        Some(Update::Resync(snapshot)) => {
                            self.printer.end_text();
                            self.printer.note("[some output was skipped]");
                            self.take(&snapshot);
                            self.ask().await?;
                        }
                        Some(Update::Closed(end)) => return Err(Error::ended("session", &end.reason)),
                        None => return Ok(()),
                    }
                    self.reject_unattended(has_input).await?;
                    continue;
                }
                entry = input.next(), if listens => entry,
            };
            match entry {
                Some(Entry::Interrupt) if self.is_busy() => match session.interrupt().await {
                    // If the run has just ended, the interrupt has no effect.
                    Err(error) if error.kind() != ErrorKind::Idle => return Err(error),
                    _ => {}
                },
                Some(Entry::Interrupt) if is_warned => break,
                Some(Entry::Interrupt) => {
                    is_warned = true;
                    self.printer.note("[press Ctrl-C again to end the chat]");
                    self.ask().await?;
                }
                Some(Entry::Line(line)) => {
                    is_warned = false;
                    let line = line.trim();
                    self.printer.entered();
                    if self.chat.is_piped {
                        self.printer.line(line);
                    }
                    if line == "/quit" {
                        break;
                    }
                    self.line(line).await?;
                }
                None => {
                    has_input = false;
                    self.reject_unattended(has_input).await?;
                }
            }
        }
        self.printer.end_text();
        Ok(())
    }

    fn is_busy(&self) -> bool {
        self.runs > 0 || self.compacting.is_some()
    }

    /// Rejects what waits for a decision if nobody can decide.
    async fn reject_unattended(&mut self, has_input: bool) -> Result<(), Error> {
        while !has_input && let Some(pause) = self.waiting.pop_front() {
            self.resume(&pause, Decision::reject("no user is present to allow it")).await?;
        }
        Ok(())
    }

    /// Shows the state of a conversation that has begun before the chat.
    fn greet(&mut self, snapshot: &SessionSnapshot) {
        let title = snapshot.title.as_deref().unwrap_or("untitled");
        if !snapshot.tree.is_empty() {
            let (count, model) = (snapshot.tree.len(), &snapshot.agent.state.model);
            self.printer.note(&format!("[{title}: {count} messages, with {model}]"));
            if let Some(total) = total_line(&snapshot.used) {
                self.printer.note(&total);
            }
            self.show_end(&snapshot.tree);
        }
        self.take(snapshot);
        if let (Some(end), false) = (&snapshot.agent.last_run, self.is_busy()) {
            self.keep(&end.unanswered);
            for prompt in &end.staged {
                self.printer.note(&format!("[not sent: {}]", text_of(prompt)));
            }
        }
    }

    /// Takes over the state of the run, and shows the part of its answer that has arrived.
    fn take(&mut self, snapshot: &SessionSnapshot) {
        let agent = &snapshot.agent;
        self.runs = u32::from(agent.status != Status::Idle);
        for block in &agent.partial {
            if let PartialBlock { content: Content::Text(text), .. } = block {
                self.printer.text(&text.text);
            }
        }
        self.set_waiting(&agent.pauses);
    }

    /// Shows the outcome of a write if the write failed.
    async fn report(&mut self, report: &StoreReport) -> Result<(), Error> {
        let Some(error) = report.error() else { return Ok(()) };
        self.printer.line(&match report {
            StoreReport::Failed { retry_in, .. } => {
                format!("! not saved: {error}; tried again in {retry_in:?}")
            }
            _ => format!("error: {error}"),
        });
        self.ask().await
    }

    async fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.printer.event(event);
        match event {
            Event::Status { status, pauses } => {
                // Another client may have started the run.
                if *status != Status::Idle {
                    self.runs = self.runs.max(1);
                }
                if self.set_waiting(pauses) { self.ask().await } else { Ok(()) }
            }
            Event::Prompt { state: PromptState::Returned, prompt: Some(prompt), .. } => {
                self.printer.note(&format!("[not sent: {}]", text_of(prompt)));
                Ok(())
            }
            Event::Prompt { prompt: Some(prompt), .. } => {
                let text = first_words(&text_of(prompt), 40);
                self.printer.note(&format!("[queued: {text}; /queue shows all, /unqueue takes it back]"));
                Ok(())
            }
            Event::Decided(decided) => {
                let is_question = self.questions.remove(&decided.tool_use_id);
                self.printer.note(&decision_line(decided, is_question));
                self.ask().await
            }
            Event::Turn { response, continues: false } => {
                self.failed = None;
                match response.stop_reason {
                    StopReason::Interrupted => {
                        self.printer.note("[interrupted; the response so far is kept]");
                    }
                    StopReason::MaxSteps => {
                        self.printer.note("[stopped at the limit of requests; say \"continue\"]");
                    }
                    _ => {}
                }
                self.end_run().await
            }
            Event::Error { failure, response, committed } => {
                self.printer.line(&format!("error: {}", error_chain(failure)));
                self.failed = Some(Error::failed(failure.clone(), Arc::clone(response)));
                if *committed {
                    self.printer.note("[the work so far is kept; say \"continue\"]");
                } else {
                    self.keep(&response.messages);
                }
                self.end_run().await
            }
            Event::Cancelled { response } => {
                self.keep(&response.messages);
                self.end_run().await
            }
            _ => Ok(()),
        }
    }

    async fn end_run(&mut self) -> Result<(), Error> {
        if let Some(text) = self.chat.after_run.as_mut().map(|text| text()).filter(|text| !text.is_empty()) {
            self.printer.note(text.trim_end());
        }
        self.runs = self.runs.saturating_sub(1);
        self.waiting.clear();
        self.question = None;
        self.questions.clear();
        self.decided.clear();
        self.ask().await
    }

    /// Keeps the prompt of a run that ended without a response, which is the first message of the run.
    fn keep(&mut self, messages: &[Arc<Message>]) {
        let prompt = messages.first().filter(|message| message.role == Role::User);
        self.unanswered = prompt.map(|message| message.text()).filter(|text| !text.is_empty());
        if let Some(prompt) = &self.unanswered {
            let prompt = first_words(prompt, 40);
            self.printer.note(&format!("[no response to \"{prompt}\"; /again sends it again]"));
        }
    }

    pub(super) async fn say(&mut self, prompt: impl Into<Prompt>) -> Result<(), Error> {
        match self.chat.session.prompt(prompt).await? {
            // A staged prompt is shown when its event `Prompt` arrives. A known prompt starts no run.
            Accepted::Staged { .. } | Accepted::Known { .. } => {}
            Accepted::Started { .. } => self.runs += 1,
        }
        Ok(())
    }

    /// Handles a line. A rejected prompt or command is reported, and the chat continues.
    async fn line(&mut self, line: &str) -> Result<(), Error> {
        let waiting = self.waiting.len();
        let is_question = self.waiting.front().is_some_and(|pause| pause.is_question());
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        // In a form, `/no` is an answer.
        let is_command = word.starts_with('/') && !(is_question && word == "/no");
        let done = match line {
            _ if is_command => self.command(word, rest.trim()).await,
            _ if !self.waiting.is_empty() => self.decide(line).await.map_err(Into::into),
            "" => Ok(()),
            _ => self.say(line).await.map_err(Into::into),
        };
        if let Err(error) = done {
            self.printer.line(&error_chain(&*error));
        }
        // The event of a decision asks about the next tool use.
        if self.waiting.len() == waiting { self.ask().await } else { Ok(()) }
    }

    /// Takes the list of everything that waits for a decision, and shows what is new. Returns whether it has changed.
    fn set_waiting(&mut self, pauses: &[Arc<PendingUse>]) -> bool {
        // The events of decisions list the other tool uses again, also some that were decided since.
        let is_open = |pause: &&Arc<PendingUse>| !self.decided.contains(&pause.tool_use.id);
        let pauses: VecDeque<_> = pauses.iter().filter(is_open).cloned().collect();
        let has_changed = pauses != self.waiting;
        for pause in pauses.iter().filter(|pause| !self.waiting.contains(pause)) {
            let PendingUse { tool_use, reason, .. } = &**pause;
            let shown = if pause.is_question() {
                self.questions.insert(tool_use.id.clone());
                question::shown(pause)
            } else {
                let of = pause.sub_agent.as_ref().map_or_else(String::new, |own| format!("{}: ", own.name));
                format!("{of}{} {} waits: {reason}", tool_use.name, tool_use.input)
            };
            self.printer.line(&shown);
        }
        if self.waiting.front() != pauses.front() {
            self.question = None;
        }
        self.waiting = pauses;
        has_changed
    }

    /// Reads a line as the decision on the first tool use that waits.
    async fn decide(&mut self, line: &str) -> Result<(), Error> {
        let (answer, rest) = line.split_once(' ').unwrap_or((line, ""));
        let Some(first) = self.waiting.front().cloned() else { return Ok(()) };
        let decision = match answer {
            _ if first.is_question() => {
                let question = self.question.get_or_insert_with(|| Question::of(&first));
                let Some(decision) = question.answer(line) else { return Ok(()) };
                decision
            }
            "y" | "yes" => Decision::Execute,
            "n" | "no" if rest.is_empty() => Decision::reject("The user said no."),
            "n" | "no" => Decision::reject(format!("The user said no: {rest}")),
            "e" | "edit" if !rest.is_empty() => {
                match (serde_json::from_str(rest), text_field(&self.chat.session, &first).await?) {
                    (Ok(Value::Object(input)), _) => Decision::ExecuteWith(input.into()),
                    (_, Some(field)) => Decision::ExecuteWith(Map::from_iter([(field, rest.into())]).into()),
                    (Ok(_) | Err(_), None) => {
                        self.printer.note("[the input must be a JSON object]");
                        return Ok(());
                    }
                }
            }
            // The line is not a valid answer, so the question is asked again.
            _ => return Ok(()),
        };
        self.question = None;
        self.waiting.pop_front();
        self.resume(&first, decision).await
    }

    /// Sends a decision. The id makes sure that a late decision never applies to another tool use. Somebody else may have
    /// decided before.
    async fn resume(&mut self, pause: &Arc<PendingUse>, decision: Decision) -> Result<(), Error> {
        let id = pause.tool_use.id.clone();
        self.decided.insert(id.clone());
        match self.chat.session.resume_as(id, decision, Arc::clone(&self.chat.user)).await {
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

    /// Shows the prompt for the next line, if one is expected.
    pub(super) async fn ask(&mut self) -> Result<(), Error> {
        let question = match self.waiting.front().cloned() {
            Some(pause) if pause.is_question() => {
                Some(self.question.get_or_insert_with(|| Question::of(&pause)).prompt())
            }
            Some(pause) => {
                let tool_use = &pause.tool_use;
                let which = match self.waiting.len() {
                    1 => String::new(),
                    count => format!("1 of {count}: {} {}: ", tool_use.name, tool_use.input),
                };
                let input = text_field(&self.chat.session, &pause)
                    .await?
                    .map_or("JSON".to_owned(), |name| name.to_uppercase());
                Some(format!("{which}yes, no [REASON], or edit {input}? "))
            }
            None if self.is_busy() => return Ok(()),
            None => None,
        };
        self.printer.ask(question.as_deref());
        Ok(())
    }
}

/// Returns the name of the only member of the tool's input if it is a text, which can be typed without JSON.
async fn text_field(session: &Session, pause: &PendingUse) -> Result<Option<String>, Error> {
    let state = session.state().await?;
    let tool = state.config().tools.iter().find(|tool| tool.name() == pause.tool_use.name);
    let schema = tool.filter(|_| pause.sub_agent.is_none()).map(|tool| tool.schema().as_value());
    let Some(members) = schema.and_then(|schema| schema["properties"].as_object()) else {
        return Ok(None);
    };
    let mut members = members.iter();
    let field =
        members.next().filter(|(_, schema)| schema["type"] == "string" && schema.get("enum").is_none());
    Ok(field.filter(|_| members.next().is_none()).map(|(name, _)| name.clone()))
}

/// Waits for the end of a compaction, or for ever if none runs.
async fn compacted(compacting: &mut Option<Compacting>) -> Result<Arc<Message>, Error> {
    match compacting {
        Some(compacting) => compacting.await,
        None => std::future::pending().await,
    }
}

pub(super) fn text_of(prompt: &Prompt) -> String {
    prompt.content.0.iter().filter_map(|block| block.as_text()).collect()
}

/// Returns a line on a decision and its maker. `is_question` states whether it is the answer to a question of a
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
