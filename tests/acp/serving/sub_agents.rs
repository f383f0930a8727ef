//! Questions about the tool of an agent that is two agents below the session of the client.

use omni_agent::{
    access::{Principal, StartRequest},
    agent::Durable,
    manager::{Manager, OpenOptions, Sweep, Titles},
    serve::acp::AcpAgent,
    store::{Labels, MemoryStore, Owner},
};
use serde_json::{Value, json};

use super::window::Window;
use crate::{
    lives::in_a_life,
    nested::{Nested, REASON},
};

/// Returns a manager whose owner has the same name in each life, so that no lease has to expire.
fn manager(store: &MemoryStore) -> Manager {
    let manager = Manager::builder(store.clone()).owner(Owner::new("editor"));
    manager.sweep(Sweep::off()).titles(Titles::Off).build()
}

fn served(manager: &Manager, nested: &Nested) -> AcpAgent {
    let nested = nested.clone();
    AcpAgent::new(manager.clone(), move |_: &Principal, _: &StartRequest| {
        Ok::<_, omni_agent::Error>(OpenOptions::new(nested.root()).durable(Durable::InFlight))
    })
}

/// Opens a window with a session whose run is paused. Returns the session, the request of the prompt, and the question.
async fn paused(window: &mut Window) -> (String, u64, Value) {
    let session = window.create().await;
    let prompt = window.prompt(&session, "a.txt").await;
    let question = window.question().await;
    assert_eq!(question["params"]["sessionId"], session);
    (session, prompt, question)
}

fn of(session: &str) -> Value {
    json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] })
}

#[tokio::test]
async fn tool_two_agents_below_is_allowed_or_rejected() {
    for (option, expected) in [
        ("allow", "team: files: a.txt deleted 1 times"),
        ("reject", "team: files: The user did not allow it."),
    ] {
        let mut window = Window::of(served(&manager(&MemoryStore::new()), &Nested::default())).await;
        let (_, prompt, question) = paused(&mut window).await;
        let asked = &question["params"]["toolCall"];
        assert_eq!((&asked["title"], &asked["rawInput"]), (&json!("delete"), &json!({ "file": "a.txt" })));
        assert_eq!(asked["content"][0]["content"]["text"], REASON);
        let options = question["params"]["options"].as_array().unwrap();
        assert_eq!(options.iter().map(|option| &option["optionId"]).collect::<Vec<_>>(), ["allow", "reject"]);

        window.decide(&question, option).await;
        assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "end_turn");
        assert_eq!(window.texts("agent_message_chunk"), expected);
        // A client applies the question and all updates to the call of the sub-agent.
        let mut call = window.update("tool_call").await;
        assert_eq!(asked["toolCallId"], call["toolCallId"]);
        let mut apply = |update: &Value| {
            let fields = update.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
            call.as_object_mut().unwrap().extend(fields.map(|(name, value)| (name.clone(), value.clone())));
            call["status"].as_str().is_some_and(|status| status == "completed")
        };
        apply(asked);
        while !apply(&window.update("tool_call_update").await) {}
        assert_eq!((&call["title"], &call["name"]), (&json!("team"), &json!("team")));
        assert_eq!(call["rawInput"], json!({ "task": "a.txt" }));
        assert_eq!(call["content"][0]["content"]["text"], expected["team: ".len()..]);
    }
}

#[tokio::test]
async fn tool_two_agents_below_is_asked_about_in_a_window_that_joins_the_pause() {
    for method in ["session/load", "session/resume"] {
        for option in ["allow", "reject"] {
            let (manager, nested) = (manager(&MemoryStore::new()), Nested::default());
            let mut one = Window::of(served(&manager, &nested)).await;
            let (session, prompt, question) = paused(&mut one).await;
            let mut two = Window::of(served(&manager, &nested)).await;
            two.request(method, of(&session)).await.unwrap();
            let again = two.question().await;
            assert_eq!(again["params"], question["params"], "{method}");
            two.decide(&again, option).await;
            one.withdrawal(&question).await;
            // This decision comes too late.
            one.decide(&question, "allow").await;
            assert_eq!(one.answer(prompt).await.unwrap()["stopReason"], "end_turn");
            let result =
                if option == "allow" { "a.txt deleted 1 times" } else { "The user did not allow it." };
            assert_eq!(one.texts("agent_message_chunk"), format!("team: files: {result}"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_two_agents_below_is_asked_about_again_after_the_agent_has_died() {
    for (method, option) in [("session/load", "allow"), ("session/resume", "reject")] {
        let (store, nested) = (MemoryStore::new(), Nested::default());
        let session = in_a_life(async {
            let manager = manager(&store);
            let mut window = Window::of(served(&manager, &nested)).await;
            let (session, ..) = paused(&mut window).await;
            // The process dies with its manager and its connection.
            std::mem::forget((manager, window));
            session
        });
        let mut window = Window::of(served(&manager(&store), &nested)).await;
        window.request(method, of(&session)).await.unwrap();
        let question = window.question().await;
        let asked = &question["params"]["toolCall"];
        assert_eq!((&asked["title"], &asked["rawInput"]), (&json!("delete"), &json!({ "file": "a.txt" })));
        window.decide(&question, option).await;
        let result = if option == "allow" { "a.txt deleted 1 times" } else { "The user did not allow it." };
        let answer = window.update("agent_message_chunk").await;
        assert_eq!(answer["content"]["text"], format!("team: files: {result}"));
    }
}

#[tokio::test]
async fn cancelled_prompt_withdraws_the_question_two_agents_below() {
    for by_answer in [false, true] {
        let mut window = Window::of(served(&manager(&MemoryStore::new()), &Nested::default())).await;
        let (session, prompt, question) = paused(&mut window).await;
        if by_answer {
            let outcome = json!({ "outcome": { "outcome": "cancelled" } });
            window.send(json!({ "jsonrpc": "2.0", "id": question["id"], "result": outcome })).await;
        } else {
            window.cancel(&session).await;
            window.withdrawal(&question).await;
        }
        assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
        // The tool has not run.
        let prompt = window.prompt(&session, "a.txt").await;
        let question = window.question().await;
        window.decide(&question, "allow").await;
        window.answer(prompt).await.unwrap();
        assert!(window.texts("agent_message_chunk").ends_with("team: files: a.txt deleted 1 times"));
    }
}

#[tokio::test]
async fn tool_two_agents_below_is_decided_at_any_level_by_those_who_own_the_root() {
    for level in 0..3 {
        let (manager, nested) = (manager(&MemoryStore::new()), Nested::default());
        let of_user = |user| served(&manager, &nested).labels(Labels::new([("user", user)]).unwrap());
        let mut ann = Window::of(of_user("ann")).await;
        let (_, prompt, question) = paused(&mut ann).await;
        let open = manager.list_open();
        assert_eq!(open.len(), 3);
        let id = open[level].id.as_str();
        let (mut other, mut ben) = (Window::of(of_user("ann")).await, Window::of(of_user("ben")).await);
        for method in ["session/load", "session/resume"] {
            assert_eq!(ben.request(method, of(id)).await.unwrap_err()["code"], -32002, "{id}");
        }
        other.request("session/resume", of(id)).await.unwrap();
        let again = other.question().await;
        assert_eq!(again["params"]["sessionId"], id);
        assert_eq!(again["params"]["toolCall"]["rawInput"], json!({ "file": "a.txt" }));
        other.decide(&again, "allow").await;
        ann.withdrawal(&question).await;
        assert_eq!(ann.answer(prompt).await.unwrap()["stopReason"], "end_turn");
        assert_eq!(ann.texts("agent_message_chunk"), "team: files: a.txt deleted 1 times");
    }
}
