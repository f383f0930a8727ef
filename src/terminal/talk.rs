//! The loop of a chat: events of the session, entries of the person, and their effects.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use futures_util::{StreamExt, future::BoxFuture};

use super::{
    Chat, Entry,
    commands::CommandResult,
    editor::Entries,
    printer::{EventPrinter, first_words, total_line},
    question::{self, Question},
};
use crate::{
    agent::{Event, Snapshot, Status},
    error_chain,
    message::{Content, Message, ToolUseId, TurnId},
    provider::{PartialBlock, StopReason},
    run::{
        Accepted, Decided, Error, ErrorKind, Failure, PendingUse, Prompt, PromptState, Response, RunEnd,
        RunOutcome,
    },
    session::{Mode, SessionEvent, SessionSnapshot, StoreReport},
    subscription::Update,
    tool::Decision,
};

/// A chat in progress.
pub(super) struct ChatInProgress {
    pub(super) chat: Chat,
    pub(super) printer: EventPrinter,
    /// The last prompt that was cancelled or failed before it had a response.
    pub(super) unanswered: Option<Arc<Message>>,
    /// The compaction that the person has asked for.
    pub(super) compacting: Option<BoxFuture<'static, Result<Arc<Message>, Error>>>,
    /// The number of runs that have started and have not ended yet.
    pub(super) runs: u32,
    /// The failure of the last run.
    pub(super) failed: Option<Error>,
    /// The last turn of the last run whose end is known.
    ended: Option<TurnId>,
    /// The tool uses that wait for decisions, and the questions of running tools. The person is asked about the first of
    /// them.
    waiting: VecDeque<Arc<PendingUse>>,
    /// The ids of the questions that running tools have asked in this run.
    questions: HashSet<ToolUseId>,
    /// The ids of the tool uses that the person has decided on, until the events of the decisions arrive. `true` for those of
    /// sub-agents, whose decisions have no events here, until they wait no more.
    decided: HashMap<ToolUseId, bool>,
    /// The question about the first of `waiting`, if the person was asked.
    question: Option<Question>,
}

impl ChatInProgress {
    pub(super) fn new(chat: Chat, printer: EventPrinter) -> Self {
        let (unanswered, compacting, failed, question) = (None, None, None, None);
        let (waiting, questions, decided) = (VecDeque::new(), HashSet::new(), HashMap::new());
        Self {
            chat,
            printer,
            unanswered,
            compacting,
            runs: 0,
            failed,
            ended: None,
            waiting,
            questions,
            decided,
            question,
        }
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
        loop {
            self.ask().await?;
            // After the end of the input, the loop still waits for the end of the run.
            if (!has_input && !self.is_busy()) || self.printer.is_closed() {
                break;
            }
            let listens = has_input && (!self.chat.is_piped || !self.is_busy() || !self.waiting.is_empty());
            let entry = tokio::select! {
                biased;
                Some(interrupt) = signals.next() => Some(interrupt),
                ended = async { self.compacting.as_mut().expect("a compaction runs").await },
                    if self.compacting.is_some() =>
                {
                    self.compacting = None;
                    // Events show the other failures.
                    let is_shown = |error: &Error| matches!(error.kind(), ErrorKind::Failed | ErrorKind::Cancelled);
                    if let Err(error) = ended && !is_shown(&error) {
                        self.printer.line(&error_chain(&error));
                    }
                    continue;
                }
                update = events.next() => {
                    match update {
                        Some(Update::Event(numbered)) => match &*numbered.event {
                            SessionEvent::Agent(event) => self.event(event),
                            SessionEvent::Store(report) => self.report(report),
                            _ => {}
                        },
                        // The output was too slow. Only the output of the missed events is lost.
                        Some(Update::Resync(snapshot)) => {
                            self.printer.end_text();
                            self.printer.note("[some output was skipped]");
                            self.take(&snapshot);
                            self.take_missed_end(&snapshot.agent);
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
                    self.line(line).await;
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
        if let Some(end) = &snapshot.agent.last_run {
            self.ended = end.turn;
            if !self.is_busy() {
                self.keep_prompts(end);
            }
        }
    }

    /// Keeps the prompt of a run that ended without a response, and shows the prompts that the run did not use.
    fn keep_prompts(&mut self, end: &RunEnd) {
        self.keep(&end.unanswered);
        for prompt in &end.staged {
            self.printer.note(&format!("[not sent: {}]", text_of(prompt)));
        }
    }

    /// Handles the end of a run as its event would be handled, if the event was missed.
    fn take_missed_end(&mut self, agent: &Snapshot) {
        let Some(end) = agent.last_run.as_deref().filter(|_| agent.status == Status::Idle) else { return };
        if end.turn == self.ended {
            return;
        }
        self.ended = end.turn;
        self.failed = None;
        if let RunOutcome::Failed { failure } = &end.outcome {
            let model = &agent.state.model;
            let response = Response::empty(model, StopReason::Failed, agent.step, agent.run);
            self.fail(failure, &Arc::new(response));
        }
        self.keep_prompts(end);
        self.end_run();
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
        self.decided.clear();
        self.set_waiting(&agent.pauses);
    }

    /// Shows the outcome of a write if the write failed.
    fn report(&mut self, report: &StoreReport) {
        let Some(error) = report.error() else { return };
        self.printer.line(&match report {
            StoreReport::Failed { retry_in, .. } => {
                format!("! not saved: {error}; tried again in {retry_in:?}")
            }
            _ => format!("error: {error}"),
        });
    }

    fn event(&mut self, event: &Event) {
        self.printer.event(event);
        if let Some(end) = RunEnd::of(event) {
            self.ended = end.turn;
            self.failed = None;
        }
        match event {
            Event::Status { status, pauses } => {
                // Another client may have started the run.
                if *status != Status::Idle {
                    self.runs = self.runs.max(1);
                }
                self.set_waiting(pauses);
            }
            Event::Prompt { state: PromptState::Returned, prompt: Some(prompt), .. } => {
                self.printer.note(&format!("[not sent: {}]", text_of(prompt)));
            }
            Event::Prompt { prompt: Some(prompt), .. } => {
                let text = first_words(&text_of(prompt), 40);
                self.printer.note(&format!("[queued: {text}; /queue shows all, /unqueue takes it back]"));
            }
            Event::Decided(decided) => {
                let is_question = self.questions.remove(&decided.tool_use_id);
                self.printer.note(&decision_line(decided, is_question));
                self.decided.remove(&decided.tool_use_id);
            }
            Event::Turn { response, continues: false } => {
                match response.stop_reason {
                    StopReason::Interrupted => {
                        self.printer.note("[interrupted; the response so far is kept]");
                    }
                    StopReason::MaxSteps => {
                        self.printer.note("[stopped at the limit of requests; say \"continue\"]");
                    }
                    _ => {}
                }
                self.end_run();
            }
            Event::Error { failure, response, committed } => {
                self.fail(failure, response);
                if *committed {
                    self.printer.note("[the work so far is kept; say \"continue\"]");
                } else {
                    self.keep(&response.messages);
                }
                self.end_run();
            }
            Event::Cancelled { response } => {
                self.keep(&response.messages);
                self.end_run();
            }
            _ => {}
        }
    }

    fn fail(&mut self, failure: &Failure, response: &Arc<Response>) {
        self.printer.line(&format!("error: {}", error_chain(failure)));
        self.failed = Some(Error::failed(failure.clone(), Arc::clone(response)));
    }

    fn end_run(&mut self) {
        if let Some(text) = self.chat.after_run.as_mut().map(|text| text()).filter(|text| !text.is_empty()) {
            self.printer.note(text.trim_end());
        }
        self.runs = self.runs.saturating_sub(1);
        self.waiting.clear();
        self.questions.clear();
        self.decided.clear();
    }

    /// Keeps the prompt of a run that ended without a response, which is the first message of the run.
    fn keep(&mut self, messages: &[Arc<Message>]) {
        self.unanswered = messages.first().filter(|message| message.is_prompt()).cloned();
        if let Some(prompt) = &self.unanswered {
            let prompt = first_words(&prompt.text(), 40);
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
    async fn line(&mut self, line: &str) {
        let is_asked = !self.waiting.is_empty();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let done = match word {
            // `/no` is an answer.
            _ if word.starts_with('/') && !(is_asked && word == "/no") => {
                self.command(word, rest.trim()).await
            }
            _ if is_asked => self.decide(line).await,
            "" => Ok(()),
            _ => self.say(line).await.map_err(Into::into),
        };
        if let Err(error) = done {
            self.printer.line(&error_chain(&*error));
        }
    }

    /// Takes the list of everything that waits for a decision, and shows what is new.
    fn set_waiting(&mut self, pauses: &[Arc<PendingUse>]) {
        let waits = |id: &ToolUseId| pauses.iter().any(|pause| pause.tool_use.id == *id);
        self.decided.retain(|id, is_below| !*is_below || waits(id));
        // The status of a decision lists the other tool uses again, also some that were decided since.
        let is_open = |pause: &&Arc<PendingUse>| !self.decided.contains_key(&pause.tool_use.id);
        let pauses: VecDeque<_> = pauses.iter().filter(is_open).cloned().collect();
        for pause in pauses.iter().filter(|pause| !self.waiting.contains(pause)) {
            if pause.is_question() {
                self.questions.insert(pause.tool_use.id.clone());
            }
            self.printer.line(&question::shown(pause));
        }
        self.waiting = pauses;
    }

    /// Returns the question about the first tool use that waits.
    async fn question(&mut self) -> Result<Option<&mut Question>, Error> {
        let first = self.waiting.front();
        self.question.take_if(|question| first.is_none_or(|pause| pause.tool_use.id != question.id));
        if self.question.is_none()
            && let Some(pause) = first
        {
            let state = self.chat.session.state().await?;
            self.question = Some(Question::of(pause, &state.config().tools));
        }
        Ok(self.question.as_mut())
    }

    /// Reads a line as the decision on the first tool use that waits.
    async fn decide(&mut self, line: &str) -> CommandResult {
        let Some(question) = self.question().await? else { return Ok(()) };
        if let Some(decision) = question.answer(line)?
            && let Some(first) = self.waiting.pop_front()
        {
            self.question = None;
            self.resume(&first, decision).await?;
        }
        Ok(())
    }

    /// Sends a decision. The id makes sure that a late decision never applies to another tool use. A decision of
    /// another client may have come first.
    async fn resume(&mut self, pause: &Arc<PendingUse>, decision: Decision) -> Result<(), Error> {
        let id = pause.tool_use.id.clone();
        self.decided.insert(id.clone(), pause.sub_agent.is_some());
        let by = Arc::clone(&self.chat.user);
        let Err(error) = self.chat.session.resume_as(id, decision, by).await else { return Ok(()) };
        self.decided.remove(&pause.tool_use.id);
        if matches!(error.kind(), ErrorKind::NotPaused | ErrorKind::StaleDecision) {
            return Ok(());
        }
        // The tool use still waits, for example because the decision was nested too deeply.
        self.waiting.push_front(Arc::clone(pause));
        Err(error)
    }

    /// Shows the prompt for the next line, if one is expected and not shown yet. The event of a decision is shown first.
    async fn ask(&mut self) -> Result<(), Error> {
        let which = match (self.waiting.len(), self.waiting.front()) {
            (0, _) if self.is_busy() => return Ok(()),
            _ if !self.decided.is_empty() => return Ok(()),
            (count @ 2.., Some(first)) => {
                format!("1 of {count}: {} {}: ", first.tool_use.name, first.tool_use.input)
            }
            _ => String::new(),
        };
        let prompt = self.question().await?.map_or("> ".to_owned(), |question| question.prompt());
        self.printer.ask(&format!("{which}{prompt}"));
        Ok(())
    }
}

pub(super) fn text_of(prompt: &Prompt) -> String {
    prompt.content.0.iter().filter_map(|block| block.as_text()).collect()
}

/// Returns a line on a decision and its maker. `is_question` states whether it is the answer to a question of a
/// running tool.
fn decision_line(decided: &Decided, is_question: bool) -> String {
    let what = match (&decided.decision, is_question) {
        (Decision::Reject(_), true) => "declined",
        (Decision::Reject(_), false) => "rejected",
        (Decision::Execute, false) => "allowed",
        (Decision::ExecuteWith(_), false) => "allowed with another input",
        _ => "answered",
    };
    match &decided.by {
        Some(by) => format!("[{what} by {by}]"),
        None if decided.expired => format!("[{what}, because nobody decided in time]"),
        None => format!("[{what}]"),
    }
}
