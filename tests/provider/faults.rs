//! Servers that fail, and hostile servers. Each of them must cause a clear error, in limited time and with limited
//! memory.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::Duration;

use futures_util::StreamExt;
use omni_agent::provider::{
    Provider, ProviderError, ProviderErrorKind,
    custom::{Framing, RequestContext},
    http::{Endpoint, Limits, Timeouts},
};
use tokio::{net::TcpListener, time::Instant};

use crate::{
    plain::{Answer, Plain, ask, endpoint, read, request},
    server::{Event, Gate, Reply, Server},
};

const TEXT: &str = "data: {\"text\":\"hi\"}\n\n";
const KIB: usize = 1024;
/// An upper limit for the bytes that the socket buffers of both sides hold in addition to the bytes that the client
/// reads.
const SOCKETS: usize = 48 * KIB * KIB;

/// Sends one request to a server with this reply, and returns the answer.
async fn outcome(reply: Reply) -> Answer {
    let server = Server::start([reply]).await;
    ask(&endpoint(&server.url())).await
}

fn small() -> Limits {
    Limits::default().with_line(64 * KIB).with_event(128 * KIB).with_body(256 * KIB).with_error_body(32 * KIB)
}

#[tokio::test]
async fn silence_before_the_answer_is_a_first_byte_timeout() {
    let mut server = Server::start([Reply::headless().stall()]).await;
    let endpoint = endpoint(&server.url());
    let asking = tokio::spawn(async move { ask(&endpoint).await });
    server.wait_for(Event::Stalled).await;
    tokio::time::pause();
    let start = Instant::now();
    let error = asking.await.unwrap().error();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Timeout, true));
    assert!(error.message.contains("300s") && error.message.contains("first-byte"), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(301));
    server.wait_for(Event::Closed).await;
}

#[tokio::test]
async fn silence_in_the_answer_is_a_between_chunks_timeout() {
    for stalled in
        [Reply::sse().stall(), Reply::sse().piece(TEXT).stall(), Reply::sse().piece("data: {").stall()]
    {
        let mut server = Server::start([stalled]).await;
        let timeouts = Timeouts::default().with_between_chunks(Duration::from_secs(20));
        let endpoint = endpoint(&server.url()).with_timeouts(timeouts);
        let stream = endpoint.stream(request(), RequestContext::detached()).await.unwrap();
        server.wait_for(Event::Stalled).await;
        tokio::time::pause();
        let start = Instant::now();
        let error = read(stream).await.error();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Timeout, true));
        assert!(error.message.contains("20s") && error.message.contains("between-chunks"), "{error}");
        assert!((20..=21).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        server.wait_for(Event::Closed).await;
        tokio::time::resume();
    }
}

#[tokio::test]
async fn slow_reader_causes_no_timeout() {
    let gate = Gate::new();
    let reply = Reply::sse().piece(TEXT).gate(&gate).piece("data: {\"text\":\"!\",\"stop\":true}\n\n");
    let mut server = Server::start([reply]).await;
    let mut stream = endpoint(&server.url()).stream(request(), RequestContext::detached()).await.unwrap();
    stream.next().await.unwrap().unwrap();
    server.wait_for(Event::Stalled).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(1)).await;
    gate.open();
    tokio::time::resume();
    assert_eq!(read(stream).await.text(), "hi!");
}

#[tokio::test]
async fn silence_in_the_tls_handshake_is_a_connect_timeout() {
    let mut server = Server::start([]).await;
    let timeouts = Timeouts::default().with_connect(Duration::from_secs(3));
    let endpoint = endpoint(&server.url().replace("http:", "https:")).with_timeouts(timeouts);
    let asking = tokio::spawn(async move { ask(&endpoint).await });
    server.wait_for(Event::Connected).await;
    tokio::time::pause();
    let error = asking.await.unwrap().error();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Timeout, true));
    assert!(error.message.contains("3s") && error.message.contains("connect timeout"), "{error}");
}

#[tokio::test]
async fn server_that_closes_during_the_tls_handshake_is_a_transport_error() {
    let server = Server::start([]).await;
    // A plain HTTP server would wait for a request and would never reply. The listener in this test therefore closes
    // the connection.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { drop(listener.accept().await) });
    let error = ask(&endpoint(&url)).await.error();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Transport, true));
    drop(server);
}

#[tokio::test]
async fn closed_port_is_a_transport_error_that_names_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = ask(&endpoint(&url)).await.error();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Transport, true));
    assert!(error.message.contains("127.0.0.1") && error.message.contains("refused"), "{error}");
    assert!(error.cause().is_some() && std::error::Error::source(&error).is_none(), "{error}");
}

#[tokio::test]
async fn connection_lost_before_the_answer_is_a_transport_error() {
    for reply in [
        Reply::headless().close(),
        Reply::headless().reset(),
        Reply::headless().raw("HTTP/1.1 200 OK\r\ncontent-ty").close(),
        Reply::headless().raw("what is this\r\n\r\n").close(),
        Reply::sse().close(),
        Reply::sse().piece(": hello\n\n").close(),
    ] {
        let error = outcome(reply).await.error();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Transport, true), "{error}");
    }
}

#[tokio::test]
async fn connection_lost_after_content_is_a_truncated_answer() {
    type Lose = fn(Reply) -> Reply;
    for lose in [Reply::close as Lose, Reply::reset, |reply| reply.raw("zz\r\n").stall()] {
        let gate = Gate::new();
        let server = Server::start([lose(Reply::sse().piece(TEXT).gate(&gate))]).await;
        let mut stream = endpoint(&server.url()).stream(request(), RequestContext::detached()).await.unwrap();
        stream.next().await.unwrap().unwrap();
        gate.open();
        let answer = read(stream).await;
        assert_eq!(answer.text, "hi");
        let error = answer.error();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true), "{error}");
    }
}

#[tokio::test]
async fn clean_end_without_the_terminal_event_is_a_truncated_answer() {
    for (reply, text) in [
        (Reply::sse(), ""),
        (Reply::sse().piece(TEXT), "hi"),
        (Reply::sse().until_close().piece(TEXT), "hi"),
        (Reply::sse().piece(TEXT).piece("data: {\"text\":\"lo"), "hi"),
        (Reply::sse().piece(TEXT).piece("data: {\"text\":\"lost\"}\ndata: ,\n"), "hi"),
        (Reply::sse().piece(TEXT).piece(&b"data: {\"text\":\"\xE2\x82"[..]), "hi"),
        (Reply::json(200, "{\"text\":\"lo"), ""),
        (Reply::json(200, "{\"text\":\"all\"}"), "all"),
    ] {
        let answer = outcome(reply).await;
        assert_eq!(answer.text, text);
        let error = answer.error();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true), "{error}");
    }
}

#[tokio::test]
async fn terminal_event_ended_only_by_the_end_of_the_body_is_read() {
    let reply = Reply::sse().piece(TEXT).piece("data: {\"text\":\"!\",\"stop\":true}");
    assert_eq!(outcome(reply).await.text(), "hi!");
}

#[tokio::test]
async fn endless_answers_are_decoding_errors_in_bounded_memory() {
    let sse = Reply::sse;
    let events = "data: {\"text\":\"\"}\n\n".repeat(200);
    let x = || "x".repeat(4 * KIB);
    let plain = || Endpoint::custom("plain", "", Plain(Framing::Sse));
    let lines = || Endpoint::custom("plain", "", Plain(Framing::NdJson));
    for (what, endpoint, reply) in [
        ("a line", plain(), sse().piece("data: ").forever(x())),
        ("a line", plain(), sse().piece(": ").forever(x())),
        ("a line", lines(), Reply::ndjson().piece("{\"text\":\"").forever(x())),
        ("an event", plain(), sse().forever(format!("data: {}\n", x()))),
        ("the response", plain(), sse().forever(format!(": {}\n\n", x()))),
        ("the response", plain(), sse().forever("\n".repeat(4 * KIB))),
        ("the response", plain(), sse().forever(events)),
        ("the response", lines(), Reply::ndjson().forever("{}\n".repeat(KIB))),
        ("the response", plain(), Reply::json(200, "[").forever(x())),
    ] {
        let mut server = Server::start([reply]).await;
        let error = ask(&endpoint.with_base_url(server.url()).with_limits(small())).await.error();
        assert_eq!(error.kind, ProviderErrorKind::Decoding, "{what}");
        assert!(error.message.starts_with(what) && !error.retryable, "{what}: {error}");
        server.wait_for(Event::Closed).await;
        assert!(server.sent() < small().body + SOCKETS, "{what}: {} bytes sent", server.sent());
    }
}

#[tokio::test]
async fn endless_head_is_a_transport_error_in_bounded_memory() {
    let mut server =
        Server::start([Reply::headless().raw("HTTP/1.1 200 OK\r\n").forever("x-more: more\r\n")]).await;
    let error = ask(&endpoint(&server.url())).await.error();
    assert_eq!(error.kind, ProviderErrorKind::Transport);
    server.wait_for(Event::Closed).await;
    assert!(server.sent() < SOCKETS);
}

#[tokio::test]
async fn endless_error_body_is_cut() {
    let mut server = Server::start([Reply::new(500).forever("x".repeat(KIB))]).await;
    let error = ask(&endpoint(&server.url()).with_limits(small())).await.error();
    assert_eq!((error.kind, error.status), (ProviderErrorKind::Service, Some(500)));
    assert_eq!(error.body.unwrap().len(), ProviderError::BODY_LIMIT);
    server.wait_for(Event::Closed).await;
    assert!(server.sent() < small().error_body + SOCKETS);
}

#[tokio::test]
async fn error_body_that_stalls_delays_the_error_only_briefly() {
    let mut server = Server::start([Reply::new(529).piece("half an expl").stall()]).await;
    let endpoint = endpoint(&server.url());
    let asking = tokio::spawn(async move { ask(&endpoint).await });
    server.wait_for(Event::Stalled).await;
    tokio::time::pause();
    let start = Instant::now();
    let error = asking.await.unwrap().error();
    assert!(start.elapsed() <= Duration::from_secs(11));
    assert_eq!((error.kind, error.status), (ProviderErrorKind::Overloaded, Some(529)));
    assert_eq!(error.body.as_deref(), Some("half an expl"));
}

#[tokio::test]
async fn error_status_gives_the_formats_error_with_status_and_body() {
    for (status, kind) in [
        (400, ProviderErrorKind::InvalidRequest),
        (401, ProviderErrorKind::Auth),
        (404, ProviderErrorKind::InvalidRequest),
        (413, ProviderErrorKind::InvalidRequest),
        (429, ProviderErrorKind::RateLimit),
        (500, ProviderErrorKind::Service),
        (529, ProviderErrorKind::Overloaded),
    ] {
        let error = outcome(Reply::json(status, "{\"why\":1}").header("request-id", "req_7")).await.error();
        assert_eq!((error.kind, error.status), (kind, Some(status)));
        assert_eq!(error.body.as_deref(), Some("{\"why\":1}"));
        assert_eq!(error.request_id.as_deref(), Some("req_7"));
        assert_eq!((error.retryable, error.retry_after), (kind.is_transient(), None));
    }
}

#[tokio::test]
async fn retry_after_is_read_in_every_form() {
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let later = "Sun, 06 Nov 1994 08:51:07 GMT";
    for (headers, wait) in [
        (&[("retry-after", "7")][..], Some(Duration::from_secs(7))),
        (&[("retry-after", "0.5")], Some(Duration::from_millis(500))),
        (&[("retry-after-ms", "1500"), ("retry-after", "2")], Some(Duration::from_millis(1500))),
        (&[("retry-after-ms", "soon"), ("retry-after", "2")], Some(Duration::from_secs(2))),
        (&[("date", date), ("retry-after", later)], Some(Duration::from_secs(90))),
        (&[("date", later), ("retry-after", date)], Some(Duration::ZERO)),
        (&[("retry-after", date)], Some(Duration::ZERO)),
        (&[("retry-after", "-3")], None),
        (&[("retry-after", "NaN")], None),
        (&[("retry-after", "1e300")], None),
        (&[("retry-after", "in a while")], None),
    ] {
        let reply = headers.iter().fold(Reply::new(429), |reply, (name, value)| reply.header(name, value));
        assert_eq!(outcome(reply).await.error().retry_after, wait, "{headers:?}");
    }
}

#[tokio::test]
async fn quota_with_a_retry_after_header_is_a_rate_limit() {
    let body = |code: &str| format!(r#"{{"error":{{"message":"Limit exceeded.","code":"{code}"}}}}"#);
    let wait = Some(Duration::from_secs(7));
    for (code, kind) in [
        ("token_quota_exceeded", ProviderErrorKind::RateLimit),
        ("request_quota_exceeded", ProviderErrorKind::RateLimit),
        ("billing_not_active", ProviderErrorKind::Quota),
    ] {
        let server = Server::start([Reply::json(429, &body(code)).header("retry-after", "7")]).await;
        let chat = omni_agent::provider::custom::ChatCompletions::default();
        let endpoint = Endpoint::custom("cerebras", server.url(), chat).with_key("k");
        let error = ask(&endpoint).await.error();
        assert_eq!(
            (error.kind, error.retryable, error.retry_after),
            (kind, kind.is_transient(), wait),
            "{code}"
        );
    }
}

#[tokio::test]
async fn should_retry_header_overrides_the_kind() {
    let error = outcome(Reply::new(400).header("x-should-retry", "true")).await.error();
    assert!(error.retryable);
    let error = outcome(Reply::new(500).header("x-should-retry", "false")).await.error();
    assert!(!error.retryable);
}

#[tokio::test]
async fn redirect_is_an_error_that_is_not_followed() {
    let elsewhere = Server::start([]).await;
    for status in [301, 302, 307, 308] {
        let to = format!("{}/secret?token=abc", elsewhere.url());
        let error = outcome(Reply::new(status).header("location", &to)).await.error();
        assert_eq!((error.kind, error.status), (ProviderErrorKind::InvalidRequest, Some(status)));
        assert!(error.message.contains(&elsewhere.url()) && !error.message.contains("token"), "{error}");
    }
    assert_eq!(elsewhere.received().len(), 0);
}

#[tokio::test]
async fn answer_with_an_unexpected_content_type_is_a_decoding_error_that_shows_it() {
    let page = "<html>Sign in to the network</html>";
    for content_type in ["text/html; charset=utf-8", "TEXT/HTML", "image/png", "application/xml"] {
        let reply =
            Reply::new(200).header("content-type", content_type).header("x-request-id", "r").piece(page);
        let error = outcome(reply).await.error();
        assert_eq!((error.kind, error.status), (ProviderErrorKind::Decoding, Some(200)), "{content_type}");
        assert_eq!((error.body.as_deref(), error.request_id.as_deref()), (Some(page), Some("r")));
    }
    let error = outcome(Reply::sse().header("content-encoding", "gzip").piece("\u{1F}")).await.error();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
    assert!(error.message.contains("gzip"), "{error}");
}

#[tokio::test]
async fn error_object_in_place_of_a_stream_is_that_error() {
    for content_type in ["application/json", "text/event-stream"] {
        let body = "{\"error\":{\"message\":\"no\"}}";
        let reply =
            Reply::new(200).header("content-type", content_type).header("request-id", "r").piece(body);
        let error = outcome(reply).await.error();
        assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::Service, Some(body)));
        assert_eq!(error.request_id.as_deref(), Some("r"));
    }
}

#[tokio::test]
async fn error_in_the_stream_follows_the_text_before_it() {
    let body = format!("{TEXT}data: {{\"text\":\"!\",\"error\":\"gone wrong\"}}\n\n{TEXT}");
    let answer = outcome(Reply::sse().header("x-request-id", "r").piece(body)).await;
    assert_eq!(answer.text, "hi!");
    let error = answer.error();
    assert_eq!((error.kind, &*error.message), (ProviderErrorKind::Service, "gone wrong"));
    assert_eq!(error.request_id.as_deref(), Some("r"));
}

#[tokio::test]
async fn invalid_utf8_and_invalid_json_are_decoding_errors() {
    for bad in [&b"data: {\"text\":\"\xFF\"}\n\n"[..], b"data: what\n\n", b"data: {\"text\":\n\n"] {
        let answer = outcome(Reply::sse().piece(TEXT).piece(bad).piece(TEXT)).await;
        assert_eq!(answer.text, "hi");
        let error = answer.error();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Decoding, false));
    }
    for bad in ["{\"text\":no}", "[1, 2"] {
        let error = outcome(Reply::json(200, bad)).await.error();
        assert!(matches!(error.kind, ProviderErrorKind::Decoding | ProviderErrorKind::Truncated), "{error}");
    }
}

/// `{"error":"prompt is too long"}` as compressed by gzip.
const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\xabVJ-*\xca/R\xb2R*(\xca\xcf-(Q\xc8,V(\xc9\xcfW\xc8\xc9\xcfKW\xaa\x05\x00\xb0W:\xdd\x1e\x00\x00\x00";

#[tokio::test]
async fn compressed_error_body_keeps_its_status_and_is_reported() {
    for (encoding, status, kind, retryable) in [
        ("gzip, br", 429, ProviderErrorKind::RateLimit, true),
        ("ZSTD", 401, ProviderErrorKind::Auth, false),
        ("identity, br", 400, ProviderErrorKind::InvalidRequest, false),
        ("deflate", 503, ProviderErrorKind::Service, true),
    ] {
        let reply = Reply::new(status).header("content-encoding", encoding).header("x-request-id", "r1");
        let error = outcome(reply.piece(GZIP)).await.error();
        assert_eq!(
            (error.kind, error.retryable, error.status),
            (kind, retryable, Some(status)),
            "{encoding}"
        );
        let name = encoding.to_lowercase().replace("identity, ", "");
        assert!(error.message.contains("compressed") && error.message.contains(&name), "{error}");
        assert_eq!((error.body, error.request_id.as_deref()), (None, Some("r1")));
    }
    // Some proxies compress the body without setting a `content-encoding` header.
    let error = outcome(Reply::new(429).piece(&b"\x28\xb5\x2f\xfd\x00"[..])).await.error();
    assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::RateLimit, None));
    assert!(error.message.contains("zstd"), "{error}");
    let error = outcome(Reply::new(500).piece(&b"\x00\x01\x02PNG\x00\xff\xfe\xfd"[..])).await.error();
    assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::Service, None));
    assert!(error.message.contains("no text"), "{error}");
    // If the text of an error has another encoding, the readable part of the text is still shown.
    let error = outcome(Reply::new(400).piece(&b"requ\xeate trop longue"[..])).await.error();
    assert_eq!(error.body.as_deref(), Some("requ\u{fffd}te trop longue"));
}

#[tokio::test]
async fn compressed_answer_is_a_decoding_error_without_its_bytes() {
    let error = outcome(Reply::sse().header("content-encoding", "gzip").piece(GZIP)).await.error();
    assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::Decoding, None));
    assert!(error.message.contains("gzip"), "{error}");
}

#[tokio::test]
async fn answer_with_identity_encoding_is_read() {
    for encoding in ["identity", "Identity", "IDENTITY", "", " identity , identity"] {
        let stop = "data: {\"stop\":true}\n\n";
        let reply = Reply::sse().header("content-encoding", encoding).piece(TEXT).piece(stop);
        assert_eq!(outcome(reply).await.text(), "hi", "{encoding:?}");
    }
}
