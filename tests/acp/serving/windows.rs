//! Several windows that show one conversation.

use omni_agent::{
    agent::{Event, Status},
    manager::Manager,
    session::{Mode, SessionEvent},
    store::MemoryStore,
    subscription::Update,
};
use serde_json::json;

use super::{
    host::{registry, served},
    window::Window,
};
use crate::support::soon;

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

#[tokio::test]
async fn model_chosen_during_a_run_applies_from_the_next_prompt_on() {
    for is_staged in [false, true] {
        let (mut one, mut two, session) = two().await;
        let running = one.prompt(&session, "Delete").await;
        let question = one.question().await;
        let chosen = json!({ "sessionId": session, "configId": "model", "value": "big:scripted" });
        let options = one.request("session/set_config_option", chosen).await.unwrap();
        assert_eq!(options["configOptions"][0]["currentValue"], "big:scripted");
        let next = if is_staged { Some(one.prompt(&session, "Which model?").await) } else { None };
        if is_staged {
            // The prompt waits as soon as a later request of the same window is answered.
            one.request("session/list", json!({})).await.unwrap();
        }
        one.decide(&question, "allow").await;
        one.answer(running).await.unwrap();
        let next = match next {
            Some(next) => next,
            None => one.prompt(&session, "Which model?").await,
        };
        one.answer(next).await.unwrap();
        assert_eq!(one.texts("agent_message_chunk"), "Deleted.big", "{is_staged}");
        // Other windows see the model, and use it too.
        assert_eq!(one.say(&session, "Which model?").await, "big");
        assert_eq!(
            two.update("config_option_update").await["configOptions"][0]["currentValue"],
            "big:scripted"
        );
    }
}

#[tokio::test]
async fn late_answer_about_an_earlier_turn_does_not_reach_the_turn_in_flight() {
    let allow = json!({ "outcome": "selected", "optionId": "allow" });
    for outcome in [allow, json!({ "outcome": "cancelled" })] {
        let manager = manager();
        // The agent's output soon waits, because the window does not read.
        let mut window = Window::connected(served(manager.clone()), 512);
        window.initialize("window").await;
        let session = window.create().await;
        window.prompt(&session, "Delete").await;
        let question = window.question().await;
        for _ in 0..60 {
            window.ask("unknown/method", json!({})).await;
        }
        // The relay can't pass on that this turn ends and that another one waits for a decision with the same id.
        let session = manager.get(&session.parse().unwrap()).unwrap();
        let mut events = session.subscribe(Mode::Observer).await.unwrap();
        session.interrupt().await.unwrap();
        session.prompt("Delete").await.unwrap();
        loop {
            let Some(Update::Event(event)) = soon(events.next()).await else { panic!("the session is open") };
            if matches!(&*event.event, SessionEvent::Agent(event) if matches!(**event, Event::Status { status: Status::Paused, .. }))
            {
                break;
            }
        }
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "outcome": outcome } });
        window.send(answer).await;
        let next = window.question().await;
        window.decide(&next, "reject").await;
        soon(session.wait_until_idle()).await.unwrap();
        let tree = session.tree().await.unwrap();
        assert_eq!(tree.history().iter().last().unwrap().text(), "Kept.", "{outcome}");
    }
}
