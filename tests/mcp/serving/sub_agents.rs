//! Questions about the tool of an agent that is two agents below the conversation of the client.

use axum::http::Method;
use omni_agent::{
    access::{Principal, StartRequest},
    agent::{Durable, Status},
    manager::{Manager, OpenOptions, Sweep, Titles},
    serve::mcp::McpServer,
    session::Session,
    store::{ConversationId, Labels, MemoryStore, Owner},
};
use rmcp::model::{CallToolResponse, InputResponses};
use serde_json::{Value, json};

use super::{
    access::{Messages, asks, in_session, old_ask, session_with_questions, text},
    person::{Answers, Client, NEW, OLD, Person, ask, connect_to, done, params},
    web::{App, message, new_call, new_headers},
};
use crate::{
    lives::in_a_life,
    nested::{Nested, REASON},
    support::soon,
};

const DELETED: &str = "team: files: a.txt deleted 1 times";

/// Returns a manager whose owner has the same name in each life, so that no lease has to expire.
fn manager(store: &MemoryStore) -> Manager {
    let manager = Manager::builder(store.clone()).owner(Owner::new("server"));
    manager.sweep(Sweep::off()).titles(Titles::Off).build()
}

fn agents(
    nested: &Nested,
) -> impl Fn(&Principal, &StartRequest) -> Result<OpenOptions, omni_agent::Error> + use<> {
    let nested = nested.clone();
    move |_: &Principal, _: &StartRequest| Ok(OpenOptions::new(nested.root()).durable(Durable::InFlight))
}

async fn connected(manager: &Manager, nested: &Nested, person: Person) -> Client {
    connect_to(McpServer::new(manager.clone(), agents(nested)), person).await.0
}

#[tokio::test]
async fn tool_two_agents_below_is_asked_about_and_decided() {
    for version in [OLD, NEW] {
        for (answers, expected, count) in [
            (Answers::Accept(None), DELETED, 1),
            (Answers::Decline, "team: files: The user did not allow it.", 1),
            (Answers::Nobody, "team: files: The user can't be asked: the client can't ask its user.", 0),
        ] {
            let person = Person::new(version.clone(), answers);
            let client = connected(&manager(&MemoryStore::new()), &Nested::default(), person.clone()).await;
            assert_eq!(ask(&client, "a.txt").await["answer"], expected);
            let question =
                format!(r#"Allow the tool delete with this input? {{"file":"a.txt"}} Reason: {REASON}"#);
            assert_eq!(*person.seen.questions.lock().unwrap(), vec![question; count]);
        }
    }
}

/// Calls `ask` once, and returns the ids of the questions and the state for the next call.
async fn asked(client: &Client, state: Option<String>) -> (Vec<String>, String) {
    let mut params = params("ask", json!({ "prompt": "a.txt" }));
    params.request_state = state;
    let asked = soon(client.call_tool_once(params)).await.unwrap();
    let CallToolResponse::InputRequired(asked) = asked else { panic!("{asked:?}") };
    (asked.input_requests.unwrap().into_keys().collect(), asked.request_state.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_two_agents_below_is_asked_about_again_if_the_call_is_repeated_or_the_server_has_died() {
    for dies in [false, true] {
        let (store, nested) = (MemoryStore::new(), Nested::default());
        let person = || Person::new(NEW, Answers::Never);
        let begun = async {
            let manager = manager(&store);
            let client = connected(&manager, &nested, person()).await;
            let first = asked(&client, None).await;
            (manager, client, first)
        };
        let (_manager, client, first) = if dies {
            let first = in_a_life(async {
                let (manager, client, first) = begun.await;
                // The process dies with its manager and its connection.
                std::mem::forget((manager, client));
                first
            });
            let manager = manager(&store);
            let client = connected(&manager, &nested, person()).await;
            (manager, client, first)
        } else {
            begun.await
        };
        let (ids, state) = asked(&client, Some(first.1.clone())).await;
        assert_eq!((&ids, &state), (&first.0, &first.1));
        let answers = InputResponses::from([(ids[0].clone(), json!({ "action": "accept" }))]);
        let again = params("ask", json!({ "prompt": "a.txt" })).with_request_state(state);
        let last = soon(client.call_tool_once(again.with_input_responses(answers))).await.unwrap();
        let CallToolResponse::Complete(result) = last else { panic!("{last:?}") };
        assert_eq!(done(&result)["answer"], DELETED);
    }
}

/// Returns the sessions of the root, of `team` and of `files`, which wait for the same decision.
async fn paused(app: &App) -> Vec<Session> {
    let waiting = async {
        loop {
            let mut levels = Vec::new();
            let open = app.manager.list_open();
            let mut next =
                open.iter().find(|open| !open.id.as_str().starts_with("sub-")).map(|open| open.id.clone());
            while let Some(session) = next.take().and_then(|id| app.manager.get(&id)) {
                let pauses = session.snapshot().await.unwrap().agent.pauses;
                let below = pauses.first().and_then(|pause| pause.sub_agent.as_ref()?.conversation.clone());
                next = below.map(|id| ConversationId::new(&*id).unwrap());
                levels.push(session);
            }
            if levels.len() == 3 {
                return levels;
            }
            tokio::task::yield_now().await;
        }
    };
    soon(waiting).await
}

async fn answer(root: &Session) -> String {
    soon(root.wait_until_idle()).await.unwrap();
    root.tree().await.unwrap().history().last().unwrap().text()
}

fn app() -> App {
    App::of(manager(&MemoryStore::new()), agents(&Nested::default()), |web| web)
}

/// Returns the call with which a client that knows all ids of this session answers its question.
async fn forged(session: &Session) -> Value {
    let agent = session.snapshot().await.unwrap().agent;
    let (prompt, pause) = (&agent.pending[0].id, &agent.pauses[0]);
    let mut call = asks("a.txt");
    let state = json!({ "conversation": session.id(), "prompt": prompt, "turn": agent.turn });
    call["params"]["requestState"] = state.to_string().into();
    call["params"]["inputResponses"] = json!({ pause.tool_use.id.as_str(): { "action": "accept" } });
    call
}

#[tokio::test(start_paused = true)]
async fn tool_two_agents_below_is_decided_at_any_level_only_by_those_who_own_the_root() {
    for level in 0..3 {
        let app = app();
        let send = async |user: &str, call: &Value| {
            let tool = call["params"]["name"].as_str().unwrap();
            app.send(Method::POST, &new_headers(user, tool), call).await
        };
        let asked = message(send("ann", &asks("a.txt")).await).await["result"].take();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
        let levels = paused(&app).await;
        let id = levels[level].id();
        let conversation = json!({ "conversation": id });
        let prompt = json!({ "conversation": id, "prompt": "a.txt" });
        let call = forged(&levels[level]).await;
        for refused in [
            &call,
            &new_call("read", conversation.clone()),
            &new_call("stop", conversation),
            &new_call("ask", prompt),
        ] {
            let result = message(send("ben", refused).await).await["result"].take();
            assert_eq!(
                (text(&result), &result["isError"]),
                ("There is no such conversation.", &json!(true)),
                "{refused}"
            );
        }
        let list = message(send("ben", &new_call("list", json!({}))).await).await;
        assert_eq!(list["result"]["structuredContent"]["conversations"], json!([]));
        // This principal may read the conversation and send prompts, but not decide.
        let mut messages = Messages::of(send("prompter", &call).await);
        soon(messages.next("notifications/progress")).await;
        for session in &levels {
            assert_eq!(session.status().await.unwrap(), Status::Paused, "nobody has decided");
        }
        let decided = message(send("ann", &call).await).await["result"].take();
        assert_eq!(decided["isError"], false, "{decided}");
        assert_eq!(answer(&levels[0]).await, DELETED);
    }
}

#[tokio::test]
async fn question_two_agents_below_is_withdrawn_with_the_permissions_of_the_root() {
    let labels = |labels: &[(&str, &str)]| Labels::new(labels.iter().copied()).unwrap();
    let app = app();
    let session = session_with_questions(&app).await;
    let headers = in_session(&session);
    let mut others = Messages::of(app.send(Method::GET, &headers, &Value::Null).await);
    let mut messages = Messages::of(app.send(Method::POST, &headers, &old_ask("a.txt")).await);
    let question = soon(messages.next("elicitation/create")).await;
    let levels = paused(&app).await;
    let root = levels[0].id();
    app.manager.set_labels(root, labels(&[("user", "ann"), ("locked", "yes")])).await.unwrap();
    let withdrawn = soon(others.next("notifications/cancelled")).await;
    assert_eq!(withdrawn["params"]["requestId"], question["id"]);
    assert_eq!(levels[2].status().await.unwrap(), Status::Paused);
    app.manager.set_labels(root, labels(&[("user", "ann")])).await.unwrap();
    let again = soon(messages.next("elicitation/create")).await;
    assert_eq!(again["params"]["message"], question["params"]["message"]);

    app.manager.set_labels(root, labels(&[("user", "ben")])).await.unwrap();
    let accepted = json!({ "jsonrpc": "2.0", "id": again["id"], "result": { "action": "accept" } });
    app.send(Method::POST, &headers, &accepted).await;
    for session in &levels {
        assert_eq!(session.status().await.unwrap(), Status::Paused, "nobody has decided");
    }
    // The new owner decides.
    let decided = app.send(Method::POST, &new_headers("ben", "ask"), &forged(&levels[2]).await).await;
    assert_eq!(message(decided).await["result"]["isError"], false);
    assert_eq!(answer(&levels[0]).await, DELETED);
}
