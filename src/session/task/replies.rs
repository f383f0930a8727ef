//! Replies that wait: for changes to be stored, or for the outcome of a prompt.

use tokio::time::Instant;

use super::SessionTask;
use crate::{
    agent::Durable,
    message::Role,
    run::{Error, KnownPrompt, PromptId, PromptState},
    session::{
        PromptOutcome,
        command::{OutcomeReply, SessionCommandResult, SessionReplyTx, StartedRun},
        error::unknown_prompt,
    },
    tree::Node,
};

/// A call that waits until changes are in the store, or for the outcome of a prompt.
pub(in crate::session) struct CallWaitingForStore {
    /// The value of the counter of changes up to which the changes must be stored before the reply.
    pub(super) wanted: u64,
    pub(super) until: Option<Instant>,
    pub(super) reply: ReplyAfterStore,
}

/// The reply to a call that waits until changes are stored.
pub(in crate::session) enum ReplyAfterStore {
    /// The reply to a call of `flush`.
    Flushed(SessionReplyTx<()>),
    /// The reply to a call that has started a run. The turn in flight has to be stored before the reply is sent.
    Begun(SessionReplyTx<SessionCommandResult<StartedRun>>, StartedRun),
    /// The reply to a call that waits for the outcome of a prompt. The outcome is `None` until the prompt's run has
    /// ended.
    Outcome { id: PromptId, outcome: Option<SessionCommandResult<PromptOutcome>>, reply: OutcomeReply },
}

impl ReplyAfterStore {
    /// Returns whether nobody waits for the reply any more.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Flushed(reply) => reply.is_closed(),
            Self::Begun(reply, _) => reply.is_closed(),
            Self::Outcome { reply, .. } => reply.is_closed(),
        }
    }

    /// Sends the reply. An error means that nobody waits for it any more.
    fn send(self) {
        match self {
            Self::Flushed(reply) => drop(reply.send(())),
            Self::Begun(reply, begun) => drop(reply.send(Ok(begun))),
            Self::Outcome { outcome, reply, .. } => drop(outcome.map(|outcome| reply.send(outcome))),
        }
    }
}

impl SessionTask {
    /// Replies to the calls whose changes are now saved.
    pub(super) fn answer_flushes(&mut self) {
        let core = &self.core;
        for flush in self.flushes.extract_if(.., |flush| core.is_safe(flush.wanted)) {
            flush.reply.send();
        }
    }

    /// Replies with the outcome of a prompt when the prompt's run has ended.
    pub(super) async fn await_outcome(&mut self, id: PromptId, reply: OutcomeReply) -> Result<(), Error> {
        let last = self.owner.position().await?.last;
        self.take_until(last).await?;
        self.flushes.retain(|flush| !flush.reply.is_closed());
        let is_known = self.core.known_prompt(&id).is_some_and(|known| known.state != PromptState::Returned);
        if !is_known {
            let _ = reply.send(Err(unknown_prompt(&id)));
            return Ok(());
        }
        // No number of changes is this great, so the reply waits until the outcome is known.
        let reply = ReplyAfterStore::Outcome { id, outcome: None, reply };
        self.flushes.push(CallWaitingForStore { wanted: u64::MAX, until: None, reply });
        self.find_outcomes();
        Ok(())
    }

    /// Finds the outcomes of prompts whose runs have ended, and replies with them when they are stored. A prompt that
    /// was returned unused has no outcome.
    pub(super) fn find_outcomes(&mut self) {
        if self.flushes.is_empty() {
            return;
        }
        let is_stored = self.shared.setup.durable > Durable::Turns;
        let (settled, wanted) =
            if is_stored { (self.core.outcomes_wanted(), self.core.wanted()) } else { (0, 0) };
        for flush in &mut self.flushes {
            let ReplyAfterStore::Outcome { id, outcome: found @ None, .. } = &mut flush.reply else {
                continue;
            };
            match self.core.known_prompt(id) {
                Some(KnownPrompt { state: PromptState::Ended { outcome }, through, .. }) => {
                    let last = through.and_then(|node| self.core.tree().node(node)).map(Node::message);
                    let answer = last.filter(|message| message.role == Role::Assistant).cloned();
                    *found = Some(Ok(PromptOutcome { outcome: outcome.clone(), through: *through, answer }));
                    flush.wanted = settled;
                }
                Some(known) if !known.is_over() => {}
                _ => {
                    *found = Some(Err(unknown_prompt(id)));
                    flush.wanted = wanted;
                }
            }
        }
        self.answer_flushes();
    }
}
