use super::{PassedOrSkipped, StoreUnderTest, committed, conversation, created, node_id, turn};
use crate::{
    message::{Message, RequestEnd, Usage, UsageRow},
    provider::StopReason,
    run::{Failure, KnownPrompt, Prompt, PromptState, RunEnd, RunOutcome},
    store::{
        Change, Commit, ConversationId, Listing, Owner, Page, StateChange, Store, StoreError, StoredState,
        TitleBy, Version, Write,
    },
    tree::{Erased, Node, NodeId},
};

fn erased(nodes: std::ops::RangeInclusive<u64>, head: Option<u64>, next: u64) -> Erased {
    Erased {
        nodes: nodes.map(node_id).collect(),
        head: head.and_then(NodeId::new),
        next: node_id(next),
        title: true,
    }
}

/// Erases nodes. Returns `None` if the store does not support this, which must agree with [`StoreTraits::erase`].
async fn erase(store: &dyn Store, id: &ConversationId, write: &Write, erased: &Erased) -> Option<Version> {
    match store.write(id, write, &Change::Erase(erased.clone())).await {
        Err(StoreError::Unsupported { .. }) => {
            assert!(!store.traits().erase, "a store that erases does not refuse to");
            None
        }
        result => {
            assert!(store.traits().erase, "a store that does not erase refuses to");
            Some(result.expect("erasing succeeds"))
        }
    }
}

pub(super) async fn erase_keeps_the_ledger_and_removes_the_last_run(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("a");
    let row = UsageRow::new(RequestEnd::Answered, Usage::default().with_input(9));
    let first = turn(1, 4).with_usage([row]);
    let version = committed(&*store, &id, created(&*store, &id).await, &first).await;
    let end = RunEnd::new(RunOutcome::Cancelled).with_unanswered(vec![Message::user("secret").into()]);
    let ending = Commit::new(NodeId::new(4)).with_usage([]).with_run_end(end);
    let version = committed(&*store, &id, version, &ending).await;
    let rows = async || store.usage(&id, &Page::default()).await.ok();
    let before = rows().await;
    let gone = erased(3..=4, Some(2), 5);
    let Some(version) = erase(&*store, &id, &Write::on(version), &gone).await else {
        return PassedOrSkipped::Skipped;
    };
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    assert_eq!((stored.last_run, stored.version), (None, version), "the end of the run repeats a message");
    assert_eq!(rows().await, before);
    if store.traits().usage {
        assert_eq!((before.map(|rows| rows.len()), stored.used.usage.input), (Some(1), 9));
    }
    PassedOrSkipped::Made
}

pub(super) async fn erase_keeps_the_outcomes_of_prompts(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 4)).await;
    let ended = |name: &str, node| {
        let outcome = RunOutcome::Stopped { stop_reason: StopReason::Stop };
        KnownPrompt::new(name, PromptState::Ended { outcome }).with_through(node_id(node))
    };
    // The text of a failure may quote a message.
    let failed = |text: &str| RunOutcome::Failed { failure: Failure::Output { message: text.to_owned() } };
    let quoting = |text| KnownPrompt::new("quoting", PromptState::Ended { outcome: failed(text) });
    let end = RunEnd::new(failed("secret"))
        .with_unanswered(vec![Message::user("secret\0").into()])
        .with_staged(vec![Prompt::new("secret").into()])
        .with_through(node_id(4))
        .with_prompts(vec![ended("kept", 2), ended("erased", 4), quoting("secret")]);
    let ending = Commit::new(NodeId::new(4)).with_usage([]).with_run_end(end);
    let version = committed(&*store, &id, version, &ending).await;
    let gone = erased(3..=4, Some(2), 5);
    let Some(version) = erase(&*store, &id, &Write::on(version), &gone).await else {
        return PassedOrSkipped::Skipped;
    };
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    let cleared = "the text was erased";
    let prompts =
        vec![ended("kept", 2), KnownPrompt { through: None, ..ended("erased", 4) }, quoting(cleared)];
    let kept = RunEnd::new(failed(cleared)).with_prompts(prompts);
    assert_eq!(stored.last_run, Some(kept.clone()), "the outcomes of prompts stay, without messages");
    // A turn without an end removes the outcomes, so an erasure of this turn does not bring them back.
    let later = [
        Node::new(node_id(5), Some(node_id(2)), Message::user("again")),
        Node::new(node_id(6), Some(node_id(5)), Message::assistant("again")),
    ];
    let later = Commit::new(Some(node_id(6))).with_nodes(later);
    let version = committed(&*store, &id, version, &later).await;
    assert_eq!(store.load(&id).await.expect("loading succeeds").last_run, None);
    let gone = erased(5..=6, Some(2), 7);
    erase(&*store, &id, &Write::on(version), &gone).await;
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    assert_eq!(stored.last_run, None, "outcomes that were removed do not return");
    PassedOrSkipped::Made
}

pub(super) async fn erase_requires_a_valid_lease(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 4)).await;
    let ann = Owner::new("ann");
    let lease = store.acquire(&id, &ann).await.expect("it has no owner");
    if lease.lasts.is_none() || !store.traits().erase {
        return PassedOrSkipped::Skipped;
    }
    let newer = subject.another().await.acquire(&id, &ann).await.expect("the same owner may acquire it");
    let gone = erased(3..=4, Some(2), 5);
    let late = store.write(&id, &Write::on(version).under(&lease), &Change::Erase(gone.clone())).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    store.release(&id, &newer, None).await.expect("releasing succeeds");
    let late = store.write(&id, &Write::on(version).under(&newer), &Change::Erase(gone.clone())).await;
    assert!(matches!(late, Err(StoreError::LeaseLost { .. })), "{late:?}");
    assert_eq!(store.load(&id).await.expect("loading succeeds").nodes.len(), 4, "nothing was erased");
    let lease = store.acquire(&id, &ann).await.expect("it has no owner");
    let write = Write::on(version).under(&lease);
    assert_eq!(erase(&*store, &id, &write, &gone).await, Some(version.next()));
    PassedOrSkipped::Made
}

pub(super) async fn erase_removes_nodes_and_their_cursors(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("a");
    let version = created(&*store, &id).await;
    let cursors = (1..6).map(|number| (node_id(number), node_id(number + 1)));
    let version = committed(&*store, &id, version, &turn(1, 6).with_cursors(cursors)).await;
    let write = Write::on(version);
    let gone = erased(3..=6, Some(2), 7);
    let Some(erased) = erase(&*store, &id, &write, &gone).await else { return PassedOrSkipped::Skipped };
    assert_eq!(erased, version.next());
    let repeated = store.write(&id, &write, &Change::Erase(gone.clone())).await;
    assert_eq!(repeated.expect("a repetition returns the first result"), version.next());
    let stale = store.write(&id, &Write::on(version), &Change::Erase(gone)).await;
    assert!(matches!(stale, Err(StoreError::Conflict { .. })), "{stale:?}");
    let stored = subject.another().await.load(&id).await.expect("loading succeeds");
    assert_eq!(stored.nodes.iter().map(|node| node.id().get()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((stored.head, stored.next), (Some(node_id(2)), Some(node_id(7))));
    assert_eq!(stored.cursors.into_iter().collect::<Vec<_>>(), [(node_id(1), node_id(2))]);
    assert_eq!(stored.version, version.next());
    // The node after an erasure gets a new id, because the ids of erased nodes are not used again.
    let next = Commit::new(Some(node_id(7))).with_nodes([crate::tree::Node::new(
        node_id(7),
        Some(node_id(2)),
        crate::message::Message::user("7"),
    )]);
    committed(&*store, &id, stored.version, &next).await;
    let stored = store.load(&id).await.expect("loading succeeds");
    assert_eq!(stored.nodes.len(), 3);
    assert_eq!(store.list(&Listing::default()).await.expect("listing succeeds").len(), 1);
    PassedOrSkipped::Made
}

pub(super) async fn erase_removes_a_derived_title_and_keeps_a_persons(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let found = async |store: &dyn Store, word: &str| match word.parse() {
        Ok(word) => match store.search(&word, &Listing::default()).await {
            Err(StoreError::Unsupported { .. }) => 0,
            found => found.expect("searching succeeds").hits.len(),
        },
        Err(error) => panic!("{error}"),
    };
    let state = |by| StoredState { title: Some("secret".to_owned()), title_by: by, ..StoredState::default() };
    // The title is set by the creation, by a write of the state, and by a write of the title alone.
    for way in 0..3 {
        for (by, removes, kept) in [
            (TitleBy::Derived, true, None),
            (TitleBy::Derived, false, Some("secret")),
            (TitleBy::Person, true, Some("secret")),
        ] {
            let id = conversation(&format!("{way}-{by:?}-{removes}"));
            let first = if way == 0 { state(by) } else { StoredState::default() };
            let version =
                store.write(&id, &Write::first(), &Change::create(first)).await.expect("the id is free");
            let mut version = committed(&*store, &id, version, &turn(1, 4)).await;
            let change = match way {
                0 => None,
                1 => Some(StateChange::whole(state(by))),
                _ => Some(StateChange::Title { title: Some("secret".to_owned()), by }),
            };
            if let Some(change) = change {
                let written = store.write(&id, &Write::on(version), &Change::State(change)).await;
                version = written.expect("saving a title succeeds");
            }
            assert_eq!(store.load(&id).await.expect("loading succeeds").state, state(by));
            let before = found(&*store, "secret").await;
            let gone = Erased { title: removes, ..erased(3..=4, Some(2), 5) };
            if erase(&*store, &id, &Write::on(version), &gone).await.is_none() {
                return PassedOrSkipped::Skipped;
            }
            let other = subject.another().await;
            let stored = other.load(&id).await.expect("loading succeeds");
            assert_eq!(stored.state.title.as_deref(), kept, "{id}");
            assert_eq!(stored.state.title_by, by, "{id}");
            assert_eq!(other.summary(&id).await.expect("it exists").title.as_deref(), kept, "{id}");
            if before > 0 {
                let gone = usize::from(kept.is_none());
                assert_eq!(found(&*other, "secret").await, before - gone, "{id}");
            }
        }
    }
    PassedOrSkipped::Made
}

pub(super) async fn erase_of_everything_leaves_an_empty_conversation(
    subject: &dyn StoreUnderTest,
) -> PassedOrSkipped {
    let store = subject.store();
    let id = conversation("a");
    let version = committed(&*store, &id, created(&*store, &id).await, &turn(1, 4)).await;
    let gone = erased(1..=4, None, 5);
    let Some(erased_at) = erase(&*store, &id, &Write::on(version), &gone).await else {
        return PassedOrSkipped::Skipped;
    };
    assert_eq!(erased_at, version.next());
    let stored = store.load(&id).await.expect("loading succeeds");
    assert_eq!((stored.nodes.len(), stored.head, stored.next), (0, None, Some(node_id(5))));
    let missing = store
        .write(&conversation("missing"), &Write::on(version), &Change::Erase(erased(1..=1, None, 2)))
        .await;
    assert!(missing.expect_err("it does not exist").is_not_found());
    PassedOrSkipped::Made
}
