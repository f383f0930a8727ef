//! Records of a turn that are merged before they are saved.

use std::sync::Arc;

use omni_agent::{
    message::{Message, Timestamp, ToolUse, TurnId},
    run::PendingUse,
    store::custom::{Commit, Stored, StoredState, TurnRecord, Version},
};
use proptest::{collection::vec, prelude::*};
use serde_json::json;

/// The change of a turn from one record to the next.
#[derive(Clone, Debug)]
enum Step {
    /// Messages were added.
    Adds(u8),
    /// The last messages were removed (the first number counts them), and then messages were added (the second number).
    /// At least one removed message was saved before.
    Removes(u8, u8),
    /// `true`: one more tool use waits. `false`: a decision was made about the last tool use that waits.
    Waits(bool),
    /// Another turn is in flight.
    Another,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4u8).prop_map(Step::Adds),
        1 => (1..4u8, 0..3u8).prop_map(|(removed, added)| Step::Removes(removed, added)),
        2 => any::<bool>().prop_map(Step::Waits),
        1 => Just(Step::Another),
    ]
}

/// The agent's side of a turn: makes the record of each step.
#[derive(Default)]
struct Turn {
    id: u128,
    messages: u32,
    /// The number of messages that are saved. `Step::Removes` removes at least one of them.
    stored: u32,
    waiting: Vec<PendingUse>,
    records: u32,
}

impl Turn {
    fn message(&self, number: u32) -> Arc<Message> {
        Message::user(format!("{number} of record {}", self.records)).with_timestamp(Timestamp(7)).into()
    }

    fn record(&mut self, step: &Step, is_saved: bool) -> TurnRecord {
        self.records += 1;
        if matches!(step, Step::Another) {
            *self = Self { id: self.id + 1, records: self.records, ..Self::default() };
        }
        let mut keep = self.messages;
        let mut added = 0;
        match step {
            Step::Adds(count) => added = u32::from(*count),
            Step::Removes(removed, count) if self.stored > 0 => {
                keep = self.stored - u32::from(*removed).min(self.stored);
                added = u32::from(*count);
            }
            Step::Waits(true) => {
                let tool_use = ToolUse::new(format!("use {}", self.records), "send", json!({}));
                self.waiting.push(PendingUse::new(TurnId::default(), tool_use));
            }
            Step::Waits(false) => drop(self.waiting.pop()),
            Step::Removes(..) | Step::Another => {}
        }
        let append = (keep..keep + added).map(|number| self.message(number)).collect();
        self.messages = keep + added;
        self.stored = if is_saved { self.messages } else { self.stored.min(keep) };
        let core = format!("{{\"record\":{}}}", self.records);
        TurnRecord::new(1, format!("{:032x}", self.id).parse().expect("a turn's id"), core)
            .with_keep(keep)
            .with_append(append)
            .with_waiting(self.waiting.clone())
    }
}

fn saved(stored: &mut Stored, record: TurnRecord) {
    stored.commit_at(Commit::new(None).with_turn(record), Timestamp(5));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A session that merges the records that it could not save yet saves the same turn as one that saves each record.
    #[test]
    fn saving_merged_records_equals_saving_each(steps in vec((step(), any::<bool>()), 1..24)) {
        let new = || Stored::new(Version::new(1), Timestamp(1), StoredState::default());
        let (mut each, mut merged, mut turn) = (new(), new(), Turn::default());
        let mut unsaved: Option<TurnRecord> = None;
        for (step, is_saved) in steps {
            let record = turn.record(&step, is_saved);
            saved(&mut each, record.clone());
            let record = match unsaved.take() {
                Some(earlier) => earlier.then(record),
                None => record,
            };
            if is_saved {
                saved(&mut merged, record);
                prop_assert_eq!(&merged.turn, &each.turn);
            } else {
                unsaved = Some(record);
            }
        }
    }
}
