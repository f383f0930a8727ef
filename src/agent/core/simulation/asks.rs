//! Whoever asks gets one answer, with the turns of the question.

use std::sync::Arc;

use super::{Check, ensure};
use crate::{
    agent::{AgentError, Event, Response},
    message::Usage,
};

#[derive(Default)]
pub(super) struct Asks {
    /// The turns so far, while somebody waits.
    waiting: Option<Vec<Arc<Response>>>,
    /// What the run's end discarded, if it did.
    discarded: Option<Arc<Response>>,
}

impl Asks {
    pub(super) fn begin(&mut self) {
        (self.waiting, self.discarded) = (Some(Vec::new()), None);
    }

    pub(super) fn event(&mut self, event: &Event) {
        match event {
            Event::Turn(outcome) => {
                self.waiting.iter_mut().for_each(|turns| turns.push(Arc::clone(outcome.response())));
            }
            Event::Cancelled { response, .. } | Event::Error { response, .. } => {
                self.discarded = Some(Arc::clone(response));
            }
            _ => {}
        }
    }

    /// The answer comes. `over` says whether the question's turns are.
    pub(super) fn resolve(
        &mut self,
        answer: Result<Arc<Response>, AgentError>,
        over: bool,
        interrupting: bool,
    ) -> Check {
        let turns = self.waiting.take().ok_or("an answer, and nobody asked")?;
        ensure!(over, "an answer before the run is over");
        // An interrupt keeps the turns before one that has nothing to keep.
        let discarded = self.discarded.take().filter(|_| !interrupting || turns.is_empty());
        match (answer, discarded) {
            (Err(AgentError::Cancelled(told) | AgentError::Failed(_, told)), Some(discarded)) => {
                ensure!(Arc::ptr_eq(&told, &discarded), "the answer is not what was discarded");
            }
            (Ok(response), None) => {
                let messages = turns.iter().flat_map(|turn| &turn.messages);
                ensure!(response.messages.iter().eq(messages), "the answer has other turns than its own");
                let usage: Usage = turns.iter().map(|turn| turn.usage).sum();
                ensure!(response.usage == usage, "the answer used {:?}, not {usage:?}", response.usage);
                let last = turns.last().ok_or("an answer without a turn")?;
                ensure!(response.message == last.message, "the answer is not the last turn's");
                ensure!(response.stop_reason == last.stop_reason, "the answer ends otherwise");
            }
            (answer, discarded) => return Err(format!("{answer:?} answers, discarded was {discarded:?}")),
        }
        Ok(())
    }

    pub(super) fn check_rest(&mut self, running: bool) -> Check {
        ensure!(running || self.waiting.is_none(), "who asked gets no answer");
        self.discarded = None;
        Ok(())
    }

    /// A staged prompt takes over: whoever asked must have the answer by now.
    pub(super) fn check_none(&self) -> Check {
        ensure!(self.waiting.is_none(), "a staged prompt takes over before the answer");
        Ok(())
    }
}
