use std::{collections::BTreeMap, time::Duration};

use super::{CheckOutcome, Subject, committed, conversation, turn};
use crate::{
    provider::{Options, Secret},
    store::{StateChange, StoredState, Write, WriteId},
};

fn full() -> StoredState {
    StoredState::default()
        .with_model("anthropic:claude-sonnet-4-6")
        .with_system("Be brief.\nBe kind.")
        .with_options(
            Options::default().with_max_tokens(500).with_temperature(0.1 + 0.2).with_extra([("seed", 7)]),
        )
        .with_max_steps(30)
        .with_turn_timeout(Duration::from_millis(90_500))
        .with_title("A talk")
}

pub(super) async fn state_alone_is_replaced_whole(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("state");
    let version = store.create(&id, WriteId::generate(), &full()).await.expect("the id is free");
    let version = committed(&*store, &id, version, &turn(1, 2)).await;
    assert_eq!(store.load(&id).await.expect("it is there").state, full());
    let other = StoredState::default().with_model("openai:gpt-5");
    let change = StateChange::whole(other.clone());
    store.save_state(&id, &Write::on(version), &change).await.expect("a state on the current version");
    let stored = subject.another().await.load(&id).await.expect("it is there");
    assert_eq!(stored.state, other, "something of the old state stayed, or of the new one is missing");
    assert_eq!(stored.nodes.len(), 2);
    assert_eq!(store.summary(&id).await.expect("it is there").title, None);
    CheckOutcome::Made
}

pub(super) async fn title_alone_leaves_the_rest(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("title");
    let mut version = store.create(&id, WriteId::generate(), &full()).await.expect("the id is free");
    let titles = ["Another", "", "two\nlines\0\"quoted\" \u{1f600}", "x", &"long ".repeat(1000)];
    for title in titles.map(|title| Some(title.to_owned())).into_iter().chain([None]) {
        let change = StateChange::Title(title.clone());
        version = store.save_state(&id, &Write::on(version), &change).await.expect("a title");
        let state = store.load(&id).await.expect("it is there").state;
        assert_eq!(state.title, title);
        assert_eq!(StoredState { title: full().title, ..state }, full(), "more than the title changed");
        assert_eq!(store.summary(&id).await.expect("it is there").title, title);
    }
    CheckOutcome::Made
}

pub(super) async fn commit_with_state_writes_both(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("both");
    let version =
        store.create(&id, WriteId::generate(), &StoredState::default()).await.expect("the id is free");
    let version = committed(&*store, &id, version, &turn(1, 2).with_state(full())).await;
    // One without leaves it.
    committed(&*store, &id, version, &turn(3, 4)).await;
    let stored = store.load(&id).await.expect("it is there");
    assert_eq!((stored.nodes.len(), stored.state), (4, full()));
    assert_eq!(store.summary(&id).await.expect("it is there").title, full().title);
    CheckOutcome::Made
}

pub(super) async fn secrets_are_not_stored(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let id = conversation("secrets");
    let mut state = full();
    state.options.api_key = Some(Secret::new("sk-secret"));
    state.options.headers =
        Some(BTreeMap::from([("Authorization".to_owned(), Secret::new("Bearer secret"))]));
    let mut version = store.create(&id, WriteId::generate(), &state).await.expect("the id is free");
    for round in 0..3 {
        let options = store.load(&id).await.expect("it is there").state.options;
        assert_eq!((&options.api_key, &options.headers), (&None, &None), "round {round}");
        assert_eq!(options, full().options);
        let write = Write::on(version);
        version = if round == 0 {
            store.save_state(&id, &write, &StateChange::whole(state.clone())).await.expect("a state")
        } else {
            let mut commit = turn(round, round);
            commit.state = Some(Box::new(state.clone()));
            store.commit(&id, &write, &commit).await.expect("a commit")
        };
    }
    CheckOutcome::Made
}
