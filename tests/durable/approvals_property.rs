//! Random decisions about stored turns, compared with a model.

use std::{collections::BTreeMap, time::Duration};

use omni_agent::{
    ErrorKind,
    manager::{ApprovalId, Manager},
    store::{Filter, MemoryStore, Page, Store},
    tool::Decision,
};
use proptest::{collection::vec, prelude::*};
use serde_json::Value;

use crate::stores::{id, leave, paused, turn_id, waiting};

/// The time limit of a tool use that waits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    None,
    Later,
    Passed,
    EndsWithItsProcess,
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        3 => Just(Limit::None),
        2 => Just(Limit::Later),
        1 => Just(Limit::Passed),
        1 => Just(Limit::EndsWithItsProcess),
    ]
}

/// A decision: whether it names the turn in flight, the number of the tool use, the new input, and which of two
/// managers decides.
type Attempt = (bool, usize, u8, bool);

fn attempts() -> impl Strategy<Value = Vec<Attempt>> {
    vec((prop::bool::weighted(0.9), 0..6_usize, any::<u8>(), any::<bool>()), 0..12)
}

async fn compare(limits: &[Limit], attempts: &[Attempt]) {
    let store = MemoryStore::new();
    let uses = limits.iter().enumerate().map(|(number, limit)| {
        let waiting = waiting(&number.to_string());
        match limit {
            Limit::None => waiting,
            Limit::Later => waiting.with_limit(Duration::from_hours(1)),
            Limit::Passed => waiting.with_limit(Duration::ZERO),
            Limit::EndsWithItsProcess => waiting.with_survives(false),
        }
    });
    leave(&store, "a", "ann", paused(uses.collect())).await;
    let managers = [Manager::builder(store.clone()).build(), Manager::builder(store.clone()).build()];
    let mut open: BTreeMap<usize, Limit> = limits.iter().copied().enumerate().collect();
    let mut expected = Vec::new();
    for (is_current, number, input, second) in attempts {
        let turn = turn_id(if *is_current { 7 } else { 8 });
        let wanted = ApprovalId::new(id("a"), turn, number.to_string());
        let decision = Decision::ExecuteWith((*input).into());
        let decided = managers[usize::from(*second)].decide(&wanted, decision.clone(), None).await;
        match open.get(number).filter(|limit| *is_current && **limit != Limit::EndsWithItsProcess) {
            None => assert_eq!(decided.unwrap_err().kind(), ErrorKind::StaleDecision),
            Some(Limit::Passed) => {
                assert_eq!(decided.unwrap_err().kind(), ErrorKind::StaleDecision);
                // All limits that have passed are applied together, in the order of the tool uses.
                expected
                    .extend(open.extract_if(.., |_, limit| *limit == Limit::Passed).map(|(n, _)| (n, None)));
            }
            Some(_) => {
                decided.expect("the tool use waits");
                open.remove(number);
                expected.push((*number, Some(serde_json::to_value(decision).expect("a decision"))));
            }
        }
        let turn = store.turn(&id("a")).await.expect("the turn can be read").expect("it stays in flight");
        let still: Vec<_> =
            turn.record.waiting.iter().map(|waiting| waiting.tool_use.id.to_string()).collect();
        assert_eq!(still, open.keys().map(ToString::to_string).collect::<Vec<_>>());
        let core: Value = serde_json::from_str(&turn.record.core).expect("an object");
        let decisions = core["decided"].as_array().cloned().unwrap_or_default();
        assert_eq!(decisions.len(), expected.len());
        for (entry, (number, decision)) in decisions.iter().zip(&expected) {
            assert_eq!(entry["tool_use_id"], number.to_string());
            assert_eq!(entry["expired"] == true, decision.is_none());
            if let Some(decision) = decision {
                assert_eq!(entry["decision"], *decision);
            }
        }
    }
    let listed = managers[0].pending_approvals(&Filter::default(), Page::default()).await.expect("a list");
    let survive = open.iter().filter(|(_, limit)| **limit != Limit::EndsWithItsProcess);
    let survive: Vec<_> = survive.map(|(number, _)| number.to_string()).collect();
    assert_eq!(listed.iter().map(|open| open.id.tool_use.to_string()).collect::<Vec<_>>(), survive);
}

proptest! {
    #[test]
    fn decisions_on_a_stored_turn_apply_once_and_in_order(
        limits in vec(limit(), 0..6),
        attempts in attempts(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(compare(&limits, &attempts));
    }
}
