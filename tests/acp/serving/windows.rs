//! Several windows that show one conversation.

use omni_agent::{manager::Manager, store::MemoryStore};
use serde_json::json;

use super::{host::registry, window::Window};

fn manager() -> Manager {
    Manager::builder(MemoryStore::new()).registry(registry()).build()
}

/// Opens two windows with the same session.
async fn two() -> (Window, Window, String) {
    let manager = manager();
    let (mut one, mut two) = (Window::open(&manager).await, Window::open(&manager).await);
    let session = one.create().await;
    two.request("session/resume", json!({ "sessionId": session, "cwd": "/work" })).await.unwrap();
    (one, two, session)
}

#[tokio::test]
async fn first_decision_of_any_window_counts_and_the_others_are_withdrawn() {
    let (mut one, mut two, session) = two().await;
    let prompt = one.prompt(&session, "Delete both").await;
    // All questions are asked at once, in both windows.
    let (x, y) = (one.question().await, one.question().await);
    let (other_x, other_y) = (two.question().await, two.question().await);
    assert_eq!(x["params"]["toolCall"]["rawInput"]["in"], "x");
    assert_eq!(other_y["params"]["toolCall"]["rawInput"]["in"], "y");
    assert_eq!(x["params"]["toolCall"]["title"], "delete_file");

    two.decide(&other_x, "allow").await;
    one.withdrawal(&x).await;
    one.decide(&y, "reject").await;
    two.withdrawal(&other_y).await;
    // This decision comes too late: the other window has already rejected the tool use.
    two.decide(&other_y, "allow").await;
    assert_eq!(one.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(one.texts("agent_message_chunk"), "Deleted. Kept.");
}

#[tokio::test]
async fn prompt_of_another_window_is_shown_with_its_answer() {
    let (mut one, mut two, session) = two().await;
    assert_eq!(one.say(&session, "Hello").await, "You said: Hello");
    assert_eq!(two.update("user_message_chunk").await["content"]["text"], "Hello");
    assert_eq!(two.update("agent_message_chunk").await["content"]["text"], "You said: Hello");
    assert_eq!(one.texts("user_message_chunk"), "", "a window shows its own prompts itself");
}

#[tokio::test]
async fn prompt_of_another_window_waits_for_its_turn() {
    let (mut one, mut two, session) = two().await;
    let first = one.prompt(&session, "Delete").await;
    let question = one.question().await;
    let second = two.prompt(&session, "Hello").await;
    two.question().await;
    one.decide(&question, "allow").await;
    assert_eq!(two.answer(second).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(two.texts("agent_message_chunk"), "Deleted.You said: Hello");
    assert_eq!(one.answer(first).await.unwrap()["stopReason"], "end_turn");
}

#[tokio::test]
async fn cancellation_of_one_window_ends_the_turn_of_the_other() {
    let (mut one, mut two, session) = two().await;
    let prompt = one.prompt(&session, "Go on for ever").await;
    two.update("agent_message_chunk").await;
    two.cancel(&session).await;
    assert_eq!(one.answer(prompt).await.unwrap()["stopReason"], "cancelled");
}

#[tokio::test]
async fn model_that_one_window_chooses_is_shown_in_the_other() {
    let (mut one, mut two, session) = two().await;
    let chosen = json!({ "sessionId": session, "configId": "model", "value": "big:scripted" });
    let options = one.request("session/set_config_option", chosen).await.unwrap();
    assert_eq!(options["configOptions"][0]["currentValue"], "big:scripted");
    let update = two.update("config_option_update").await;
    assert_eq!(update["configOptions"][0]["currentValue"], "big:scripted");
    assert_eq!(two.say(&session, "Which model?").await, "big");
    let unknown = json!({ "sessionId": session, "configId": "model", "value": "huge" });
    let refused = one.request("session/set_config_option", unknown).await.unwrap_err();
    assert!(refused["data"].as_str().unwrap().contains("small:scripted, big:scripted"), "{refused}");
}

#[tokio::test]
async fn window_that_closes_interrupts_its_own_run_and_no_other() {
    let (mut one, mut two, session) = two().await;
    let prompt = one.prompt(&session, "Go on for ever").await;
    two.update("agent_message_chunk").await;
    let (manager, other) = (manager(), two.create().await);
    drop(manager);
    // A window that has sent no prompt does not interrupt the run when it closes.
    two.close().await.unwrap();
    one.request("session/resume", json!({ "sessionId": other, "cwd": "/work" })).await.unwrap();
    one.cancel(&session).await;
    assert_eq!(one.answer(prompt).await.unwrap()["stopReason"], "cancelled");
}

#[tokio::test]
async fn window_that_closes_withdraws_its_waiting_prompt_and_leaves_the_run_of_another_window() {
    let (mut one, mut two, session) = two().await;
    let first = one.prompt(&session, "Delete").await;
    let question = one.question().await;
    two.question().await;
    two.prompt(&session, "Hello").await;
    // The prompt waits as soon as a later request of the same window is answered.
    two.request("session/list", json!({})).await.unwrap();
    two.close().await.unwrap();
    one.decide(&question, "allow").await;
    assert_eq!(one.answer(first).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(one.texts("agent_message_chunk"), "Deleted.");
    assert_eq!(one.texts("user_message_chunk"), "", "the prompt of the closed window was not used");
}

#[tokio::test]
async fn run_of_a_window_that_closes_is_interrupted_and_keeps_its_steps() {
    let (mut one, mut two, session) = two().await;
    one.prompt(&session, "Look, then go on for ever").await;
    two.update("agent_message_chunk").await;
    one.close().await.unwrap();
    // The run has ended, so this prompt starts another one.
    assert_eq!(two.say(&session, "Which word?").await, "none");
    two.forget();
    let loaded = json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] });
    two.request("session/load", loaded).await.unwrap();
    assert_eq!(two.texts("user_message_chunk"), "Look, then go on for everWhich word?");
    assert_eq!(two.update("tool_call_update").await["status"], "completed");
}

#[tokio::test]
async fn question_of_a_running_tool_is_asked_in_all_windows_and_belongs_to_its_call() {
    let (mut one, mut two, session) = two().await;
    let answers = [("allow", "Accepted(None)"), ("reject", "Declined(\"The user did not allow it.\")")];
    for (option, result) in answers {
        let prompt = one.prompt(&session, "Ask").await;
        let (question, other) = (one.question().await, two.question().await);
        let call = one.update("tool_call").await;
        assert_eq!(question["params"]["toolCall"]["toolCallId"], call["toolCallId"]);
        assert_eq!(question["params"]["toolCall"]["content"][0]["content"]["text"], "Is x right?");
        two.decide(&other, option).await;
        one.withdrawal(&question).await;
        assert_eq!(one.answer(prompt).await.unwrap()["stopReason"], "end_turn");
        assert_eq!(one.texts("agent_message_chunk"), result);
    }
}

#[tokio::test]
async fn form_with_required_fields_can_only_be_rejected() {
    let (mut one, _two, session) = two().await;
    let prompt = one.prompt(&session, "Fill in").await;
    let question = one.question().await;
    let options = question["params"]["options"].as_array().unwrap();
    assert_eq!(options.iter().map(|option| &option["optionId"]).collect::<Vec<_>>(), ["reject"]);
    one.decide(&question, "reject").await;
    assert_eq!(one.answer(prompt).await.unwrap()["stopReason"], "end_turn");
    assert_eq!(one.texts("agent_message_chunk"), "Declined(\"The user did not allow it.\")");
}
