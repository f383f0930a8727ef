//! Errors as a client gets them: every kind, and the answers of the routes.

use std::{sync::Arc, time::Duration};

use axum::http::{Method, StatusCode};
use omni_agent::{
    Error, ErrorKind,
    manager::{Manager, Titles},
    store::{ConversationId, MemoryStore, Owner, StoreError, custom::Version},
    testing::{Gate, Step},
    web::{Problem, WebLimits},
};
use serde_json::{Value, json};

use crate::{
    faulty::{FaultyStore, Operation},
    logged::Log,
    support::{App, prompt, request, run_input, submit},
};

/// The word in each cause that a client must not see.
const CAUSE: &str = "cause-of-the-operator";

fn id() -> ConversationId {
    ConversationId::new("talk").unwrap()
}

fn cause() -> Arc<std::io::Error> {
    Arc::new(std::io::Error::other(CAUSE))
}

fn owner() -> Owner {
    Owner::new("two").at("http://two.internal")
}

pub(crate) fn store_errors() -> Vec<(StoreError, u16, &'static str)> {
    let (place, waited) = (|| CAUSE.to_owned(), Duration::from_secs(1));
    vec![
        (StoreError::AlreadyExists { id: id() }, 409, "already-exists"),
        (StoreError::NotFound { id: id() }, 404, "not-found"),
        (StoreError::Conflict { id: id(), current: Version::new(2) }, 409, "conflict"),
        (StoreError::Owned { id: id(), owner: owner() }, 421, "open-elsewhere"),
        (StoreError::LeaseLost { id: id() }, 421, "open-elsewhere"),
        (StoreError::Busy { place: place(), waited }, 503, "store-unreachable"),
        (StoreError::Full { place: place(), source: cause() }, 503, "store-unreachable"),
        (StoreError::Unreachable { place: place(), source: cause() }, 503, "store-unreachable"),
        (StoreError::Unstorable { id: id(), problem: "too large".into() }, 422, "unstorable"),
        (StoreError::unsupported("searches"), 422, "unsupported"),
        (StoreError::InvalidQuery { problem: "a quote is open".into() }, 422, "invalid-query"),
        (StoreError::damaged(CAUSE, CAUSE), 500, "internal"),
        (StoreError::UnknownFormat { place: place(), found: 2, known: 1 }, 500, "internal"),
        (StoreError::Denied { place: place(), source: cause() }, 500, "internal"),
        (StoreError::misconfigured(CAUSE, std::io::Error::other(CAUSE)), 500, "internal"),
        (StoreError::failed(CAUSE, std::io::Error::other(CAUSE)), 500, "internal"),
    ]
}

fn check(problem: &Problem, status: u16, code: &str, error: &dyn std::fmt::Debug) {
    assert_eq!((problem.status().as_u16(), problem.code()), (status, code), "{error:?}");
    let json = problem.to_json();
    assert_eq!((&json["type"], &json["status"]), (&json!(format!("urn:omni-agent:{code}")), &json!(status)));
    assert!(json["title"].as_str().unwrap().ends_with('.'), "{json}");
    if status >= 500 {
        assert!(!json.to_string().contains(CAUSE), "the cause is shown: {json}");
    }
    assert_eq!(json.get("incident").is_some(), status == 500, "{json}");
}

/// The status and the code of every kind.
const KINDS: &[(ErrorKind, u16, &str)] = &[
    (ErrorKind::Ended, 503, "shut-down"),
    (ErrorKind::ShutDown, 503, "shut-down"),
    (ErrorKind::Busy, 409, "busy"),
    (ErrorKind::Idle, 409, "idle"),
    (ErrorKind::NotPaused, 409, "not-paused"),
    (ErrorKind::StaleDecision, 409, "stale-decision"),
    (ErrorKind::InvalidDecision, 400, "invalid-body"),
    (ErrorKind::EmptyPrompt, 422, "empty-prompt"),
    (ErrorKind::InvalidPrompt, 422, "invalid-prompt"),
    (ErrorKind::InvalidSettings, 422, "invalid-prompt"),
    (ErrorKind::InvalidBudget, 422, "invalid-prompt"),
    (ErrorKind::KnownPrompt, 409, "known-prompt"),
    (ErrorKind::QueueFull, 409, "queue-full"),
    (ErrorKind::NotAtStep, 422, "not-at-step"),
    (ErrorKind::NotStaged, 409, "not-staged"),
    (ErrorKind::NotAPrompt, 422, "not-a-prompt"),
    (ErrorKind::NotAnAnswer, 422, "not-an-answer"),
    (ErrorKind::NotAnAttachment, 422, "not-an-attachment"),
    (ErrorKind::Unanswered, 422, "unanswered"),
    (ErrorKind::OpenToolUses, 422, "open-tool-uses"),
    (ErrorKind::NotCompactable, 422, "not-compactable"),
    (ErrorKind::InvalidTitle, 422, "invalid-title"),
    (ErrorKind::UnknownModel, 422, "unknown-model"),
    (ErrorKind::Backlog, 503, "store-behind"),
    (ErrorKind::Draining, 503, "draining"),
    (ErrorKind::StoreBehind, 503, "store-behind"),
    (ErrorKind::Unsaved, 503, "store-behind"),
    (ErrorKind::ChangeUnsaved, 503, "store-behind"),
    (ErrorKind::NotFound, 404, "not-found"),
    (ErrorKind::UnknownNode, 404, "not-found"),
    (ErrorKind::UnknownPrompt, 404, "not-found"),
    (ErrorKind::NotPermitted, 403, "forbidden"),
    (ErrorKind::AlreadyExists, 409, "already-exists"),
    (ErrorKind::Conflict, 409, "conflict"),
    (ErrorKind::OpenElsewhere, 421, "open-elsewhere"),
    (ErrorKind::LeaseLost, 421, "open-elsewhere"),
    (ErrorKind::Unreachable, 503, "unreachable"),
    (ErrorKind::NotOpened, 503, "not-opened"),
    (ErrorKind::StoreUnreachable, 503, "store-unreachable"),
    (ErrorKind::Unstorable, 422, "unstorable"),
    (ErrorKind::Unsupported, 422, "unsupported"),
    (ErrorKind::InvalidQuery, 422, "invalid-query"),
    (ErrorKind::NoRoom, 503, "no-room"),
    (ErrorKind::SubAgent, 409, "sub-agent"),
    (ErrorKind::NewerTurn, 503, "newer-turn"),
    (ErrorKind::DamagedTurn, 500, "damaged-turn"),
    (ErrorKind::Damaged, 500, "internal"),
    (ErrorKind::StoreFailed, 500, "internal"),
    (ErrorKind::Config, 500, "internal"),
    (ErrorKind::Callback, 500, "internal"),
    (ErrorKind::Cancelled, 500, "internal"),
    (ErrorKind::Failed, 500, "internal"),
    (ErrorKind::Output, 500, "internal"),
    (ErrorKind::Deadline, 500, "internal"),
    (ErrorKind::EndedIncomplete, 500, "internal"),
    (ErrorKind::Connection, 500, "internal"),
    (ErrorKind::Internal, 500, "internal"),
    (ErrorKind::Foreign, 500, "internal"),
];

#[test]
fn error_of_every_kind_has_its_status_and_code() {
    assert!(KINDS.iter().map(|(kind, ..)| kind).eq(ErrorKind::ALL), "a kind is missing in the table");
    for (kind, status, code) in KINDS {
        assert_eq!((kind.status(), kind.code()), (*status, *code), "{kind:?}");
        let error = Error::new(*kind, CAUSE).with_member("error", CAUSE);
        check(&error.clone().into(), *status, code, &error);
    }
    for (error, status, code) in store_errors() {
        check(&error.clone().into(), status, code, &error);
        check(&Error::from(error.clone()).into(), status, code, &error);
    }
    let shown = |kind, name: &str, value: Value| {
        Problem::from(Error::new(kind, "text").with_member(name, value)).to_json()
    };
    assert_eq!(shown(ErrorKind::Busy, "activity", json!("paused"))["activity"], "paused");
    let state = json!({ "state": "staged" });
    assert_eq!(shown(ErrorKind::KnownPrompt, "state", state.clone())["state"], state);
    assert_eq!(shown(ErrorKind::StaleDecision, "waiting", json!(["a"]))["waiting"], json!(["a"]));
    let newer = Problem::from(Error::new(ErrorKind::NewerTurn, CAUSE)).to_json();
    assert!(newer["detail"].as_str().unwrap().starts_with("This server cannot continue"), "{newer}");
    let damaged = Problem::from(Error::new(ErrorKind::DamagedTurn, CAUSE)).to_json();
    assert!(damaged["detail"].as_str().unwrap().starts_with("The operator can discard"), "{damaged}");
}

pub(crate) fn over(store: &FaultyStore, script: impl IntoIterator<Item = Step>) -> App {
    let manager = Manager::builder(Arc::new(store.clone())).titles(Titles::Off).build();
    App::over(manager, script, |web| web)
}

/// Creates a conversation that is not open.
pub(crate) async fn closed(app: &App) -> String {
    let id = app.create("ann").await;
    app.manager.close(&ConversationId::new(&id).unwrap()).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn conversation_of_another_process_is_open_elsewhere_on_all_routers() {
    let store = FaultyStore::default();
    let app = over(&store, []);
    let manager = Manager::builder(Arc::new(store.clone())).titles(Titles::Off).build();
    // Neither option shows the address to a client.
    let revealing = App::over(manager, [], |web| web.reveal_owner().proxy_secret("secret"));
    let id = closed(&app).await;
    let owned = StoreError::Owned { id: ConversationId::new(&id).unwrap(), owner: owner() };
    store.fail(Operation::Load, owned);
    let path = format!("/agent/conversations/{id}");
    for app in [&app, &revealing] {
        for answer in [
            app.get("ann", &path).await,
            app.get("ann", &format!("{path}/events")).await,
            app.post("ann", &format!("{path}/commands"), prompt("Hi")).await,
            app.post("ann", "/api/chat", submit(&id, "u1", "Hi")).await,
            app.get("ann", &format!("/api/chat/{id}/messages")).await,
            app.post("ann", "/ag-ui", run_input(&id, "r1", "Hi")).await,
        ] {
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (StatusCode::MISDIRECTED_REQUEST, "open-elsewhere")
            );
            assert!(!format!("{answer:?}").contains("two.internal"), "{answer:?}");
        }
        let mut stream = app.stream("ann", &format!("/agent/events?watch={id}"), None).await;
        let refused = stream.next().await.unwrap();
        assert_eq!(refused.event, "refused");
        assert_eq!(refused.data["problem"]["type"], "urn:omni-agent:open-elsewhere");
        assert!(!format!("{refused:?}").contains("two.internal"), "{refused:?}");
    }
}

#[tokio::test]
async fn failure_of_the_server_is_logged_under_its_incident_and_its_cause_stays_hidden() {
    let log = Log::default();
    let _guard = log.listen();
    let store = FaultyStore::default();
    let app = over(&store, []);
    let id = closed(&app).await;
    store.fail(Operation::Load, StoreError::failed("reading", std::io::Error::other(CAUSE)));
    for path in [format!("/agent/conversations/{id}"), format!("/api/chat/{id}/messages")] {
        let answer = app.get("ann", &path).await;
        assert_eq!((answer.status, answer.code().as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "internal"));
        assert!(!answer.text.contains(CAUSE) && !answer.text.contains("reading"), "{}", answer.text);
        let incident = answer.json()["incident"].as_str().unwrap().to_owned();
        let logged = log.text();
        assert!(logged.contains(&incident) && logged.contains(CAUSE), "{logged}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_of_the_store_are_problems_with_a_time_to_try_again() {
    let store = FaultyStore::default();
    let app = over(&store, []);
    let id = closed(&app).await;
    let path = format!("/agent/conversations/{id}");
    store.fail(Operation::Summary, StoreError::Unreachable { place: CAUSE.into(), source: cause() });
    let answer = app.get("ann", &path).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (503, "store-unreachable"));
    assert!(answer.header("retry-after").is_some() && !answer.text.contains(CAUSE), "{answer:?}");

    store.fail(Operation::Create, StoreError::Unstorable { id: self::id(), problem: "too large".into() });
    let answer = app.post("ann", "/agent/conversations", json!({})).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (422, "unstorable"));
    store.fail(Operation::Create, StoreError::AlreadyExists { id: self::id() });
    let answer = app.post("ann", "/agent/conversations", json!({})).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "already-exists"));
    store.fail(Operation::Delete, StoreError::Conflict { id: self::id(), current: Version::new(2) });
    let answer = app.answer(request(Method::DELETE, "ann", &path, None)).await;
    assert_eq!((answer.status.as_u16(), answer.code().as_str()), (409, "conflict"));
    store.mend();
    assert_eq!(app.get("ann", &path).await.status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn operation_that_the_store_lacks_is_unsupported() {
    let store = FaultyStore::default();
    let app = over(&store, [Step::text("Hello!")]);
    let id = app.create("ann").await;
    app.ask("ann", &id, "Hi").await;
    let path = format!("/agent/conversations/{id}");
    for answer in [
        app.get("ann", "/agent/conversations").await,
        app.get("ann", "/agent/search?q=hello").await,
        app.get("ann", "/agent/usage").await,
        app.get("ann", &format!("{path}/usage")).await,
        app.post("ann", &format!("{path}/commands"), json!({ "type": "erase", "node": 1 })).await,
    ] {
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (422, "unsupported"));
        assert!(answer.json()["operation"].is_string(), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn opening_without_room_is_refused_after_the_limit() {
    let gate = Gate::new();
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).max_open(1).build();
    let limits = WebLimits::default().with_room_timeout(Duration::from_secs(7));
    let app =
        App::over(manager, [Step::new().gate(&gate).then_text(["One."]).stop()], |web| web.limits(limits));
    let id = app.create("ann").await;
    app.post("ann", &format!("/agent/conversations/{id}/commands"), prompt("Hi")).await;
    gate.reached().await;
    let start = tokio::time::Instant::now();
    let refused = app.post("ann", "/agent/conversations", json!({})).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "no-room"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(start.elapsed().as_secs(), 7);
    gate.open();
    app.idle(&id).await;
}

#[tokio::test(start_paused = true)]
async fn command_during_a_run_is_busy_or_staged_until_the_queue_is_full() {
    let gate = Gate::new();
    let app =
        App::with([Step::new().then_text(["One."]).gate(&gate).stop()], |web| web.models(["test:other"]));
    let id = app.create("ann").await;
    let path = format!("/agent/conversations/{id}");
    let commands = format!("{path}/commands");
    app.post("ann", &commands, prompt("Hi")).await;
    gate.reached().await;
    let busy = app.post("ann", &commands, json!({ "type": "model", "model": "test:other" })).await;
    assert_eq!((busy.status.as_u16(), busy.code().as_str()), (409, "busy"));
    assert_eq!(busy.json()["activity"], "busy");
    for command in
        [json!({ "type": "navigate", "node": null }), json!({ "type": "run", "at": { "again": 1 } })]
    {
        let busy = app.post("ann", &commands, command.clone()).await;
        assert_eq!((busy.status.as_u16(), busy.code().as_str()), (409, "busy"), "{command}");
    }
    let mut staged = 0;
    let full = loop {
        let answer = app.post("ann", &commands, prompt("And?")).await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        staged += 1;
        assert!(staged < 100);
    };
    assert_eq!((full.status.as_u16(), full.code().as_str()), (409, "queue-full"));
    let snapshot = app.get("ann", &path).await.json();
    assert_eq!(snapshot["agent"]["staged"].as_array().unwrap().len(), staged);
    app.post("ann", &commands, json!({ "type": "cancel" })).await;
    app.idle(&id).await;
}

#[tokio::test(start_paused = true)]
async fn prompt_id_that_was_used_is_known() {
    let app = App::new([Step::text("One."), Step::text("Two.")]);
    let id = app.create("ann").await;
    let commands = format!("/agent/conversations/{id}/commands");
    let prompt = json!({ "id": "p1", "content": [{ "type": "text", "text": "Hi" }] });
    app.post("ann", &commands, json!({ "type": "run", "prompt": prompt })).await;
    app.idle(&id).await;
    let again = app.post("ann", &commands, json!({ "type": "run", "prompt": prompt })).await;
    assert_eq!((again.status, &again.json()["accepted"]), (StatusCode::OK, &json!("known")));
    let edit = json!({ "type": "run", "at": { "instead": 1 }, "prompt": prompt });
    let known = app.post("ann", &commands, edit).await;
    assert_eq!((known.status.as_u16(), known.code().as_str()), (409, "known-prompt"));
    assert_eq!(known.json()["state"]["state"], "ended");
    assert_eq!(app.provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn request_after_the_shutdown_is_refused() {
    let app = App::new([]);
    let id = closed(&app).await;
    app.manager.shutdown(omni_agent::manager::Shutdown::within(Duration::from_secs(5))).await.unwrap();
    let refused = app.get("ann", &format!("/agent/conversations/{id}")).await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "shut-down"));
    assert!(refused.header("retry-after").is_some());
}
