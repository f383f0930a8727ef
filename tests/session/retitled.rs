//! A store has no leases, and another writer changes the title of an open conversation in it. The session adopts the
//! title and continues.

use omni_agent::{
    session::{Mode, Session, SessionEvent, StoreReport},
    store::custom::{Change, StateChange, Stored, TitleBy, Write},
    subscription::{EndReason, Update},
};

use crate::support::{Act, ScriptedStore, configure, created, id, node, parrot, report, secs, watch};

/// Changes the stored title as another process would.
async fn rename(store: &ScriptedStore, title: Option<&str>) {
    let version = store.beneath().load(&id("talk")).await.unwrap().version;
    let change = StateChange::Title { title: title.map(str::to_owned), by: TitleBy::Person };
    store.beneath().write(&id("talk"), &Write::on(version), &Change::State(change)).await.unwrap();
}

async fn kept(store: &ScriptedStore) -> Stored {
    store.beneath().load(&id("talk")).await.unwrap()
}

async fn assert_all_stored(store: &ScriptedStore, session: &Session, title: Option<&str>) {
    session.flush(secs(5)).await.unwrap();
    assert_eq!(store.tree(session.id()).await, session.tree().await.unwrap());
    assert_eq!(kept(store).await.state.title.as_deref(), title);
    assert_eq!(session.title().await.unwrap().as_deref(), title);
    assert!(session.end().is_none());
    assert_eq!(session.snapshot().await.unwrap().store, None);
    store.assert_sound();
}

#[tokio::test(start_paused = true)]
async fn rename_elsewhere_before_a_turn_the_turn_is_stored_and_the_title_adopted() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    session.ask("One").await.unwrap();
    session.flush(secs(1)).await.unwrap();
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    rename(&store, Some("Theirs")).await;
    session.ask("Two").await.unwrap();
    assert_all_stored(&store, &session, Some("Theirs")).await;
    assert_eq!(store.words(), ["commit", "commit", "commit"]);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let Some(Update::Event(event)) = events.next().await else { panic!() };
        match &*event.event {
            SessionEvent::Title { title } => seen.push(title.as_deref().unwrap().to_owned()),
            SessionEvent::Store(StoreReport::Saved { through, .. }) => seen.push(format!("{through:?}")),
            SessionEvent::Store(other) => panic!("{other:?}"),
            _ => {}
        }
    }
    assert_eq!(seen, ["Theirs".to_owned(), format!("{:?}", Some(node(4)))]);
    // From here on, the session continues as usual.
    session.ask("Three").await.unwrap();
    assert_all_stored(&store, &session, Some("Theirs")).await;
    assert_eq!(store.words().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn titles_set_by_the_user_in_two_sessions_the_later_wins_and_both_continue() {
    let store = ScriptedStore::new([]);
    let first = created(&store, "talk", parrot()).await;
    let second = Session::builder(store.as_dyn()).agent(parrot()).open(id("talk")).await.unwrap();
    first.set_title(Some("Mine")).await.unwrap();
    first.flush(secs(1)).await.unwrap();
    second.set_title(Some("No, mine")).await.unwrap();
    assert_all_stored(&store, &second, Some("No, mine")).await;
    first.ask("One").await.unwrap();
    assert_all_stored(&store, &first, Some("No, mine")).await;
    // A session does not adopt turns of another writer as it adopts titles. The second session lacks the first
    // session's turn, so it loses the conversation.
    second.ask("Another one").await.unwrap();
    assert_eq!(second.ended().await.reason, EndReason::LostPlace);
    assert_eq!(store.tree(first.id()).await, first.tree().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn generated_title_is_replaced_by_one_stored_meanwhile() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    rename(&store, Some("Theirs")).await;
    let mut events = watch(&session).await;
    assert!(session.suggest_title("Generated", None).await.unwrap());
    assert_all_stored(&store, &session, Some("Theirs")).await;
    // There was nothing left to write, but subscribers are still notified that everything is stored.
    assert_eq!(store.words(), ["title"]);
    let stored = report(&mut events).await;
    let StoreReport::Saved { version, through: None, .. } = stored else { panic!("{stored:?}") };
    assert_eq!(version, kept(&store).await.version);
}

#[tokio::test(start_paused = true)]
async fn generated_title_stays_if_the_stored_one_was_cleared() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    rename(&store, None).await;
    assert!(session.suggest_title("Generated", None).await.unwrap());
    assert_all_stored(&store, &session, Some("Generated")).await;
}

#[tokio::test(start_paused = true)]
async fn title_set_by_the_user_after_a_generated_one_replaces_one_stored_meanwhile() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    rename(&store, Some("Theirs")).await;
    store.otherwise(|| Act::Hang);
    assert!(session.suggest_title("Same", None).await.unwrap());
    session.set_title(Some("Same")).await.unwrap();
    store.otherwise(|| Act::Work);
    assert_all_stored(&store, &session, Some("Same")).await;
}

#[tokio::test(start_paused = true)]
async fn rename_elsewhere_after_a_lost_acknowledgement_the_turn_counts_as_stored() {
    let store = ScriptedStore::new([Act::LoseWord]);
    let session = created(&store, "talk", parrot()).await;
    let mut events = watch(&session).await;
    session.ask("One").await.unwrap();
    assert!(matches!(report(&mut events).await, StoreReport::Failed { .. }));
    rename(&store, Some("Theirs")).await;
    session.flush(secs(5)).await.unwrap();
    assert!(matches!(report(&mut events).await, StoreReport::Saved { through: Some(_), .. }));
    session.ask("Two").await.unwrap();
    assert_all_stored(&store, &session, Some("Theirs")).await;
    assert_eq!(store.tree(session.id()).await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn settings_changed_and_renamed_elsewhere_both_are_kept() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    rename(&store, Some("Theirs")).await;
    configure(&session, |config| config.settings.system = Some("Be brief.".into())).await;
    assert_all_stored(&store, &session, Some("Theirs")).await;
    assert_eq!(kept(&store).await.state.settings.system.as_deref(), Some("Be brief."));
}

/// The session knows the stored configuration, even though it was opened with another system prompt.
#[tokio::test(start_paused = true)]
async fn rename_elsewhere_of_a_session_opened_with_other_settings_is_adopted() {
    let store = ScriptedStore::new([]);
    created(&store, "talk", parrot()).await.stop(secs(1)).await.unwrap();
    let other = parrot().system("Be brief.");
    let session = Session::builder(store.as_dyn()).agent(other).open(id("talk")).await.unwrap();
    rename(&store, Some("Theirs")).await;
    session.ask("One").await.unwrap();
    assert_all_stored(&store, &session, Some("Theirs")).await;
    assert_eq!(kept(&store).await.state.settings.system.as_deref(), Some("Be brief."));
}

#[tokio::test(start_paused = true)]
async fn settings_changed_elsewhere_lose_the_conversation() {
    for with_other_settings in [false, true] {
        let store = ScriptedStore::new([]);
        created(&store, "talk", parrot()).await.stop(secs(1)).await.unwrap();
        let agent = if with_other_settings { parrot().system("Be brief.") } else { parrot() };
        let session = Session::builder(store.as_dyn()).agent(agent).open(id("talk")).await.unwrap();
        let Stored { version, state, .. } = kept(&store).await;
        let mut state = state.with_title("Theirs");
        state.settings.system = Some("Be long.".into());
        let write = Write::on(version);
        store
            .beneath()
            .write(&id("talk"), &write, &Change::State(StateChange::whole(state.clone())))
            .await
            .unwrap();
        session.ask("One").await.unwrap();
        assert_eq!(session.ended().await.reason, EndReason::LostPlace);
        assert_eq!(kept(&store).await.state, state);
    }
}

/// The new conversation has the same id and content and another title, but it is not the conversation that the session
/// opened.
#[tokio::test(start_paused = true)]
async fn conversation_recreated_with_the_id_is_not_mistaken_for_a_renamed_one() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    let state = kept(&store).await.state;
    store.beneath().delete(&id("talk"), None).await.unwrap();
    store
        .beneath()
        .write(&id("talk"), &Write::first(), &Change::create(state.with_title("Theirs")))
        .await
        .unwrap();
    session.ask("One").await.unwrap();
    assert_eq!(session.ended().await.reason, EndReason::LostPlace);
    assert!(store.tree(&id("talk")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn rename_elsewhere_while_loads_fail_the_write_is_repeated() {
    let store = ScriptedStore::new([]);
    let session = created(&store, "talk", parrot()).await;
    rename(&store, Some("Theirs")).await;
    let mut events = watch(&session).await;
    store.fail_loads(true);
    session.ask("One").await.unwrap();
    let StoreReport::Failed { error, .. } = report(&mut events).await else { panic!() };
    assert!(error.contains("loading"), "{error}");
    store.fail_loads(false);
    assert_all_stored(&store, &session, Some("Theirs")).await;
    assert!(matches!(report(&mut events).await, StoreReport::Saved { .. }));
}
