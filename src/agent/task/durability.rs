//! Makes the records of the turn in flight, and holds back the effects and replies that wait for them.
//!
//! Only effects and replies wait for a record. An event never waits, because a snapshot would otherwise show something
//! that no event has reported. The report of a pause is an event, so it is made after the record of the pause is
//! stored. A reader of the store may decide before the report. The core keeps such a decision, and applies it right
//! after the report.
//!
//! A record travels in the commit channel with the first event of its input, so a commit and the first state of the
//! next turn are one write. Replies to the owner of the history are never held: its task could then wait for a write
//! that it performs itself. Once a turn has a record, its effects wait for records until the run ends, whatever the
//! level. Otherwise a tool could run unrecorded after the last record, and run again after a crash.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Sleep, sleep};

use super::AgentTask;
use crate::agent::{
    AgentCommitItem, Durable, LastStoredRecordNumber, RecordToStore,
    command::AgentReplyTx,
    core::{AgentCore, AgentEffect},
    delegation::CombinedDecisionReply,
    durable::RecoveryFacts,
    phase::AgentTurnStage,
};
use crate::run::Error;

/// The state of an agent that makes records.
pub(in crate::agent) struct AgentRecordingState {
    pub(super) level: Durable,
    /// The time after which a change is recorded if nothing waits for the record.
    delay: Duration,
    written: Arc<LastStoredRecordNumber>,
    /// The number of the last record.
    last: u64,
    /// The record of the input that is being processed, until an event carries it.
    loose: Option<Arc<RecordToStore>>,
    /// Whether the input that is being processed was recorded.
    is_recorded: bool,
    /// Whether the turn is left to another process, so that no effect that waits for a record is performed any more.
    is_leaving: bool,
    /// The timer of a record for which nothing waits.
    soon: Option<Pin<Box<Sleep>>>,
    /// The replies that wait, each with the number of the record for which it waits.
    replies: VecDeque<(u64, ReplyAfterRecord)>,
    /// The facts about the turn with which the agent has started, until it is taken up.
    pub(super) facts: Option<RecoveryFacts>,
}

type ReplyAfterRecord = Box<dyn FnOnce() + Send>;

impl AgentRecordingState {
    pub(in crate::agent) fn new(
        level: Durable,
        delay: Duration,
        written: Arc<LastStoredRecordNumber>,
        facts: Option<RecoveryFacts>,
    ) -> Self {
        Self {
            level,
            delay,
            written,
            last: 0,
            loose: None,
            is_recorded: false,
            is_leaving: false,
            soon: None,
            replies: VecDeque::new(),
            facts,
        }
    }

    fn is_written(&self) -> bool {
        self.written.number() >= self.last
    }

    /// Returns the number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Takes the record that the next event carries.
    pub(super) fn take_loose(&mut self) -> Option<Arc<RecordToStore>> {
        self.loose.take()
    }
}

impl AgentTask {
    /// Makes a record of the state after the input that is being processed, unless this input is already recorded.
    pub(super) fn record(&mut self) {
        let Some(durability) = &mut self.durability else { return };
        if std::mem::replace(&mut durability.is_recorded, true) {
            return;
        }
        let mut turn = self.core.record();
        if let (Some(turn), Some(spent)) = (&mut turn, self.work.as_ref().and_then(|work| work.spent())) {
            turn.spent = spent;
        }
        durability.last += 1;
        durability.soon = None;
        durability.loose = Some(Arc::new(RecordToStore { number: durability.last, turn }));
    }

    pub(super) fn record_soon(&mut self) {
        if let Some(durability) = &mut self.durability {
            let delay = durability.delay;
            durability.soon.get_or_insert_with(|| Box::pin(sleep(delay)));
        }
    }

    /// Called when all effects of an input are performed. Delivers the input's record if no event has carried it.
    pub(super) fn end_input(&mut self) {
        let Some(durability) = &mut self.durability else { return };
        durability.is_recorded = false;
        if let (Some(record), Some(commit)) = (durability.loose.take(), &mut self.commit) {
            commit.outbox.push_back(AgentCommitItem {
                event: None,
                config: Arc::clone(&self.config),
                run: crate::telemetry::CallerSpan::default(),
                settings: None,
                record: Some(record),
            });
        }
    }

    /// Leaves the turn in flight to another process: records it, and performs no effect that waits for a record any
    /// more.
    pub(super) fn leave(&mut self) {
        let Some(durability) = &mut self.durability else { return };
        durability.is_leaving = true;
        self.leave_delegations();
        let withheld = self.work.as_mut().and_then(|work| work.held.take()).map(|held| held.1);
        self.step(|core, cx| core.leave(withheld.as_ref(), cx));
    }

    /// Leaves the turns of the sub-agents, too, because their calls are repeated in another process.
    pub(super) fn leave_delegations(&self) {
        if let Some(delegations) = self.delegations() {
            delegations.leave();
        }
    }

    /// Returns whether the turn in flight is left to another process.
    pub(super) fn is_leaving(&self) -> bool {
        self.durability.as_ref().is_some_and(|durability| durability.is_leaving)
    }

    /// Returns whether no effect that waits for a record is performed any more.
    fn is_withheld(&self) -> bool {
        self.is_leaving() || self.above().is_some_and(|call| call.is_parked())
    }

    /// Performs an effect when the last record is stored.
    pub(super) fn hold_back(&mut self, effect: AgentEffect) {
        let is_withheld = self.is_withheld();
        let waits = |own: &&AgentRecordingState| is_withheld || !own.is_written();
        let Some(last) = self.durability.as_deref().filter(waits).map(|own| own.last) else {
            return self.perform(effect);
        };
        match effect {
            AgentEffect::Resolve(response) => {
                if let (Some(asker), Some(durability)) = (self.asker.take(), &mut self.durability) {
                    let reply = move || drop(asker.send(response));
                    durability.replies.push_back((last, Box::new(reply)));
                }
            }
            effect => {
                let held = self.work().held.take();
                self.work().held = Some((last, effect.after(held.map(|(_, held)| held))));
            }
        }
    }

    /// Sends a reply. A successful reply is sent when the last record is stored.
    pub(super) fn reply<T: Send + 'static>(
        &mut self,
        reply: AgentReplyTx<Result<T, Error>>,
        result: Result<T, Error>,
    ) {
        match &mut self.durability {
            Some(durability) if result.is_ok() && !durability.is_written() => {
                let reply = move || drop(reply.send(result));
                durability.replies.push_back((durability.last, Box::new(reply)));
            }
            _ => drop(reply.send(result)),
        }
    }

    /// Keeps a part of a reply until the last record is stored.
    pub(super) fn reply_later(&mut self, part: CombinedDecisionReply) {
        if let Some(durability) = self.durability.as_mut().filter(|durability| !durability.is_written()) {
            let held = part.hold();
            durability.replies.push_back((durability.last, Box::new(move || held.release())));
        }
    }

    /// Sends the replies whose records are stored.
    pub(super) fn release_replies(&mut self, cx: &Context<'_>) {
        let Some(durability) = &mut self.durability else { return };
        let written = durability.written.poll(cx.waker());
        while durability.replies.front().is_some_and(|(number, _)| *number <= written) {
            if let Some((_, reply)) = durability.replies.pop_front() {
                reply();
            }
        }
    }

    /// Performs the effect that is held back if its record is stored, and records changes whose time has come. Pending
    /// if there is nothing to do.
    pub(super) fn poll_records(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(durability) = &mut self.durability else { return Poll::Pending };
        let written = durability.written.number();
        if let Some(soon) = &mut durability.soon
            && soon.as_mut().poll(cx).is_ready()
        {
            durability.soon = None;
            self.step(AgentCore::record_now);
            return Poll::Ready(());
        }
        let is_stored = |held: &(u64, AgentEffect)| held.0 <= written;
        if !self.work.as_ref().and_then(|work| work.held.as_ref()).is_some_and(is_stored)
            || self.is_withheld()
        {
            return Poll::Pending;
        }
        let held = self.work.as_mut().and_then(|work| work.held.take());
        let Some((_, effect)) = held else { return Poll::Pending };
        self.perform_all(vec![effect]);
        Poll::Ready(())
    }

    /// Returns whether the turn only waits for decisions, also about tools of sub-agents, and can wait in the store.
    pub(super) fn only_waits(&self) -> bool {
        let waits =
            |stage: &AgentTurnStage| matches!(stage, AgentTurnStage::Paused { .. }) || stage.only_delegates();
        self.core.phase().is_recorded() && self.core.phase().stage().is_some_and(waits)
    }

    /// Before the agent can end, takes up all reports of sub-agents. If the turn only waits, also records the changes for
    /// which nothing waits.
    pub(super) fn complete_records(&mut self) {
        self.take_delegated();
        let waits = self.only_waits();
        if let Some(durability) = &mut self.durability
            && waits
            && durability.soon.take().is_some()
        {
            self.step(AgentCore::record_now);
        }
    }

    /// Returns whether the agent can end without a loss, because its turn only waits and is stored. If so, its sub-agents
    /// start nothing any more, and the agent has to end.
    pub(super) fn park(&self) -> bool {
        self.only_waits()
            && self.durability.as_ref().is_some_and(|durability| durability.is_written())
            && !self.is_blocked()
            && match self.core.phase().stage() {
                Some(AgentTurnStage::Executing { .. }) => self.delegations().is_some_and(|own| own.park()),
                _ => true,
            }
    }
}
