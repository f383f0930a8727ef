//! Stops that come late: they end the run that they mean, and no other.

use axum::http::{Method, StatusCode, request::Parts};
use omni_agent::{
    access::{Permissions, Principal},
    agent::Status,
    async_trait,
    manager::{Manager, Titles},
    store::{ConversationId, MemoryStore},
    testing::{Gate, Step},
    web::{Access, Challenge},
};

use crate::{
    ai_sdk_routes::{frames, read},
    support::{App, Users, labels, request, run_input, submit},
};

fn halves(gate: &Gate) -> Step {
    Step::new().then_text(["Half"]).gate(gate).then_text([" done"]).stop()
}

/// A protocol and the path of its routes.
const PATHS: [&str; 2] = ["/api/chat", "/ag-ui"];

/// Sends a message whose id and text are this name. In AG-UI, this is the id of the run, too.
async fn ask(app: &App, path: &str, id: &str, name: &str) -> axum::body::BodyDataStream {
    let body = if path == "/ag-ui" { run_input(id, name, name) } else { submit(id, name, name) };
    let response = app.send(request(Method::POST, "ann", path, Some(body))).await;
    assert_eq!(response.status(), StatusCode::OK);
    response.into_body().into_data_stream()
}

/// Returns the status and the code of the response to a stop.
async fn stop(app: &App, user: &str, path: &str, id: &str, query: &str) -> (u16, Option<String>) {
    let stop = request(Method::POST, user, &format!("{path}/{id}/stop{query}"), None);
    let answer = app.answer(stop).await;
    (answer.status.as_u16(), (answer.status != StatusCode::NO_CONTENT).then(|| answer.code()))
}

/// Returns the response to a stop whose run has ended.
fn ended(path: &str) -> (u16, Option<String>) {
    if path == "/ag-ui" { (409, Some("idle".to_owned())) } else { (204, None) }
}

async fn texts(app: &App, id: &str) -> Vec<String> {
    let session = app.manager.get(&ConversationId::new(id).unwrap()).unwrap();
    session.tree().await.unwrap().history().iter().map(|message| message.text()).collect()
}

async fn status(app: &App, id: &str) -> Status {
    let session = app.manager.get(&ConversationId::new(id).unwrap()).unwrap();
    session.snapshot().await.unwrap().agent.status
}

#[tokio::test]
async fn stop_that_names_a_run_ends_this_run_only() {
    for path in PATHS {
        for discard in [false, true] {
            let (first, second) = (Gate::new(), Gate::new());
            let app = App::new([halves(&first), halves(&second)]);
            let id = app.create("ann").await;
            let mut shown = ask(&app, path, &id, "one").await;
            first.reached().await;
            let start = read(&mut shown, "Half").await;
            // The prompt of another tab waits for the end of the first run.
            let _other = ask(&app, path, &id, "two").await;
            first.open();
            second.reached().await;
            let mut names = match path {
                "/ag-ui" => vec!["?runId=one".to_owned()],
                _ => vec!["?message=one".to_owned()],
            };
            if path == "/api/chat" {
                names.push(format!("?message={}", frames(&start)[0]["messageId"].as_str().unwrap()));
            }
            for name in names {
                let late = stop(&app, "ann", path, &id, &format!("{name}&discard={discard}")).await;
                assert_eq!(late, ended(path), "{name}");
                assert_eq!(status(&app, &id).await, Status::Busy, "{name}");
            }
            let name = if path == "/ag-ui" { "?runId=two" } else { "?message=two" };
            let stopped = stop(&app, "ann", path, &id, &format!("{name}&discard={discard}")).await;
            assert_eq!(stopped, (204, None), "{path}");
            app.idle(&id).await;
            let kept: &[_] = if discard { &[] } else { &["two", "Half"] };
            assert_eq!(texts(&app, &id).await, [&["one", "Half done"], kept].concat(), "{path} {discard}");
        }
    }
}

#[tokio::test]
async fn stop_that_names_a_staged_prompt_withdraws_it() {
    for path in PATHS {
        let gate = Gate::new();
        let app = App::new([halves(&gate)]);
        let id = app.create("ann").await;
        let _one = ask(&app, path, &id, "one").await;
        gate.reached().await;
        let _two = ask(&app, path, &id, "two").await;
        let name = if path == "/ag-ui" { "?runId=two" } else { "?message=two" };
        assert_eq!(stop(&app, "ann", path, &id, name).await, (204, None), "{path}");
        assert_eq!(status(&app, &id).await, Status::Busy);
        gate.open();
        app.idle(&id).await;
        assert_eq!(texts(&app, &id).await, ["one", "Half done"], "{path}");
    }
}

/// Identifies the user `late` only after the gate was opened.
struct Late(Gate);

impl Permissions for Late {}

#[async_trait]
impl Access for Late {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        if request.headers.get("x-user").is_some_and(|user| user == "late") {
            self.0.pass().await;
            return Ok(Principal::new("ann", labels("ann")).unwrap());
        }
        Users.principal(request).await
    }
}

#[tokio::test]
async fn stop_that_waits_ends_only_the_run_that_was_active_when_it_came() {
    for path in PATHS {
        for is_active in [true, false] {
            let (first, second, login) = (Gate::new(), Gate::new(), Gate::new());
            let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
            let app =
                App::guarded(manager, Late(login.clone()), [halves(&first), halves(&second)], |web| web);
            let id = app.create("ann").await;
            let _one = ask(&app, path, &id, "one").await;
            first.reached().await;
            if !is_active {
                first.open();
                app.idle(&id).await;
            }
            let next = async {
                login.reached().await;
                if is_active {
                    first.open();
                    app.idle(&id).await;
                }
                let two = ask(&app, path, &id, "two").await;
                second.reached().await;
                login.open();
                two
            };
            let (late, _two) = tokio::join!(stop(&app, "late", path, &id, ""), next);
            assert_eq!(late, ended(path), "{path} {is_active}");
            second.open();
            app.idle(&id).await;
            assert_eq!(
                texts(&app, &id).await,
                ["one", "Half done", "two", "Half done"],
                "{path} {is_active}"
            );
        }
    }
}

#[tokio::test]
async fn stop_without_a_name_ends_the_active_run() {
    for path in PATHS {
        let app = App::new([halves(&Gate::new())]);
        let id = app.create("ann").await;
        let mut shown = ask(&app, path, &id, "one").await;
        read(&mut shown, "Half").await;
        // A run whose id is not remembered cannot be told from the active one.
        let query = if path == "/ag-ui" { "?runId=unknown" } else { "" };
        assert_eq!(stop(&app, "ann", path, &id, query).await, (204, None), "{path}");
        app.idle(&id).await;
        assert_eq!(texts(&app, &id).await, ["one", "Half"], "{path}");
    }
}
