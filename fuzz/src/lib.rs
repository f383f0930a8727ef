//! Invariants for any answer of any service, any schema and any stored turn. The targets in `fuzz_targets` use them.

mod answer;
mod schema;
mod split;
mod turn;

pub use answer::{answer, framing};
use omni_agent::provider::{
    Options, Request, UnsupportedAttachment,
    custom::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses},
};
pub use schema::schema;
use serde_json::Value;
pub use turn::turn;

/// Returns every format. Formats with switches for deviations appear with several settings.
fn formats() -> [Box<dyn Dialect>; 7] {
    [
        Box::new(AnthropicMessages::default()),
        Box::new(ChatCompletions::default()),
        Box::new(ChatCompletions::openai()),
        Box::new(OpenAiResponses::default()),
        Box::new(OpenAiResponses::openai()),
        Box::new(GoogleGemini::default()),
        Box::new(OllamaChat::default()),
    ]
}

/// Returns options with which no format rejects a conversation.
fn lenient() -> Options {
    Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder)
}

/// Checks that every format encodes the request deterministically in at most this many bytes.
fn assert_encodes(mut request: Request, limit: usize) {
    request.model = "a-model".into();
    for format in formats() {
        let encode = || match format.encode(&request) {
            Ok(encoded) => Value::Object(encoded.body).to_string(),
            Err(error) => panic!("{} can't encode the request: {error}", format.name()),
        };
        let body = encode();
        assert!(
            body.len() <= limit,
            "{} encodes {} bytes, above the limit of {limit}",
            format.name(),
            body.len()
        );
        assert_eq!(body, encode(), "{} does not encode deterministically", format.name());
    }
}
