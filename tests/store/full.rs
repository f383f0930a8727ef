//! A conversation that uses everything that the current formats can store, for the golden files of the file-system
//! store.

use omni_agent::{
    message::{Message, Purpose, RequestEnd, Timestamp, Usage, UsageRow},
    run::{RunEnd, RunOutcome},
    store::{
        Filter, Labels, Page, Store,
        custom::{Change, Commit, StoredState, Write},
    },
    tree::{Erased, Node, NodeId},
};

use crate::{
    flight::{check_flight, create_flight},
    support::{id, node},
};

/// Creates a conversation that uses everything that the current format can store: labels, the usage ledger, an erased
/// message and the end of a run.
async fn create_full(store: &dyn Store) {
    let id = id("full");
    let labels = Labels::new([("tenant", "acme"), ("kind", "Ünïcode")]).unwrap();
    let state = StoredState::default().with_title("Full").with_labels(labels);
    let version = store.write(&id, &Write::first(), &Change::create(state)).await.unwrap();
    let row = |end, at| {
        let usage = Usage::default().with_input(7).with_output(3).with_cost(0.25);
        UsageRow::new(end, usage).with_at(Timestamp(at)).with_model("a model".to_owned())
    };
    let path = |numbers: [u64; 2]| {
        numbers.map(|number| {
            let message =
                if number % 2 == 1 { Message::user("secret?") } else { Message::assistant("answer") };
            Node::new(node(number), NodeId::new(number - 1), message.with_timestamp(Timestamp(number)))
        })
    };
    let turn = |numbers, row| {
        Commit::new(Some(node(numbers))).with_nodes(path([numbers - 1, numbers])).with_usage([row])
    };
    let first = turn(2, row(RequestEnd::Answered, 1_763_769_600_000));
    let version = store.write(&id, &Write::on(version), &Change::Commit(first)).await.unwrap();
    let second = turn(4, row(RequestEnd::Interrupted, 1_763_769_700_000).with_purpose(Purpose::Title));
    let version = store.write(&id, &Write::on(version), &Change::Commit(second)).await.unwrap();
    let erased: Erased = serde_json::from_str(r#"{"nodes": [3, 4], "head": 2, "next": 5}"#).unwrap();
    let version = store.write(&id, &Write::on(version), &Change::Erase(erased)).await.unwrap();
    let end: RunEnd = serde_json::from_str(
        r#"{"outcome": "cancelled", "turn": "00112233445566778899aabbccddeeff",
            "unanswered": [{"role": "user", "content": [{"type": "text", "text": "Anyone?"}], "timestamp": 9}]}"#,
    )
    .unwrap();
    let failed = Commit::new(Some(node(2))).with_usage([row(RequestEnd::Cancelled, 1_763_779_600_000)]);
    store.write(&id, &Write::on(version), &Change::Commit(failed.with_run_end(end))).await.unwrap();
}

/// Creates the conversation of [`create_full`], the conversations of [`create_flight`], and a deleted conversation
/// whose usage is kept.
pub(crate) async fn create_all(store: &dyn Store) {
    create_full(store).await;
    create_flight(store).await;
    let gone = id("gone");
    let version = store.write(&gone, &Write::first(), &Change::create(StoredState::default())).await.unwrap();
    let usage = Usage::default().with_input(70);
    let row =
        UsageRow::new(RequestEnd::Lost, usage).with_at(Timestamp(5)).with_model("of the deleted".to_owned());
    store
        .write(&gone, &Write::on(version), &Change::Commit(Commit::new(None).with_usage([row])))
        .await
        .unwrap();
    store.delete(&gone, None).await.unwrap();
}

/// Checks what [`create_all`] has created.
pub(crate) async fn check_all(store: &dyn Store) {
    check_full(store).await;
    check_flight(store).await;
    let used = store.used(&Filter::default(), Timestamp(0)..Timestamp(10)).await.unwrap();
    let kept = used.iter().find(|sum| sum.model.as_deref() == Some("of the deleted")).unwrap();
    assert_eq!((kept.requests, kept.usage.input), (1, 70));
}

/// Checks the conversation that [`create_full`] has created.
async fn check_full(store: &dyn Store) {
    let id = id("full");
    let stored = store.load(&id).await.unwrap();
    assert_eq!(stored.state.labels, Labels::new([("tenant", "acme"), ("kind", "Ünïcode")]).unwrap());
    assert_eq!(stored.nodes.iter().map(|node| node.id().get()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((stored.head, stored.next), (Some(node(2)), Some(node(5))));
    assert_eq!((stored.used.requests, stored.used.usage.input), (3, 21));
    let end = stored.last_run.unwrap();
    assert_eq!((end.outcome, end.unanswered[0].text()), (RunOutcome::Cancelled, "Anyone?".to_owned()));
    let rows = store.usage(&id, &Page::default()).await.unwrap();
    let ends: Vec<_> = rows.iter().map(|row| (row.end, row.purpose)).collect();
    let expected = [
        (RequestEnd::Cancelled, Purpose::Answer),
        (RequestEnd::Interrupted, Purpose::Title),
        (RequestEnd::Answered, Purpose::Answer),
    ];
    assert_eq!(ends, expected);
    let filter = Filter::with(Labels::new([("tenant", "acme")]).unwrap());
    assert_eq!(store.list(&filter.into()).await.unwrap()[0].id, id);
}
