//! Questions that a running tool asks the user, and the clock of a call, which is stopped while a question waits.

use std::{
    future::poll_fn,
    sync::Mutex,
    task::{Poll, Waker},
    time::Duration,
};

use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use crate::{message::ToolUseId, sync::lock};

/// The answer to a question of a running tool, which [`ToolContext::ask`](super::ToolContext::ask) returns.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Answer {
    /// A person agreed. If the question asks for a value, this is the value.
    Accepted(Option<Value>),
    /// A person declined, or nobody can be asked. The text is the reason.
    Declined(String),
}

/// A message of a running tool to its agent.
#[derive(Debug)]
pub(crate) enum ToolReport {
    Progress(ToolUseId, Value),
    Question {
        /// The index of the call.
        slot: usize,
        question: Value,
        /// The sender of the answer. It is closed when the tool no longer waits.
        answer: oneshot::Sender<Answer>,
    },
}

/// The connection of a call to its agent.
#[derive(Debug)]
pub(crate) struct AgentLink {
    slot: usize,
    reports: mpsc::Sender<ToolReport>,
    clock: CallClock,
}

impl AgentLink {
    pub(crate) fn new(slot: usize, reports: mpsc::Sender<ToolReport>) -> Self {
        Self { slot, reports, clock: CallClock::default() }
    }

    pub(super) fn clock(&self) -> &CallClock {
        &self.clock
    }

    pub(super) async fn progress(&self, id: ToolUseId, data: Value) {
        let _ = self.reports.send(ToolReport::Progress(id, data)).await;
    }

    pub(super) async fn ask(&self, question: Value) -> Answer {
        let ended = || Answer::Declined("the call has ended".to_owned());
        let _stopped = self.clock.stop();
        let (answer, answered) = oneshot::channel();
        let report = ToolReport::Question { slot: self.slot, question, answer };
        if self.reports.send(report).await.is_err() {
            return ended();
        }
        answered.await.unwrap_or_else(|_| ended())
    }
}

/// Counts the time during which questions of a call wait, because this time does not count for the call's limit.
#[derive(Debug, Default)]
pub(super) struct CallClock(Mutex<CallQuestions>);

#[derive(Debug, Default)]
struct CallQuestions {
    open: usize,
    /// The time when the first of the open questions was asked.
    since: Option<Instant>,
    /// The total time for which the clock was stopped, in periods that have ended.
    stood: Duration,
    waker: Option<Waker>,
}

/// A guard that stops the clock until the guard is dropped.
struct Stopped<'a>(&'a CallClock);

impl CallClock {
    fn stop(&self) -> Stopped<'_> {
        let mut questions = lock(&self.0);
        questions.open += 1;
        questions.since.get_or_insert_with(Instant::now);
        Stopped(self)
    }

    /// Returns the time for which the clock was stopped. A period in which a question is still open is not included.
    pub(super) fn stood(&self) -> Duration {
        lock(&self.0).stood
    }

    /// Waits until no question is open, and returns the time for which the clock was stopped.
    pub(super) async fn runs(&self) -> Duration {
        poll_fn(|cx| {
            let mut questions = lock(&self.0);
            if questions.open == 0 {
                return Poll::Ready(questions.stood);
            }
            questions.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let mut questions = lock(&self.0.0);
        questions.open -= 1;
        if questions.open == 0 {
            let stood = questions.since.take().map(|since| since.elapsed());
            questions.stood += stood.unwrap_or_default();
            let waker = questions.waker.take();
            drop(questions);
            waker.into_iter().for_each(Waker::wake);
        }
    }
}
