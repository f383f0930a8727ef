//! The JSON shapes of responses. Compatible servers omit members, set them to null or send values of another type. A
//! value that cannot be read is treated as absent, unless the response would lose its meaning without the value.
//!
//! Rare members are boxed, because most of the time for decoding a chunk is spent on moving these structs.

use std::{borrow::Cow, marker::PhantomData};

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::provider::dialect::lenient::{Count, JsonText, Reported, Scalar, ScalarVisitor, Text};

/// A chunk of a stream, or a whole response.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) choices: Option<Vec<Option<Choice<'a>>>>,
    #[serde(default)]
    pub(super) usage: Reported<Box<Usage>>,
    #[serde(default)]
    pub(super) x_groq: Reported<Box<XGroq>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

/// Groq's additional member. It contains the usage even if the request did not ask for usage.
#[derive(Deserialize)]
pub(super) struct XGroq {
    #[serde(default)]
    pub(super) usage: Reported<Box<Usage>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) delta: Option<Box<Piece<'a>>>,
    /// The message of a whole response, which has no `delta`. In a stream, some services repeat the response so far in
    /// this member.
    #[serde(borrow, default)]
    pub(super) message: Option<Box<Piece<'a>>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
    /// The usage, which Moonshot reports inside the choice.
    #[serde(default)]
    pub(super) usage: Reported<Box<Usage>>,
}

#[derive(Deserialize)]
pub(super) struct Piece<'a> {
    #[serde(borrow, default)]
    pub(super) content: Parts<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning_content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) reasoning: Text<'a>,
    #[serde(default)]
    pub(super) reasoning_details: Option<Box<Value>>,
    /// The citations of the response, or the content that the service read from a file in the prompt.
    #[serde(default)]
    pub(super) annotations: Option<Box<Value>>,
    #[serde(borrow, default)]
    pub(super) refusal: Text<'a>,
    /// The images of the response, at OpenRouter and other gateways.
    #[serde(default)]
    pub(super) images: Option<Box<Value>>,
    /// The audio of the response, with its transcript.
    #[serde(default)]
    pub(super) audio: Option<Box<Value>>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<Option<ToolCall<'a>>>>,
    /// The only call, in the older API without parallel calls.
    #[serde(borrow, default)]
    pub(super) function_call: Option<Box<Function<'a>>>,
}

#[derive(Default, Deserialize)]
pub(super) struct ToolCall<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<Function<'a>>,
    /// The call of a custom tool, in place of `function`.
    #[serde(default)]
    pub(super) custom: Option<Box<Value>>,
    /// Data that has to be sent back with the call. Google's compatible endpoint sends its thought signature in this
    /// member.
    #[serde(default)]
    pub(super) extra_content: Option<Box<Value>>,
}

#[derive(Default, Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: JsonText<'a>,
}

#[derive(PartialEq, Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: Reported<u64>,
    #[serde(default)]
    pub(super) completion_tokens: Reported<u64>,
    #[serde(default)]
    pub(super) total_tokens: Reported<u64>,
    #[serde(default)]
    pub(super) prompt_tokens_details: Reported<Box<PromptDetails>>,
    #[serde(default)]
    pub(super) completion_tokens_details: Reported<Box<CompletionDetails>>,
    /// DeepSeek's count of the tokens that were read from the cache.
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: Reported<u64>,
    /// Moonshot's count of the tokens that were read from the cache.
    #[serde(default)]
    pub(super) cached_tokens: Reported<u64>,
    /// The cost of the request in US dollars, which OpenRouter reports.
    #[serde(default)]
    pub(super) cost: Reported<f64>,
}

#[derive(PartialEq, Deserialize)]
pub(super) struct PromptDetails {
    #[serde(rename = "cached_tokens", default)]
    pub(super) read: Reported<u64>,
    /// The tokens written to the cache, under OpenRouter's name.
    #[serde(rename = "cache_write_tokens", default)]
    pub(super) written: Reported<u64>,
    /// The tokens written to the cache, under Alibaba's name.
    #[serde(rename = "cache_creation_input_tokens", default)]
    pub(super) created: Reported<u64>,
}

#[derive(PartialEq, Deserialize)]
pub(super) struct CompletionDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: Reported<u64>,
}

/// A text, or a list of parts that together form a text. Mistral sends such lists, with `text` and `thinking` parts.
#[derive(Default)]
pub(super) struct Parts<'a> {
    pub(super) text: Text<'a>,
    pub(super) thinking: Option<Box<str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Parts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(ScalarVisitor(PhantomData))? {
            Scalar::Text(text) => Self { text: Text::from(text), thinking: None },
            Scalar::Structure(parts) => {
                let (mut text, mut thinking) = (String::new(), String::new());
                gather(&parts, false, &mut text, &mut thinking);
                let thinking = (!thinking.is_empty()).then(|| thinking.into_boxed_str());
                Self { text: Text::from(Cow::Owned(text)), thinking }
            }
            Scalar::None | Scalar::Whole(_) | Scalar::Real(_) | Scalar::Other => Self::default(),
        })
    }
}

fn gather(part: &Value, in_thinking: bool, text: &mut String, thinking: &mut String) {
    match part {
        Value::String(words) if in_thinking => thinking.push_str(words),
        Value::String(words) => text.push_str(words),
        Value::Array(parts) => parts.iter().for_each(|part| gather(part, in_thinking, text, thinking)),
        Value::Object(part) => match (part.get("thinking"), part.get("text")) {
            (Some(inner), _) => gather(inner, true, text, thinking),
            (None, Some(words)) => gather(words, in_thinking, text, thinking),
            _ => {}
        },
        _ => {}
    }
}

/// Parses a chunk from its JSON text.
pub(super) fn parse(data: &str) -> Result<Chunk<'_>, serde_json::Error> {
    // Without this check, a list would be parsed as a struct without member names.
    if !data.starts_with('{') {
        return Err(de::Error::custom("a JSON object was expected"));
    }
    serde_json::from_str(data)
}
