//! Checks that every caller of `ask` gets one response, with the turns of its run.

use std::sync::Arc;

use super::{Check, ensure};
use crate::{
    agent::{Event, Response},
    message::Usage,
    run::{Error, ErrorKind},
};

#[derive(Default)]
pub(super) struct Asks {
    /// The responses of the turns so far, while a caller of `ask` waits.
    waiting: Option<Vec<Arc<Response>>>,
    /// The response that was discarded when the run ended, if any.
    discarded: Option<Arc<Response>>,
    /// Whether the run has failed, and its last turn was committed.
    failed: bool,
    /// Whether the caller waits for a compaction.
    compacts: bool,
}

impl Asks {
    pub(super) fn begin(&mut self) {
        *self = Self { waiting: Some(Vec::new()), ..Self::default() };
    }

    /// Begins a compaction, whose caller gets the response of its turn.
    pub(super) fn begin_compaction(&mut self) {
        *self = Self { waiting: Some(Vec::new()), compacts: true, ..Self::default() };
    }

    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::Turn { response, .. } => self.committed(response),
            Event::Error { response, committed: true, .. } => {
                self.committed(response);
                self.failed = true;
            }
            Event::Cancelled { response, .. } | Event::Error { response, .. } => {
                self.discarded = Some(Arc::clone(response));
            }
            _ => {}
        }
    }

    fn committed(&mut self, response: &Arc<Response>) {
        // A compaction at the end of a run is not part of what the caller of `ask` gets.
        if !self.compacts && response.messages.iter().all(|message| message.compaction.is_some()) {
            return;
        }
        self.waiting.iter_mut().for_each(|turns| turns.push(Arc::clone(response)));
    }

    /// Checks a result for the caller of `ask`. `over` states whether the turns that the `ask` waits for have ended.
    pub(super) fn resolve(
        &mut self,
        answer: Result<Arc<Response>, Error>,
        over: bool,
        interrupting: bool,
    ) -> Check {
        let turns = self.waiting.take().ok_or("a response without an ask")?;
        ensure!(over, "a response before the run is over");
        if self.compacts {
            let [turn] = &turns[..] else { return Err(format!("a compaction in {} turns", turns.len())) };
            let told = match &answer {
                Ok(response) => Some(response),
                Err(error) => error.response(),
            };
            let is_told = told.is_some_and(|told| Arc::ptr_eq(told, turn));
            ensure!(is_told && answer.is_ok() != turn.messages.is_empty(), "a compaction gives {answer:?}");
            return Ok(());
        }
        // If an interrupt keeps nothing of the last turn, the caller still gets the response of the turns before it, if
        // there are any.
        let discarded = self.discarded.take().filter(|_| !interrupting || turns.is_empty());
        let answer = match answer {
            Err(error) if error.kind() == ErrorKind::Failed && std::mem::take(&mut self.failed) => {
                Ok(error.response().cloned().ok_or("a failure without a response")?)
            }
            answer => answer,
        };
        match (answer, discarded) {
            (Err(error), Some(discarded)) => {
                let told = error.response();
                let is_told = told.is_some_and(|told| Arc::ptr_eq(told, &discarded));
                ensure!(is_told, "the error does not contain the discarded response");
            }
            (Ok(response), None) => {
                let messages = turns.iter().flat_map(|turn| &turn.messages);
                ensure!(response.messages.iter().eq(messages), "the response has messages of other turns");
                let usage: Usage = turns.iter().map(|turn| turn.usage).sum();
                ensure!(response.usage == usage, "the usage is {:?}, not {usage:?}", response.usage);
                let last = turns.last().ok_or("a response without a turn")?;
                ensure!(response.message == last.message, "the message is not the last turn's");
                ensure!(response.stop_reason == last.stop_reason, "the reason is not the last turn's");
            }
            (answer, discarded) => return Err(format!("the result is {answer:?}, with {discarded:?}")),
        }
        Ok(())
    }

    pub(super) fn check_rest(&mut self, running: bool) -> Check {
        ensure!(running || self.waiting.is_none(), "a caller of ask gets no response");
        (self.discarded, self.failed) = (None, false);
        Ok(())
    }

    /// Checks that no caller of `ask` still waits for a response when a staged prompt starts.
    pub(super) fn check_none(&self) -> Check {
        ensure!(self.waiting.is_none(), "a staged prompt takes over before the response to ask");
        Ok(())
    }
}
