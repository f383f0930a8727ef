//! The conversations of sub-agents belong to those who own the root.

use std::{sync::Arc, time::Duration};

use axum::http::{Method, StatusCode};
use futures_util::StreamExt;
use omni_agent::{
    Manager,
    agent::{Agent, Durable, SubAgent},
    manager::{OpenOptions, Titles},
    message::Usage,
    session::{Mode, Session, SessionSnapshot},
    store::{
        ConversationId, Filter, Labels, MemoryStore, Page, Store,
        custom::{Change, StateChange, Write},
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, tool_fn},
    web::WebBuilder,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{App, labels, request, run_input, submit};

/// An agent whose sub-agent uses a tool that needs an approval.
fn lead() -> OpenOptions {
    let below =
        ScriptedProvider::new([Step::tool_use("d", "delete", json!({})), Step::text("Deleted rivers.")]);
    let model = below.model();
    let files = SubAgent::new("files", "Works on files.", move |_| {
        let delete = tool_fn("delete", "Deletes.", |_: Value, _| async { Ok("gone") });
        Agent::builder().model(model.clone()).tool(delete.needs_approval())
    });
    calling(files).durable(Durable::InFlight)
}

/// An agent that calls this sub-agent once.
fn calling(sub_agent: SubAgent) -> OpenOptions {
    let call = Step::tool_use("c", sub_agent.name(), json!({ "task": "Rivers." }));
    let lead = ScriptedProvider::new([call, Step::text("Done.")]);
    OpenOptions::new(Agent::builder().model(lead.model()).tool(sub_agent))
}

/// Creates a conversation of Ann, and opens it with these options.
async fn open(app: &App, options: OpenOptions) -> Session {
    let id = ConversationId::new(app.create("ann").await).unwrap();
    app.manager.close(&id).await.unwrap();
    app.manager.open(&id, options).await.unwrap().session
}

/// Starts a run, and waits until the session is paused. Returns the id of the conversation that stores the pause.
async fn pause(app: &App, root: &Session) -> String {
    let mut events = root.subscribe(Mode::Observer).await.unwrap();
    let mut snapshot = SessionSnapshot::clone(events.snapshot().unwrap());
    root.prompt("Go").await.unwrap();
    while snapshot.agent.pauses.is_empty() {
        snapshot.take(&events.next().await.unwrap()).unwrap();
    }
    let approvals = app.get("ann", "/agent/approvals").await.json();
    let [approval] = &approvals["items"].as_array().unwrap()[..] else { panic!("{approvals}") };
    approval["conversation"].as_str().unwrap().to_owned()
}

/// Approves the tool use of the sub-agent, and returns the status.
async fn decide(app: &App, user: &str, child: &str) -> StatusCode {
    let turn = app.manager.get(&ConversationId::new(child).unwrap()).unwrap();
    let turn = turn.snapshot().await.unwrap().agent.turn;
    let decide = json!({ "type": "decide", "turn": turn, "decisions": [["d", "execute"]] });
    app.post(user, &format!("/agent/conversations/{child}/commands"), decide).await.status
}

#[tokio::test(start_paused = true)]
async fn sub_agents_are_not_listed_and_belong_to_those_who_own_the_root() {
    let app = App::new([]);
    let session = open(&app, lead()).await;
    let (id, root) = (session.id(), session.id().as_str());
    let mut events = app.stream("ann", "/agent/events?list=true", None).await;
    let child = pause(&app, &session).await;
    assert!(child.starts_with("sub-"), "{child}");
    assert_eq!(app.get("ben", "/agent/approvals").await.json()["items"], json!([]));

    let listed = app.get("ann", "/agent/conversations").await.json();
    let ids: Vec<_> =
        listed["items"].as_array().unwrap().iter().map(|item| item["summary"]["id"].clone()).collect();
    assert_eq!(ids, [json!(root)]);
    assert_eq!(app.manager.list_open().len(), 2, "the session of the sub-agent is open");
    let snapshot = app.stream("ann", "/agent/events?list=true", None).await.next().await.unwrap();
    let open = snapshot.data["update"]["snapshot"]["open"].as_array().unwrap().clone();
    assert_eq!(open.iter().map(|session| &session["id"]).collect::<Vec<_>>(), [root]);

    let path = format!("/agent/conversations/{child}");
    assert_eq!(app.get("ann", &path).await.status, StatusCode::OK);
    assert_eq!(app.get("ben", &path).await.status, StatusCode::NOT_FOUND);
    assert_eq!(decide(&app, "ben", &child).await, StatusCode::NOT_FOUND);
    assert_eq!(decide(&app, "ann", &child).await, StatusCode::OK);
    session.wait_until_idle().await.unwrap();
    assert_eq!(session.tree().await.unwrap().history().last().unwrap().text(), "Done.");
    let is_idle = json!({ "type": "status", "id": root, "activity": "idle" });
    let events = events.until(|frame| frame.data["update"]["event"] == is_idle).await;
    assert!(events.iter().all(|frame| !frame.data.to_string().contains(&child)), "{events:#?}");

    let all = app.manager.search("rivers", Filter::default()).await.unwrap();
    assert_eq!(all.hits.iter().map(|hit| hit.conversation.id.as_str()).collect::<Vec<_>>(), [&child]);
    let found = app.get("ann", "/agent/search?q=rivers").await.json();
    assert_eq!(found["hits"], json!([]), "searches leave sub-agents out");
    app.manager.set_labels(id, labels("ben")).await.unwrap();
    assert_eq!(app.get("ann", &path).await.status, StatusCode::NOT_FOUND);
    assert_eq!(app.get("ben", &path).await.status, StatusCode::OK);
    let deleted =
        app.answer(request(Method::DELETE, "ben", &format!("/agent/conversations/{root}"), None)).await;
    assert!(deleted.status.is_success(), "{deleted:?}");
    assert_eq!(app.get("ben", &path).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn streams_of_running_sub_agents_end_if_the_root_is_given_to_somebody_else() {
    let app = App::new([]);
    let session = open(&app, lead()).await;
    let child = pause(&app, &session).await;
    let path = format!("/agent/conversations/{child}/events");
    let mut stream = app.stream("ann", &path, None).await;
    assert_eq!(stream.next().await.unwrap().event, "conversation");

    app.manager.set_labels(session.id(), labels("ben")).await.unwrap();
    let shown = stream.until(|frame| frame.event == "refused").await;
    assert_eq!(shown.last().unwrap().data["problem"]["status"], 404);
    assert_eq!(stream.next().await.unwrap().event, "ending");
    assert!(stream.next().await.is_none());
    let mut stream = app.stream("ben", &path, None).await;
    assert_eq!(stream.next().await.unwrap().event, "conversation");
    assert_eq!(decide(&app, "ann", &child).await, StatusCode::NOT_FOUND);
    assert_eq!(decide(&app, "ben", &child).await, StatusCode::OK);
    session.wait_until_idle().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn sub_agents_ids_are_not_created_by_clients() {
    let app = App::with([Step::text("Hello!")], |web| web.client_ids(|_, id| ConversationId::new(id).ok()));
    for (path, body) in
        [("/api/chat", submit("sub-mine", "m1", "Hi")), ("/ag-ui", run_input("sub-mine", "r1", "Hi"))]
    {
        let refused = app.post("ann", path, body).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::CONFLICT, "sub-agent"));
    }
}

/// Returns an application, and the conversation of a sub-agent whose root belongs to Ann. Its own labels name Ben, as if
/// a change of the root's labels had not reached it yet.
async fn old_copy(
    script: impl IntoIterator<Item = Step>,
    set_up: impl FnOnce(WebBuilder) -> WebBuilder,
) -> (App, String) {
    let store = Arc::new(MemoryStore::new());
    let manager = Manager::builder(Arc::clone(&store)).titles(Titles::Off).build();
    let app = App::over(manager, script, set_up);
    let below = ScriptedProvider::new([Step::text("The Nile.")]).model();
    let rivers = SubAgent::new("rivers", "Answers.", move |_| Agent::builder().model(below.clone()));
    open(&app, calling(rivers)).await.ask("Go").await.unwrap();

    let all = store.list(&Page::first(9).into()).await.unwrap();
    let child = all.into_iter().find(|summary| summary.id.as_str().starts_with("sub-")).unwrap();
    let old = child.labels.iter().map(|(name, value)| (name, if name == "user" { "ben" } else { value }));
    let change = Change::State(StateChange::Labels(Labels::new(old).unwrap()));
    store.write(&child.id, &Write::on(child.version), &change).await.unwrap();
    (app, child.id.to_string())
}

#[tokio::test(start_paused = true)]
async fn sub_agents_with_old_copies_of_the_labels_belong_to_those_who_own_the_root() {
    let (app, child) = old_copy([Step::text("The Tejo.")], |web| web).await;
    let path = format!("/agent/conversations/{child}");
    let mut stream = app.stream("ann", &format!("{path}/events"), None).await;
    assert_eq!(stream.next().await.unwrap().event, "conversation");
    let session = app.manager.get(&ConversationId::new(&child).unwrap()).unwrap();
    assert_eq!(session.labels().await.unwrap().get("user"), Some("ben"));
    let last = session.tree().await.unwrap().iter().last().unwrap().id();
    for path in [path.clone(), format!("{path}/messages?before={last}")] {
        assert_eq!(app.get("ann", &path).await.status, StatusCode::OK, "{path}");
        assert_eq!(app.get("ben", &path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let ask = || submit(&child, "u1", "And?");
    assert_eq!(app.post("ben", "/api/chat", ask()).await.status, StatusCode::NOT_FOUND);
    let asked = app.post("ann", "/api/chat", ask()).await;
    assert!(asked.text.contains("The Tejo."), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn run_of_a_sub_agent_with_an_old_copy_of_the_labels_ends_when_the_owner_leaves() {
    let gate = Gate::new();
    let script = [Step::new().then_text(["Half"]).gate(&gate).then_text([" done"]).stop()];
    let (app, child) = old_copy(script, |web| web.interrupt_when_left(Duration::from_secs(5))).await;
    let ask = request(Method::POST, "ann", "/api/chat", Some(submit(&child, "u1", "And?")));
    let mut body = app.send(ask).await.into_body().into_data_stream();
    let mut shown = String::new();
    while !shown.contains("Half") {
        shown.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
    }
    drop(body);
    timeout(Duration::from_mins(1), app.idle(&child)).await.expect("the run is interrupted");
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_root_includes_sub_agents_of_every_depth_also_after_their_deletion() {
    let app = App::new([]);
    let answer =
        |text: &str, input| Step::new().then_text([text]).usage(Usage::default().with_input(input)).stop();
    let facts = ScriptedProvider::new([answer("6,650 km.", 7)]).model();
    let task = json!({ "task": "Its length." });
    let rivers = ScriptedProvider::new([Step::tool_use("d", "facts", task), answer("The Nile.", 5)]).model();
    let rivers = SubAgent::new("rivers", "Answers.", move |_| {
        let facts = facts.clone();
        let facts = SubAgent::new("facts", "Looks up.", move |_| Agent::builder().model(facts.clone()));
        Agent::builder().model(rivers.clone()).tool(facts)
    });
    let session = open(&app, calling(rivers)).await;
    let (id, root) = (session.id().clone(), session.id().to_string());
    assert_eq!(session.ask("Go").await.unwrap().text(), "Done.");
    drop(session);
    app.manager.close(&id).await.unwrap();

    let usage = |id: &str, query: &str| format!("/agent/conversations/{id}/usage{query}");
    let first = app.get("ann", &usage(&root, "")).await.json();
    assert_eq!((&first["rows"], &first["delegated"]["input"]), (&json!([]), &json!(12)), "{first}");
    assert_eq!(app.get("ann", &usage(&root, "?after=1")).await.json().get("delegated"), None);
    let is_below = Filter::with(Labels::new([("omni.parent", &root)]).unwrap());
    let children = app.manager.list(is_below).await.unwrap();
    let [child] = &children[..] else { panic!("{children:?}") };
    let child = child.summary.id.as_str();
    let below = app.get("ann", &usage(child, "")).await.json();
    assert_eq!((&below["rows"][0]["usage"]["input"], below.get("delegated")), (&json!(5), None), "{below}");

    let delete = request(Method::DELETE, "ann", &format!("/agent/conversations/{child}"), None);
    assert_eq!(app.answer(delete).await.status, StatusCode::NO_CONTENT);
    assert_eq!(app.get("ann", &usage(&root, "")).await.json()["delegated"]["input"], 12);
}
