//! The JSON shapes of responses. A value that cannot be read is treated as absent, unless the response would lose its
//! meaning without the value.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::provider::dialect::lenient::{Arguments, Count, Reported, Text};

/// A chunk of a stream, or a whole response.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) candidates: Option<Vec<Option<Candidate<'a>>>>,
    #[serde(default)]
    pub(super) prompt_feedback: Option<Box<Value>>,
    #[serde(default)]
    pub(super) usage_metadata: Reported<Box<Usage>>,
    #[serde(borrow, default)]
    pub(super) model_version: Text<'a>,
    #[serde(borrow, default)]
    pub(super) response_id: Text<'a>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate<'a> {
    #[serde(default)]
    pub(super) index: Count,
    #[serde(borrow, default)]
    pub(super) content: Option<Content<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Text<'a>,
    #[serde(borrow, default)]
    pub(super) finish_message: Text<'a>,
    #[serde(default)]
    pub(super) grounding_metadata: Option<Box<Value>>,
    #[serde(default)]
    pub(super) citation_metadata: Option<Box<Value>>,
    #[serde(default)]
    pub(super) url_context_metadata: Option<Box<Value>>,
}

#[derive(Deserialize)]
pub(super) struct Content<'a> {
    #[serde(borrow, default)]
    pub(super) parts: Option<Vec<Option<Part<'a>>>>,
}

/// A part: text, a call, a file, or data that only the service understands.
#[derive(Default)]
pub(super) struct Part<'a> {
    pub(super) text: Option<Text<'a>>,
    pub(super) thought: bool,
    pub(super) signature: Text<'a>,
    pub(super) call: Option<Call<'a>>,
    pub(super) data: Option<Box<Blob>>,
    /// All other members.
    pub(super) other: Map<String, Value>,
}

#[derive(Deserialize)]
pub(super) struct Call<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) args: Arguments<'a>,
    /// Parts of the arguments, if the request asks for them with `streamFunctionCallArguments`.
    #[serde(rename = "partialArgs", default)]
    pub(super) partial_args: Option<Vec<Value>>,
    /// Whether more parts of the call follow.
    #[serde(rename = "willContinue", default)]
    pub(super) will_continue: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Blob {
    #[serde(default)]
    pub(super) mime_type: String,
    #[serde(default)]
    pub(super) data: String,
}

#[derive(PartialEq, Deserialize)]
pub(super) struct Usage {
    #[serde(rename = "promptTokenCount", default)]
    pub(super) prompt: Reported<u64>,
    #[serde(rename = "cachedContentTokenCount", default)]
    pub(super) cached: Reported<u64>,
    #[serde(rename = "candidatesTokenCount", default)]
    pub(super) candidates: Reported<u64>,
    #[serde(rename = "toolUsePromptTokenCount", default)]
    pub(super) tool_use_prompt: Reported<u64>,
    #[serde(rename = "thoughtsTokenCount", default)]
    pub(super) thoughts: Reported<u64>,
}

struct PartVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for PartVisitor<'a> {
    type Value = Part<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a content")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Part<'a>, M::Error> {
        let mut part = Part::default();
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match key.as_str() {
                "text" => part.text = map.next_value()?,
                "thought" => part.thought = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "thoughtSignature" => part.signature = map.next_value()?,
                "functionCall" => part.call = map.next_value()?,
                "inlineData" => part.data = map.next_value()?,
                "" => {
                    map.next_value::<IgnoredAny>()?;
                }
                other => {
                    let other = other.to_owned();
                    let value: Value = map.next_value()?;
                    if !value.is_null() {
                        part.other.insert(other, value);
                    }
                }
            }
        }
        Ok(part)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Part<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PartVisitor(PhantomData))
    }
}

/// Parses the chunks in a JSON text. The text is a single chunk or a list of chunks. The service sends a list if the
/// request did not ask for events.
pub(super) fn parse(data: &str) -> Result<Vec<Chunk<'_>>, serde_json::Error> {
    // Without this check, a list would be parsed as a struct without member names.
    match data.as_bytes() {
        [b'{', ..] => serde_json::from_str(data).map(|chunk| vec![chunk]),
        [b'[', rest @ ..] if matches!(rest.trim_ascii_start(), [b'{', ..]) => serde_json::from_str(data),
        _ => Err(de::Error::custom("a JSON object was expected")),
    }
}
