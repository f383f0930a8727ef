//! Limits, and the headers of streams.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Method, Request},
};
use futures_util::StreamExt;
use omni_agent::{
    testing::{Gate, Step},
    web::WebLimits,
};
use tokio::time::Instant;

use crate::support::{App, request, run_input, submit};

/// A step that sends a text, and then nothing until the gate is opened.
fn silent(gate: &Gate) -> Step {
    Step::new().then_text(["One."]).gate(gate).stop()
}

/// Returns a request for a stream of each router.
fn streams(user: &str, id: &str) -> [Request<Body>; 3] {
    [
        request(Method::GET, user, &format!("/agent/conversations/{id}/events"), None),
        request(Method::POST, user, "/api/chat", Some(submit(id, "u1", "Hi"))),
        request(Method::GET, user, &format!("/ag-ui/{id}?protocolVersion=1.0"), None),
    ]
}

#[tokio::test(start_paused = true)]
async fn stream_has_headers_for_proxies_and_a_comment_after_silence() {
    let gate = Gate::new();
    let limits = WebLimits::default().with_keep_alive(Duration::from_secs(3));
    let app = App::with([silent(&gate)], |web| web.limits(limits));
    let id = app.create("ann").await;
    for stream in streams("ann", &id) {
        let path = stream.uri().to_string();
        let response = app.send(stream).await;
        for (name, value) in [
            ("content-type", "text/event-stream"),
            ("cache-control", "no-cache"),
            ("x-accel-buffering", "no"),
        ] {
            assert_eq!(response.headers()[name], value, "{path}");
        }
        let mut body = response.into_body().into_data_stream();
        let mut last = Instant::now();
        loop {
            let bytes = body.next().await.unwrap().unwrap();
            if bytes.starts_with(b":") {
                break;
            }
            last = Instant::now();
        }
        assert_eq!(last.elapsed(), Duration::from_secs(3), "{path}");
    }
    gate.open();
    app.idle(&id).await;
}

#[tokio::test(start_paused = true)]
async fn streams_of_all_principals_and_routers_count_against_the_limits() {
    let gate = Gate::new();
    let limits = WebLimits::default().with_streams(2).with_streams_per_principal(2);
    let app = App::with([silent(&gate), silent(&gate)], |web| web.limits(limits));
    let (ann, ben) = (app.create("ann").await, app.create("ben").await);
    let [native, chat, join] = streams("ann", &ann);
    let open = (app.send(native).await, app.send(chat).await);
    gate.reached().await;
    let mut refused: Vec<Request<Body>> = streams("ben", &ben).into();
    refused.push(join);
    refused.push(request(Method::GET, "ann", &format!("/api/chat/{ann}/stream"), None));
    refused.push(request(Method::POST, "ben", "/ag-ui", Some(run_input(&ben, "r1", "Hi"))));
    refused.push(request(Method::GET, "ben", "/agent/events?list=true", None));
    for stream in refused {
        let path = stream.uri().to_string();
        let answer = app.answer(stream).await;
        assert_eq!((answer.status.as_u16(), answer.code().as_str()), (429, "too-many-streams"), "{path}");
        assert_eq!(answer.header("retry-after"), Some("5"), "{path}");
    }
    assert_eq!(app.provider.requests().len(), 1, "a refused message starts no run");
    drop(open);
    let mut stream = app.stream("ben", &format!("/agent/conversations/{ben}/events"), None).await;
    assert!(stream.next().await.is_some());
    gate.open();
    app.idle(&ann).await;
}
