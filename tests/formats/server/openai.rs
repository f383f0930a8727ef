//! The common parts of OpenAI's two formats.

use omni_agent::provider::ToolChoice;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Read, is_base64, must};
use crate::script::Fault;

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    Auto,
    None,
    Required,
}

impl From<Word> for ToolChoice {
    fn from(word: Word) -> Self {
        match word {
            Word::Auto => Self::Auto,
            Word::None => Self::None,
            Word::Required => Self::Required,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JsonSchema {
    name: String,
    schema: Value,
    #[serde(default)]
    strict: bool,
}

impl JsonSchema {
    /// Checks the requirements of strict mode:
    /// <https://platform.openai.com/docs/guides/structured-outputs#supported-schemas>.
    pub(super) fn check(self) -> Read<Value> {
        must(is_name(&self.name), || format!("schema name: {} is not a valid name", self.name))?;
        if self.strict {
            must(self.schema["additionalProperties"] == false, || {
                "'additionalProperties' is required to be supplied and to be false".into()
            })?;
            let properties = self.schema["properties"].as_object().map_or(0, Map::len);
            let required = self.schema["required"].as_array().map_or(0, Vec::len);
            must(properties == required, || "'required' must include every key in properties".into())?;
        }
        Ok(self.schema)
    }
}

/// Errors as described in <https://platform.openai.com/docs/guides/error-codes>.
pub(super) fn fault(fault: &Fault) -> (u16, Value) {
    let (status, kind, code, message) = match fault {
        Fault::Auth => {
            (401, "invalid_request_error", Some("invalid_api_key"), "Incorrect API key provided: sk-***.")
        }
        Fault::RateLimit(_) => (
            429,
            "requests",
            Some("rate_limit_exceeded"),
            "Rate limit reached for gpt-5.2. Please try again.",
        ),
        Fault::Overloaded => {
            (503, "server_error", None, "The engine is currently overloaded, please try again later")
        }
        Fault::Invalid(why) => (400, "invalid_request_error", None, &**why),
        Fault::ContextTooLong => (
            400,
            "invalid_request_error",
            Some("context_length_exceeded"),
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
        ),
        Fault::Server => (
            500,
            "server_error",
            None,
            "The server had an error while processing your request. Sorry about that!",
        ),
    };
    (status, json!({"error": {"message": message, "type": kind, "param": null, "code": code}}))
}

/// Returns the base64 data of a data URL, or any other URL unchanged.
pub(super) fn data_of(url: String, media_type: &str) -> Read<String> {
    let Some(rest) = url.strip_prefix("data:") else { return Ok(url) };
    let (kind, data) = rest.split_once(";base64,").ok_or("a data URL without base64")?;
    must(kind.starts_with(media_type), || format!("not {kind}"))?;
    must(is_base64(data), || "invalid base64".into())?;
    Ok(data.to_owned())
}

pub(super) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
