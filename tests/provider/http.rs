//! How an endpoint sends requests, and how it reads a valid answer.

use std::{collections::BTreeMap, time::Duration};

use futures_util::StreamExt;
use omni_agent::provider::{
    Options, Provider, ProviderError, ProviderErrorKind, Request, Secret, StopReason,
    custom::{Delta, Framing, MessageDelta, Part, RequestContext},
    http::{Auth, Endpoint},
};
use serde_json::{Map, Value, json};
use tokio::{runtime, time::timeout};

use crate::{
    plain::{Plain, ask, ask_for, endpoint, read, request},
    server::{Event, Gate, Received, Reply, Server},
};

const ANSWER: &str = "data: {\"text\":\"hi\"}\n\ndata: {\"stop\":true}\n\n";

fn answer() -> Reply {
    Reply::sse().piece(ANSWER)
}

/// Starts a server and sends one request through `endpoint`. Returns the request that the server received.
async fn sent(request: Request, endpoint: impl FnOnce(Endpoint) -> Endpoint) -> Received {
    let server = Server::start([answer()]).await;
    let endpoint = endpoint(self::endpoint(&server.url()));
    assert_eq!(ask_for(&endpoint, request).await.text(), "hi");
    server.received().remove(0)
}

/// Returns the error of a request that fails before it is sent.
async fn refused(endpoint: Endpoint, request: Request) -> ProviderError {
    ask_for(&endpoint, request).await.error()
}

fn with_options(options: Options) -> Request {
    request().with_options(options)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is not an object"),
    }
}

#[tokio::test]
async fn request_carries_path_headers_and_body() {
    let got = sent(request(), |endpoint| endpoint).await;
    assert_eq!(got.line, "POST /v1/answers/m?plain=yes");
    assert_eq!(got.header("content-type"), Some("application/json"));
    assert_eq!(got.header("accept"), Some("text/event-stream, application/json"));
    assert_eq!(got.header("accept-encoding"), Some("identity"));
    assert!(got.header("user-agent").unwrap().starts_with("omni-agent/"));
    assert_eq!(got.header("authorization"), None);
    assert_eq!(got.body, r#"{"prompt":"hello","settings":{"a":1,"b":2}}"#);
}

#[tokio::test]
async fn base_url_and_version_make_one_path() {
    let long = "POST /v1/answers/m?plain=yes";
    for (base, version, line) in [
        ("", "/v1", long),
        ("/", "v1/", long),
        ("/v1", "/v1", long),
        ("/v1/", "/v1", long),
        ("/api", "/v1", "POST /api/v1/answers/m?plain=yes"),
        ("/paas/v4/", "/v1", "POST /paas/v4/answers/m?plain=yes"),
        ("/openai", "", "POST /openai/answers/m?plain=yes"),
        ("/x/beta", "/beta", "POST /x/beta/answers/m?plain=yes"),
        ("/v1?tenant=7", "/v1", "POST /v1/answers/m?tenant=7&plain=yes"),
    ] {
        let server = Server::start([answer()]).await;
        let endpoint = endpoint(&(server.url() + base)).with_version(version);
        assert_eq!(ask(&endpoint).await.text(), "hi", "{base} {version}");
        assert_eq!(server.received()[0].line, line, "{base} {version}");
    }
}

#[tokio::test]
async fn base_url_with_the_name_of_the_local_host_works() {
    let server = Server::start([answer()]).await;
    let endpoint = endpoint(&format!("http://localhost:{}", server.port()));
    assert_eq!(ask(&endpoint).await.text(), "hi");
}

#[tokio::test]
async fn unusable_base_url_is_an_invalid_request() {
    for (url, why) in [
        ("", "is invalid"),
        ("no url", "is invalid"),
        ("ftp://host", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("https://", "is invalid"),
        ("https://someone:topsecret@host", "user name"),
    ] {
        let error = refused(endpoint(url), request()).await;
        assert_eq!(error.kind, ProviderErrorKind::InvalidRequest, "{url}");
        assert!(error.message.contains("\"plain\"") && error.message.contains(why), "{url}: {error}");
        assert!(!format!("{error:#?}").contains("topsecret"));
    }
}

#[tokio::test]
async fn key_comes_from_the_request_then_the_endpoint_then_the_environment() {
    // Use an environment variable that Cargo sets for every test.
    let variable = "CARGO_PKG_NAME";
    let keyed = |endpoint: Endpoint| endpoint.with_key_variable(variable);
    let authorization = |got: Received| got.header("authorization").unwrap().to_owned();

    let got = sent(request(), keyed).await;
    assert_eq!(authorization(got), "Bearer omni-agent");
    let got = sent(request(), |endpoint| keyed(endpoint).with_key("own")).await;
    assert_eq!(authorization(got), "Bearer own");
    let got = sent(request(), |endpoint| keyed(endpoint).with_key_from(|| Some("made".into()))).await;
    assert_eq!(authorization(got), "Bearer made");
    let got = sent(request(), |endpoint| keyed(endpoint).with_key_from(|| None)).await;
    assert_eq!(authorization(got), "Bearer omni-agent");
    let got = sent(request(), |endpoint| keyed(endpoint).with_key("")).await;
    assert_eq!(authorization(got), "Bearer omni-agent");
    let called = with_options(Options::default().with_api_key("called"));
    let got = sent(called, |endpoint| keyed(endpoint).with_key("own")).await;
    assert_eq!(authorization(got), "Bearer called");
}

#[tokio::test]
async fn key_is_sent_in_the_header_of_the_service() {
    let own_header = Auth::Header("X-Key".to_owned());
    let got = sent(request(), |endpoint| endpoint.with_key("k").with_auth(own_header)).await;
    assert_eq!((got.header("x-key"), got.header("authorization")), (Some("k"), None));
    let got = sent(request(), |endpoint| endpoint.with_key("k").with_auth(Auth::None)).await;
    assert!(!got.headers.iter().any(|(_, value)| value.contains('k') && value.len() < 9), "{got:?}");
}

#[tokio::test]
async fn missing_key_is_an_auth_error_that_names_the_variable_to_set() {
    let variable = "OMNI_AGENT_TEST_NO_SUCH_KEY";
    let error = refused(endpoint("http://127.0.0.1:1").with_key_variable(variable), request()).await;
    assert_eq!(error.kind, ProviderErrorKind::Auth);
    assert!(error.message.contains("plain") && error.message.contains(variable), "{error}");
    assert!(!error.retryable);
}

#[tokio::test]
async fn optional_key_may_be_missing() {
    let variable = "OMNI_AGENT_TEST_NO_SUCH_KEY";
    let got = sent(request(), |endpoint| endpoint.with_key_variable(variable).with_optional_key()).await;
    assert_eq!(got.header("authorization"), None);
}

#[tokio::test]
async fn key_invalid_in_a_header_is_an_auth_error_that_hides_it() {
    let error = refused(endpoint("http://127.0.0.1:1").with_key("sk-topsecret\n"), request()).await;
    assert_eq!(error.kind, ProviderErrorKind::Auth);
    assert!(!format!("{error} {error:#?}").contains("topsecret"));
}

fn headers<const N: usize>(headers: [(&str, &str); N]) -> BTreeMap<String, Secret> {
    headers.into_iter().map(|(name, value)| (name.to_owned(), Secret::new(value))).collect()
}

#[tokio::test]
async fn headers_of_endpoint_and_request_are_sent_and_the_request_takes_precedence() {
    let options = Options::default().with_headers(headers([("X-Both", "request"), ("x-request", "yes")]));
    let got = sent(with_options(options), |endpoint| {
        endpoint.with_header("x-both", "endpoint").with_header("x-endpoint", "yes")
    })
    .await;
    assert_eq!(got.header("x-both"), Some("request"));
    assert_eq!((got.header("x-endpoint"), got.header("x-request")), (Some("yes"), Some("yes")));
}

#[tokio::test]
async fn header_for_the_key_set_by_hand_replaces_the_key() {
    let options = Options::default().with_headers(headers([("Authorization", "Basic abc")]));
    let got = sent(with_options(options), |endpoint| endpoint.with_key_variable("NO_SUCH_VARIABLE")).await;
    assert_eq!(got.header("authorization"), Some("Basic abc"));
}

#[tokio::test]
async fn unusable_header_is_an_invalid_request_that_hides_its_value() {
    for (name, value) in [
        ("bad name", "topsecret"),
        ("", "topsecret"),
        ("x-fine", "topsecret\r\nx-injected: 1"),
        ("x-fine", "topsecret\u{0}"),
        ("content-length", "1"),
        ("transfer-encoding", "topsecret"),
    ] {
        let options = Options::default().with_headers(headers([(name, value)]));
        let error = refused(endpoint("http://127.0.0.1:1"), with_options(options)).await;
        assert_eq!(error.kind, ProviderErrorKind::InvalidRequest);
        assert!(error.message.contains(&format!("{name:?}")), "{error}");
        assert!(!format!("{error} {error:#?}").contains("topsecret"));
    }
}

#[tokio::test]
async fn body_hooks_run_in_order_and_extra_is_merged_last() {
    let extra =
        object(json!({ "settings": { "b": 3, "c": { "d": 4 } }, "prompt": { "e": 5 }, "hook": null }));
    let got = sent(with_options(Options::default().with_extra(extra)), |endpoint| {
        endpoint
            .with_body_hook(|body, request| {
                body.insert("model".to_owned(), json!(&*request.model));
                body.insert("hook".to_owned(), json!(1));
                Ok(())
            })
            .with_body_hook(|body, _| {
                let seen = body["hook"].clone();
                body.insert("seen".to_owned(), seen);
                Ok(())
            })
    })
    .await;
    let expected = json!({
        "prompt": { "e": 5 }, "settings": { "a": 1, "b": 3, "c": { "d": 4 } }, "model": "m", "hook": null, "seen": 1
    });
    assert_eq!(got.json(), expected);
}

#[tokio::test]
async fn body_hook_that_fails_ends_the_request_without_showing_the_key() {
    let endpoint = endpoint("http://127.0.0.1:1").with_key("sk-topsecret").with_body_hook(|_, _| {
        Err(ProviderError::new(ProviderErrorKind::Unsupported, "not with sk-topsecret"))
    });
    let error = refused(endpoint, request()).await;
    assert_eq!((error.kind, &*error.message), (ProviderErrorKind::Unsupported, "not with [secret]"));
}

#[tokio::test]
async fn delta_hook_changes_adds_and_removes() {
    let server = Server::start([answer()]).await;
    let endpoint = endpoint(&server.url()).with_delta_hook(|deltas| {
        for delta in &mut *deltas {
            if let Delta::Extend { part: Part::Text(text), .. } = delta {
                *text = text.to_uppercase();
            }
        }
        deltas.retain(|delta| !matches!(delta, Delta::Message(_)));
        if deltas.is_empty() {
            deltas.push(Delta::stop(StopReason::Length));
        }
        Ok(())
    });
    let stream = endpoint.stream(request(), RequestContext::detached()).await.unwrap();
    let deltas: Vec<_> = stream.map(Result::unwrap).collect().await;
    assert_eq!(deltas[1], Delta::Extend { index: 0, part: Part::Text("HI".to_owned()) });
    assert_eq!(deltas[2..], [Delta::stop(StopReason::Length)]);
}

#[tokio::test]
async fn warnings_come_before_the_answer() {
    let server = Server::start([answer()]).await;
    let request = with_options(Options::default().with_top_p(0.5));
    let mut stream = endpoint(&server.url()).stream(request, RequestContext::detached()).await.unwrap();
    let warnings = vec!["top_p is not supported".to_owned()];
    let expected = Delta::Message(Box::new(MessageDelta::default().with_warnings(warnings)));
    assert_eq!(stream.next().await.unwrap().unwrap(), expected);
    assert_eq!(read(stream).await.text(), "hi");
}

#[tokio::test]
async fn answer_in_any_pieces_is_the_same() {
    let body = "event: x\r\ndata: {\"text\":\"a€\"}\r\n\r\n: ping\n\ndata: {\"text\":\"b\"}\n\ndata:\n\ndata: {\"stop\":true}\n\n";
    for size in [1, 2, 3, 7, 1000] {
        let server = Server::start([Reply::sse().pieces(body.as_bytes(), size)]).await;
        assert_eq!(ask(&endpoint(&server.url())).await.text(), "a€b", "{size}");
    }
}

#[tokio::test]
async fn answer_in_json_lines_is_decoded() {
    let body = "{\"text\":\"a\"}\n\n{\"text\":\"b\"}\r\n{\"stop\":true}";
    for content_type in ["application/x-ndjson", "application/json; charset=utf-8"] {
        let server =
            Server::start([Reply::new(200).header("content-type", content_type).pieces(body.as_bytes(), 5)])
                .await;
        let endpoint = Endpoint::custom("lines", server.url(), Plain(Framing::NdJson));
        assert_eq!(ask(&endpoint).await.text(), "ab");
        assert_eq!(server.received()[0].header("accept"), Some("application/x-ndjson, application/json"));
    }
}

#[tokio::test]
async fn delta_arrives_before_the_answer_ends() {
    let gate = Gate::new();
    let reply =
        Reply::sse().piece("data: {\"text\":\"a\"}\n\n").gate(&gate).piece("data: {\"stop\":true}\n\n");
    let server = Server::start([reply]).await;
    let mut stream = endpoint(&server.url()).stream(request(), RequestContext::detached()).await.unwrap();
    assert!(stream.next().await.unwrap().unwrap().is_content());
    assert!(stream.next().await.unwrap().unwrap().is_content());
    gate.open();
    assert_eq!(stream.next().await.unwrap().unwrap(), Delta::stop(StopReason::Stop));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn whole_json_answer_is_decoded_as_one_event() {
    let whole = "\n {\"text\":\"all\",\"stop\":true,\"error\":null}";
    for content_type in ["application/json", "text/event-stream", "text/plain"] {
        let server =
            Server::start([Reply::new(200).header("content-type", content_type).pieces(whole.as_bytes(), 4)])
                .await;
        assert_eq!(ask(&endpoint(&server.url())).await.text(), "all", "{content_type}");
    }
}

#[tokio::test]
async fn events_under_a_json_content_type_are_decoded() {
    let server = Server::start([Reply::json(200, ANSWER)]).await;
    assert_eq!(ask(&endpoint(&server.url())).await.text(), "hi");
}

#[tokio::test]
async fn terminal_event_ends_the_answer_and_later_events_are_not_read() {
    let mut server = Server::start([Reply::sse().piece(ANSWER).piece("data: garbage\n\n").stall()]).await;
    assert_eq!(ask(&endpoint(&server.url())).await.text(), "hi");
    server.wait_for(Event::Stalled).await;
    tokio::time::pause();
    let start = tokio::time::Instant::now();
    server.wait_for(Event::Closed).await;
    assert!(start.elapsed() <= Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn connection_is_reused_although_the_body_ends_a_little_later() {
    let gate = Gate::new();
    let mut server = Server::start((0..3).map(|_| answer().gate(&gate))).await;
    let endpoint = endpoint(&server.url());
    for _ in 0..3 {
        assert_eq!(ask(&endpoint).await.text(), "hi");
        server.wait_for(Event::Stalled).await;
        gate.open();
        // Let the background task read the end of the body.
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
    }
    assert!(server.received().iter().all(|request| request.connection == 0), "{:?}", server.received());
}

#[tokio::test]
async fn stream_dropped_closes_the_connection() {
    let mut server = Server::start([Reply::sse().piece("data: {\"text\":\"a\"}\n\n").stall()]).await;
    let mut stream = endpoint(&server.url()).stream(request(), RequestContext::detached()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.wait_for(Event::Stalled).await;
    drop(stream);
    server.wait_for(Event::Closed).await;
}

#[tokio::test]
async fn future_dropped_before_the_answer_closes_the_connection() {
    let mut server = Server::start([Reply::headless().stall()]).await;
    let endpoint = endpoint(&server.url());
    let asking = tokio::spawn(async move { ask(&endpoint).await });
    server.wait_for(Event::Stalled).await;
    asking.abort();
    server.wait_for(Event::Closed).await;
}

#[test]
fn debug_of_an_endpoint_shows_no_secret() {
    let endpoint = endpoint("https://host/path?token=topsecret1")
        .with_key("topsecret2")
        .with_header("x-token", "topsecret3")
        .with_body_hook(|_, _| Ok(()));
    let shown = format!("{endpoint:?}");
    assert!(!shown.contains("topsecret"), "{shown}");
    assert!(shown.contains("https://host") && shown.contains("x-token"), "{shown}");
    let shown =
        format!("{:?}", endpoint.with_base_url("topsecret4").with_key_from(|| Some("topsecret5".into())));
    assert!(!shown.contains("topsecret"), "{shown}");
}

#[test]
fn connection_of_a_runtime_that_has_ended_is_not_reused() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (url, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let server = Server::start([answer(), answer()]).await;
            url.send(server.url()).unwrap();
            std::future::pending::<()>().await;
        });
    });
    let endpoint = endpoint(&address.recv().unwrap());
    for _ in 0..2 {
        assert_eq!(runtime().block_on(ask(&endpoint)).text(), "hi");
    }
}

#[test]
fn request_after_one_of_another_runtime_opens_its_own_connection() {
    let background = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = background.block_on(Server::start([answer(), answer()]));
    let url = server.url();
    let ask_once = || async {
        let asked = timeout(Duration::from_secs(5), ask(&endpoint(&url))).await;
        let text = asked.expect("a connection of a runtime that is not running was used").text();
        // Let the connection return to its pool.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        text
    };
    // At the second request, the first runtime still exists and owns its connection, but nothing drives this runtime.
    let [first, second] =
        [(); 2].map(|()| runtime::Builder::new_current_thread().enable_all().build().unwrap());
    assert_eq!(first.block_on(ask_once()), "hi");
    assert_eq!(second.block_on(ask_once()), "hi");
    let connections: Vec<usize> = server.received().iter().map(|received| received.connection).collect();
    assert_ne!(connections[0], connections[1]);
}
