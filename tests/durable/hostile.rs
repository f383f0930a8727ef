//! Records of any content, such as those of newer versions: in every store, the rest of the conversation stays usable.

use std::{fs, path::Path, sync::Arc, time::Duration};

use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, Recover, RecoveryDecision},
    manager::{Manager, OpenOptions, Shutdown, Sweep},
    session::Session,
    store::{
        ConversationId, CopyOptions, Listing, MemoryStore, Page, Store,
        custom::{Commit, Stored, TurnChange, TurnRecord, Turns},
        export_json,
    },
    testing::{ScriptedProvider, Step},
};
use proptest::{
    prelude::*,
    sample::Index,
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde_json::{Value, json};

use crate::stores::{Place, leave, stores};

/// The number of records that are tested in every store.
const CASES: u32 = 40;

const SOON: Duration = Duration::from_mins(1);

/// Returns the golden records of all stages. The state of the agent is JSON instead of a text, so that it is changed
/// too.
fn golden() -> Vec<Value> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/golden/turns-1");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let records = paths.iter().map(|path| {
        let mut golden: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let mut record = golden["turn"].take();
        record["head"] = json!(2);
        record["core"] = serde_json::from_str(record["core"].as_str().unwrap()).unwrap();
        record
    });
    records.collect()
}

/// A change of a record: the member to change, and its new value.
type Mutation = (Index, Change);

#[derive(Clone, Debug)]
enum Change {
    Remove,
    Replace(Value),
    /// Copies another member of the record.
    Copy(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(2),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1.5),
        json!(""),
        json!("x"),
        json!("\u{0}"),
        json!("paused"),
        json!([]),
        json!([[]]),
        json!({}),
    ];
    prop_oneof![
        Just(Change::Remove),
        prop::sample::select(values.to_vec()).prop_map(Change::Replace),
        any::<Index>().prop_map(Change::Copy),
    ]
}

/// Adds the JSON pointers of all members to `all`.
fn members(value: &Value, pointer: &str, all: &mut Vec<String>) {
    let mut add = |key: String, member: &Value| {
        let pointer = format!("{pointer}/{key}");
        members(member, &pointer, all);
        all.push(pointer);
    };
    match value {
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                add(place.to_string(), item);
            }
        }
        Value::Object(map) => {
            for (key, member) in map {
                add(key.clone(), member);
            }
        }
        _ => {}
    }
}

fn mutate(record: &mut Value, (place, change): &Mutation) {
    let mut all = Vec::new();
    members(record, "", &mut all);
    if all.is_empty() {
        return;
    }
    let pointer = place.get(&all).as_str();
    let new = match change {
        Change::Replace(value) => value.clone(),
        Change::Copy(from) => record.pointer(from.get(&all).as_str()).cloned().unwrap_or_default(),
        Change::Remove => {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match record.pointer_mut(parent) {
                Some(Value::Object(map)) => drop(map.shift_remove(key)),
                Some(Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
                _ => {}
            }
            return;
        }
    };
    if let Some(member) = record.pointer_mut(pointer) {
        *member = new;
    }
}

/// Returns the record as a store reads it.
fn read(mut record: Value) -> TurnRecord {
    if let Some(core) = record.get_mut("core").filter(|core| !core.is_string()) {
        *core = core.to_string().into();
    }
    let commit: Commit = serde_json::from_value(json!({ "head": 2, "turn": { "record": record } })).unwrap();
    match *commit.turn.unwrap() {
        TurnChange::Record(record) => record,
        other => panic!("{other:?}"),
    }
}

fn agent() -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("Yes")).model())
}

fn discard() -> Recover {
    Recover::default().with_decision(RecoveryDecision::Discard)
}

fn texts(stored: &Stored) -> Vec<String> {
    stored.nodes.iter().map(|node| node.message().text()).collect()
}

fn in_time<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    // Opening a session is a large future.
    let work = Box::pin(work);
    async move { tokio::time::timeout(SOON, work).await.expect("the operation ends") }
}

/// Reads the conversation in every way, and copies it.
async fn reads(store: &dyn Store, id: &ConversationId) {
    assert_eq!(texts(&store.load(id).await.unwrap()), ["Hello", "Hi"]);
    store.turn(id).await.unwrap();
    store.summary(id).await.unwrap();
    store.list(&Listing::default()).await.unwrap();
    for which in [Turns::All, Turns::Waiting, Turns::Left] {
        store.turns(which, &Listing::default()).await.unwrap();
    }
    let text = export_json(store, id).await.unwrap();
    let to = MemoryStore::new();
    let options = CopyOptions::default().with_turns(true);
    let copy = options.import_json_with_settings(&to, &text, None).await.unwrap();
    assert_eq!(texts(&to.load(&copy).await.unwrap()), ["Hello", "Hi"]);
}

/// Continues the turn, if it can be read.
async fn resumes(store: &Arc<dyn Store>, id: &ConversationId) {
    match in_time(Session::builder(Arc::clone(store)).agent(agent()).open(id.clone())).await {
        Ok(session) => {
            in_time(session.snapshot()).await.unwrap();
            match in_time(session.cancel()).await {
                // The run may already have ended.
                Err(error) if error.kind() != ErrorKind::Idle => panic!("{error:?}"),
                _ => {}
            }
            in_time(session.snapshot()).await.unwrap();
            session.stop(SOON).await.unwrap();
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::NewerTurn | ErrorKind::DamagedTurn), "{error:?}");
        }
    }
    assert_eq!(texts(&store.load(id).await.unwrap())[..2], ["Hello", "Hi"]);
}

/// Drops the turn, and continues the conversation without it.
async fn discards(store: &Arc<dyn Store>, id: &ConversationId) {
    let builder = Session::builder(Arc::clone(store)).agent(agent()).recover(discard());
    let session = in_time(builder.open(id.clone())).await.unwrap();
    in_time(session.wait_until_idle()).await.unwrap();
    assert_eq!(in_time(session.ask("More?")).await.unwrap().text(), "Yes");
    session.stop(SOON).await.unwrap();
    let stored = store.load(id).await.unwrap();
    assert_eq!(
        (texts(&stored), stored.turn),
        (["Hello", "Hi", "More?", "Yes"].map(str::to_owned).into(), None)
    );
}

/// Sweeps the store with a manager that drops turns. The sweep leaves turns of newer versions, and turns that only wait.
async fn sweeps(store: &Arc<dyn Store>, id: &ConversationId) {
    let options = || OpenOptions::new(agent()).recover(discard());
    let manager = Manager::builder(Arc::clone(store)).sweep(Sweep::off()).starter(move |_| Some(options()));
    let manager = manager.build();
    let recovered = in_time(manager.recover()).await.unwrap();
    manager.shutdown(Shutdown::within(SOON)).await.unwrap();
    let left = store.turns(Turns::Left, &Page::first(1000).into()).await.unwrap();
    let left = left.iter().find(|turn| turn.id == *id);
    assert!(left.is_none_or(|turn| turn.format > 1), "{left:?}, {recovered:?}");
}

async fn check(places: &[Place], record: &TurnRecord) {
    for Place { store, .. } in places {
        let left = async || {
            let id = ConversationId::generate();
            leave(&**store, id.as_str(), "ann", record.clone()).await;
            id
        };
        let id = left().await;
        reads(&**store, &id).await;
        resumes(store, &id).await;
        discards(store, &left().await).await;
        sweeps(store, &left().await).await;
    }
}

#[test]
fn record_of_any_content_leaves_the_rest_of_the_conversation_usable() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let places = runtime.block_on(stores());
    let mutations = prop::collection::vec((any::<Index>(), change()), 1..4);
    let records = (prop::sample::select(golden()), mutations);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&records, |(mut record, mutations)| {
        for mutation in &mutations {
            mutate(&mut record, mutation);
        }
        runtime.block_on(check(&places, &read(record)));
        Ok::<_, TestCaseError>(())
    });
    tested.unwrap();
}
