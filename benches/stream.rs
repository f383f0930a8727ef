//! A stream of 10,000 deltas, from a local socket to a subscriber of an agent, against the least that a
//! program written for the one format could do: reqwest, eventsource-stream and typed serde.
//!
//! CPU time of the client alone: the server is another process. Each round runs every contender once, so that
//! the machine's moods hit all of them; the ratios are medians of the rounds' ratios.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod server;
#[allow(dead_code)]
mod support;

use std::sync::Arc;

use eventsource_stream::Eventsource;
use futures_util::{StreamExt, TryStreamExt};
use omni_agent::{
    agent::{Agent, Event},
    message::History,
    provider::{Model, Request, http::Endpoint},
    subscription::Update,
};
use serde::Deserialize;
use server::{Server, chat, messages, streamed};
use support::{cpu, head, median, on_this_thread, row, size};

const DELTAS: usize = 10_000;
const WORDS: [&str; 8] = ["The", " quick", " brown", " fox", " jumps", " over", " the lazy", " dog\n"];

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Chat,
    Messages,
}

fn pieces() -> impl Iterator<Item = String> {
    (0..DELTAS).map(|index| WORDS[index % WORDS.len()].to_owned())
}

fn main() {
    let server = server::start(|| {
        let (chat, messages) = (chat::text(pieces()), messages::text(pieces()));
        let answers = [
            ("/chat-large/", streamed(&chat, Some(16 * 1024))),
            ("/chat-small/", streamed(&chat, None)),
            ("/messages-large/", streamed(&messages, Some(16 * 1024))),
            ("/messages-small/", streamed(&messages, None)),
        ];
        Box::new(move |head, _| {
            let found = answers.iter().find(|(path, _)| head.contains(path));
            Arc::clone(&found.expect("an answer is asked for that is there").1)
        })
    });
    let rounds = size(31, 1);
    for (format, name, body) in [
        (Format::Chat, "Chat Completions", chat::text(pieces())),
        (Format::Messages, "Messages", messages::text(pieces())),
    ] {
        let bytes = body.concat().len() as f64 / 1e6;
        for (chunks, how) in [("large", "chunks of 16 KiB"), ("small", "a chunk an event")] {
            on_this_thread(compare(
                &server,
                format,
                chunks,
                rounds,
                &format!("{name}, {bytes:.2} MB, {how}"),
            ));
        }
    }
}

async fn compare(server: &Server, format: Format, chunks: &str, rounds: usize, title: &str) {
    let path = match format {
        Format::Chat => format!("http://{}/chat-{chunks}", server.address),
        Format::Messages => format!("http://{}/messages-{chunks}", server.address),
    };
    let client = reqwest_client();
    let endpoint = match format {
        Format::Chat => Endpoint::openai_compatible("local", &path),
        Format::Messages => Endpoint::anthropic_compatible("local", &path),
    };
    let model = Model::new(Arc::new(endpoint), "a-model");
    let agent = Agent::builder().model(model.clone()).start().await.expect("the agent starts");

    let (mut bytes, mut raw, mut ours, mut alone) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut ratio, mut ratio_alone) = (Vec::new(), Vec::new());
    // The first round is to warm up.
    for round in 0..=rounds {
        let before = cpu();
        read_bytes(&client, &path).await;
        let after_bytes = cpu();
        read_typed(&client, &path, format).await;
        let after_raw = cpu();
        read_agent(&agent).await;
        let after_agent = cpu();
        read_model(&model).await;
        let after_model = cpu();
        if round > 0 {
            let ms = |from: std::time::Duration, to: std::time::Duration| {
                to.checked_sub(from).unwrap().as_secs_f64() * 1e3
            };
            bytes.push(ms(before, after_bytes));
            raw.push(ms(after_bytes, after_raw));
            ours.push(ms(after_raw, after_agent));
            alone.push(ms(after_agent, after_model));
            ratio.push(ms(after_raw, after_agent) / ms(after_bytes, after_raw));
            ratio_alone.push(ms(after_agent, after_model) / ms(after_bytes, after_raw));
        }
    }
    head(&format!("{title}: CPU, median of {rounds}"));
    row("bytes only", format!("{:.1} ms", median(bytes)), "—");
    row("raw reference: reqwest, eventsource-stream, typed serde", format!("{:.1} ms", median(raw)), "—");
    row("a model without an agent, its deltas", format!("{:.1} ms", median(alone)), "—");
    row("an agent, to its subscriber", format!("{:.1} ms", median(ours)), "—");
    row("ratio of the model to the raw reference", format!("{:.2}", median(ratio_alone)), "—");
    row("ratio of the agent to the raw reference", format!("{:.2}", median(ratio)), "≤ 1.1");
}

fn reqwest_client() -> reqwest::Client {
    // The reference needs no TLS, but reqwest wants some.
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows the default versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .build()
        .expect("a client can be made")
}

async fn post(client: &reqwest::Client, path: &str) -> reqwest::Response {
    client.post(format!("{path}/v1/raw")).body("{}").send().await.expect("the server answers")
}

async fn read_bytes(client: &reqwest::Client, path: &str) {
    let mut body = post(client, path).await.bytes_stream();
    let mut length = 0;
    while let Some(chunk) = body.next().await {
        length += chunk.expect("the server sends all").len();
    }
    assert!(length > 1_000_000);
}

#[derive(Deserialize)]
struct ChatChunk {
    choices: Vec<ChatChoice>,
}

#[derive(Deserialize)]
struct ChatChoice {
    delta: ChatDelta,
}

#[derive(Deserialize)]
struct ChatDelta {
    content: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessagesEvent {
    ContentBlockDelta {
        delta: MessagesDelta,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum MessagesDelta {
    TextDelta {
        text: String,
    },
    #[serde(other)]
    Other,
}

async fn read_typed(client: &reqwest::Client, path: &str, format: Format) {
    let mut events = post(client, path).await.bytes_stream().eventsource();
    let (mut text, mut deltas) = (String::new(), 0);
    let mut add = |piece: &str| {
        deltas += usize::from(!piece.is_empty());
        text.push_str(piece);
    };
    while let Some(event) = events.next().await {
        let event = event.expect("the server sends events");
        match format {
            Format::Chat if event.data == "[DONE]" => break,
            Format::Chat => {
                let chunk: ChatChunk = serde_json::from_str(&event.data).expect("the event is a chunk");
                let content = chunk.choices.into_iter().next().and_then(|choice| choice.delta.content);
                add(&content.unwrap_or_default());
            }
            Format::Messages => {
                let event = serde_json::from_str(&event.data).expect("the event is of the format");
                if let MessagesEvent::ContentBlockDelta { delta: MessagesDelta::TextDelta { text } } = event {
                    add(&text);
                }
            }
        }
    }
    // To the end, that the connection can serve the next.
    while events.next().await.is_some() {}
    assert_eq!(deltas, DELTAS);
}

async fn read_model(model: &Model) {
    let mut deltas = model.stream(Request::prompt("Go on."));
    let mut count = 0;
    while let Some(delta) = deltas.try_next().await.expect("the server sends an answer") {
        count += usize::from(delta.is_content());
    }
    assert!(count >= DELTAS);
}

async fn read_agent(agent: &Agent) {
    let mut events = agent.subscribe().await.expect("the agent lives");
    agent.prompt("Go on.").await.expect("the agent is idle");
    let mut deltas = 0;
    loop {
        match events.next().await {
            Some(Update::Event(event)) => match &*event.event {
                Event::TextDelta { .. } => deltas += 1,
                Event::Turn(_) => break,
                Event::Error { failure, .. } => panic!("{failure}"),
                _ => {}
            },
            other => panic!("a reader that keeps up gets events, not {other:?}"),
        }
    }
    assert_eq!(deltas, DELTAS);
    // The next round is to send the same request.
    let reset = agent.set_state(|draft| {
        draft.history = History::new();
        Ok(())
    });
    reset.await.expect("an empty history is sound");
}
