//! A model service on a local socket, in a process of its own, so that only the client's work is counted.
//!
//! It reads no more of a request than it must, and answers with bytes made beforehand.

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};

/// Set for the process that serves.
const ROLE: &str = "OMNI_AGENT_BENCH_SERVER";

/// Picks the bytes of the answer to a request with this head and body.
pub(crate) type Answer = dyn Fn(&str, &[u8]) -> Arc<[u8]> + Send + Sync;

/// How answers are sent: whole, unless something is set.
#[derive(Clone, Default)]
pub(crate) struct Pace {
    /// In pieces of so many bytes, which end wherever they end, each followed by this pause.
    pub(crate) pieces: Option<(usize, Duration)>,
    /// After the first piece, an answer waits until as many have come as far.
    pub(crate) together: usize,
}

/// The server's process, ended with this.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In the process that is to serve: serves, and never returns. In any other: starts that process.
pub(crate) fn start(answer: impl FnOnce() -> Box<Answer>) -> Server {
    start_at(&Pace::default(), answer)
}

/// As [`start`], with answers sent so.
pub(crate) fn start_at(pace: &Pace, answer: impl FnOnce() -> Box<Answer>) -> Server {
    if std::env::var_os(ROLE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime can be made").block_on(serve(answer().into(), pace));
        std::process::exit(0);
    }
    let program = std::env::current_exe().expect("the benchmark is a file");
    let mut process = Command::new(program)
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the benchmark can start itself");
    let mut line = String::new();
    let out = process.stdout.take().expect("its output is piped");
    BufReader::new(out).read_line(&mut line).expect("the server says where it is");
    Server { process, address: line.trim().parse().expect("the server says its address") }
}

async fn serve(answer: Arc<Answer>, pace: &Pace) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    println!("{}", listener.local_addr().expect("it is bound"));
    std::io::stdout().flush().expect("somebody listens");
    // Ends with the process that started it.
    tokio::task::spawn_blocking(|| {
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    });
    let all = Arc::new(Barrier::new(pace.together.max(1)));
    loop {
        let (connection, _) = listener.accept().await.expect("connections can be taken");
        let (answer, pace, all) = (Arc::clone(&answer), pace.clone(), Arc::clone(&all));
        tokio::spawn(async move {
            let _ = converse(connection, &*answer, &pace, &all).await;
        });
    }
}

/// Answers the requests of one connection.
async fn converse(
    mut connection: TcpStream,
    answer: &Answer,
    pace: &Pace,
    all: &Barrier,
) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut read: Vec<u8> = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if connection.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let text = String::from_utf8_lossy(&read[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        while read.len() < head + length {
            if connection.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let bytes = answer(&text, &read[head..head + length]);
        match pace.pieces {
            None => connection.write_all(&bytes).await?,
            Some((size, pause)) => {
                for (index, piece) in bytes.chunks(size).enumerate() {
                    connection.write_all(piece).await?;
                    if index == 0 {
                        all.wait().await;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
        read.drain(..head + length);
    }
}

/// A whole answer: head, and the events in chunks of `size` bytes, or one chunk an event.
pub(crate) fn streamed(events: &[String], size: Option<usize>) -> Arc<[u8]> {
    let mut bytes =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    let mut add = |chunk: &[u8]| {
        bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        bytes.extend_from_slice(chunk);
        bytes.extend_from_slice(b"\r\n");
    };
    match size {
        Some(size) => events.concat().as_bytes().chunks(size).for_each(&mut add),
        None => events.iter().for_each(|event| add(event.as_bytes())),
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes.into()
}

/// Events as OpenAI's Chat Completions has them.
pub(crate) mod chat {
    use serde_json::{Value, json};

    fn event(delta: &Value, finish: Option<&str>) -> String {
        let chunk = json!({
            "id": "chatcmpl-BxZ3kVq7mR2nT9wY5pL8sD4fG6hJ",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "gpt-5-mini-2025-08-07",
            "service_tier": "default",
            "system_fingerprint": "fp_7b2c9d41e0",
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }],
            "obfuscation": "x9Kd2LmQ",
        });
        format!("data: {chunk}\n\n")
    }

    fn whole(deltas: impl IntoIterator<Item = Value>, finish: &str) -> Vec<String> {
        let mut events = vec![event(&json!({ "role": "assistant", "content": "", "refusal": null }), None)];
        events.extend(deltas.into_iter().map(|delta| event(&delta, None)));
        events.push(event(&json!({}), Some(finish)));
        events.push("data: [DONE]\n\n".to_owned());
        events
    }

    /// An answer of a text in pieces.
    pub(crate) fn text(pieces: impl IntoIterator<Item = String>) -> Vec<String> {
        whole(pieces.into_iter().map(|piece| json!({ "content": piece })), "stop")
    }

    /// An answer that uses a tool, its input in pieces.
    pub(crate) fn tool_use(name: &str, pieces: &[&str]) -> Vec<String> {
        let start = json!({ "tool_calls": [{
            "index": 0, "id": "call_8Fj2kLm9", "type": "function", "function": { "name": name, "arguments": "" },
        }] });
        let more = pieces
            .iter()
            .map(|piece| json!({ "tool_calls": [{ "index": 0, "function": { "arguments": piece } }] }));
        whole(std::iter::once(start).chain(more), "tool_calls")
    }
}

/// Events as Anthropic's Messages has them.
pub(crate) mod messages {
    use serde_json::{Value, json};

    fn event(data: &Value) -> String {
        format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
    }

    fn whole(block: &Value, deltas: impl IntoIterator<Item = Value>, stop: &str) -> Vec<String> {
        let mut events = vec![
            event(&json!({ "type": "message_start", "message": {
                "id": "msg_01XFDUDYJgAACzvnptvVoYEL", "type": "message", "role": "assistant",
                "model": "claude-sonnet-4-6", "content": [], "stop_reason": null, "stop_sequence": null,
                "usage": { "input_tokens": 25, "output_tokens": 1 },
            } })),
            event(&json!({ "type": "content_block_start", "index": 0, "content_block": block })),
            event(&json!({ "type": "ping" })),
        ];
        events.extend(
            deltas
                .into_iter()
                .map(|delta| event(&json!({ "type": "content_block_delta", "index": 0, "delta": delta }))),
        );
        events.extend([
            event(&json!({ "type": "content_block_stop", "index": 0 })),
            event(&json!({ "type": "message_delta",
                "delta": { "stop_reason": stop, "stop_sequence": null }, "usage": { "output_tokens": 15 } })),
            event(&json!({ "type": "message_stop" })),
        ]);
        events
    }

    /// An answer of a text in pieces.
    pub(crate) fn text(pieces: impl IntoIterator<Item = String>) -> Vec<String> {
        let deltas = pieces.into_iter().map(|piece| json!({ "type": "text_delta", "text": piece }));
        whole(&json!({ "type": "text", "text": "" }), deltas, "end_turn")
    }

    /// An answer that uses a tool, its input in pieces.
    pub(crate) fn tool_use(name: &str, pieces: &[&str]) -> Vec<String> {
        let deltas = pieces.iter().map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
        let block =
            json!({ "type": "tool_use", "id": "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "name": name, "input": {} });
        whole(&block, deltas, "tool_use")
    }
}
