//! Rows of turns in flight and of ends of runs that another program or a defective disk has changed.

use omni_agent::{
    run::{RunEnd, RunOutcome},
    store::{
        ConversationId, Page, Store, StoreError, TurnSummary,
        custom::{Change, Commit, Stored, Turns, Version, Write},
    },
};

use crate::{
    flight::{known, record},
    support::{commit, create, id, node},
};

/// The effect of a changed row on its conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The turn in flight can't be read, and the rest of the conversation can.
    TurnDamaged,
    /// Loading the conversation fails with the place of the damage.
    ConversationDamaged,
    /// The value is possible, or its nearest possible value is used.
    Accepted,
}

/// For each table, the condition that selects the changed row, the columns that contain text, and the effect of a
/// change.
pub(crate) const TEXTS: [(&str, &str, &[&str], Effect); 4] = [
    ("turns", "true", &["turn", "record"], Effect::TurnDamaged),
    ("approvals", "place = 0", &["content"], Effect::TurnDamaged),
    ("pending", "true", &["content"], Effect::TurnDamaged),
    ("runs", "true", &["ending", "prompts"], Effect::ConversationDamaged),
];

/// Like [`TEXTS`], for columns that contain numbers.
pub(crate) const NUMBERS: [(&str, &str, &[&str], Effect); 3] = [
    ("approvals", "place = 0", &["place"], Effect::Accepted),
    ("pending", "true", &["place"], Effect::Accepted),
    ("runs", "true", &["version"], Effect::Accepted),
];

/// Creates a conversation with a turn in flight or, for the table `runs`, with the end of a run.
async fn create_with(store: &dyn Store, id: &ConversationId, table: &str) -> Version {
    let version = create(store, id).await;
    let version = commit(store, id, version, 1, "Why?").await;
    let version = commit(store, id, version, 2, "Because.").await;
    let head = Commit::new(Some(node(2))).with_usage([]);
    let record = match table {
        "runs" => head.with_run_end(RunEnd::new(RunOutcome::Cancelled).with_prompts(vec![known("p")])),
        _ => head.with_turn(record()),
    };
    store.write(id, &Write::on(version), &Change::Commit(record)).await.unwrap()
}

async fn turns(store: &dyn Store, which: Turns) -> Vec<TurnSummary> {
    store.turns(which, &Page::first(1000).into()).await.unwrap()
}

/// A store with a sound conversation, which changes in other conversations must not affect.
pub(crate) struct Victim<'s> {
    pub(crate) store: &'s dyn Store,
    sound: Stored,
}

impl<'s> Victim<'s> {
    pub(crate) async fn new(store: &'s dyn Store) -> Self {
        create_with(store, &id("sound"), "turns").await;
        Self { store, sound: store.load(&id("sound")).await.unwrap() }
    }

    /// Changes a row of a new conversation with an SQL statement, and checks the effect.
    pub(crate) async fn check(
        &self,
        table: &str,
        row: &str,
        set: &str,
        effect: Effect,
        execute: impl AsyncFn(&str) -> u64,
    ) {
        let (store, id) = (self.store, ConversationId::generate());
        let what = format!("{table} {row} {set}");
        let version = create_with(store, &id, table).await;
        let key = format!("(SELECT key FROM {{schema}}conversations WHERE id = '{id}')");
        let sql = format!("UPDATE {{schema}}{table} SET {set} WHERE conversation = {key} AND {row}");
        assert_eq!(execute(&sql).await, 1, "{what}");
        self.check_load(&id, effect, &what).await;
        self.check_lists(&id, effect, &what).await;

        // The conversation continues, with the same turn and with another one.
        let head = Commit::new(Some(node(2))).with_usage([]);
        let same = head.with_turn(record().with_append(Vec::new()).with_keep(1).with_mark(None));
        let version =
            store.write(&id, &Write::on(version), &Change::Commit(same)).await.unwrap_or_else(|error| {
                panic!("{what}: {error}");
            });
        let version = commit(store, &id, version, 3, "Go on").await;
        let stored = store.load(&id).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((stored.version, stored.nodes.len(), stored.turn), (version, 3, None), "{what}");
        store.delete(&id, None).await.unwrap();
    }

    async fn check_load(&self, id: &ConversationId, effect: Effect, what: &str) {
        match (effect, self.store.load(id).await) {
            (Effect::TurnDamaged, Ok(stored)) => {
                let damage = stored.turn.and_then(|turn| turn.damage).unwrap_or_default();
                assert!(!damage.is_empty(), "{what}");
                assert_eq!(stored.nodes.len(), 2, "{what}");
            }
            (Effect::ConversationDamaged, Err(StoreError::Damaged { place, problem })) => {
                assert!(place.contains(id.as_str()) && !problem.is_empty(), "{what}: {place}: {problem}");
            }
            (Effect::Accepted, Ok(stored)) => assert_eq!(stored.nodes.len(), 2, "{what}"),
            (_, found) => panic!("{what}: {effect:?} was expected, found {found:?}"),
        }
        assert_eq!(self.store.load(&crate::support::id("sound")).await.unwrap(), self.sound, "{what}");
    }

    async fn check_lists(&self, id: &ConversationId, effect: Effect, what: &str) {
        let listed = self.store.list(&Page::first(1000).into()).await.unwrap();
        assert!(listed.iter().any(|summary| summary.id == *id), "{what}");
        for which in [Turns::All, Turns::Waiting, Turns::Left] {
            let turns = turns(self.store, which).await;
            assert!(turns.iter().any(|turn| turn.id.as_str() == "sound"), "{what}: {which:?}");
            let of_this = turns.iter().find(|turn| turn.id == *id);
            // A list does not read pending messages, so it does not report their damage.
            if matches!(effect, Effect::TurnDamaged) && !what.starts_with("pending") {
                assert!(of_this.is_some_and(|turn| turn.damage.is_some()), "{what}: {which:?}");
            }
            assert!(serde_json::to_string(&turns).is_ok(), "{what}: {which:?}");
        }
    }
}
