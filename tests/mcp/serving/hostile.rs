//! Clients that misbehave.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use omni_agent::ErrorKind;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream, duplex};

use super::{
    host::{manager, served},
    person::{Answers, NEW, OLD, Person, call, connect, failure, is_protocol_error, params, serve},
};
use crate::support::soon;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}"#;

async fn write(pipe: &mut BufReader<DuplexStream>, line: &str) {
    soon(pipe.write_all(format!("{line}\n").as_bytes())).await.unwrap();
}

async fn read(pipe: &mut BufReader<DuplexStream>) -> Value {
    let mut line = String::new();
    soon(pipe.read_line(&mut line)).await.unwrap();
    serde_json::from_str(&line).unwrap()
}

#[tokio::test]
async fn invalid_arguments_are_error_results_that_say_what_is_wrong() {
    for version in [OLD, NEW] {
        let (client, _serving) = connect(&manager(), Person::new(version, Answers::Decline)).await;
        for (tool, arguments, expected) in [
            ("ask", json!({}), "missing field `prompt`"),
            ("ask", json!({ "prompt": 7 }), "invalid type"),
            ("ask", json!({ "prompt": " \n" }), "the prompt is empty"),
            ("ask", json!({ "prompt": "a", "conversation": "../../etc" }), "conversation"),
            ("ask", json!({ "prompt": "a", "conversation": "none" }), "there is no such conversation"),
            ("list", json!({ "after": "1.2" }), "`after` must be"),
            ("list", json!({ "limit": -1 }), "invalid value"),
            ("read", json!({ "conversation": "none" }), "there is no such conversation"),
            ("stop", json!({ "conversation": ["none"] }), "invalid type"),
        ] {
            let refused = failure(&call(&client, tool, arguments).await);
            assert!(refused.contains(expected), "{tool}: {refused}");
        }
        let error = soon(client.call_tool(params("shell", json!({})))).await.unwrap_err();
        assert!(is_protocol_error(&error, -32602), "{error:?}");
    }
}

#[tokio::test]
async fn lines_that_are_not_messages_are_skipped() {
    let (pipe, serving) = serve(served(&manager()));
    let mut pipe = BufReader::new(pipe);
    write(&mut pipe, INITIALIZE).await;
    assert_eq!(read(&mut pipe).await["result"]["serverInfo"]["name"], "served");
    write(&mut pipe, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    for line in ["", "not JSON", "\u{0}\u{7f}", r#"{"jsonrpc":"2.0""#, "[[[[[[[["] {
        write(&mut pipe, line).await;
    }
    write(&mut pipe, r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#).await;
    let listed = read(&mut pipe).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 4, "{listed}");
    drop(pipe);
    soon(serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn request_that_cannot_be_read_is_answered_with_the_reason() {
    let (pipe, serving) = serve(served(&manager()));
    let mut pipe = BufReader::new(pipe);
    write(&mut pipe, INITIALIZE).await;
    read(&mut pipe).await;
    write(&mut pipe, r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    write(&mut pipe, r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"arguments":NaN}}"#).await;
    let refused = read(&mut pipe).await;
    assert_eq!(refused["id"], 2);
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("can't be read: expected value"), "{refused}");
    drop(pipe);
    soon(serving).await.unwrap().unwrap();
}

/// An output that counts its errors.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(cx, data);
        if matches!(written, Poll::Ready(Err(_))) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn output_that_breaks_ends_the_server_with_its_first_error() {
    let (mut pipe, input) = duplex(64 * 1024);
    let (answers, output) = duplex(64 * 1024);
    let errors = Arc::<AtomicUsize>::default();
    let server = served(&manager());
    let serving = tokio::spawn(server.serve(input, Counted(output, Arc::clone(&errors))));
    pipe.write_all(format!("{INITIALIZE}\n").as_bytes()).await.unwrap();
    read(&mut BufReader::new(answers)).await;
    // The answers can no longer be written, but the input stays open.
    for id in 2..6 {
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list" });
        pipe.write_all(format!("{request}\n").as_bytes()).await.unwrap();
    }
    let error = soon(serving).await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("messages to the client can't be written"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Connection);
    assert_eq!(errors.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn line_that_is_too_long_ends_the_connection() {
    let (mut pipe, serving) = serve(served(&manager()));
    let flood = async {
        let piece = vec![b'x'; 64 * 1024];
        while pipe.write_all(&piece).await.is_ok() {}
    };
    soon(flood).await;
    let error = soon(serving).await.unwrap().unwrap_err();
    let text = "the client sent a message of more than 16777216 bytes";
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Connection, text));
}

#[tokio::test]
async fn client_of_another_protocol_is_refused() {
    let (pipe, serving) = serve(served(&manager()));
    let mut pipe = BufReader::new(pipe);
    write(&mut pipe, r#"{"jsonrpc":"2.0","id":1,"method":"session/new","params":{}}"#).await;
    let mut rest = String::new();
    pipe.get_mut().shutdown().await.unwrap();
    soon(pipe.read_to_string(&mut rest)).await.unwrap();
    let error = soon(serving).await.unwrap();
    assert!(
        rest.contains("error") || error.as_ref().is_err_and(|error| error.kind() == ErrorKind::Connection),
        "{rest} {error:?}"
    );
}

#[tokio::test]
async fn calls_above_the_limit_are_refused() {
    let manager = manager();
    let (client, serving) = connect(&manager, Person::new(NEW, Answers::Decline)).await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..65 {
        let peer = client.peer().clone();
        calls
            .spawn(async move { peer.call_tool(params("ask", json!({ "prompt": "Go on for ever" }))).await });
    }
    let refused = failure(&soon(calls.join_next()).await.unwrap().unwrap().unwrap());
    assert_eq!(refused, "64 calls are running already; wait for some of them");
    drop(client);
    soon(serving).await.unwrap().unwrap();
    assert!(manager.list_open().iter().all(|open| open.activity == omni_agent::manager::Activity::Idle));
}
