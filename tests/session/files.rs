//! Sessions on the file system: several processes use a conversation one after another, and two use it at the same
//! time.

use std::{env, fs, path::PathBuf, sync::Arc, time::Duration};

use omni_agent::{
    ErrorKind,
    session::{Session, StoreReport},
    store::{ConversationId, FileSystemStore, Store, file_system::Durability},
    subscription::EndReason,
};

use crate::support::{id, node, parrot, report, secs, tree_in, watch};

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let folder = env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// Opens the store again, as another process would.
    async fn store(&self) -> Arc<dyn Store> {
        let opened = FileSystemStore::builder(&self.0).durability(Durability::Process).open().await;
        Arc::new(opened.unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn reopen_finds_all_branches_and_cursors_as_they_were() {
    let folder = Folder::new();
    let session =
        Session::builder(folder.store().await).agent(parrot()).title("Talk").create().await.unwrap();
    session.ask("One").await.unwrap();
    session.ask("Two").await.unwrap();
    for user in [1, 3, 1] {
        session.again(node(user)).start().await.unwrap();
        session.wait_until_idle().await.unwrap();
    }
    session.run("Two, edited").below(Some(node(2))).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.run("Another root").below(None).start().await.unwrap();
    session.wait_until_idle().await.unwrap();
    session.navigate(node(4)).await.unwrap();
    session.navigate(None).await.unwrap();
    session.stop(secs(10)).await.unwrap();
    let left = session.end().unwrap().snapshot.unwrap();
    let name = session.id().clone();
    drop(session);

    let again = Session::builder(folder.store().await).agent(parrot()).open(name.clone()).await.unwrap();
    let tree = again.tree().await.unwrap();
    assert_eq!(tree, left.tree);
    assert_eq!(tree.head(), None);
    assert_eq!(again.title().await.unwrap().as_deref(), Some("Talk"));
    // The saved cursors still lead to the same leaf.
    again.navigate(node(1)).await.unwrap();
    assert_eq!(again.tree().await.unwrap().head(), Some(node(4)));
    again.ask("Three").await.unwrap();
    again.stop(secs(10)).await.unwrap();
    let left = again.end().unwrap().snapshot.unwrap();
    assert_eq!(tree_in(&*folder.store().await, &name).await, left.tree);
    assert_eq!(left.tree.len(), tree.len() + 2);
}

#[tokio::test]
async fn two_processes_on_one_conversation_second_loses_it_first_is_unaffected() {
    let folder = Folder::new();
    let first =
        Session::builder(folder.store().await).agent(parrot()).create_with_id(id("talk")).await.unwrap();
    first.ask("One").await.unwrap();
    first.flush(secs(10)).await.unwrap();
    let second = Session::builder(folder.store().await).agent(parrot()).open(id("talk")).await.unwrap();
    let mut events = watch(&second).await;
    first.ask("Two").await.unwrap();
    first.flush(secs(10)).await.unwrap();
    second.ask("Another two").await.unwrap();
    let StoreReport::Lost { error } = report(&mut events).await else { panic!() };
    assert!(error.contains("was changed by another writer"), "{error}");
    let end = second.ended().await;
    assert_eq!(end.reason, EndReason::LostPlace);
    assert_eq!(end.snapshot.unwrap().unsaved, [node(3), node(4)]);

    first.ask("Three").await.unwrap();
    first.flush(secs(10)).await.unwrap();
    let tree = first.tree().await.unwrap();
    assert_eq!(tree_in(&*folder.store().await, &id("talk")).await, tree);
    assert_eq!(tree.len(), 6);
}

#[tokio::test]
async fn two_processes_create_one_id_one_succeeds() {
    let folder = Folder::new();
    let (one, other) = (folder.store().await, folder.store().await);
    for name in ["a", "b", "c", "d", "e"] {
        let create = |store: &Arc<dyn Store>| {
            let builder = Session::builder(Arc::clone(store)).agent(parrot());
            tokio::spawn(builder.create_with_id(id(name)))
        };
        let (one, other) = (create(&one), create(&other));
        let (won, lost) = match (one.await.unwrap(), other.await.unwrap()) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            both => panic!("{both:?}"),
        };
        assert_eq!(lost.kind(), ErrorKind::AlreadyExists, "{lost:?}");
        won.stop(secs(10)).await.unwrap();
    }
}

#[tokio::test]
async fn folder_removed_while_open_the_loss_is_reported() {
    let folder = Folder::new();
    let session =
        Session::builder(folder.store().await).agent(parrot()).create_with_id(id("talk")).await.unwrap();
    session.ask("One").await.unwrap();
    session.flush(secs(10)).await.unwrap();
    fs::remove_dir_all(&folder.0).unwrap();
    session.ask("Two").await.unwrap();
    let stopped = session.stop(Duration::from_millis(200)).await;
    let error = stopped.unwrap_err();
    assert_eq!((error.kind(), error.member("nodes")), (ErrorKind::Unsaved, Some(&2.into())));
    assert!(error.member("error").is_some(), "{error:?}");
    assert_eq!(session.end().unwrap().snapshot.unwrap().tree.len(), 4);
}
