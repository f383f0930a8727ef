//! Values at the limits of a store. They are either loaded unchanged, or rejected without leaving anything behind.

use omni_agent::{
    message::{Content, Message, ToolUse},
    provider::Options,
    store::{
        Listing, Store, StoreError,
        custom::{Change, Commit, StateChange, StoredState, Write},
    },
    tree::Node,
};
use serde_json::{Value, json};

use crate::support::{Folder, commit, create, id, node};

fn deep(levels: usize, is_list: bool) -> Value {
    let wrap = |inner| if is_list { json!([inner]) } else { json!({ "a": inner }) };
    (1..levels).fold(if is_list { json!([]) } else { json!({}) }, |inner, _| wrap(inner))
}

/// Stores messages and states with deeply nested JSON. A message and a state each add a few more levels.
async fn values_at_the_limits_come_back_or_are_refused(store: &dyn Store) {
    let (mut taken, mut refused) = (0, 0);
    for (levels, is_list) in [(100, false), (245, false), (245, true), (257, false), (257, true), (500, true)]
    {
        let name = id(&format!("deep-{levels}-{is_list}"));
        let version = create(store, &name).await;
        let input = if is_list { json!({ "a": deep(levels - 1, true) }) } else { deep(levels, false) };
        let message = Message::assistant(vec![Content::from(ToolUse::new("toolu_1", "deep", input))]);
        let nodes = [Node::new(node(1), None, message)];
        let turn = Commit::new(Some(node(1))).with_nodes(nodes.clone());
        let options = Options::default().with_extra([("deep", deep(levels, is_list))]);
        let state = StoredState::default().with_options(options);
        let change = StateChange::whole(state.clone());
        let written = match store.write(&name, &Write::on(version), &Change::Commit(turn)).await {
            Ok(version) => store.write(&name, &Write::on(version), &Change::State(change.clone())).await,
            Err(error) => Err(error),
        };
        let stored = store.load(&name).await.unwrap();
        match written {
            Ok(_) => {
                taken += 1;
                assert!(stored.nodes == nodes && stored.state == state, "{levels} levels");
            }
            Err(error) => {
                refused += 1;
                assert!(matches!(error, StoreError::Unstorable { .. }), "{levels} levels: {error:?}");
                assert_eq!((stored.version, stored.nodes.len()), (version, 0), "{levels} levels");
                let create = store.write(&id("other"), &Write::first(), &Change::create(state.clone())).await;
                assert!(matches!(create, Err(StoreError::Unstorable { .. })), "{levels} levels: {create:?}");
            }
        }
    }
    assert_eq!((taken, refused), (3, 3));

    let name = id(&"x".repeat(128));
    let title = "\0\u{fffe}\"\\ü🐢 ".repeat(100_000);
    let version = create(store, &name).await;
    let change = StateChange::title(title.clone());
    let version = store.write(&name, &Write::on(version), &Change::State(change)).await.unwrap();
    commit(store, &name, version, 1, "\u{fffd}\\ud800 \\u0000").await;
    let stored = store.load(&name).await.unwrap();
    assert!(stored.state.title.as_ref() == Some(&title));
    assert_eq!(stored.nodes[0].message().text(), "\u{fffd}\\ud800 \\u0000");
    let listed = store.list(&Listing::default()).await.unwrap();
    let listed = listed.iter().find(|listed| listed.id == name).unwrap();
    assert!(listed.title.as_ref() == Some(&title) && listed.damage.is_none());
}

#[tokio::test]
async fn values_at_the_limits_in_files_are_kept_or_rejected() {
    values_at_the_limits_come_back_or_are_refused(&Folder::new().quick_store().await).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn values_at_the_limits_in_sqlite_are_kept_or_rejected() {
    let folder = Folder::new();
    values_at_the_limits_come_back_or_are_refused(&crate::sqlite::quick(&folder).await).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn values_at_the_limits_in_postgres_are_kept_or_rejected() {
    use crate::postgres::server::{fresh, url};

    let Some(url) = url() else { return };
    values_at_the_limits_come_back_or_are_refused(&fresh(url).open().await.unwrap()).await;
}

/// Half of a surrogate pair. It is not valid text, but some databases accept it as JSON. The store must report it as
/// damage.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
const HALF: &str = r#""\ud800""#;

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn half_of_a_character_in_sqlite_is_damage() {
    let folder = Folder::new();
    let store = crate::sqlite::quick(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let other = crate::sqlite::raw(&folder);
    other.execute("UPDATE nodes SET message = replace(message, '\"Hi\"', ?)", [HALF]).unwrap();
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { place, .. } if place.starts_with("node 1 of")),
        "{error:?}"
    );
    other.execute("UPDATE states SET state = json_object('model', json(?))", [HALF]).unwrap();
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { place, .. } if place.starts_with("the state of")),
        "{error:?}"
    );
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn half_of_a_character_in_postgres_is_damage() {
    use crate::postgres::server::{fresh, raw, url};

    let Some(url) = url() else { return };
    let store = fresh(url).open().await.unwrap();
    create(&store, &id("a")).await;
    let table = format!("\"{}\".conversations", store.schema().replace('"', "\"\""));
    let other = raw(url).await;
    let state = format!("UPDATE {table} SET state = '{{\"model\":' || $1 || '}}'");
    other.execute(&state, &[&HALF]).await.unwrap();
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { place, .. } if place.starts_with("the state of")),
        "{error:?}"
    );
    other.execute(&format!("UPDATE {table} SET title = $1"), &[&HALF]).await.unwrap();
    assert!(store.list(&Listing::default()).await.unwrap()[0].damage.is_some());
}
