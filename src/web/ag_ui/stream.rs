//! The events of a session as the events of one run of the protocol.
//!
//! A [`Follow`] reports the progress of the run, from events and from snapshots in place of missed events. The writer
//! translates each progress into frames.
//!
//! # States
//!
//! ```text
//! Behind ──▶ Live ──▶ Ended
//! ```
//!
//! `Behind`: the run has not begun, and the client lacks messages of the runs before it. `Live`: the client has all
//! messages. `Ended`: the terminal frame was sent, and nothing follows it.
//!
//! | progress | frames |
//! | --- | --- |
//! | `Turn` | behind: the list |
//! | `User` | the results in it that were not sent; the list if the client lacks the message, or has other ids in it |
//! | `Request` | the end of the step before, and `STEP_STARTED` |
//! | `Block` | the start of the block, its new text, its end; for a file an activity |
//! | `Answer` | the ends of the blocks; the list if the message has other blocks than those that were sent |
//! | `Tool` | an activity with the data of `Progress`; the `Result`, if it needs not wait for its message |
//! | `Void` | the list, if a part of the answer was sent |
//! | `Pauses` | if there are any: the list, and the end with an interrupt for each |
//! | `Ended` | the end; before it the list if the run was cancelled, or if its work is kept although it has failed |
//! | `Returned` | the end with an error |
//!
//! A `STATE_DELTA`, and news about the title and other staged prompts, precede the frames for the progress of an update.
//!
//! # The list
//!
//! `MESSAGES_SNAPSHOT` lists all messages of the session's snapshot, which is newer than the progress that is being read.
//! So a list ends the open frames at once and follows the last progress of the update. The frames for the progress in
//! between are omitted. Then the step and the blocks that are still in progress are opened again. A stream that joins a
//! run begins in the same way. A client leaves messages that it knows in their places. If the list has an unknown message
//! before a known one, a list of the messages before them comes first, so that the client removes the known one.

mod writer;

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{AgUiVersion, frame::AgUiFrame};
use crate::{
    agent::{Event, Follow, FollowFrom, FollowTarget, Snapshot, Status},
    message::ToolUseId,
    provider::StopReason,
    run::{Accepted, PromptId, PromptState, RunOutcome},
    session::{SessionAnswer, SessionEvent, SessionSnapshot, StoreReport},
    subscription::{Numbered, Update},
    text::clip,
    web::front::files::ClientFileForm,
};
use writer::AgUiWriter;

/// The outcome of a complete run.
const SUCCESS: RunOutcome = RunOutcome::Stopped { stop_reason: StopReason::Stop };

/// The code and the text of the error if the conversation can't be saved any more.
const LOST: (&str, &str) = ("not-saved", crate::web::LOST);

/// The run of a stream, as the client has asked for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgUiRequestedRun {
    pub(crate) thread: String,
    pub(crate) id: String,
    pub(crate) level: AgUiVersion,
    pub(crate) files: ClientFileForm,
    /// The ids of the messages that the client has.
    pub(crate) known: HashSet<String>,
    /// The state of the client. The stream adds the member `omni` to it.
    pub(crate) state: Map<String, Value>,
}

/// The part of the session's activity that a stream shows.
#[derive(Clone, Debug)]
pub(crate) enum AgUiRunToStream {
    /// The run that a command has started or staged. The flag states whether another run comes first.
    Follow(Box<Follow>, bool),
    /// The rest of a run, whose part so far the client has, after these decisions.
    Continue(FollowTarget, Vec<ToolUseId>),
    /// The run that is active, from its current state on. If no run is active, the end of the last run.
    Join,
    /// The end of an earlier run with this outcome.
    Ended(RunOutcome),
}

impl AgUiRunToStream {
    /// Returns the part that belongs to a command with this answer. `prompt` is the id of the command's prompt, and
    /// `view` is the snapshot from before the command.
    pub(crate) fn of(answer: &SessionAnswer, prompt: Option<PromptId>, view: &Snapshot) -> Self {
        let SessionAnswer::Accepted(accepted) = answer else {
            // A decision continues the turn in flight.
            return Self::Continue(FollowTarget::InFlight, Vec::new());
        };
        let is_idle = view.status == Status::Idle;
        let target = match (accepted, prompt) {
            (Accepted::Known { state: PromptState::Ended { outcome } }, _) => {
                return Self::Ended(outcome.clone());
            }
            (
                Accepted::Started { .. }
                | Accepted::Staged { .. }
                | Accepted::Known { state: PromptState::Staged },
                Some(id),
            ) => FollowTarget::Prompt(id),
            // The run has begun since the snapshot.
            (Accepted::Known { state: PromptState::InFlight { .. } }, Some(id)) if is_idle => {
                FollowTarget::Prompt(id)
            }
            (Accepted::Started { turn }, None) => FollowTarget::Turn(*turn),
            _ => return Self::Join,
        };
        let mut follow = Follow::new(target, FollowFrom::Start);
        follow.accepted(accepted);
        // The run before a staged prompt can have begun since the snapshot.
        let waits = !is_idle || matches!(accepted, Accepted::Staged { .. });
        Self::Follow(Box::new(follow), waits)
    }

    /// Returns the part that continues with this prompt, which is staged. `None` joins.
    pub(crate) fn staged(prompt: Option<PromptId>) -> Self {
        prompt.map_or(Self::Join, |id| Self::Continue(FollowTarget::Prompt(id), Vec::new()))
    }

    /// Takes note that the client lacks messages, because somebody else has continued the thread.
    pub(crate) fn behind(self) -> Self {
        match self {
            Self::Follow(follow, _) => Self::Follow(follow, true),
            other => other,
        }
    }

    /// Takes note of the decisions that the command has made.
    pub(crate) fn after(self, decided: Vec<ToolUseId>) -> Self {
        match self {
            Self::Continue(target, _) => Self::Continue(target, decided),
            other => other,
        }
    }
}

/// Translates the updates of a session into the frames of one run.
///
/// The first frame is `RUN_STARTED`, and `STATE_SNAPSHOT` follows it. Everything that is opened is closed before the
/// terminal frame.
#[derive(Debug)]
pub(crate) struct AgUiStream {
    follow: Follow,
    view: SessionSnapshot,
    writer: AgUiWriter,
}

impl AgUiStream {
    /// Starts a stream. `view` is the snapshot from before the command.
    pub(crate) fn begin(
        run: AgUiRequestedRun,
        view: SessionSnapshot,
        start: AgUiRunToStream,
    ) -> (Self, Vec<AgUiFrame>) {
        let mut writer = AgUiWriter::new(run, &view);
        let mut follow = Follow::default();
        let (history, agent) = (&view.agent.state.history, &view.agent);
        match start {
            AgUiRunToStream::Follow(own, waits) => {
                follow = *own;
                writer.wait(waits);
            }
            AgUiRunToStream::Continue(target, decided) => {
                let waits = matches!(target, FollowTarget::Prompt(_));
                follow = Follow::new(target, FollowFrom::Start);
                follow.snapshot(history, agent, &mut |progress| writer.shown(progress, &view));
                writer.reopen(waits, decided);
            }
            AgUiRunToStream::Join if agent.is_answering() => {
                writer.join();
                follow.snapshot(history, agent, &mut |progress| writer.progress(progress, &view));
            }
            AgUiRunToStream::Join | AgUiRunToStream::Ended(_) => {
                // While the conversation is compacted, the end of the run is not stated yet.
                let last = agent.last_run.as_ref().filter(|_| agent.status == Status::Idle);
                let last = last.map_or(SUCCESS, |end| end.outcome.clone());
                let outcome = if let AgUiRunToStream::Ended(outcome) = start { outcome } else { last };
                writer.join();
                writer.finish(&outcome, history.last().map(|message| &**message), &view);
            }
        }
        writer.end_snapshot();
        writer.flush(&view);
        let frames = std::mem::take(&mut writer.out);
        (Self { follow, view, writer }, frames)
    }

    /// Returns the whole stream of a request that was refused.
    pub(crate) fn refused(run: &AgUiRequestedRun, code: &str, message: &str) -> Vec<AgUiFrame> {
        vec![writer::run_started(run), writer::error(code, message, Vec::new())]
    }

    /// Processes the next update of the session, and returns the frames to send.
    pub(crate) fn update(&mut self, update: &Update<SessionSnapshot, SessionEvent>) -> Vec<AgUiFrame> {
        match update {
            _ if self.is_ended() => {}
            Update::Event(event) => self.event(event),
            Update::Resync(snapshot) => self.missed(snapshot),
            Update::Closed(end) => end.snapshot.iter().for_each(|snapshot| self.missed(snapshot)),
        }
        // The session interrupts its run. Without this error, a client would take the interrupted run as a success.
        if is_lost(&self.view) {
            return self.fail(LOST.0, LOST.1);
        }
        if matches!(update, Update::Closed(_)) {
            return self.fail("shut-down", "The conversation was closed.");
        }
        self.writer.flush(&self.view);
        std::mem::take(&mut self.writer.out)
    }

    fn event(&mut self, event: &Numbered<SessionEvent>) {
        let Self { follow, view, writer } = self;
        if view.apply(event).is_err() {
            return writer.fail("internal", "The state of the conversation is not known any more.", view);
        }
        let event = event.event.agent();
        // Pieces of an answer are frequent, and change nothing else.
        if !matches!(
            event,
            Some(Event::TextDelta { .. } | Event::ThinkingDelta { .. } | Event::ToolUseDelta { .. })
        ) {
            writer.news(view);
        }
        let Some(event) = event else { return };
        match event {
            Event::Step(response) => writer.step_ended(&response.model, response.usage),
            Event::Usage(row) => writer.used(row.model.as_deref().unwrap_or_default(), row.usage),
            _ => {}
        }
        follow.event(event, &mut |progress| writer.progress(progress, view));
        // The message belongs to another run.
        writer.wait(follow.turn().is_none() && matches!(event, Event::Message { .. }));
    }

    /// Processes a snapshot in place of missed events.
    fn missed(&mut self, snapshot: &SessionSnapshot) {
        let Self { follow, view, writer } = self;
        if snapshot.last == view.last {
            return;
        }
        // Without a run in between, the next run is the stream's own one.
        let is_later = snapshot.agent.run.saturating_sub(view.agent.run) > 1;
        view.clone_from(snapshot);
        writer.news(view);
        writer.begin_missed(follow.turn().is_none() && is_later);
        let (history, agent) = (&view.agent.state.history, &view.agent);
        follow.snapshot(history, agent, &mut |progress| writer.progress(progress, view));
        writer.end_snapshot();
    }

    /// Ends the stream with an error, unless it has ended. Returns the frames to send.
    pub(crate) fn fail(&mut self, code: &str, message: &str) -> Vec<AgUiFrame> {
        self.writer.fail(code, message, &self.view);
        std::mem::take(&mut self.writer.out)
    }

    /// Returns whether the terminal frame was returned.
    pub(crate) fn is_ended(&self) -> bool {
        self.writer.is_ended()
    }
}

/// Returns whether the conversation can't be saved any more.
fn is_lost(view: &SessionSnapshot) -> bool {
    matches!(view.store, Some(StoreReport::Lost { .. }))
}

/// Returns the member `omni` of the client's state.
pub(super) fn omni(view: &SessionSnapshot) -> Value {
    let agent = &view.agent;
    let mut omni = json!({
        "status": agent.status,
        "model": agent.state.model,
        "step": agent.step,
        "tokens": view.used.total(),
    });
    if let Some(title) = &view.title {
        omni["title"] = clip(title, 4096).into();
    }
    if let Some(cost) = view.used.with_finite_cost().cost {
        omni["cost"] = cost.into();
    }
    let mut messages = agent.pending.iter().rev().chain(agent.state.history.iter().rev());
    let last = messages.find(|message| message.compaction.is_none());
    if let Some(reason) = last.and_then(|message| message.ended.as_ref()) {
        omni["ended"] = reason.to_string().into();
    }
    omni
}
