//! The conformance suite for backends (feature `test-util`).
//!
//! A test of a backend implements [`BackendUnderTest`]. This trait gives the suite the backend, and prompts that make
//! the backend run a tool, ask for permission, or work until it is cancelled. [`check`] runs each check on a new
//! backend and panics if a check fails. A check is skipped if the test or the backend lacks something that the check
//! needs. The [`ConformanceReport`] lists the skipped checks.
//!
//! ```
//! # use std::sync::atomic::{AtomicBool, Ordering};
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! # use futures_util::stream;
//! use omni_agent::provider::custom::{
//!     Backend,
//!     conformance::{BackendUnderTest, check},
//! };
//! # use omni_agent::provider::{
//! #     StopReason,
//! #     custom::{
//! #         BackendError, BackendEvent, BackendSession, EventStream, SessionId, SessionOptions, TurnPrompt,
//! #         TurnResult,
//! #     },
//! # };
//! #
//! # struct Echo;
//! #
//! # #[async_trait]
//! # impl Backend for Echo {
//! #     fn name(&self) -> &str {
//! #         "echo"
//! #     }
//! #
//! #     async fn start(&self, _: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
//! #         Ok(Arc::new(EchoSession(AtomicBool::new(false))))
//! #     }
//! # }
//! #
//! # struct EchoSession(AtomicBool);
//! #
//! # #[async_trait]
//! # impl BackendSession for EchoSession {
//! #     fn id(&self) -> Option<SessionId> {
//! #         None
//! #     }
//! #
//! #     async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError> {
//! #         if self.0.load(Ordering::Relaxed) {
//! #             return Err(BackendError::Ended("it was terminated".to_owned()));
//! #         }
//! #         let result = TurnResult::new(StopReason::Stop);
//! #         let events = [BackendEvent::Text(prompt.text()), BackendEvent::Result(result)];
//! #         Ok(Box::pin(stream::iter(events)))
//! #     }
//! #
//! #     async fn cancel(&self) -> Result<(), BackendError> {
//! #         Ok(())
//! #     }
//! #
//! #     async fn terminate(&self) {
//! #         self.0.store(true, Ordering::Relaxed);
//! #     }
//! # }
//!
//! struct EchoSubject;
//!
//! #[async_trait]
//! impl BackendUnderTest for EchoSubject {
//!     fn backend(&self) -> Arc<dyn Backend> {
//!         Arc::new(Echo)
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let report = check(async || EchoSubject).await;
//! assert!(report.passed.contains(&"turns_follow_one_another"));
//! assert!(report.skipped.contains(&"tool_results_follow_their_uses"), "there is no `tool_prompt`");
//! # });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod endings;
mod sessions;
mod turns;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::{
    Backend, BackendError, BackendEvent, BackendSession, EventStream, PermissionRequest, SessionOptions,
    TurnPrompt, TurnResult, recorder::BackendEventConverter,
};
use crate::{
    conformance::{ConformanceReport, PassedOrSkipped, checks, run},
    message::Message,
};

/// A backend under test, with the prompts that the suite needs.
///
/// Only [`backend`](BackendUnderTest::backend) is required. If another method returns `None` or `false`, the checks
/// that need this method are skipped.
#[async_trait]
pub trait BackendUnderTest: Send + Sync + 'static {
    /// Returns the backend.
    fn backend(&self) -> Arc<dyn Backend>;

    /// Returns the options that are used to start sessions.
    fn options(&self) -> SessionOptions {
        SessionOptions::default()
    }

    /// Returns a prompt whose turn ends with a result.
    fn prompt(&self) -> TurnPrompt {
        TurnPrompt::new([Message::user("Say hello.")])
    }

    /// Returns a prompt whose turn continues until it is cancelled.
    fn long_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// Returns a prompt whose turn makes the backend run a tool without asking for permission.
    fn tool_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// Returns a prompt whose turn makes the backend ask for permission.
    fn asking_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// Returns a prompt that makes the session remember this word.
    fn remember_prompt(&self, word: &str) -> Option<TurnPrompt> {
        let _ = word;
        None
    }

    /// Returns a prompt whose response contains the remembered word if, and only if, the session knows the word.
    fn recall_prompt(&self) -> Option<TurnPrompt> {
        None
    }

    /// Returns how many sessions still run a process, a connection or a task.
    fn running(&self) -> Option<usize> {
        None
    }

    /// Waits until no session runs a process, a connection or a task, and then returns `true`. The default returns
    /// `false`, which states that the test cannot find this out.
    async fn all_ended(&self) -> bool {
        false
    }

    /// Returns how long any single step may take. The default is ten seconds.
    fn limit(&self) -> Duration {
        Duration::from_secs(10)
    }
}

/// The prompts with which a check finds out what a session knows.
struct MemoryCheckPrompts {
    tell: TurnPrompt,
    ask: TurnPrompt,
    word: &'static str,
}

fn memory(subject: &dyn BackendUnderTest) -> Option<MemoryCheckPrompts> {
    let word = "heron";
    Some(MemoryCheckPrompts { tell: subject.remember_prompt(word)?, ask: subject.recall_prompt()?, word })
}

checks! {
    dyn BackendUnderTest;
    turns: turn_ends_in_one_terminal_event, turns_follow_one_another, tool_results_follow_their_uses,
        permission_allowed_continues_the_turn, permission_rejected_continues_the_turn, turn_that_asks_can_be_cancelled;
    sessions: name_and_capabilities_are_constant, session_remembers, parallel_sessions_are_independent,
        resume_continues_the_conversation, resume_of_an_unknown_session_is_refused, fork_starts_at_its_position;
    endings: cancel_ends_the_turn_and_keeps_the_session, cancel_without_a_turn_succeeds, terminate_leaves_nothing_running,
        terminate_during_a_turn_ends_its_stream, prompt_after_terminate_is_an_error, dropped_session_leaves_nothing_running;
}

/// Runs the suite. `make` returns a new backend for each check.
///
/// # Panics
///
/// Panics after all checks have run, if at least one of them failed. The message names the failed checks. The panic of
/// each failed check has its own message, which was printed earlier.
///
/// # Cancel safety
///
/// If the future is dropped, the sessions that it started are dropped too.
pub async fn check<S: BackendUnderTest>(make: impl AsyncFnMut() -> S) -> ConformanceReport {
    run(CHECKS, make, |under_test| under_test).await
}

/// Runs `work` within the time limit of `subject`. If the limit is exceeded, the panic message names the work as
/// `what`.
async fn soon<T>(subject: &dyn BackendUnderTest, what: &str, work: impl Future<Output = T>) -> T {
    let limit = subject.limit();
    timeout(limit, work).await.unwrap_or_else(|_| panic!("{what} took longer than {limit:?}"))
}

async fn started(subject: &dyn BackendUnderTest) -> Arc<dyn BackendSession> {
    let (backend, options) = (subject.backend(), subject.options());
    soon(subject, "start", backend.start(&options)).await.expect("a session starts")
}

async fn terminated(subject: &dyn BackendUnderTest, session: Arc<dyn BackendSession>) {
    soon(subject, "terminate", session.terminate()).await;
}

async fn prompted(
    subject: &dyn BackendUnderTest,
    session: &dyn BackendSession,
    prompt: TurnPrompt,
) -> EventStream {
    soon(subject, "prompt", session.prompt(prompt)).await.expect("the session accepts a prompt")
}

/// A turn that has ended.
struct EndedBackendTurn {
    text: String,
    tools: usize,
    result: Result<TurnResult, BackendError>,
}

/// Reads a turn to its end. Checks that the turn keeps the contract, and that no event follows the terminal event.
async fn read(
    subject: &dyn BackendUnderTest,
    mut events: EventStream,
    mut ask: impl FnMut(PermissionRequest),
) -> EndedBackendTurn {
    let mut recorder = BackendEventConverter::new("conformance");
    let (mut text, mut tools) = (String::new(), 0);
    let result = loop {
        let next = soon(subject, "the next event", events.next()).await;
        let event = next.expect("a turn ends with a terminal event");
        let kept = match event {
            BackendEvent::Text(more) => {
                text.push_str(&more);
                Ok(())
            }
            BackendEvent::ToolUse(tool_use) => {
                tools += 1;
                recorder.tool_use(&tool_use)
            }
            BackendEvent::ToolInput { id, input } => recorder.tool_input(&id, input),
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
    assert!(more.is_none(), "{more:?} follows the terminal event");
    EndedBackendTurn { text, tools, result }
}

/// Runs a turn that must end with a result, and returns its text.
async fn answered(
    subject: &dyn BackendUnderTest,
    session: &dyn BackendSession,
    prompt: TurnPrompt,
) -> String {
    let events = prompted(subject, session, prompt).await;
    let ended = read(subject, events, drop).await;
    let result = ended.result.expect("the turn ends in a result");
    soon(subject, "update", session.update(&result)).await.expect("update takes the result");
    ended.text
}

/// Reads a turn up to its first request for permission, and drops this request.
async fn until_asked(subject: &dyn BackendUnderTest, events: &mut EventStream) {
    loop {
        let event = soon(subject, "the next event", events.next()).await;
        match event.expect("the turn must ask for permission") {
            BackendEvent::Permission(_) => return,
            event => assert!(!event.is_terminal(), "the turn must ask for permission"),
        }
    }
}
