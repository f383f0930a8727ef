use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    PassedOrSkipped, StoreUnderTest, committed, conversation, created, path,
    turns::{keeping, listed, tick, turn_id, turn_of},
};
use crate::{
    message::{Message, Timestamp, ToolUse, TurnId},
    run::{PendingUse, RunEnd, RunOutcome, TurnRecord},
    store::{Commit, Filter, Page, Stored, StoredTurn, TurnSummary, Turns},
    tool::Decision,
    tree::NodeId,
};

/// A small generator of pseudorandom numbers (splitmix64). Its seed is fixed, so that each run makes the same records.
struct Random(u64);

impl Random {
    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn small(&mut self, end: u32) -> u32 {
        u32::try_from(self.below(end.into())).unwrap_or_default()
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn rarely(&mut self) -> bool {
        self.below(10) == 0
    }

    fn text(&mut self) -> String {
        const TEXTS: [&str; 7] = ["", "\"", "\u{0}", "ü\u{10ffff}", "a long text ", "{}", "\"\\u0000\""];
        TEXTS[self.small(7) as usize].repeat(if self.rarely() { 2000 } else { 1 })
    }

    fn many<T>(&mut self, most: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most)).map(|_| make(self)).collect()
    }

    fn waiting(&mut self) -> PendingUse {
        let id = if self.coin() { self.text() } else { self.below(3).to_string() };
        let mut waiting = PendingUse::new(
            TurnId::default(),
            ToolUse::new(id.as_str(), self.text(), json!({ "a": self.text() })),
        );
        waiting.reason = if self.coin() { json!([self.text(), 1.5, u64::MAX]) } else { Value::Null };
        waiting.limit = match self.below(3) {
            0 => None,
            1 => Some(Duration::from_millis(self.below(100_000))),
            _ => Some(Duration::MAX),
        };
        waiting.on_expiry = match self.below(4) {
            0 => None,
            1 => Some(Decision::Execute),
            2 => Some(Decision::ExecuteWith(json!({ "b": self.text() }))),
            _ => Some(Decision::reject(self.text())),
        };
        waiting.with_survives(self.coin())
    }

    /// Returns a record with unlikely content.
    fn record(&mut self, head: Option<NodeId>) -> TurnRecord {
        let format = if self.coin() { 1 } else { u32::MAX };
        let mut record = TurnRecord::new(format, turn_id(self.below(2)), self.text().as_str());
        record.lives = if self.coin() { 0 } else { u32::MAX };
        record.spent = if self.rarely() { Duration::MAX } else { Duration::from_millis(self.below(5000)) };
        record.orderly = self.coin();
        record.head = if self.rarely() { NodeId::new(u64::MAX) } else { head };
        record.keep = if self.rarely() { u32::MAX } else { self.small(4) };
        record.append = self.many(3, |random| Arc::new(Message::user(random.text())));
        record.waiting = self.many(4, Self::waiting);
        record
    }
}

/// Returns the times of a turn: since when it and its approvals exist, and when it was last recorded.
fn ages(turn: &StoredTurn) -> (Timestamp, Timestamp, Vec<Timestamp>) {
    (turn.since, turn.recorded, turn.waiting_since.clone())
}

/// Returns the times of a turn in a list, in the order of [`ages`].
fn listed_ages(turn: &TurnSummary) -> (Timestamp, Timestamp, Vec<Timestamp>) {
    (turn.since, turn.recorded, turn.approvals.iter().filter_map(|approval| approval.since).collect())
}

pub(super) async fn records_of_any_content_are_summed_up(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let Some(store) = keeping(subject) else { return PassedOrSkipped::Skipped };
    let mut random = Random(13);
    for round in 0..8 {
        let id = conversation(&format!("c{round}"));
        let mut version = created(&*store, &id).await;
        let mut model: Stored = store.load(&id).await.expect("loading succeeds");
        let mut nodes = 0;
        for step in 0..12 {
            let mut commit = Commit::new(model.head).with_usage([]);
            match random.below(10) {
                0 => {
                    commit = Commit::new(NodeId::new(nodes + 1)).with_nodes(path(nodes + 1, nodes + 1));
                    nodes += 1;
                }
                1 => commit.head = NodeId::new(random.below(nodes + 1)),
                2 => commit = commit.with_run_end(RunEnd::new(RunOutcome::Cancelled)),
                _ => {}
            }
            if commit.turn.is_none() && !random.rarely() {
                let record = random.record(commit.head);
                commit = commit.with_turn(record);
            }
            tick().await;
            version = committed(&*store, &id, version, &commit).await;
            let stored = turn_of(&*store, &id).await;
            model.commit_at(commit, stored.as_ref().map_or(Timestamp(0), |turn| turn.recorded));
            model.advance(version, model.updated);
            let context = format!("round {round}, step {step}");
            let expected = model.turn.as_deref();
            assert_eq!(
                stored.as_ref().map(|turn| &turn.record),
                expected.map(|turn| &turn.record),
                "{context}"
            );
            assert_eq!(stored.as_ref().map(ages), expected.map(ages), "{context}");
            let all = listed(&*store, Turns::All, &Filter::default(), Page::default()).await;
            let entry = all.iter().find(|entry| entry.id == id).map(listed_ages);
            let expected = expected.map(|turn| TurnSummary::new(id.clone(), turn));
            let expected = expected.and_then(|entry| entry.listed(Turns::All, Timestamp::now()));
            assert_eq!(entry, expected.as_ref().map(listed_ages), "{context}");
        }
    }
    for which in [Turns::All, Turns::Waiting, Turns::Left] {
        listed(&*store, which, &Filter::default(), Page::default()).await;
    }
    PassedOrSkipped::Made
}
