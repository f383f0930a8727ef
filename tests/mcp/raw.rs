//! A small HTTP server in the process of the test, whose answers each test chooses.

use std::sync::{Arc, Mutex};

use omni_agent::mcp::{McpBuilder, McpClient};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::support::{free_port, soon, until};

/// The answer to a request.
pub enum Reply {
    /// No answer. The connection stays open until the client closes it.
    Silence,
    /// The end of the connection.
    HangUp,
    /// A status and a header line without a body.
    Status(u16, &'static str),
    /// A message as JSON.
    Json(Value),
    /// A status and a message as JSON.
    Refusal(u16, Value),
    /// A status and a plain text.
    Text(u16, &'static str),
    /// A stream of messages and its end.
    Events(Box<dyn Iterator<Item = Value> + Send>, End),
    /// A stream with this text, and its end.
    Stream(String, End),
}

/// The end of a stream of messages.
pub enum End {
    /// The stream stays open until the client closes it.
    Open,
    Complete,
    /// The connection ends in the middle of the response.
    Broken,
}

/// A server, which ends with the test.
pub struct Raw {
    pub url: String,
    log: Arc<Mutex<Vec<String>>>,
    open: watch::Receiver<usize>,
}

impl Raw {
    /// Starts a server that answers each message of the client with the result of `reply`. Requests for a stream and
    /// for the end of a session are the messages `{"method": "GET"}` and `{"method": "DELETE"}`. The members
    /// `path` and `head` of each message are the path of its request, and the lower-case head of a message with a body.
    pub async fn start(reply: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", free_port())).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (reply, log) = (Arc::new(reply), Arc::<Mutex<Vec<String>>>::default());
        let (counter, open) = watch::channel(0);
        let received = Arc::clone(&log);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (reply, received, counter) = (Arc::clone(&reply), Arc::clone(&received), counter.clone());
                counter.send_modify(|count| *count += 1);
                tokio::spawn(async move {
                    let _ = answer(stream, &*reply, &received).await;
                    counter.send_modify(|count| *count -= 1);
                });
            }
        });
        Self { url, log, open }
    }

    /// Returns a client with a fixed version of the protocol.
    pub fn client(&self, version: &str) -> McpBuilder {
        McpClient::http(&self.url).name("raw").version(version)
    }

    /// Returns how many messages with this method have arrived.
    pub fn count(&self, method: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|found| *found == method).count()
    }

    /// Waits until this many messages with this method have arrived.
    pub async fn receives(&self, method: &str, count: usize) {
        until(&format!("{count} × {method}"), || self.count(method) >= count).await;
    }

    /// Waits until the client has closed all connections.
    pub async fn is_abandoned(&self) {
        soon(self.open.clone().wait_for(|open| *open == 0)).await.unwrap();
    }
}

/// Returns the response to a request.
pub fn result(message: &Value, result: &Value) -> Reply {
    Reply::Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
}

/// Returns the result of a tool that is this text.
pub fn text(message: &Value, text: &str) -> Reply {
    result(message, &json!({ "content": [{ "type": "text", "text": text }] }))
}

/// Answers as a server with one tool, `echo`, that supports all versions.
pub fn polite(message: &Value) -> Reply {
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => result(
            message,
            &json!({
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": { "tools": { "listChanged": true } },
                "serverInfo": { "name": "raw", "version": "1" },
            }),
        ),
        "server/discover" => result(
            message,
            &json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"],
                "capabilities": { "tools": { "listChanged": true } }, "ttlMs": 0, "cacheScope": "private",
                "_meta": { "io.modelcontextprotocol/serverInfo": { "name": "raw", "version": "1" } },
            }),
        ),
        "tools/list" => result(message, &list(&["echo"])),
        "tools/call" => text(message, "echoed"),
        "GET" => Reply::Status(405, ""),
        _ => Reply::Status(202, ""),
    }
}

/// Returns a list of tools with these names.
pub fn list(names: &[&str]) -> Value {
    let tools: Vec<_> =
        names.iter().map(|name| json!({ "name": name, "inputSchema": { "type": "object" } })).collect();
    json!({ "resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private" })
}

async fn answer(
    stream: TcpStream,
    reply: &(impl Fn(&Value) -> Reply + Sync),
    received: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let message = read(&mut stream).await?;
    received.lock().unwrap().push(message["method"].as_str().unwrap_or("reply").to_owned());
    let session = if message["method"] == "initialize" { "mcp-session-id: one\r\n" } else { "" };
    let head = |status: u16, rest: &str| {
        format!("HTTP/1.1 {status} Status\r\nconnection: close\r\n{session}{rest}\r\n")
    };
    match reply(&message) {
        Reply::Silence => {}
        Reply::HangUp => return Ok(()),
        Reply::Status(status, line) => {
            let line = if line.is_empty() { String::new() } else { format!("{line}\r\n") };
            return stream.write_all(head(status, &format!("content-length: 0\r\n{line}")).as_bytes()).await;
        }
        Reply::Json(body) => return json_body(&mut stream, |rest| head(200, rest), &body).await,
        Reply::Refusal(status, body) => {
            return json_body(&mut stream, |rest| head(status, rest), &body).await;
        }
        Reply::Text(status, text) => {
            let length = format!("content-type: text/plain\r\ncontent-length: {}\r\n", text.len());
            return stream.write_all(format!("{}{text}", head(status, &length)).as_bytes()).await;
        }
        Reply::Stream(text, end) => {
            let head = head(200, "content-type: text/event-stream\r\n");
            stream.write_all(format!("{head}{text}").as_bytes()).await?;
            if !matches!(end, End::Open) {
                return Ok(());
            }
        }
        Reply::Events(messages, end) => {
            let length = if matches!(end, End::Broken) { "content-length: 1000000\r\n" } else { "" };
            let rest = format!("content-type: text/event-stream\r\n{length}");
            // The client may continue the stream without a delay.
            stream.write_all(format!("{}retry: 0\n\n", head(200, &rest)).as_bytes()).await?;
            for message in messages {
                stream.write_all(format!("data: {message}\n\n").as_bytes()).await?;
                tokio::task::yield_now().await;
            }
            if !matches!(end, End::Open) {
                return Ok(());
            }
        }
    }
    while stream.read(&mut [0; 1024]).await? > 0 {}
    Ok(())
}

async fn json_body(
    stream: &mut BufReader<TcpStream>,
    head: impl Fn(&str) -> String,
    body: &Value,
) -> std::io::Result<()> {
    let body = body.to_string();
    let head = head(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Value> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let Some(length) = length else {
        let method = head.split(' ').next().unwrap_or_default().to_uppercase();
        return Ok(json!({ "method": method, "path": path }));
    };
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await?;
    let mut message: Value = serde_json::from_slice(&body).unwrap();
    message["path"] = path.into();
    message["head"] = head.into();
    Ok(message)
}
