//! The suite that every backend has to pass (feature `test-util`).
//!
//! [`check`] runs it on subjects that the backend's own test makes. Each check gets a fresh one. What a subject does not tell
//! how to bring about is skipped, and said so in the [`Report`].

mod endings;
mod sessions;
mod turns;

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;

use super::{
    Backend, BackendError, BackendEvent, BackendSession, EventStream, PermissionRequest, SessionOptions,
    TurnPrompt, TurnResult, recorder::Recorder,
};
use crate::message::Message;

/// A backend, and how to bring about what the suite looks at.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The backend.
    fn backend(&self) -> Arc<dyn Backend>;

    /// What its sessions are started with.
    fn options(&self) -> SessionOptions {
        SessionOptions::default()
    }

    /// A prompt whose turn ends in a result.
    fn prompt(&self) -> TurnPrompt {
        TurnPrompt::new([Message::user("Say hello.")])
    }

    /// A prompt whose turn goes on until it is cancelled.
    fn long_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// A prompt in whose turn the backend runs a tool, without asking.
    fn tool_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// A prompt in whose turn the backend asks for permission.
    fn asking_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// A prompt that tells the session a word, and one whose answer has that word if the session knows it, and only then.
    fn memory(&self) -> Option<Memory> {
        None
    }

    /// How many sessions still run something: a process, a connection, a task.
    fn running(&self) -> Option<usize> {
        None
    }

    /// Waits until no session runs anything. `false`, the default, says that there is no telling.
    async fn all_ended(&self) -> bool {
        false
    }

    /// How long anything may take. Ten seconds.
    fn limit(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// How to find out what a session knows.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Tells the word.
    pub tell: TurnPrompt,
    /// Asks for it.
    pub ask: TurnPrompt,
    /// The word.
    pub word: String,
}

/// What came of a run of the suite in which no check failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The checks that passed.
    pub passed: Vec<&'static str>,
    /// The checks that need what the subject, or the backend, does not have.
    pub skipped: Vec<&'static str>,
}

/// Whether a check was made.
enum CheckOutcome {
    Made,
    Skipped,
}

type Check = for<'a> fn(&'a dyn Subject) -> Pin<Box<dyn Future<Output = CheckOutcome> + 'a>>;

macro_rules! checks {
    ($($module:ident: $($name:ident),+;)+) => {
        const CHECKS: &[(&str, Check)] = &[$($((stringify!($name), |subject| Box::pin($module::$name(subject))),)+)+];
    };
}

checks! {
    turns: turn_ends_in_one_terminal_event, turns_follow_one_another, tool_results_follow_their_uses,
        permission_allowed_goes_on, permission_rejected_goes_on, permission_dropped_is_a_cancelled_turn;
    sessions: name_and_capabilities_stay, session_remembers, sessions_at_once_are_apart, resume_goes_on_where_it_was,
        resume_of_an_unknown_session_is_refused, fork_goes_on_from_its_place_and_leaves_the_other;
    endings: cancel_ends_the_turn_and_the_session_goes_on, cancel_without_a_turn_is_no_error, terminate_leaves_nothing_running,
        terminate_in_mid_turn_ends_its_stream, prompt_after_terminate_is_an_error, dropped_session_leaves_nothing_running;
}

/// Runs the suite; `make` gives a new subject for each check.
///
/// # Panics
///
/// When all checks were made and at least one failed. The message names those, and each has panicked with its own
/// message before.
///
/// # Cancel safety
///
/// Sessions that were started are dropped.
pub async fn check<S: Subject>(mut make: impl AsyncFnMut() -> S) -> Report {
    let mut report = Report { passed: Vec::new(), skipped: Vec::new() };
    let mut failed = Vec::new();
    for (name, check) in CHECKS {
        let subject = make().await;
        match AssertUnwindSafe(check(&subject)).catch_unwind().await {
            Ok(CheckOutcome::Made) => report.passed.push(*name),
            Ok(CheckOutcome::Skipped) => report.skipped.push(*name),
            Err(_) => failed.push(*name),
        }
    }
    assert!(failed.is_empty(), "{} of {} checks failed: {}", failed.len(), CHECKS.len(), failed.join(", "));
    report
}

/// Waits no longer than the subject allows.
async fn soon<T>(subject: &dyn Subject, what: &str, work: impl Future<Output = T>) -> T {
    let limit = subject.limit();
    timeout(limit, work).await.unwrap_or_else(|_| panic!("{what} took longer than {limit:?}"))
}

async fn started(subject: &dyn Subject) -> Arc<dyn BackendSession> {
    let (backend, options) = (subject.backend(), subject.options());
    soon(subject, "start", backend.start(&options)).await.expect("a session starts")
}

async fn terminated(subject: &dyn Subject, session: Arc<dyn BackendSession>) {
    soon(subject, "terminate", session.terminate()).await;
}

async fn prompted(subject: &dyn Subject, session: &dyn BackendSession, prompt: TurnPrompt) -> EventStream {
    soon(subject, "prompt", session.prompt(prompt)).await.expect("a prompt is taken")
}

/// What came of a turn.
struct Ended {
    text: String,
    tools: usize,
    result: Result<TurnResult, BackendError>,
}

/// Reads a turn to its end and beyond, holding it to the contract.
async fn read(
    subject: &dyn Subject,
    mut events: EventStream,
    mut ask: impl FnMut(PermissionRequest),
) -> Ended {
    let mut recorder = Recorder::new("conformance");
    let (mut text, mut tools) = (String::new(), 0);
    let result = loop {
        let next = soon(subject, "the next event", events.next()).await;
        let event = next.expect("a turn ends in a terminal event, not in silence");
        let kept = match event {
            BackendEvent::Text(more) => {
                text.push_str(&more);
                Ok(())
            }
            BackendEvent::ToolUse(tool_use) => {
                tools += 1;
                recorder.tool_use(&tool_use)
            }
            BackendEvent::ToolUpdate { id, data } => recorder.tool_update(&id, data),
            BackendEvent::ToolResult(result) => recorder.tool_result(&result),
            BackendEvent::Permission(request) => {
                let kept = recorder.asked(&request.tool_use, &request.options);
                ask(request);
                kept
            }
            BackendEvent::Result(result) => break Ok(result),
            BackendEvent::Error(error) => break Err(error),
            BackendEvent::Thinking(_)
            | BackendEvent::Plan(_)
            | BackendEvent::Status { .. }
            | BackendEvent::Usage(_) => Ok(()),
        };
        kept.unwrap_or_else(|breach| panic!("{breach}"));
    };
    let more = soon(subject, "the end of the stream", events.next()).await;
    assert!(more.is_none(), "after the terminal event came {more:?}");
    Ended { text, tools, result }
}

/// A turn that has to end in a result; gives its text.
async fn answered(subject: &dyn Subject, session: &dyn BackendSession, prompt: TurnPrompt) -> String {
    let events = prompted(subject, session, prompt).await;
    let ended = read(subject, events, drop).await;
    let result = ended.result.expect("the turn ends in a result");
    soon(subject, "update", session.update(&result)).await.expect("update takes the result");
    ended.text
}

/// Reads a turn up to its first request for permission, which is dropped.
async fn until_asked(subject: &dyn Subject, events: &mut EventStream) {
    loop {
        let event = soon(subject, "the next event", events.next()).await;
        match event.expect("the turn was to ask for permission") {
            BackendEvent::Permission(_) => return,
            event => assert!(!event.is_terminal(), "the turn was to ask for permission"),
        }
    }
}
