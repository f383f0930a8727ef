//! The five formats as services stream them. Each event is a raw JSON text, so that a test can corrupt it.

use omni_agent::provider::{Completion, ProviderError, Request, http::Endpoint};

use crate::{endpoints::exchange, server::Reply};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Chat,
    Responses,
    Messages,
    Gemini,
    Ollama,
}

impl Wire {
    pub(crate) const ALL: [Self; 5] =
        [Self::Chat, Self::Responses, Self::Messages, Self::Gemini, Self::Ollama];

    pub(crate) fn endpoint(self, url: &str) -> Endpoint {
        match self {
            Self::Chat => Endpoint::openai_compatible("chat", url),
            Self::Responses => Endpoint::openai_responses_compatible("responses", url),
            Self::Messages => Endpoint::anthropic_compatible("messages", url),
            Self::Gemini => Endpoint::google().with_base_url(url),
            Self::Ollama => Endpoint::ollama_at(url),
        }
    }

    /// Returns the events that precede the first content.
    pub(crate) fn begin(self) -> Vec<String> {
        let events: &[&str] = match self {
            Self::Messages => &[r#"{"type":"message_start","message":{"id":"m","model":"m","content":[]}}"#],
            Self::Responses => &[r#"{"type":"response.created","response":{"id":"r","model":"m"}}"#],
            _ => &[],
        };
        events.iter().map(ToString::to_string).collect()
    }

    /// Returns the events of a text that arrives in these pieces. The pieces must already be escaped for JSON.
    pub(crate) fn text(self, pieces: &[&str]) -> Vec<String> {
        let delta = |text: &&str| match self {
            Self::Chat => format!(r#"{{"id":"c","choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#),
            Self::Responses => format!(
                r#"{{"type":"response.output_text.delta","item_id":"i","output_index":0,"content_index":0,"delta":"{text}"}}"#
            ),
            Self::Messages => format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{text}"}}}}"#
            ),
            Self::Gemini => format!(r#"{{"candidates":[{{"content":{{"parts":[{{"text":"{text}"}}]}}}}]}}"#),
            Self::Ollama => format!(r#"{{"message":{{"content":"{text}"}},"done":false}}"#),
        };
        let mut events: Vec<String> = pieces.iter().map(delta).collect();
        if self == Self::Messages {
            let start =
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
            events.insert(0, start.to_owned());
            events.push(r#"{"type":"content_block_stop","index":0}"#.to_owned());
        }
        events
    }

    /// Returns the last events of an answer.
    pub(crate) fn end(self) -> Vec<String> {
        let events: &[&str] = match self {
            Self::Chat => &[
                r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
                r#"{"id":"c","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
                "[DONE]",
            ],
            Self::Responses => {
                &[r#"{"type":"response.completed","response":{"id":"r","status":"completed"}}"#]
            }
            Self::Messages => &[
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
                r#"{"type":"message_stop"}"#,
            ],
            Self::Gemini => &[r#"{"candidates":[{"finishReason":"STOP"}]}"#],
            Self::Ollama => &[r#"{"message":{"content":""},"done":true,"done_reason":"stop"}"#],
        };
        events.iter().map(ToString::to_string).collect()
    }

    /// Returns the event with the framing of the format.
    pub(crate) fn frame(self, event: &str) -> String {
        if self == Self::Ollama { format!("{event}\n") } else { format!("data: {event}\n\n") }
    }

    /// Returns the body of a complete answer with these events.
    pub(crate) fn body(self, events: &[String]) -> String {
        let all = [self.begin(), events.to_vec(), self.end()].concat();
        all.iter().map(|event| self.frame(event)).collect()
    }

    pub(crate) fn reply(self) -> Reply {
        if self == Self::Ollama { Reply::ndjson() } else { Reply::sse() }
    }

    /// Returns the answer that is decoded from this body.
    pub(crate) async fn answer(self, body: &str) -> Result<Completion, ProviderError> {
        self.answer_to(self.reply().piece(body.to_owned())).await
    }

    pub(crate) async fn answer_to(self, reply: Reply) -> Result<Completion, ProviderError> {
        exchange(&self.endpoint("http://localhost"), "m", Request::prompt("Hi"), reply).await.1
    }
}
