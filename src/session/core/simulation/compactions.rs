//! Compactions of the simulated agent: before the first answer of a turn, between its steps, after the last turn of a
//! run, and by request.

use std::sync::Arc;

use super::agent::Agent;
use crate::{
    actor::random::Rng,
    agent::{Event, Status},
    message::{
        Compaction, CompactionTrigger, History, Message, Purpose, RequestEnd, Timestamp, Usage, UsageRow,
    },
    provider::StopReason,
    run::{Failure, Response},
};

/// A compaction in progress.
pub(super) enum Underway {
    /// It will stand at this index among the pending messages of the turn.
    In(usize),
    /// It is a turn alone, after the turn with this response. A requested compaction follows no turn.
    Alone(Option<Arc<Response>>),
}

/// Returns a random compaction that may follow this history. Returns `None` if tool uses are open.
pub(super) fn random_compaction(number: u32, history: &History, rng: &mut Rng) -> Option<Arc<Message>> {
    if history.open_tool_uses().next().is_some() {
        return None;
    }
    let length = history.len();
    let trigger =
        rng.pick(&[CompactionTrigger::Size, CompactionTrigger::Overflow, CompactionTrigger::Request]);
    let mut own = Compaction::new(trigger);
    own.is_summary = rng.percent(70);
    let kept = rng.below(length + 1);
    let cleared = if own.is_summary { rng.below(length - kept + 1) } else { length - kept };
    (own.kept, own.cleared) = (number_of(kept), number_of(cleared));
    loop {
        let message = Message::compaction(format!("summary {number}"), own.clone());
        let message = Arc::new(Message { timestamp: Timestamp(0), ..message });
        let whole: History = history.iter().chain([&message]).cloned().collect();
        if whole.check_pairs().is_ok() {
            return Some(message);
        }
        // The first message that is sent would have tool results.
        own.cleared += 1;
    }
}

fn number_of(messages: usize) -> u32 {
    messages.try_into().expect("the history is short")
}

impl Agent {
    /// Starts a compaction in the turn in flight. It stands before a new prompt, and otherwise after all messages.
    pub(super) fn compact(&mut self, rng: &mut Rng) {
        let is_new = self.pending.len() == 1 && !self.is_again;
        let is_before = is_new && self.pending[0].tool_results().next().is_none();
        let trigger = rng.pick(&[CompactionTrigger::Size, CompactionTrigger::Overflow]);
        self.start(trigger, Underway::In(if is_before { 0 } else { self.pending.len() }));
    }

    /// Starts a compaction that is a run alone.
    pub(super) fn compact_on_request(&mut self, rng: &mut Rng) {
        let is_open = self.history.open_tool_uses().next().is_some();
        if is_open || self.history.is_empty() || rng.percent(20) {
            return;
        }
        self.runs = true;
        self.become_(Status::Busy);
        self.begin_turn();
        self.start(CompactionTrigger::Request, Underway::Alone(None));
    }

    /// Starts a compaction after the turn with this response, which would end the run. Returns whether it has started.
    pub(super) fn compact_after(&mut self, response: &Arc<Response>, rng: &mut Rng) -> bool {
        if !self.compacts || self.history.open_tool_uses().next().is_some() || rng.percent(70) {
            return false;
        }
        self.emit(Event::Turn { response: Arc::clone(response), continues: true });
        self.begin_turn();
        self.start(CompactionTrigger::Size, Underway::Alone(Some(Arc::clone(response))));
        true
    }

    fn start(&mut self, trigger: CompactionTrigger, underway: Underway) {
        self.compacting = Some(underway);
        self.emit(Event::CompactionStart { trigger, tokens: 1, turn: self.turn, run: 1 });
    }

    /// Ends the compaction in progress. It sometimes fails.
    pub(super) fn end_compaction(&mut self, underway: Underway, rng: &mut Rng) {
        let at = if let Underway::In(at) = underway { at } else { 0 };
        let before: History = self.history.iter().chain(&self.pending[..at]).cloned().collect();
        let made = random_compaction(self.messages, &before, rng).filter(|_| rng.percent(80));
        self.spend_on_summary(rng);
        let failure = made.is_none().then(|| Failure::TimeLimit { limit: std::time::Duration::from_secs(1) });
        self.pending.splice(at..at, made.clone());
        self.emit(Event::CompactionEnd { message: made, at, failure });
        if let Underway::Alone(answered) = underway {
            // A prompt that was staged meanwhile starts the next turn.
            self.end_compaction_turn(answered, rng.percent(25));
        }
    }

    /// Emits the usage of the request for a summary, if it is known.
    fn spend_on_summary(&mut self, rng: &mut Rng) {
        let usage = Usage::default().with_input(rng.pick(&[0, 2]));
        if !usage.is_zero() {
            self.spent += usage;
            let row = UsageRow::new(RequestEnd::Answered, usage).with_purpose(Purpose::Summary);
            let row = row.with_turn(self.turn).with_step(self.request).with_model("model".to_owned());
            self.emit(Event::Usage(Box::new(row)));
        }
    }

    /// Ends a turn that is a compaction alone.
    pub(super) fn end_compaction_turn(&mut self, answered: Option<Arc<Response>>, continues: bool) {
        self.history.extend(self.pending.iter().cloned());
        let turn = self.turn;
        let own = self.response(StopReason::Stop);
        let answered = answered.map_or_else(|| Response::clone(&own), Arc::unwrap_or_clone);
        let response =
            Response { turn: Some(turn), usage: own.usage, messages: own.messages.clone(), ..answered };
        if !continues {
            self.runs = false;
            self.become_(Status::Idle);
        }
        self.emit(Event::Turn { response: Arc::new(response), continues });
    }
}
