use super::{PassedOrSkipped, StoreUnderTest, created};
use crate::error::InvalidId;
use crate::store::{Change, ConversationId, Page, StateChange, StoreError, StoredState, Write};

/// Returns valid ids that are difficult for stores that derive names from ids.
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
    ids.map(|id| ConversationId::new(id).expect("an unusual but valid id")).collect()
}

pub(super) async fn unusual_ids_do_not_collide(subject: &dyn StoreUnderTest) -> PassedOrSkipped {
    let store = subject.store();
    let ids = strange();
    for id in &ids {
        let state = StoredState::default().with_title(id.as_str());
        store
            .write(id, &Write::first(), &Change::create(state.clone()))
            .await
            .expect("creating a conversation with an unusual id succeeds");
    }
    for id in &ids {
        let title = store.load(id).await.expect("the conversation was created").state.title;
        assert_eq!(
            title.as_deref(),
            Some(id.as_str()),
            "conversation {id} has the title of another conversation"
        );
    }
    let mut listed: Vec<_> = store
        .list(&Page::first(1000).into())
        .await
        .expect("listing succeeds")
        .into_iter()
        .map(|s| s.id)
        .collect();
    let mut expected = ids.clone();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected, "the list does not contain each conversation exactly once");

    store.delete(&ids[0], None).await.expect("deleting succeeds");
    for id in &ids[1..] {
        assert!(store.summary(id).await.is_ok(), "deleting {} also deleted {id}", ids[0]);
    }

    // A store that can't distinguish upper and lower case must report this instead of mixing up the conversations.
    let (lower, upper) = (super::conversation("case"), super::conversation("CASE"));
    let version = created(&*store, &lower).await;
    match store.write(&upper, &Write::first(), &Change::create(StoredState::default())).await {
        Ok(upper_version) => {
            let change = StateChange::title("upper");
            store
                .write(&upper, &Write::on(upper_version), &Change::State(change))
                .await
                .expect("saving a title succeeds");
            assert_eq!(
                store.load(&lower).await.expect("the conversation was created").version,
                version,
                "CASE was written to case"
            );
        }
        Err(StoreError::AlreadyExists { .. }) => {}
        Err(error) => panic!("creating CASE next to case failed: {error}"),
    }
    PassedOrSkipped::Made
}

pub(super) async fn unsafe_ids_are_rejected(_: &dyn StoreUnderTest) -> PassedOrSkipped {
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
        assert!(refused.is_err(), "{attack:?} was accepted as an id");
        let json = serde_json::to_string(attack).expect("a string has a JSON form");
        assert!(
            serde_json::from_str::<ConversationId>(&json).is_err(),
            "{attack:?} was accepted as an id in JSON"
        );
    }
    PassedOrSkipped::Made
}
