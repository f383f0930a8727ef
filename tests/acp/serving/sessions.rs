//! Sessions: how clients create, load, list and delete them, and how the manager closes and reopens them.

use std::{error::Error, ops::Range, sync::Arc, time::Duration};

use omni_agent::{
    access::{Principal, StartRequest},
    agent::{Agent, AgentCallbacks, State, StateEdit, SubAgent},
    async_trait,
    manager::{Manager, OpenOptions},
    message::{Timestamp, Usage, UsageSum},
    provider::ModelInfo,
    serve::acp::AcpAgent,
    store::{ConversationId, Filter, Labels, MemoryStore, Page, Store, StoreError},
    testing::{Gate, ScriptedProvider, Step},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    host::{registry, served},
    window::Window,
};
use crate::support::Place;

fn manager() -> Manager {
    Manager::builder(MemoryStore::new()).registry(registry()).build()
}

fn of(session: &str) -> Value {
    json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] })
}

/// Loads a session, and returns the kind and the text or status of each update, except for those of the title.
async fn load(window: &mut Window, session: &str) -> Vec<String> {
    let id = window.ask("session/load", of(session)).await;
    let mut shown = Vec::new();
    loop {
        let mut message = window.next(|_| true).await;
        if message["id"] == id {
            assert_eq!(message["result"]["configOptions"][0]["currentValue"], "small:scripted");
            break;
        }
        let update = message["params"]["update"].take();
        let text = update["content"]["text"].as_str().or(update["status"].as_str()).unwrap_or_default();
        shown.push(format!("{} {text}", update["sessionUpdate"].as_str().unwrap()));
    }
    shown.retain(|update| !update.starts_with("session_info_update"));
    shown
}

#[tokio::test]
async fn failed_prompt_keeps_its_work_and_replaces_the_result_that_was_refused() {
    let manager = manager();
    let mut one = Window::open(&manager).await;
    let session = one.create().await;
    let id = one.prompt(&session, "Look long, then fail").await;
    let failed = one.answer(id).await.unwrap_err();
    assert!(failed.to_string().contains("the model is down"), "{failed}");
    let call = one.update("tool_call").await;
    let is_result = |message: &Value| message["params"]["update"]["status"] == "completed";
    for beginning in ["a b in xxx", "[Removed after an error of the model service:"] {
        let result = one.next(is_result).await["params"]["update"].take();
        let text = result["content"][0]["content"]["text"].as_str().unwrap();
        assert!(text.starts_with(beginning), "{text}");
        assert_eq!(result["toolCallId"], call["toolCallId"]);
    }
    assert_eq!(one.say(&session, "Hello").await, "You said: Hello");
    one.close().await.unwrap();

    let mut two = Window::open(&manager).await;
    let expected = [
        "user_message_chunk Look long, then fail",
        "tool_call ",
        "tool_call_update completed",
        "user_message_chunk Hello",
        "agent_message_chunk You said: Hello",
    ];
    assert_eq!(load(&mut two, &session).await, expected);
}

#[tokio::test]
async fn loaded_conversation_is_shown_once_and_in_order() {
    let manager = manager();
    let mut one = Window::open(&manager).await;
    let session = one.create().await;
    one.say(&session, "Look").await;
    one.say(&session, "Think").await;
    one.close().await.unwrap();

    let mut two = Window::open(&manager).await;
    let expected = [
        "user_message_chunk Look",
        "tool_call ",
        "tool_call_update completed",
        "agent_message_chunk Seen.",
        "user_message_chunk Think",
        "agent_thought_chunk Hm.",
        "agent_message_chunk Thought.",
    ];
    assert_eq!(load(&mut two, &session).await, expected);
    assert_eq!(two.say(&session, "Hello").await, "You said: Hello");
}

#[tokio::test]
async fn thoughts_have_ids_of_their_own_that_stay_when_the_session_is_loaded() {
    async fn ids(window: &mut Window) -> (Value, Value) {
        let thought = window.update("agent_thought_chunk").await["messageId"].take();
        (thought, window.update("agent_message_chunk").await["messageId"].take())
    }
    let manager = manager();
    let mut one = Window::open(&manager).await;
    let session = one.create().await;
    let run = one.prompt(&session, "Think").await;
    one.answer(run).await.unwrap();
    let (thought, answer) = ids(&mut one).await;
    assert!(thought.is_string() && answer.is_string() && thought != answer, "{thought} {answer}");
    one.close().await.unwrap();
    let mut two = Window::open(&manager).await;
    two.request("session/load", of(&session)).await.unwrap();
    assert_eq!(ids(&mut two).await, (thought, answer));
}

#[tokio::test]
async fn tools_are_shown_from_the_call_to_the_result_with_the_usage() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    window.say(&session, "Look").await;
    let call = window.update("tool_call").await;
    assert_eq!((&call["title"], &call["rawInput"]), (&json!("list_files"), &json!({ "in": "." })));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let update = window.update("tool_call_update").await;
        assert_eq!(update["toolCallId"], call["toolCallId"]);
        statuses.push((update["status"].clone(), update["content"][0]["content"]["text"].clone()));
    }
    let expected = [
        (json!("in_progress"), Value::Null),
        (Value::Null, json!("half")),
        (json!("completed"), json!("a b in .")),
    ];
    assert_eq!(statuses, expected);
    let usage = window.update("usage_update").await;
    assert_eq!(usage["size"], 1000);
    // A model may use an id again in its next response, but the protocol's ids are unique.
    window.say(&session, "Look").await;
    assert_ne!(window.update("tool_call").await["toolCallId"], call["toolCallId"]);
}

#[tokio::test]
async fn cost_includes_sub_agents_also_when_the_session_is_loaded() {
    let step = |step: Step, cost| step.usage(Usage::default().with_input(1).with_cost(cost)).stop();
    let answer = |cost| step(Step::new().then_text(["Done."]), cost);
    let info = ModelInfo::new("scripted").with_context_window(1000);
    let below = ScriptedProvider::new([answer(4.0)]).model();
    let call = Step::new().then_tool_use("c", "rivers", json!({ "task": "Rivers." }));
    let lead = ScriptedProvider::new([step(call, 1.0), answer(2.0), answer(8.0)]).model().with_info(info);
    let manager = Manager::builder(MemoryStore::new()).build();
    let start = move |_: &Principal, _: &StartRequest| {
        let below = below.clone();
        let rivers = SubAgent::new("rivers", "Answers.", move |_| Agent::builder().model(below.clone()));
        Ok::<_, omni_agent::Error>(OpenOptions::new(Agent::builder().model(lead.clone()).tool(rivers)))
    };
    let mut one = Window::of(AcpAgent::new(manager.clone(), start.clone())).await;
    let session = one.create().await;
    one.say(&session, "Go").await;
    assert_eq!(one.update("usage_update").await["cost"]["amount"], 1.0);
    assert_eq!(one.update("usage_update").await["cost"]["amount"], 7.0);
    one.close().await.unwrap();
    manager.close(&ConversationId::new(&session).unwrap()).await.unwrap();

    let mut two = Window::of(AcpAgent::new(manager, start)).await;
    two.request("session/load", of(&session)).await.unwrap();
    two.say(&session, "And?").await;
    assert_eq!(two.update("usage_update").await["cost"]["amount"], 15.0);
}

/// A store that returns sums only when a sub-agent has stored its usage. Until then, the sub-agent answers.
struct LateSums {
    store: Arc<MemoryStore>,
    answers: Gate,
}

impl LateSums {
    async fn has_usage(&self) -> bool {
        let all = self.store.list(&Page::first(9).into()).await.unwrap();
        let child = all.into_iter().find(|summary| summary.labels.get("omni.parent").is_some()).unwrap();
        !self.store.usage(&child.id, &Page::first(1)).await.unwrap().is_empty()
    }
}

#[async_trait]
impl Store for LateSums {
    forward!(self.store: traits, write, load, summary, list, delete, turn);

    async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        self.answers.open();
        while !self.has_usage().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.store.used(filter, period).await
    }
}

#[tokio::test]
async fn cost_for_a_client_that_joins_a_run_has_each_request_of_a_sub_agent_once() {
    let step = |step: Step, cost| step.usage(Usage::default().with_input(1).with_cost(cost));
    let info = ModelInfo::new("scripted").with_context_window(1000);
    let answers = Gate::new();
    let answer = step(Step::new(), 4.0).then_text(["The Nile."]).gate(&answers).stop();
    let below = ScriptedProvider::new([answer]).model();
    let call = step(Step::new(), 1.0).then_tool_use("c", "rivers", json!({ "task": "Rivers." })).stop();
    let lead = ScriptedProvider::new([call, step(Step::new(), 2.0).then_text(["Done."]).stop()]);
    let lead = lead.model().with_info(info);
    let store = LateSums { store: Arc::new(MemoryStore::new()), answers: answers.clone() };
    let manager = Manager::builder(Arc::new(store)).build();
    let start = move |_: &Principal, _: &StartRequest| {
        let below = below.clone();
        let rivers = SubAgent::new("rivers", "Answers.", move |_| Agent::builder().model(below.clone()));
        Ok::<_, omni_agent::Error>(OpenOptions::new(Agent::builder().model(lead.clone()).tool(rivers)))
    };
    let mut one = Window::of(AcpAgent::new(manager.clone(), start.clone())).await;
    let session = one.create().await;
    let run = one.prompt(&session, "Go").await;
    timeout(Duration::from_secs(30), answers.reached()).await.unwrap();
    let mut two = Window::of(AcpAgent::new(manager, start)).await;
    two.request("session/load", of(&session)).await.unwrap();
    answers.open();
    one.answer(run).await.unwrap();
    assert_eq!(two.update("usage_update").await["cost"]["amount"], 7.0);
}

#[tokio::test]
async fn server_in_an_unusual_form_is_tried_or_named_in_a_warning() {
    let place = Place::new();
    let file = place.path().join("place");
    let script = format!(r#"printf %s "$PLACE" > '{}'"#, file.display());
    let url = "http://127.0.0.1:1/mcp";
    let servers = json!([
        { "name": "object", "command": "sh", "args": ["-c", script], "env": { "PLACE": "here" } },
        { "type": "stdio", "name": "short", "command": "/no/such/program" },
        { "type": "http", "name": "web", "url": url },
        { "type": "http", "name": "keyed", "url": url, "headers": { "no name": "secret" } },
        { "type": "acp", "name": "later", "serverId": "1" },
        { "name": "empty" },
        7,
    ]);
    let mut window = Window::open(&manager()).await;
    let mut params = json!({ "cwd": "/work", "mcpServers": servers });
    let created = window.request("session/new", params.clone()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "here");
    params["sessionId"] = created["sessionId"].clone();
    let session = params["sessionId"].as_str().unwrap();
    assert_eq!(window.say(session, "Hello").await, "You said: Hello");
    for (name, reason) in [
        ("object", ""),
        ("short", "/no/such/program"),
        ("web", ""),
        ("keyed", "no name"),
        ("later", "unknown form"),
        ("empty", "unknown form"),
        ("?", "unknown form"),
    ] {
        let about = format!("the MCP server {name:?} can't be used: ");
        let warns = |message: &Value| {
            let text = message["params"]["update"]["description"].as_str();
            text.is_some_and(|text| text.starts_with(&about) && text.contains(reason))
        };
        window.next(warns).await;
    }
    for method in ["session/load", "session/resume"] {
        window.request(method, params.clone()).await.unwrap();
    }
    for servers in [Value::Null, json!({})] {
        window.request("session/new", json!({ "cwd": "/work", "mcpServers": servers })).await.unwrap();
    }
    window.request("session/new", json!({ "cwd": "/work" })).await.unwrap();
    let refused = json!({ "cwd": "/work", "mcpServers": "none" });
    assert_eq!(window.request("session/new", refused).await.unwrap_err()["code"], -32602);
}

/// An MCP server with one tool.
const ECHO: &str = r#"
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case $line in
    *'"initialize"'*) answer='"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) answer='"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}' ;;
    *) answer='"error":{"code":-32601,"message":"unknown"}' ;;
  esac
  if [ -n "$id" ]; then printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$answer"; fi
done"#;

#[tokio::test]
async fn servers_whose_tools_have_the_same_names_open_the_session_with_a_warning() {
    let mut window = Window::open(&manager()).await;
    let servers = ["a b", "a_b"].map(|name| json!({ "name": name, "command": "sh", "args": ["-c", ECHO] }));
    let created =
        window.request("session/new", json!({ "cwd": "/work", "mcpServers": servers })).await.unwrap();
    assert_eq!(window.say(created["sessionId"].as_str().unwrap(), "Hello").await, "You said: Hello");
    let warns = |message: &Value| {
        let text = message["params"]["update"]["description"].as_str();
        text.is_some_and(|text| text.contains(r#"the MCP server "a_b""#) && text.contains("a_b__echo"))
    };
    window.next(warns).await;
}

#[tokio::test]
async fn listed_sessions_are_those_of_the_folder_until_they_are_deleted() {
    let mut window = Window::open(&manager()).await;
    let long = format!("/{}", "x".repeat(200));
    let mut sessions = Vec::new();
    for folder in ["/work", "/other", &long] {
        let created =
            window.request("session/new", json!({ "cwd": folder, "mcpServers": [] })).await.unwrap();
        let session = created["sessionId"].as_str().unwrap().to_owned();
        // A conversation is stored with its first turn, so each session runs one turn.
        window.say(&session, "Hello").await;
        sessions.push(session);
    }
    for (folder, session) in [("/work", 0), ("/other", 1), (long.as_str(), 2)] {
        let listed = window.request("session/list", json!({ "cwd": folder })).await.unwrap();
        assert_eq!(listed["sessions"].as_array().unwrap().len(), 1, "{listed}");
        assert_eq!(listed["sessions"][0]["sessionId"], sessions[session]);
        assert_eq!(listed["sessions"][0]["cwd"], folder);
    }
    let all = window.request("session/list", json!({})).await.unwrap();
    assert_eq!(all["sessions"].as_array().unwrap().len(), 3);
    assert!(all["sessions"][0]["updatedAt"].as_str().unwrap().ends_with('Z'));

    window.request("session/close", json!({ "sessionId": sessions[0] })).await.unwrap();
    let closed = window.prompt(&sessions[0], "Hello").await;
    assert_eq!(window.answer(closed).await.unwrap_err()["code"], -32002);
    window.request("session/delete", json!({ "sessionId": sessions[0] })).await.unwrap();
    window.request("session/delete", json!({ "sessionId": sessions[0] })).await.unwrap();
    let all = window.request("session/list", json!({})).await.unwrap();
    assert_eq!(all["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(window.request("session/load", of(&sessions[0])).await.unwrap_err()["code"], -32002);
}

#[tokio::test]
async fn long_list_has_pages() {
    let mut window = Window::open(&manager()).await;
    for _ in 0..51 {
        let session = window.create().await;
        window.say(&session, "Hello").await;
    }
    let first = window.request("session/list", json!({})).await.unwrap();
    let second = window.request("session/list", json!({ "cursor": first["nextCursor"] })).await.unwrap();
    let count = |page: &Value| page["sessions"].as_array().unwrap().len();
    assert_eq!((count(&first), count(&second)), (50, 1));
    assert!(second["nextCursor"].is_null());
    assert!(window.request("session/list", json!({ "cursor": "odd" })).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn session_that_the_manager_has_closed_is_opened_by_the_next_prompt() {
    let manager = Manager::builder(MemoryStore::new())
        .registry(registry())
        .idle_shutdown(Some(Duration::from_mins(1)))
        .build();
    let mut window = Window::open(&manager).await;
    let session = window.create().await;
    window.say(&session, "The word is heron").await;
    let mut closed = manager.subscribe();
    while !manager.list_open().is_empty() {
        closed.next().await.unwrap();
    }
    assert_eq!(window.say(&session, "Which word?").await, "heron");
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_make_room_for_others() {
    let manager = Manager::builder(MemoryStore::new()).registry(registry()).max_open(1).build();
    let mut window = Window::open(&manager).await;
    let (one, two) = (window.create().await, window.create().await);
    for round in ["first", "second"] {
        assert_eq!(window.say(&one, round).await, format!("You said: {round}"));
        assert_eq!(window.say(&two, round).await, format!("You said: {round}"));
    }
}

#[tokio::test]
async fn conversation_without_the_agents_labels_is_not_known() {
    let manager = manager();
    let of_user = |user| served(manager.clone()).labels(Labels::new([("user", user)]).unwrap());
    let (mut ann, mut ben) = (Window::of(of_user("ann")).await, Window::of(of_user("ben")).await);
    let session = ann.create().await;
    ann.say(&session, "Hello").await;
    assert_eq!(ben.request("session/load", of(&session)).await.unwrap_err()["code"], -32002);
    ben.request("session/delete", json!({ "sessionId": session })).await.unwrap();
    let listed = |answer: Value| answer["sessions"].as_array().unwrap().len();
    assert_eq!(listed(ben.request("session/list", json!({})).await.unwrap()), 0);
    assert_eq!(listed(ann.request("session/list", json!({})).await.unwrap()), 1);
}

/// Callbacks of an agent that does not start.
struct Unstartable(Gate);

#[async_trait]
impl AgentCallbacks for Unstartable {
    async fn init(&mut self, _: &mut StateEdit, _: &State) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.pass().await;
        Err("the agent does not start".into())
    }
}

#[tokio::test(start_paused = true)]
async fn session_that_is_given_away_while_its_deletion_waits_is_kept() {
    let (store, gate) = (Arc::new(MemoryStore::new()), Gate::new());
    let [mine, other] = [(); 2].map(|()| Manager::builder(Arc::clone(&store)).registry(registry()).build());
    let labels = |user| Labels::new([("user", user)]).unwrap();
    let mut ann = Window::of(served(mine.clone()).labels(labels("ann"))).await;
    let session = ann.create().await;
    ann.say(&session, "Hello").await;
    let id = ConversationId::new(&*session).unwrap();
    mine.close(&id).await.unwrap();

    // While the conversation is being opened, the deletion waits.
    let agent =
        Agent::builder().model(ScriptedProvider::new([]).model()).callbacks(Unstartable(gate.clone()));
    let opening = tokio::spawn({
        let (mine, id) = (mine.clone(), id.clone());
        async move { mine.open(&id, OpenOptions::new(agent)).await.map(drop) }
    });
    gate.reached().await;
    let deletion = ann.ask("session/delete", json!({ "sessionId": session })).await;
    // The time is paused, so it passes only when the deletion waits.
    timeout(Duration::from_millis(1), ann.answer(deletion)).await.unwrap_err();
    other.set_labels(&id, labels("ben")).await.unwrap();
    gate.open();
    opening.await.unwrap().unwrap_err();
    ann.answer(deletion).await.unwrap();
    let kept = store.summary(&id).await.unwrap();
    assert_eq!(kept.labels.get("user"), Some("ben"));
}

#[tokio::test]
async fn session_that_the_application_refuses_is_an_error_with_its_reason() {
    let mut window = Window::open(&manager()).await;
    let refused =
        window.request("session/new", json!({ "cwd": "/forbidden", "mcpServers": [] })).await.unwrap_err();
    assert!(refused["data"].as_str().unwrap().contains("this folder is forbidden"), "{refused}");
    let refused =
        window.request("session/new", json!({ "cwd": "here", "mcpServers": [] })).await.unwrap_err();
    assert_eq!(refused["code"], -32602);
    assert!(refused["data"].as_str().unwrap().contains("absolute"), "{refused}");
}

#[tokio::test]
async fn prompt_that_is_withdrawn_is_cancelled() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    let prompt = window.prompt(&session, "Go on for ever").await;
    window.update("agent_message_chunk").await;
    let withdrawn =
        json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": prompt } });
    window.send(withdrawn).await;
    assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    assert_eq!(window.say(&session, "Hello").await, "You said: Hello");
}

#[tokio::test]
async fn cancellation_right_after_a_prompt_ends_its_turn() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    for _ in 0..20 {
        let prompt = window.prompt(&session, "Go on for ever").await;
        window.cancel(&session).await;
        assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    }
}

#[tokio::test]
async fn cancellation_that_is_sent_as_a_request_is_answered_and_ends_the_turn() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    let prompt = window.prompt(&session, "Go on for ever").await;
    let cancelled = window.request("session/cancel", json!({ "sessionId": session })).await;
    assert_eq!(cancelled.unwrap(), Value::Null);
    assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
    let prompt = window.prompt(&session, "Go on for ever").await;
    window.request("$/cancel_request", json!({ "requestId": prompt })).await.unwrap();
    assert_eq!(window.answer(prompt).await.unwrap()["stopReason"], "cancelled");
}

#[tokio::test]
async fn session_that_is_closed_in_mid_turn_cancels_its_prompt_first() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    let prompt = window.prompt(&session, "Go on for ever").await;
    window.update("agent_message_chunk").await;
    let closed = window.ask("session/close", json!({ "sessionId": session })).await;
    let first = window.next(|message| message["id"] == prompt || message["id"] == closed).await;
    assert_eq!(first["id"], prompt);
    assert_eq!(first["result"]["stopReason"], "cancelled");
    window.answer(closed).await.unwrap();
}

#[tokio::test]
async fn failed_run_is_an_error_and_the_session_continues() {
    let mut window = Window::open(&manager()).await;
    let session = window.create().await;
    let prompt = window.prompt(&session, "Fail").await;
    let failed = window.answer(prompt).await.unwrap_err();
    assert!(failed["data"].as_str().unwrap().contains("the model is down"), "{failed}");
    assert_eq!(window.say(&session, "Hello").await, "You said: Hello");
}

#[tokio::test]
async fn capabilities_follow_from_what_the_agent_offers() {
    let mut window = Window::connected(served(manager()), 64 * 1024);
    let initialized = window.request("initialize", json!({ "protocolVersion": 99 })).await.unwrap();
    assert_eq!(initialized["protocolVersion"], 1);
    assert_eq!(initialized["agentInfo"]["name"], "served");
    let can = &initialized["agentCapabilities"];
    assert_eq!(can["loadSession"], true);
    for name in ["list", "close", "delete", "resume"] {
        assert!(can["sessionCapabilities"][name].is_object(), "{name}: {can}");
    }
    assert_eq!(can["promptCapabilities"]["embeddedContext"], true);
}
