//! Approvals of conversations that no process has open.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    Error, ErrorKind,
    manager::{ApprovalId, DecisionPlace, Manager},
    message::ToolUseId,
    store::{
        Filter, Labels, Listing, MemoryStore, Owner, Page, Store,
        custom::{StoredTurn, Turns},
    },
    tool::Decision,
};
use serde_json::{Value, json};

use crate::stores::{id, leave, paused, stores, turn_id, waiting};

fn approval(conversation: &str, tool_use: &str) -> ApprovalId {
    ApprovalId::new(id(conversation), turn_id(7), tool_use)
}

fn of(user: &str) -> Filter {
    Filter::with(Labels::new([("user", user)]).unwrap())
}

fn manager(store: &Arc<dyn Store>) -> Manager {
    Manager::builder(Arc::clone(store)).build()
}

async fn turn(store: &dyn Store, conversation: &str) -> StoredTurn {
    store.turn(&id(conversation)).await.unwrap().expect("a turn is in flight")
}

fn stale(result: &Result<DecisionPlace, Error>) -> Vec<ToolUseId> {
    let error = result.as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleDecision);
    error.waiting()
}

/// Returns the decisions in the turn's record. Each is an array of the tool use's id, the decision, the person who
/// decided, and whether a time limit had passed.
fn decided(turn: &StoredTurn) -> Value {
    let core: Value = serde_json::from_str(&turn.record.core).unwrap();
    assert_eq!((&core["phase"], &core["step"]), (&json!("paused"), &json!(3)), "the rest is unchanged");
    let entries = core["decided"].as_array().cloned().unwrap_or_default();
    let entries = entries.iter().map(|entry| {
        assert_eq!(entry["turn"], json!(turn_id(7)));
        json!([entry["tool_use_id"], entry["decision"], entry["by"], entry["expired"]])
    });
    entries.collect()
}

#[tokio::test]
async fn pending_approvals_lists_the_oldest_first_for_its_user_only() {
    for place in stores().await {
        let store = &place.store;
        leave(&**store, "first", "ann", paused(vec![waiting("1"), waiting("2")])).await;
        leave(&**store, "other", "ben", paused(vec![waiting("1")])).await;
        // The next approval must be at least one millisecond younger, so that the order of the list is certain.
        let now = async || store.turn(&id("first")).await.unwrap().unwrap().now;
        let begun = now().await;
        while now().await <= begun {
            tokio::task::yield_now().await;
        }
        let limited = waiting("3").with_reason(json!("money")).with_limit(Duration::from_hours(1));
        leave(&**store, "second", "ann", paused(vec![limited])).await;
        leave(&**store, "running", "ann", paused(vec![])).await;

        let manager = manager(store);
        let all = manager.pending_approvals(&of("ann"), Page::default()).await.unwrap();
        let ids: Vec<_> = all.iter().map(|approval| approval.id.clone()).collect();
        assert_eq!(ids, [approval("first", "1"), approval("first", "2"), approval("second", "3")]);
        let last = &all[2].pending;
        assert_eq!((&last.reason, &last.tool_use.input), (&json!("money"), &json!({ "to": "3" })));
        assert_eq!(last.expires.unwrap().0, last.since.unwrap().0 + 3_600_000);
        assert_eq!(all[2].labels, Labels::new([("user", "ann")]).unwrap());

        let first = manager.pending_approvals(&of("ann"), Page::first(1)).await.unwrap();
        assert_eq!(first, all[..2]);
        let next = Page::first(1).after(first.last().unwrap());
        assert_eq!(manager.pending_approvals(&of("ann"), next).await.unwrap(), all[2..]);
        assert!(manager.list_open().is_empty(), "no conversation was opened");
    }
}

#[tokio::test]
async fn decision_is_stored_once_and_the_last_one_leaves_the_turn() {
    for place in stores().await {
        let store = &place.store;
        leave(&**store, "a", "ann", paused(vec![waiting("1"), waiting("2")])).await;
        let (one, two) = (manager(store), manager(store));
        let before = turn(&**store, "a").await;

        let taken = one.decide(&approval("a", "2"), Decision::Execute, Some("ann")).await;
        assert_eq!(taken.unwrap(), DecisionPlace::InStore);
        let after = turn(&**store, "a").await;
        assert_eq!(decided(&after), json!([["2", "execute", "ann", null]]));
        let same = |turn: &StoredTurn| (turn.record.append.clone(), turn.since);
        assert_eq!(same(&after), same(&before));
        assert_eq!((after.record.lives, after.record.head), (1, before.record.head));
        assert_eq!(after.approvals(), before.approvals()[..1]);

        let again = two.decide(&approval("a", "2"), Decision::reject("No."), Some("ben")).await;
        assert_eq!(stale(&again), [ToolUseId::new("1")]);
        assert!(one.left(&Filter::default(), Page::default()).await.unwrap().is_empty());

        two.decide(&approval("a", "1"), Decision::reject("No."), None).await.unwrap();
        let last = turn(&**store, "a").await;
        assert_eq!(
            decided(&last),
            json!([["2", "execute", "ann", null], ["1", { "reject": "No." }, null, null]])
        );
        assert!(two.pending_approvals(&Filter::default(), Page::default()).await.unwrap().is_empty());
        let left = one.left(&of("ann"), Page::default()).await.unwrap();
        assert_eq!((left.len(), &left[0].id), (1, &id("a")));
        assert!(one.left(&of("ben"), Page::default()).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn decide_by_two_at_once_succeeds_once() {
    for place in stores().await {
        let store = &place.store;
        leave(&**store, "a", "ann", paused(vec![waiting("1"), waiting("2")])).await;
        let managers: Vec<_> = (0..4).map(|_| manager(store)).collect();
        let wanted = approval("a", "1");
        let deciding = managers.iter().map(|manager| manager.decide(&wanted, Decision::Execute, None));
        let results = futures_util::future::join_all(deciding).await;
        let won = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(won, 1, "{results:?}");
        for lost in results.iter().filter(|result| result.is_err()) {
            assert_eq!(stale(lost), [ToolUseId::new("2")]);
        }
        assert_eq!(decided(&turn(&**store, "a").await), json!([["1", "execute", null, null]]));
    }
}

#[tokio::test]
async fn decision_on_another_turn_or_an_unknown_tool_use_is_stale() {
    for place in stores().await {
        let store = &place.store;
        let ends_with_its_process = waiting("2").with_survives(false);
        leave(&**store, "a", "ann", paused(vec![waiting("1"), ends_with_its_process])).await;
        let (manager, before) = (manager(store), turn(&**store, "a").await);
        let other = ApprovalId::new(id("a"), turn_id(8), "1");
        for wanted in [other, approval("a", "9"), approval("a", "2")] {
            let result = manager.decide(&wanted, Decision::Execute, None).await;
            assert_eq!(stale(&result), [ToolUseId::new("1")], "{wanted}");
            let error = result.unwrap_err();
            assert!(error.is_conflict() && error.to_string().ends_with("decide on 1"), "{error}");
        }
        assert_eq!(turn(&**store, "a").await, before);
        let missing = manager.decide(&approval("b", "1"), Decision::Execute, None).await;
        assert!(missing.unwrap_err().is_not_found());
        let long = manager.decide(&approval("a", "1"), Decision::Execute, Some(&"n".repeat(257))).await;
        let error = long.unwrap_err();
        assert_eq!((error.kind(), error.member("length")), (ErrorKind::InvalidDecision, Some(&257.into())));
    }
}

#[tokio::test]
async fn deeply_nested_decision_is_refused_and_changes_nothing() {
    let nested = |levels| (0..levels).fold(json!(1), |inner, _| json!([inner]));
    for place in stores().await {
        let store = &place.store;
        leave(&**store, "a", "ann", paused(vec![waiting("1")])).await;
        let (manager, before) = (manager(store), turn(&**store, "a").await);
        let deep = manager.decide(&approval("a", "1"), Decision::ExecuteWith(nested(65)), None).await;
        let error = deep.unwrap_err();
        assert!(error.to_string().contains("64 levels"), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::InvalidDecision);
        assert_eq!(turn(&**store, "a").await, before);
        manager.decide(&approval("a", "1"), Decision::ExecuteWith(nested(64)), None).await.unwrap();
    }
}

#[tokio::test]
async fn decision_after_the_time_limit_applies_the_one_for_its_end() {
    for place in stores().await {
        let store = &place.store;
        let expired = |tool_use| waiting(tool_use).with_limit(Duration::ZERO);
        let record = paused(vec![expired("1"), waiting("2"), expired("3").with_on_expiry(Decision::Execute)]);
        leave(&**store, "a", "ann", record).await;
        let manager = manager(store);
        assert_eq!(manager.left(&Filter::default(), Page::default()).await.unwrap().len(), 1);

        let late = manager.decide(&approval("a", "1"), Decision::Execute, Some("ann")).await;
        stale(&late);
        let rejected = json!({ "reject": "The approval was not given in time." });
        let after = turn(&**store, "a").await;
        assert_eq!(decided(&after), json!([["1", rejected, null, true], ["3", "execute", null, true]]));
        let open = manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
        assert_eq!(open.iter().map(|open| &open.id).collect::<Vec<_>>(), [&approval("a", "2")]);
        assert!(manager.left(&Filter::default(), Page::default()).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn decide_on_a_conversation_of_another_owner_is_open_elsewhere() {
    for place in stores().await {
        let store = &place.store;
        leave(&**store, "a", "ann", paused(vec![waiting("1")])).await;
        let lease = store.acquire(&id("a"), &Owner::new("another").at("host-2")).await.unwrap();
        if lease.lasts.is_none() {
            continue;
        }
        let builder = Manager::builder(Arc::clone(store)).decide_timeout(Duration::from_millis(100));
        let manager = builder.build();
        let result = manager.decide(&approval("a", "1"), Decision::Execute, None).await;
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OpenElsewhere);
        assert_eq!(error.owner().unwrap().address.as_deref(), Some("host-2"));
        let left = error.retry_after();
        assert!(left.is_some_and(|left| Some(left) < lease.lasts), "{left:?}");
        store.release(&id("a"), &lease, None).await.unwrap();
        manager.decide(&approval("a", "1"), Decision::Execute, None).await.unwrap();
        // The lease was released, so another owner can open the conversation at once.
        store.acquire(&id("a"), &Owner::new("another")).await.unwrap();
    }
}

#[tokio::test]
async fn decide_on_a_state_that_is_not_an_object_reports_damage() {
    let store = MemoryStore::new();
    for (name, core) in [("text", "broken"), ("list", "[]"), ("member", r#"{"decided":1}"#)] {
        let record = omni_agent::store::custom::TurnRecord::new(1, turn_id(7), core);
        let record = record.with_head(omni_agent::tree::NodeId::new(2)).with_waiting(vec![waiting("1")]);
        leave(&store, name, "ann", record).await;
        let manager = Manager::builder(store.clone()).build();
        let result = manager.decide(&approval(name, "1"), Decision::Execute, None).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::DamagedTurn, "{name}");
        let all = store.turns(Turns::Waiting, &Listing::default()).await.unwrap();
        assert!(all.iter().any(|turn| turn.id == id(name)), "the approval still waits");
    }
}

#[test]
fn text_of_an_approval_id_is_read_back_and_safe_in_a_url() {
    for tool_use in ["", "call_7", "a.b/c?d=é \u{0}~", "~41"] {
        let wanted = ApprovalId::new(id("chat.with~marks"), turn_id(7), tool_use);
        let text = wanted.to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)), "{text}");
        assert_eq!(text.parse(), Ok(wanted.clone()));
        assert_eq!(serde_json::to_value(&wanted).unwrap(), json!(text));
        assert_eq!(serde_json::from_value::<ApprovalId>(json!(text)).unwrap(), wanted);
    }
    let turn = turn_id(7);
    for bad in [
        String::new(),
        format!("{turn}"),
        format!("{turn}.call"),
        format!("{turn}.call."),
        "7.call.chat".to_owned(),
        format!("{turn}.~4.chat"),
        format!("{turn}.~41.chat"),
        format!("{turn}.~4G.chat"),
        format!("{turn}.~ff.chat"),
        format!("{turn}.a b.chat"),
    ] {
        assert!(bad.parse::<ApprovalId>().is_err(), "{bad}");
    }
}
