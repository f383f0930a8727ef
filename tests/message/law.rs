//! The rules for histories: which histories may be sent, which may be committed, and how an invalid history is
//! repaired.

use std::sync::Arc;

use omni_agent::message::{Content, History, HistoryError, Message, Role, Timestamp, ToolResult};
use proptest::prelude::*;
use serde_json::json;

use crate::drafts::{any_history, uses};

fn result(id: &str) -> Content {
    ToolResult::ok(&uses(id), "done").into()
}

fn asks<const N: usize>(ids: [&str; N]) -> Message {
    Message::assistant(ids.map(uses))
}

fn answers<const N: usize>(ids: [&str; N]) -> Message {
    Message::user(ids.map(result))
}

fn history<const N: usize>(messages: [Message; N]) -> History {
    History::from_iter(messages)
}

/// Returns whether a history obeys the rules, except those for its last message. The results in a message and the tool
/// uses in the message before it must have the same ids, and no message may use an id twice. Every block must be in a
/// message with the correct role.
fn obeys_but_for_the_end(history: &History) -> bool {
    let used = |message: &Arc<Message>| {
        let mut ids: Vec<_> = message.tool_uses().map(|tool_use| tool_use.id.clone()).collect();
        ids.sort();
        ids
    };
    let answered = |message: &Arc<Message>| {
        let mut ids: Vec<_> = message.tool_results().map(|result| result.tool_use_id.clone()).collect();
        ids.sort();
        ids
    };
    let messages: Vec<_> = history.iter().collect();
    let placed = messages.iter().all(|message| match message.role {
        Role::User => used(message).is_empty(),
        _ => answered(message).is_empty(),
    });
    let distinct = messages.iter().all(|message| used(message).windows(2).all(|pair| pair[0] != pair[1]));
    let first = messages.first().is_none_or(|first| answered(first).is_empty());
    placed && distinct && first && messages.windows(2).all(|pair| used(pair[0]) == answered(pair[1]))
}

fn is_sendable(history: &History) -> bool {
    obeys_but_for_the_end(history) && history.last().is_none_or(|last| last.tool_uses().next().is_none())
}

fn is_committed(history: &History) -> bool {
    obeys_but_for_the_end(history)
        && match history.last() {
            None => true,
            Some(last) if last.role == Role::Assistant => true,
            Some(last) => last.tool_results().next().is_some(),
        }
}

/// Returns all blocks in their order, except those that the rules do not allow at their position.
fn lawful_blocks(history: &History) -> Vec<(Role, Content)> {
    let mut lawful = Vec::new();
    let mut before: Option<&Arc<Message>> = None;
    for message in history {
        let asked = before.filter(|before| before.role == Role::Assistant);
        let mut seen = Vec::new();
        for block in &message.content {
            let keep = match block {
                Content::ToolUse(tool_use) => {
                    message.role == Role::Assistant && !seen.contains(&&tool_use.id)
                }
                Content::ToolResult(result) => {
                    message.role == Role::User
                        && !seen.contains(&&result.tool_use_id)
                        && asked
                            .is_some_and(|asked| asked.tool_uses().any(|tool| tool.id == result.tool_use_id))
                }
                _ => true,
            };
            match block {
                Content::ToolUse(tool_use) => seen.push(&tool_use.id),
                Content::ToolResult(result) => seen.push(&result.tool_use_id),
                _ => {}
            }
            if keep {
                lawful.push((message.role, block.clone()));
            }
        }
        before = Some(message);
    }
    lawful
}

fn all_blocks(history: &History) -> Vec<(Role, Content)> {
    history
        .iter()
        .flat_map(|message| message.content.iter().map(|block| (message.role, block.clone())))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn check_sendable_agrees_with_the_simple_rules(history in any_history()) {
        prop_assert_eq!(history.check_sendable().is_ok(), is_sendable(&history), "{:?}", history.check_sendable());
    }

    #[test]
    fn check_agrees_with_the_four_valid_ends(history in any_history()) {
        prop_assert_eq!(history.check().is_ok(), is_committed(&history), "{:?}", history.check());
    }

    #[test]
    fn check_error_names_an_existing_message(history in any_history()) {
        for error in [history.check().err(), history.check_sendable().err()].into_iter().flatten() {
            let index = match error {
                HistoryError::Unanswered { index, .. }
                | HistoryError::OrphanResult { index, .. }
                | HistoryError::DuplicateToolUse { index, .. }
                | HistoryError::Misplaced { index, .. }
                | HistoryError::EndsInPrompt { index } => index,
                other => panic!("{other:?}"),
            };
            prop_assert!(index < history.len());
        }
    }

    #[test]
    fn repair_gives_a_sendable_history_and_is_idempotent(history in any_history()) {
        let repaired = history.repair();
        prop_assert_eq!(repaired.check_sendable(), Ok(()));
        prop_assert!(repaired.repair().same(&repaired));
        if is_sendable(&history) {
            prop_assert!(repaired.same(&history));
        }
        prop_assert_eq!(history.repair(), repaired, "repair is deterministic");
    }

    #[test]
    fn repair_keeps_valid_blocks_in_order(history in any_history()) {
        let repaired = all_blocks(&history.repair());
        let mut rest = repaired.iter();
        for block in lawful_blocks(&history) {
            prop_assert!(rest.any(|kept| *kept == block), "{block:?} is missing or has moved in {repaired:?}");
        }
    }

    #[test]
    fn repair_adds_only_error_results(history in any_history()) {
        let before = all_blocks(&history);
        for (role, block) in all_blocks(&history.repair()) {
            let added = matches!(&block, Content::ToolResult(result) if result.is_error);
            prop_assert!(added || before.contains(&(role, block.clone())), "{block:?}");
        }
    }

    #[test]
    fn repair_shares_unchanged_messages(history in any_history()) {
        for message in &history.repair() {
            if let Some(original) = history.iter().find(|original| *original == message) {
                prop_assert!(Arc::ptr_eq(message, original), "{message:?}");
            }
        }
    }
}

#[test]
fn check_accepts_each_of_the_four_valid_ends() {
    let ends = [
        history([]),
        history([Message::user("hi"), Message::assistant("hello")]),
        history([asks(["a"]), answers(["a"])]),
        history([Message::user("hi"), asks(["a", "b"])]),
    ];
    for history in ends {
        assert_eq!(history.check(), Ok(()), "{history:?}");
    }
}

#[test]
fn check_of_a_history_that_ends_in_a_prompt_is_an_error() {
    let prompt = history([Message::user("hi")]);
    assert_eq!(prompt.check(), Err(HistoryError::EndsInPrompt { index: 0 }));
    assert_eq!(prompt.check_sendable(), Ok(()));
    let empty = history([Message::assistant("hi"), Message::user("")]);
    assert_eq!(empty.check(), Err(HistoryError::EndsInPrompt { index: 1 }));
}

#[test]
fn check_of_results_with_additional_text_succeeds() {
    let mut closing = answers(["a"]);
    closing.content.push("and then?".into());
    assert_eq!(history([asks(["a"]), closing]).check(), Ok(()));
}

#[test]
fn check_sendable_of_open_tool_uses_at_the_end_names_the_first() {
    let open = history([Message::user("hi"), asks(["a", "b"])]);
    assert_eq!(open.check_sendable(), Err(HistoryError::Unanswered { index: 1, id: "a".into() }));
    assert_eq!(open.open_tool_uses().map(|open| open.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(history([asks(["a"]), answers(["a"])]).open_tool_uses().count(), 0);
}

#[test]
fn check_of_ids_used_again_in_a_later_turn_succeeds() {
    let again = history([asks(["a"]), answers(["a"]), asks(["a"]), answers(["a"]), Message::assistant("ok")]);
    assert_eq!(again.check_sendable(), Ok(()));
}

#[test]
fn check_of_an_assistant_right_after_open_tool_uses_is_unanswered() {
    let broken = history([asks(["a"]), Message::assistant("hm"), answers(["a"])]);
    assert_eq!(broken.check(), Err(HistoryError::Unanswered { index: 0, id: "a".into() }));
}

#[test]
fn check_of_results_over_two_messages_is_unanswered() {
    let split = history([asks(["a", "b"]), answers(["a"]), answers(["b"])]);
    assert_eq!(split.check(), Err(HistoryError::Unanswered { index: 0, id: "b".into() }));
}

#[test]
fn check_of_a_repeated_result_is_an_orphan() {
    let twice = history([asks(["a"]), answers(["a", "a"])]);
    assert_eq!(twice.check(), Err(HistoryError::OrphanResult { index: 1, id: "a".into() }));
    let late = history([asks(["a"]), answers(["a"]), answers(["a"])]);
    assert_eq!(late.check(), Err(HistoryError::OrphanResult { index: 2, id: "a".into() }));
}

#[test]
fn check_of_an_additional_foreign_result_is_an_orphan() {
    let foreign = history([asks(["a"]), answers(["x", "a"])]);
    assert_eq!(foreign.check(), Err(HistoryError::OrphanResult { index: 1, id: "x".into() }));
}

#[test]
fn check_of_a_repeated_id_in_a_message_is_a_duplicate() {
    let twice = history([asks(["a", "b", "a"])]);
    assert_eq!(twice.check(), Err(HistoryError::DuplicateToolUse { index: 0, id: "a".into() }));
}

#[test]
fn check_of_a_block_in_the_wrong_role_is_misplaced() {
    let use_by_user = history([Message::user([uses("a")])]);
    let error = use_by_user.check().unwrap_err();
    assert_eq!(error, HistoryError::Misplaced { index: 0, role: Role::User, block: "tool use" });
    assert_eq!(
        error.to_string(),
        "message 0: a tool use is not allowed in a message with the role user; remove it, or use History::repair"
    );
    let result_by_model = history([asks(["a"]), Message::assistant([result("a")])]);
    let error = result_by_model.check().unwrap_err();
    assert_eq!(error, HistoryError::Misplaced { index: 1, role: Role::Assistant, block: "tool result" });
    assert_eq!(
        error.to_string(),
        "message 1: a tool result is not allowed in a message with the role assistant; remove it, or use History::repair"
    );
}

/// Returns the results of a message, each as its id, its text, and whether it is an error.
fn results(message: &Message) -> Vec<(&str, String, bool)> {
    message
        .tool_results()
        .map(|result| (result.tool_use_id.as_str(), result.text(), result.is_error))
        .collect()
}

fn is_made_up(message: &Message, id: &str) -> bool {
    results(message).iter().any(|(of, text, is_error)| *of == id && *is_error && text.contains("No result"))
}

#[test]
fn repair_of_open_tool_uses_at_the_end_adds_error_results() {
    let mut asking = asks(["a", "b"]);
    asking.timestamp = Timestamp(7);
    let repaired = history([Message::user("hi"), asking]).repair();
    assert_eq!(repaired.len(), 3);
    let last = repaired.last().unwrap();
    assert_eq!((last.role, last.timestamp), (Role::User, Timestamp(7)));
    assert!(is_made_up(last, "a") && is_made_up(last, "b"));
}

#[test]
fn repair_of_an_assistant_right_after_open_tool_uses_inserts_results() {
    let repaired = history([asks(["a"]), Message::assistant("hm")]).repair();
    assert_eq!(repaired.len(), 3);
    assert!(is_made_up(repaired.get(1).unwrap(), "a"));
    assert_eq!(repaired.get(2).unwrap().text(), "hm");
}

#[test]
fn repair_of_results_over_two_messages_joins_them() {
    let mut second = answers(["b"]);
    second.content.push("go on".into());
    let repaired = history([asks(["a", "b"]), answers(["a"]), second]).repair();
    assert_eq!(repaired.len(), 3);
    let mut given = results(repaired.get(1).unwrap());
    given.sort();
    assert_eq!(given, [("a", "done".into(), false), ("b", "done".into(), false)]);
    assert_eq!(repaired.get(2).unwrap().content, [Content::from("go on")]);
    let bare = history([asks(["a", "b"]), answers(["a"]), answers(["b"]), Message::assistant("ok")]).repair();
    assert_eq!(bare.len(), 3, "nothing is left of the second message of results");
}

#[test]
fn repair_of_a_prompt_before_the_results_joins_them() {
    let repaired = history([asks(["a"]), Message::user("wait"), answers(["a"])]).repair();
    assert_eq!(repaired.len(), 2);
    let answer = repaired.last().unwrap();
    assert_eq!(results(answer), [("a", "done".into(), false)]);
    assert_eq!(answer.text(), "wait");
}

#[test]
fn repair_does_not_change_valid_messages() {
    let mut text_first = Message::user("see:");
    text_first.content.push(result("b"));
    text_first.content.push(result("a"));
    let broken = history([asks(["a", "b"]), text_first, Message::user(""), asks(["c"])]);
    let repaired = broken.repair();
    assert_eq!(repaired.len(), 5);
    for index in 0..4 {
        assert!(Arc::ptr_eq(repaired.get(index).unwrap(), broken.get(index).unwrap()), "message {index}");
    }
}

#[test]
fn repair_drops_foreign_results_and_keeps_the_matching_one() {
    let repaired = history([asks(["a"]), answers(["x", "a", "a"])]).repair();
    assert_eq!(repaired.len(), 2);
    assert_eq!(results(repaired.last().unwrap()), [("a", "done".into(), false)]);
}

#[test]
fn repair_of_a_removed_message_joins_its_neighbours() {
    let repaired = history([asks(["a"]), Message::assistant([result("a")]), answers(["a"])]).repair();
    assert_eq!(repaired.len(), 2);
    assert_eq!(results(repaired.last().unwrap()), [("a", "done".into(), false)]);
}

#[test]
fn repair_keeps_provider_data_and_time_of_a_changed_message() {
    let mut asking = asks(["a", "a"]);
    asking.timestamp = Timestamp(7);
    asking.provider_data.insert("messages".into(), json!({ "id": 1 }));
    let repaired = history([asking.clone()]).repair();
    let kept = repaired.first().unwrap();
    assert_eq!(kept.tool_uses().count(), 1);
    assert_eq!((kept.timestamp, &kept.provider_data), (Timestamp(7), &asking.provider_data));
}

#[test]
fn repair_of_twenty_thousand_tool_uses_in_one_message_pairs_them() {
    let uses: Vec<Content> = (0..20_000).map(|n| uses(&format!("call_{n}")).into()).collect();
    let results: Vec<Content> = (1..20_000).map(|n| result(&format!("call_{n}"))).collect();
    let repaired = History::from_iter([Message::assistant(uses), Message::user(results)]).repair();
    assert_eq!(repaired.last().unwrap().content.len(), 20_000);
}

#[test]
fn repair_of_an_empty_history_is_empty() {
    assert!(History::new().repair().is_empty());
    let empty_messages = history([Message::user(""), Message::assistant("")]);
    assert!(empty_messages.repair().same(&empty_messages));
}
