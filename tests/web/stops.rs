//! Stops that come late: they end the run that they mean, and no other.

use axum::http::{Method, StatusCode};
use omni_agent::{
    agent::Status,
    store::ConversationId,
    testing::{Gate, Step},
};

use crate::{
    ai_sdk_routes::{frames, read},
    support::{App, request, run_input, submit},
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

#[tokio::test]
async fn stop_that_names_a_message_with_a_long_id_ends_its_run() {
    // Such ids are stored in a shorter form.
    for name in ["u".repeat(70), "u".repeat(40)] {
        let app = App::new([halves(&Gate::new())]);
        let id = app.create("ann").await;
        let mut shown = ask(&app, "/api/chat", &id, &name).await;
        read(&mut shown, "Half").await;
        assert_eq!(stop(&app, "ann", "/api/chat", &id, &format!("?message={name}")).await, (204, None));
        app.idle(&id).await;
        assert_eq!(texts(&app, &id).await, [name.as_str(), "Half"]);
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
