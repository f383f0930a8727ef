//! Conversations that are stopped and reopened, branch, and are cut short.

use std::{path::Path, sync::Arc, time::Duration};

use omni_agent::{
    agent::Agent,
    provider::{
        Model,
        backend::{BackendError, LostSession, SessionId},
    },
};
use omni_agent::{
    agent::{Config, Event},
    provider::{Options, backend::Capabilities},
    session::{Mode, Session, SessionError},
    store::{ConversationId, MemoryStore, Store},
    subscription::Update,
    tree::NodeId,
};

use crate::scripted::{Act, ScriptedBackend, Step, Turn};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn id() -> ConversationId {
    ConversationId::new("talk").unwrap()
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

pub(crate) fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

pub(crate) async fn created(store: &Arc<dyn Store>, backend: &ScriptedBackend) -> Session {
    Session::builder(Arc::clone(store)).agent(backend.agent()).create_with_id(id()).await.unwrap()
}

pub(crate) async fn reopened(store: &Arc<dyn Store>, session: Session, backend: &ScriptedBackend) -> Session {
    session.stop(SECOND).await.unwrap();
    Session::builder(Arc::clone(store)).agent(backend.agent()).open(id()).await.unwrap()
}

pub(crate) fn able() -> Capabilities {
    Capabilities::default().with_resume().with_fork()
}

/// What the failed run says.
pub(crate) fn words(error: &SessionError) -> String {
    match error {
        SessionError::Agent(error) => crate::faults::provider_error(error).message.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn session_reopened_goes_on_where_it_was() {
    let (store, backend) = (store(), ScriptedBackend::able(Capabilities::default().with_resume(), []));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    let session = reopened(&store, session, &backend).await;
    assert_eq!(backend.count("resume s1"), 0, "nothing starts before the first prompt");
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
    session.stop(SECOND).await.unwrap();
    assert_eq!(
        (backend.count("start"), backend.count("resume s1"), backend.count("terminate s1")),
        (1, 1, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn session_reopened_is_resumed_with_the_settings_of_its_own_conversation() {
    let (store, backend) = (store(), ScriptedBackend::able(Capabilities::default().with_resume(), []));
    let options = Options::default().with_backend([("sandbox", true)]).with_folder("/projects/one");
    let builder = Session::builder(Arc::clone(&store)).agent(backend.agent().options(options));
    let session = builder.create_with_id(id()).await.unwrap();
    session.ask("One").await.unwrap();
    // It was given at the creation alone.
    let session = reopened(&store, session, &backend).await;
    let answer = session.ask("Two").await.unwrap();
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    let given = backend.options();
    assert_eq!(given.len(), 2);
    assert_eq!(given[1], given[0]);
    assert_eq!(given[1].folder().unwrap(), Some(Path::new("/projects/one")));
    assert_eq!(given[1].settings["sandbox"], true);

    // A session that runs can't move; the next one starts in the new folder.
    let moved = Options::default().with_folder("/projects/two");
    let set = move |config: &mut Config| {
        config.options = moved;
        Ok(())
    };
    session.configure(set).await.unwrap();
    let answer = session.ask("Three").await.unwrap();
    assert!(answer.warnings.iter().any(|warning| warning.contains("settings")), "{:?}", answer.warnings);
    let session = reopened(&store, session, &backend).await;
    session.ask("Four").await.unwrap();
    assert_eq!(backend.options()[2].folder().unwrap(), Some(Path::new("/projects/two")));
}

#[tokio::test(start_paused = true)]
async fn session_reopened_without_resume_says_that_it_cannot() {
    let (store, backend) = (store(), ScriptedBackend::new([]));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    let session = reopened(&store, session, &backend).await;
    let before = backend.log();
    let error = session.ask("Two").await.unwrap_err();
    assert!(words(&error).contains("can't resume one; start a new conversation"), "{error:?}");
    assert_eq!(backend.log(), before, "nothing was sent");
    assert_eq!(session.tree().await.unwrap().head(), Some(node(2)), "and nothing changed");
}

#[tokio::test(start_paused = true)]
async fn session_reopened_whose_backend_gave_no_id_says_that_it_cannot() {
    let (store, backend) = (store(), ScriptedBackend::nameless());
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    assert_eq!(session.ask("Two").await.unwrap().text(), "One | Two");
    let session = reopened(&store, session, &backend).await;
    let error = session.ask("Three").await.unwrap_err();
    assert!(words(&error).contains("gave it no id"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn session_reopened_that_the_backend_has_forgotten_says_so() {
    let (store, backend) = (store(), ScriptedBackend::able(able(), []));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    let other = ScriptedBackend::able(able(), []);
    let session = reopened(&store, session, &other).await;
    let error = session.ask("Two").await.unwrap_err();
    assert!(words(&error).contains("knows no session s1"), "{error:?}");
    assert_eq!(other.log(), ["resume s1"]);
}

#[tokio::test(start_paused = true)]
async fn branch_that_the_backend_cannot_follow_changes_nothing() {
    let (store, backend) = (store(), ScriptedBackend::able(Capabilities::default().with_resume(), []));
    let session = created(&store, &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    let (before, tree) = (backend.log(), session.tree().await.unwrap());
    session.branch(Some(node(2)), "Other").await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.flush(SECOND).await.unwrap();
    assert_eq!(backend.log(), before);
    let after = session.tree().await.unwrap();
    assert_eq!((after.head(), after.len()), (tree.head(), tree.len()));
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
}

#[tokio::test(start_paused = true)]
async fn branch_is_followed_by_a_fork_and_each_side_goes_on_in_its_own_session() {
    let (store, backend) = (store(), ScriptedBackend::able(able(), []));
    let session = created(&store, &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    session.branch(Some(node(2)), "Other").await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.ask("More").await.unwrap().text(), "One | Other | More");
    assert_eq!((backend.count("fork s1 at 1"), backend.count("terminate s1")), (1, 1));
    session.navigate(Some(node(4))).await.unwrap();
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
    assert_eq!((backend.count("resume s1"), backend.count("terminate s2")), (1, 1));
}

/// A session with two turns, reopened, that branches after the first.
async fn reopened_and_branched(able: Capabilities) -> (Session, ScriptedBackend) {
    let (store, backend) = (store(), ScriptedBackend::able(able, []));
    let session = created(&store, &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    let session = reopened(&store, session, &backend).await;
    session.branch(Some(node(2)), "Other").await.unwrap();
    session.wait_until_idle().await.unwrap();
    (session, backend)
}

#[tokio::test(start_paused = true)]
async fn branch_after_a_reload_is_followed_by_a_fork() {
    let (session, backend) = reopened_and_branched(able()).await;
    assert_eq!(session.state().await.unwrap().history().last().unwrap().text(), "One | Other");
    session.stop(SECOND).await.unwrap();
    // Used, then resumed and found elsewhere.
    assert_eq!((backend.count("terminate s1"), backend.count("terminate s2")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn branch_after_a_reload_that_the_backend_cannot_follow_changes_nothing() {
    let (session, backend) = reopened_and_branched(Capabilities::default().with_resume()).await;
    assert!(!backend.log().iter().any(|call| call.contains("Other")), "{:?}", backend.log());
    assert_eq!(session.tree().await.unwrap().head(), Some(node(4)));
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
}

#[tokio::test(start_paused = true)]
async fn session_reopened_after_a_cancelled_turn_goes_on() {
    let script = [Turn::new().step(Step::Recall).stop(), Turn::new().text("So far").step(Step::Hang)];
    let (store, backend) = (store(), ScriptedBackend::able(able(), script));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    session.prompt("Two").await.unwrap();
    backend.until("prompt s1: Two").await;
    session.cancel().await.unwrap();
    let session = reopened(&store, session, &backend).await;
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three", "what it heard it knows");
    assert_eq!(backend.count("fork s1 at 1"), 0);
}

#[tokio::test(start_paused = true)]
async fn branch_from_the_beginning_is_a_session_of_its_own() {
    let (store, backend) = (store(), ScriptedBackend::new([]));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    session.branch(None, "Anew").await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.ask("More").await.unwrap().text(), "Anew | More");
    assert_eq!((backend.count("start"), backend.count("terminate s1")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn interrupted_answer_is_kept_and_gone_on_from() {
    let backend = ScriptedBackend::able(
        Capabilities::default().with_resume(),
        [Turn::new().step(Step::Recall).stop(), Turn::new().text("So far").step(Step::Hang)],
    );
    let store = store();
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    session.prompt("Two").await.unwrap();
    loop {
        let Some(Update::Event(event)) = events.next().await else { panic!("the session has ended") };
        if matches!(event.event.agent(), Some(Event::TextDelta { .. })) {
            break;
        }
    }
    session.interrupt().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.state().await.unwrap().history().last().unwrap().text(), "So far");
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
    let session = reopened(&store, session, &backend).await;
    assert_eq!(session.ask("Four").await.unwrap().text(), "One | Two | Three | Four");
}

#[tokio::test(start_paused = true)]
async fn sessions_at_once_do_not_meet() {
    let (backend, stores) = (ScriptedBackend::new([]), [store(), store()]);
    let (one, two) = (created(&stores[0], &backend).await, created(&stores[1], &backend).await);
    let (first, second) = tokio::join!(one.ask("A"), two.ask("B"));
    assert_eq!((first.unwrap().text(), second.unwrap().text()), ("A".to_owned(), "B".to_owned()));
    one.stop(SECOND).await.unwrap();
    assert_eq!(two.ask("C").await.unwrap().text(), "B | C");
    let ended: SessionError = one.tree().await.unwrap_err();
    assert!(matches!(ended, SessionError::Ended(_)), "{ended:?}");
}

/// Reopens a conversation whose one answer was "One" on a provider with this reaction to lost sessions.
async fn lost(backend: &ScriptedBackend, reaction: LostSession) -> Session {
    let store = store();
    let session = created(&store, backend).await;
    session.ask("One").await.unwrap();
    session.stop(SECOND).await.unwrap();
    let model = Model::new(Arc::new(backend.provider().with_lost_session(reaction)), "default");
    Session::builder(store).agent(Agent::builder().model(model)).open(id()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn session_lost_by_the_backend_starts_anew_if_asked_to() {
    let transcript = "The conversation so far:\n\nUser: One\n\nAssistant: One\n\nThe user continues:\n\nTwo";
    for (reaction, heard) in [(LostSession::Start, "Two"), (LostSession::StartWithTranscript, transcript)] {
        for forgets in [false, true] {
            let backend = if forgets {
                let unknown =
                    BackendError::UnknownSession { id: SessionId::new("s1"), message: "gone".into() };
                ScriptedBackend::able(Capabilities::default().with_resume(), [])
                    .act("resume", Act::Fail(unknown))
            } else {
                ScriptedBackend::new([])
            };
            let session = lost(&backend, reaction).await;
            let response = session.ask("Two").await.unwrap();
            assert_eq!(response.text(), heard);
            let [warning] = &response.warnings[..] else { panic!("{:?}", response.warnings) };
            assert!(warning.contains("A new session was started"), "{warning}");
            assert!(!forgets || warning.contains("gone"), "the backend's words are kept: {warning}");
            // The new session is the conversation's from now on.
            assert_eq!(session.ask("Three").await.unwrap().text(), format!("{heard} | Three"));
            assert_eq!(backend.count("start"), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn session_lost_by_a_backend_that_takes_history_starts_with_all_messages() {
    let backend = ScriptedBackend::able(Capabilities::default().with_history(), []);
    let session = lost(&backend, LostSession::StartWithTranscript).await;
    assert_eq!(session.ask("Two").await.unwrap().text(), "One\n\nOne\n\nTwo");
}

#[tokio::test(start_paused = true)]
async fn session_lost_by_the_backend_fails_with_its_words_by_default() {
    let unknown = BackendError::UnknownSession { id: SessionId::new("s1"), message: "gone".into() };
    let backend =
        ScriptedBackend::able(Capabilities::default().with_resume(), []).act("resume", Act::Fail(unknown));
    let session = lost(&backend, LostSession::default()).await;
    let error = session.ask("Two").await.unwrap_err();
    assert!(words(&error).contains("no session s1 (gone)"), "{error:?}");
    assert_eq!(backend.count("start"), 1);
}
