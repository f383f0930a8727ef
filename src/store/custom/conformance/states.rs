use std::{collections::BTreeMap, time::Duration};

use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, turn};
use crate::{
    provider::{Options, Secret},
    store::{Change, StateChange, StoredState, TitleBy, Write},
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

pub(super) async fn state_change_replaces_the_whole_state(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("state");
    let version = store.write(&id, &Write::first(), &Change::create(full())).await.expect("the id is free");
    let version = committed(&*store, &id, version, &turn(1, 2)).await;
    assert_eq!(store.load(&id).await.expect("the conversation exists").state, full());
    let other = StoredState::default().with_model("openai:gpt-5");
    let change = StateChange::whole(other.clone());
    store
        .write(&id, &Write::on(version), &Change::State(change))
        .await
        .expect("a state on the current version");
    let stored = subject.another().await.load(&id).await.expect("the conversation exists");
    assert_eq!(stored.state, other, "the new state was not stored completely");
    assert_eq!(stored.nodes.len(), 2);
    assert_eq!(store.summary(&id).await.expect("the conversation exists").title, None);
    PassedOrSkipped::Made
}

pub(super) async fn title_change_keeps_the_rest_of_the_state(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("title");
    let mut version =
        store.write(&id, &Write::first(), &Change::create(full())).await.expect("the id is free");
    let titles = ["Another", "", "two\nlines\0\"quoted\" \u{1f600}", "x", &"long ".repeat(1000)];
    for title in titles.map(|title| Some(title.to_owned())).into_iter().chain([None]) {
        let change = StateChange::Title { title: title.clone(), by: TitleBy::Person };
        version = store
            .write(&id, &Write::on(version), &Change::State(change))
            .await
            .expect("saving a title succeeds");
        let state = store.load(&id).await.expect("the conversation exists").state;
        assert_eq!(state.title, title);
        assert_eq!(StoredState { title: full().title, ..state }, full(), "more than the title changed");
        assert_eq!(store.summary(&id).await.expect("the conversation exists").title, title);
    }
    PassedOrSkipped::Made
}

pub(super) async fn commit_with_state_writes_both(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("both");
    let version = store
        .write(&id, &Write::first(), &Change::create(StoredState::default()))
        .await
        .expect("the id is free");
    let version = committed(&*store, &id, version, &turn(1, 2).with_state(full())).await;
    // A commit that contains no state does not change the stored state.
    committed(&*store, &id, version, &turn(3, 4)).await;
    let stored = store.load(&id).await.expect("the conversation exists");
    assert_eq!((stored.nodes.len(), stored.state), (4, full()));
    assert_eq!(store.summary(&id).await.expect("the conversation exists").title, full().title);
    PassedOrSkipped::Made
}

pub(super) async fn secrets_are_not_stored(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("secrets");
    let mut state = full();
    state.settings.options.set_api_key(Some(Secret::new("sk-secret")));
    state
        .settings
        .options
        .set_headers(Some(BTreeMap::from([("Authorization".to_owned(), Secret::new("Bearer secret"))])));
    let mut version =
        store.write(&id, &Write::first(), &Change::create(state.clone())).await.expect("the id is free");
    for round in 0..3 {
        let options = store.load(&id).await.expect("the conversation exists").state.settings.options;
        assert_eq!((options.api_key(), options.headers()), (None, None), "round {round}");
        assert_eq!(options, full().settings.options);
        let write = Write::on(version);
        version = if round == 0 {
            store
                .write(&id, &write, &Change::State(StateChange::whole(state.clone())))
                .await
                .expect("saving a state succeeds")
        } else {
            let mut commit = turn(round, round);
            commit.state = Some(Box::new(state.clone()));
            store.write(&id, &write, &Change::Commit(commit.clone())).await.expect("the commit succeeds")
        };
    }
    PassedOrSkipped::Made
}
