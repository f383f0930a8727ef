//! What must hold for any answer of any service, and for any schema. The targets in `fuzz_targets` feed it.

mod answer;
mod schema;
mod split;

pub use answer::{answer, framing};
use omni_agent::provider::{
    Options, Request, UnsupportedAttachment,
    dialect::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses},
};
pub use schema::schema;
use serde_json::Value;

/// Every format, those that quirks change in more than one shape.
fn formats() -> [Box<dyn Dialect>; 7] {
    [
        Box::new(AnthropicMessages::default()),
        Box::new(ChatCompletions::default()),
        Box::new(ChatCompletions::openai()),
        Box::new(OpenAiResponses::default()),
        Box::new(OpenAiResponses::openai()),
        Box::new(GoogleGemini),
        Box::new(OllamaChat),
    ]
}

/// Options under which a format refuses no conversation.
fn lenient() -> Options {
    Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder)
}

/// That every format can say the request, the same way each time, in at most so many bytes.
fn assert_encodes(mut request: Request, limit: usize) {
    request.model = "a-model".into();
    for format in formats() {
        let encode = || match format.encode(&request) {
            Ok(encoded) => Value::Object(encoded.body).to_string(),
            Err(error) => panic!("{} can't say it: {error}", format.name()),
        };
        let body = encode();
        assert!(body.len() <= limit, "{} makes {} bytes of it, not {limit}", format.name(), body.len());
        assert_eq!(body, encode(), "{} says it in two ways", format.name());
    }
}
