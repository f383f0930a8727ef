//! The events with which a stream ends.

use super::{Phase, RunStream};
use crate::{
    message::Content,
    provider::StopReason,
    run::{Failure, RunOutcome},
    text::clip,
};

use super::super::{
    Level,
    frame::{Frame, Outcome, TokenUsage},
    interrupts::interrupts,
};

/// The maximum size of an error's text, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

/// Returns the terminal event of a run that failed.
pub(super) fn error(code: &str, message: &str, usage: Vec<TokenUsage>) -> Frame {
    Frame::RunError { message: clip(message, MAX_MESSAGE).into_owned(), code: code.to_owned(), usage }
}

/// Returns the code of a failure.
pub(super) fn code(failure: &Failure) -> &'static str {
    match failure {
        Failure::Provider { .. } | Failure::ProviderPanicked { .. } => "provider",
        Failure::TimeLimit { .. } => "time-limit",
        Failure::Budget { .. } => "budget",
        Failure::Output { .. } => "output",
        Failure::Refused => "refused",
        Failure::OnHold { .. } => "store-behind",
        Failure::Interrupted | Failure::Uncertain => "interrupted",
        Failure::Callback { .. } => "internal",
    }
}

impl RunStream {
    /// Ends the stream because the run has ended. An abandoned run is an error, because the user has not asked for its
    /// end.
    pub(super) fn finish(&mut self, outcome: &RunOutcome) {
        match outcome {
            RunOutcome::Failed { failure } => self.finish_failed(code(failure), &failure.to_string()),
            RunOutcome::Abandoned => self.finish_failed("abandoned", crate::web::ABANDONED),
            RunOutcome::Cancelled
            | RunOutcome::Discarded
            | RunOutcome::Stopped { stop_reason: StopReason::Interrupted } => {
                self.finish_with(Some(Outcome::Cancelled));
            }
            RunOutcome::Stopped { .. } => self.finish_success(),
        }
    }

    /// Ends the stream after a complete turn.
    pub(super) fn finish_success(&mut self) {
        let last = self.view.agent.state.history.last();
        let open = last.into_iter().flat_map(|message| &message.content).filter_map(|block| match block {
            Content::ToolUse(tool_use) if tool_use.decided.is_none() => Some(tool_use.id.to_string()),
            _ => None,
        });
        let pending_tool_call_ids = open.collect();
        self.finish_with(Some(Outcome::Success { pending_tool_call_ids }));
    }

    /// Ends the stream with an interrupt for each pause.
    pub(super) fn finish_paused(&mut self) {
        self.close();
        self.send_messages();
        let interrupts = interrupts(&self.view.agent, self.run.level);
        self.finish_with(Some(Outcome::Interrupt { interrupts }));
    }

    pub(super) fn finish_failed(&mut self, code: &str, message: &str) {
        self.close();
        self.phase = Phase::Ended;
        let usage = self.usage();
        self.out.push(error(code, message, usage));
    }

    fn finish_with(&mut self, outcome: Option<Outcome>) {
        self.close();
        self.phase = Phase::Ended;
        let is_understood =
            |outcome: &Outcome| self.run.level == Level::V1 || matches!(outcome, Outcome::Interrupt { .. });
        self.out.push(Frame::RunFinished {
            thread_id: self.run.thread.clone(),
            run_id: self.run.id.clone(),
            outcome: outcome.filter(is_understood),
            usage: self.usage(),
        });
    }
}
