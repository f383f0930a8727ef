use super::{CheckOutcome, Subject, created};
use crate::store::{ConversationId, InvalidId, Page, StateChange, StoreError, StoredState, Write, WriteId};

/// Ids that are valid, and a trap for stores that make names of them.
fn strange() -> Vec<ConversationId> {
    let ids = [
        "a",
        "a.b",
        "a.json",
        "a.jsonl",
        "a.summary",
        "a.summary.json",
        "a.new",
        "a.jsonl.new",
        "a.tmp",
        "a.lock",
        "-rf",
        "--",
        "_",
        "~",
        "~root",
        "0",
        "null",
        "a-b",
        "a_b",
        "a~b",
        "select",
        "index",
        "main",
        "a..b",
    ];
    let long = ["x".repeat(ConversationId::MAX_LEN), "x".repeat(ConversationId::MAX_LEN - 1)];
    let ids = ids.iter().map(|id| (*id).to_owned()).chain(long);
    ids.map(|id| ConversationId::new(id).expect("strange, but valid")).collect()
}

pub(super) async fn strange_ids_are_kept_apart(subject: &dyn Subject) -> CheckOutcome {
    let store = subject.store();
    let ids = strange();
    for id in &ids {
        let state = StoredState::default().with_title(id.as_str());
        store.create(id, WriteId::generate(), &state).await.expect("a strange id is an id");
    }
    for id in &ids {
        let title = store.load(id).await.expect("it was created").state.title;
        assert_eq!(title.as_deref(), Some(id.as_str()), "conversation {id} has another's title");
    }
    let mut listed: Vec<_> =
        store.list(Page::first(1000)).await.expect("a list").into_iter().map(|s| s.id).collect();
    let mut expected = ids.clone();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected, "the list has each once");

    store.delete(&ids[0]).await.expect("it can be deleted");
    for id in &ids[1..] {
        assert!(store.exists(id).await.expect("an answer"), "deleting {} took {id} with it", ids[0]);
    }

    // Where a store can't tell cases apart, it says so rather than mix them up.
    let (lower, upper) = (super::conversation("case"), super::conversation("CASE"));
    let version = created(&*store, &lower).await;
    match store.create(&upper, WriteId::generate(), &StoredState::default()).await {
        Ok(upper_version) => {
            let change = StateChange::title("upper");
            store.save_state(&upper, &Write::on(upper_version), &change).await.expect("a title");
            assert_eq!(
                store.load(&lower).await.expect("it was created").version,
                version,
                "CASE was written to case"
            );
        }
        Err(StoreError::AlreadyExists { .. }) => {}
        Err(error) => panic!("creating CASE beside case: {error}"),
    }
    CheckOutcome::Made
}

pub(super) async fn ids_that_attack_are_refused(_: &dyn Subject) -> CheckOutcome {
    let long = "x".repeat(ConversationId::MAX_LEN + 1);
    let attacks = [
        "",
        ".",
        "..",
        "../a",
        "a/../b",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..\\a",
        "C:",
        "C:a",
        "a\0",
        "\0",
        "a\nb",
        "a\r",
        "\t",
        "\u{7f}",
        "\u{1b}[2J",
        "a b",
        " a",
        "a*",
        "a?",
        "a|b",
        "a<b",
        "a\"b",
        "a'b",
        "a;b",
        "a%2fb",
        "%2e%2e",
        "${a}",
        "a`b`",
        ".hidden",
        "a.",
        "con",
        "NUL",
        "nul.txt",
        "com1",
        "LPT9.log",
        "\u{e9}",
        "\u{202e}a",
        "\u{2215}",
        "\u{ff0e}\u{ff0e}",
        &long,
    ];
    for attack in attacks {
        let refused: Result<_, InvalidId> = ConversationId::new(attack);
        assert!(refused.is_err(), "{attack:?} was taken for an id");
        let json = serde_json::to_string(attack).expect("a string has a JSON form");
        assert!(
            serde_json::from_str::<ConversationId>(&json).is_err(),
            "{attack:?} became an id on its way through JSON"
        );
    }
    CheckOutcome::Made
}
