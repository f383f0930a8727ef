//! The minimum that a program for a single format could do with an answer. It uses reqwest, eventsource-stream (for
//! Ollama, it splits the body into lines instead), and serde types that contain only the fields that are read.

use std::sync::Arc;

use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use serde::Deserialize;

use crate::formats::Format;

pub(crate) fn client() -> reqwest::Client {
    // These requests do not use TLS, but reqwest requires a TLS configuration.
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows the default versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().expect("the client is valid")
}

async fn post(client: &reqwest::Client, url: &str) -> reqwest::Response {
    client.post(url).body("{}").send().await.expect("the server answers")
}

/// Reads an answer without parsing it, and returns the number of its bytes.
pub(crate) async fn read_bytes(client: &reqwest::Client, url: &str) -> usize {
    let mut body = post(client, url).await.bytes_stream();
    let mut length = 0;
    while let Some(chunk) = body.next().await {
        length += chunk.expect("the server sends all").len();
    }
    length
}

/// Reads the text of an answer, and returns the number of its deltas.
pub(crate) async fn read_typed(client: &reqwest::Client, url: &str, format: Format) -> usize {
    let body = post(client, url).await.bytes_stream();
    let mut text = Text::default();
    if format == Format::Ollama {
        read_lines(body, |line| text.take(format, line)).await;
    } else {
        let mut events = body.eventsource();
        while let Some(event) = events.next().await {
            text.take(format, &event.expect("the server sends events").data);
        }
    }
    text.deltas
}

async fn read_lines<B: AsRef<[u8]>, E: std::fmt::Debug>(
    mut body: impl Stream<Item = Result<B, E>> + Unpin,
    mut take: impl FnMut(&str),
) {
    let mut line = Vec::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.expect("the server sends all");
        for part in chunk.as_ref().split_inclusive(|byte| *byte == b'\n') {
            line.extend_from_slice(part);
            if line.ends_with(b"\n") {
                take(str::from_utf8(&line).expect("the server sends text"));
                line.clear();
            }
        }
    }
}

/// The text that has arrived so far, and the number of its deltas.
#[derive(Default)]
struct Text {
    text: String,
    deltas: usize,
}

impl Text {
    fn take(&mut self, format: Format, data: &str) {
        match format {
            Format::Chat if data == "[DONE]" => {}
            Format::Chat => {
                let chunk: ChatChunk = parse(data);
                self.add(chunk.choices.into_iter().next().and_then(|choice| choice.delta.content));
            }
            Format::Messages => self.add(parse::<MessagesEvent>(data).delta.and_then(|delta| delta.text)),
            Format::Responses => {
                let event: ResponsesEvent<'_> = parse(data);
                self.add(event.delta.filter(|_| event.kind == "response.output_text.delta"));
            }
            Format::Gemini => {
                let chunk: GeminiChunk = parse(data);
                let candidate = chunk.candidates.into_iter().next().expect("an answer has a candidate");
                candidate.content.parts.into_iter().for_each(|part| self.add(part.text));
            }
            Format::Ollama => self.add(Some(parse::<OllamaLine>(data).message.content)),
        }
    }

    fn add(&mut self, piece: Option<String>) {
        if let Some(piece) = piece.filter(|piece| !piece.is_empty()) {
            self.deltas += 1;
            self.text.push_str(&piece);
        }
    }
}

fn parse<'a, T: Deserialize<'a>>(data: &'a str) -> T {
    serde_json::from_str(data).expect("the event is valid")
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
struct MessagesEvent {
    delta: Option<MessagesDelta>,
}

#[derive(Deserialize)]
struct MessagesDelta {
    text: Option<String>,
}

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    delta: Option<String>,
}

#[derive(Deserialize)]
struct GeminiChunk {
    candidates: Vec<GeminiCandidate>,
}

#[derive(Deserialize)]
struct GeminiCandidate {
    content: GeminiContent,
}

#[derive(Deserialize)]
struct GeminiContent {
    parts: Vec<GeminiPart>,
}

#[derive(Deserialize)]
struct GeminiPart {
    text: Option<String>,
}

#[derive(Deserialize)]
struct OllamaLine {
    message: OllamaMessage,
}

#[derive(Deserialize)]
struct OllamaMessage {
    content: String,
}
