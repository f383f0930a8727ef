//! Conversations that are stopped, reopened, branched or interrupted.

use std::{path::Path, sync::Arc, time::Duration};

use omni_agent::{
    Error, ErrorKind,
    agent::Agent,
    provider::{
        LostSession, Model,
        custom::{BackendError, SessionId},
    },
};
use omni_agent::{
    agent::{Config, Event},
    provider::{Options, custom::Capabilities},
    session::{Mode, Session},
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

/// Returns the message of the provider error with which a run failed.
pub(crate) fn words(error: &Error) -> String {
    crate::faults::provider_error(error).message.clone()
}

#[tokio::test(start_paused = true)]
async fn session_reopened_continues_the_conversation() {
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
async fn session_reopened_is_resumed_with_the_settings_of_its_conversation() {
    let (store, backend) = (store(), ScriptedBackend::able(Capabilities::default().with_resume(), []));
    let options = Options::default().with_backend([("sandbox", true)]).with_folder("/projects/one");
    let builder = Session::builder(Arc::clone(&store)).agent(backend.agent().options(options));
    let session = builder.create_with_id(id()).await.unwrap();
    session.ask("One").await.unwrap();
    // The options were given only when the conversation was created. They must still apply after it is reopened.
    let session = reopened(&store, session, &backend).await;
    let answer = session.ask("Two").await.unwrap();
    assert!(answer.warnings.is_empty(), "{:?}", answer.warnings);
    let given = backend.options();
    assert_eq!(given.len(), 2);
    assert_eq!(given[1], given[0]);
    assert_eq!(given[1].folder().unwrap(), Some(Path::new("/projects/one")));
    assert_eq!(given[1].settings["sandbox"], true);

    // A running session keeps its folder. The next session starts in the new folder.
    let moved = Options::default().with_folder("/projects/two");
    let set = move |config: &mut Config| {
        config.settings.options = moved;
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
async fn session_reopened_on_a_backend_without_resume_fails_clearly() {
    let (store, backend) = (store(), ScriptedBackend::new([]));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    let session = reopened(&store, session, &backend).await;
    let before = backend.log();
    let error = session.ask("Two").await.unwrap_err();
    assert!(words(&error).contains("can't resume one; start a new conversation"), "{error:?}");
    assert_eq!(backend.log(), before, "nothing was sent");
    assert_eq!(session.tree().await.unwrap().head(), Some(node(2)), "the tree is unchanged");
}

#[tokio::test(start_paused = true)]
async fn session_reopened_without_a_backend_id_fails_clearly() {
    let (store, backend) = (store(), ScriptedBackend::nameless());
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    assert_eq!(session.ask("Two").await.unwrap().text(), "One | Two");
    let session = reopened(&store, session, &backend).await;
    let error = session.ask("Three").await.unwrap_err();
    assert!(words(&error).contains("gave it no id"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn session_reopened_but_unknown_to_the_backend_fails_clearly() {
    let (store, backend) = (store(), ScriptedBackend::able(able(), []));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    let other = ScriptedBackend::able(able(), []);
    let session = reopened(&store, session, &other).await;
    let error = session.ask("Two").await.unwrap_err();
    assert!(words(&error).contains("has no session s1"), "{error:?}");
    assert_eq!(other.log(), ["resume s1"]);
}

#[tokio::test(start_paused = true)]
async fn branch_on_a_backend_without_fork_fails_and_leaves_only_its_prompt() {
    let (store, backend) = (store(), ScriptedBackend::able(Capabilities::default().with_resume(), []));
    let session = created(&store, &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    let (before, tree) = (backend.log(), session.tree().await.unwrap());
    session.run("Other").below(Some(node(2))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.flush(SECOND).await.unwrap();
    assert_eq!(backend.log(), before);
    let after = session.tree().await.unwrap();
    assert_eq!((after.head(), after.len()), (tree.head(), tree.len() + 1));
    assert_eq!(after.unanswered(Some(node(2))).count(), 1);
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
}

#[tokio::test(start_paused = true)]
async fn branch_uses_a_fork_and_each_branch_continues_in_its_own_session() {
    let (store, backend) = (store(), ScriptedBackend::able(able(), []));
    let session = created(&store, &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    session.run("Other").below(Some(node(2))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.ask("More").await.unwrap().text(), "One | Other | More");
    assert_eq!((backend.count("fork s1 at 1"), backend.count("terminate s1")), (1, 1));
    session.navigate(Some(node(4))).await.unwrap();
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
    assert_eq!((backend.count("resume s1"), backend.count("terminate s2")), (1, 1));
}

/// Returns a session that ran two turns, was reopened, and was then branched after the first turn.
async fn reopened_and_branched(able: Capabilities) -> (Session, ScriptedBackend) {
    let (store, backend) = (store(), ScriptedBackend::able(able, []));
    let session = created(&store, &backend).await;
    for prompt in ["One", "Two"] {
        session.ask(prompt).await.unwrap();
    }
    let session = reopened(&store, session, &backend).await;
    session.run("Other").below(Some(node(2))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    (session, backend)
}

#[tokio::test(start_paused = true)]
async fn branch_after_reopening_uses_a_fork() {
    let (session, backend) = reopened_and_branched(able()).await;
    assert_eq!(session.state().await.unwrap().history().last().unwrap().text(), "One | Other");
    session.stop(SECOND).await.unwrap();
    // Session `s1` was terminated after its first use. For the branch it was resumed, was found at another position,
    // and was terminated again.
    assert_eq!((backend.count("terminate s1"), backend.count("terminate s2")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn branch_after_reopening_without_fork_changes_nothing() {
    let (session, backend) = reopened_and_branched(Capabilities::default().with_resume()).await;
    assert!(!backend.log().iter().any(|call| call.contains("Other")), "{:?}", backend.log());
    assert_eq!(session.tree().await.unwrap().head(), Some(node(4)));
    assert_eq!(session.ask("Three").await.unwrap().text(), "One | Two | Three");
}

#[tokio::test(start_paused = true)]
async fn session_reopened_after_a_cancelled_turn_continues() {
    let script = [Turn::new().step(Step::Recall).stop(), Turn::new().text("So far").step(Step::Hang)];
    let (store, backend) = (store(), ScriptedBackend::able(able(), script));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    session.prompt("Two").await.unwrap();
    backend.until("prompt s1: Two").await;
    session.cancel().await.unwrap();
    let session = reopened(&store, session, &backend).await;
    assert_eq!(
        session.ask("Three").await.unwrap().text(),
        "One | Two | Three",
        "the backend remembers the cancelled prompt"
    );
    assert_eq!(backend.count("fork s1 at 1"), 0);
}

#[tokio::test(start_paused = true)]
async fn branch_from_the_beginning_starts_a_new_session() {
    let (store, backend) = (store(), ScriptedBackend::new([]));
    let session = created(&store, &backend).await;
    session.ask("One").await.unwrap();
    session.run("Anew").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.ask("More").await.unwrap().text(), "Anew | More");
    assert_eq!((backend.count("start"), backend.count("terminate s1")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn interrupted_answer_is_kept_and_the_session_continues() {
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
async fn sessions_of_two_conversations_are_independent() {
    let (backend, stores) = (ScriptedBackend::new([]), [store(), store()]);
    let (one, two) = (created(&stores[0], &backend).await, created(&stores[1], &backend).await);
    let (first, second) = tokio::join!(one.ask("A"), two.ask("B"));
    assert_eq!((first.unwrap().text(), second.unwrap().text()), ("A".to_owned(), "B".to_owned()));
    one.stop(SECOND).await.unwrap();
    assert_eq!(two.ask("C").await.unwrap().text(), "B | C");
    let ended: Error = one.tree().await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Ended, "{ended:?}");
}

/// Reopens a conversation whose only answer was "One". `reaction` determines how its provider reacts to lost sessions.
async fn lost(backend: &ScriptedBackend, reaction: LostSession) -> Session {
    let store = store();
    let session = created(&store, backend).await;
    session.ask("One").await.unwrap();
    session.stop(SECOND).await.unwrap();
    let model = Model::new(Arc::new(backend.provider().with_lost_session(reaction)), "default");
    Session::builder(store).agent(Agent::builder().model(model)).open(id()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn session_lost_by_the_backend_is_replaced_if_configured() {
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
            assert!(!forgets || warning.contains("gone"), "the backend's message is kept: {warning}");
            // Later prompts use the new session.
            assert_eq!(session.ask("Three").await.unwrap().text(), format!("{heard} | Three"));
            assert_eq!(backend.count("start"), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn session_lost_by_a_backend_with_history_starts_with_all_messages() {
    let backend = ScriptedBackend::able(Capabilities::default().with_history(), []);
    let session = lost(&backend, LostSession::StartWithTranscript).await;
    assert_eq!(session.ask("Two").await.unwrap().text(), "One\n\nOne\n\nTwo");
}

#[tokio::test(start_paused = true)]
async fn session_lost_by_the_backend_fails_with_its_message_by_default() {
    let unknown = BackendError::UnknownSession { id: SessionId::new("s1"), message: "gone".into() };
    let backend =
        ScriptedBackend::able(Capabilities::default().with_resume(), []).act("resume", Act::Fail(unknown));
    let session = lost(&backend, LostSession::default()).await;
    let error = session.ask("Two").await.unwrap_err();
    assert!(words(&error).contains("no session s1 (gone)"), "{error:?}");
    assert_eq!(backend.count("start"), 1);
}
