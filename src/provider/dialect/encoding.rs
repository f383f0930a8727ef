//! Parts that the encoders of several wire formats share.

use std::borrow::Cow;

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use serde::Deserialize;
use serde_json::{Map, Number, Value, json};

use super::Encoded;
use crate::{
    message::{Attachment, Message, Role, Source, ToolUse},
    provider::{
        CacheHint, Effort, ModelInfo, Options, ProviderError, ProviderErrorKind, Request, ThinkingMode,
        ToolChoice, UnsupportedAttachment,
        catalogue::{ModelTraits, OpenAiTraits},
    },
    setters::setters,
    tool::Tool,
};

/// The limit that has room for the thinking and the answer. Thinking counts towards the limit.
const MAX_TOKENS: u64 = 32_000;

/// The smallest limit. A thinking budget leaves at least this room for the answer.
pub(super) const MIN_TOKENS: u32 = 4096;

/// The number of bytes of JSON text that count as one token of the input. Tokens of most texts are longer, so the
/// estimate is rather too high.
const BYTES_PER_TOKEN: u64 = 3;

/// Base64 in the standard alphabet. Padding is optional, so that an application need not know whether its data is
/// padded.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The user message before a conversation that the assistant begins, for services that want a user message first.
pub(super) const OPENING: &str = "(The assistant begins the conversation.)";

/// The formats, other than `text/*`, that are text.
const TEXTS: [&str; 8] = ["json", "xml", "yaml", "toml", "javascript", "jsonl", "ndjson", "sql"];

/// The warning for a cache hint that asks for a time for which the service has no setting.
pub(super) const NO_LONG_CACHE: &str =
    "`cache` is not extended: this service has no setting for the time that the prompt is kept";

/// The words that a service uses for reasoning efforts, in `reasoning_effort` and similar members.
///
/// Two efforts may share a word. If an effort is sent as the word of another effort, the request gets a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct EffortWords {
    /// The word for no reasoning. `None` if reasoning cannot be turned off. If the word is the word for
    /// [`Effort::Low`], a request that turns reasoning off gets this effort and a warning.
    pub off: Option<&'static str>,
    /// The word for [`Effort::Minimal`].
    pub minimal: &'static str,
    /// The word for [`Effort::Low`].
    pub low: &'static str,
    /// The word for [`Effort::Medium`].
    pub medium: &'static str,
    /// The word for [`Effort::High`].
    pub high: &'static str,
    /// The word for [`Effort::Max`].
    pub max: &'static str,
}

setters!(EffortWords:
    with_off(off: Option<&'static str>),
    with_minimal(minimal: &'static str),
    with_low(low: &'static str),
    with_medium(medium: &'static str),
    with_high(high: &'static str),
    with_max(max: &'static str),
);

impl EffortWords {
    /// The words for the three efforts that every service with `reasoning_effort` supports, and for no reasoning.
    pub const COMMON: Self =
        Self { off: Some("none"), minimal: "low", low: "low", medium: "medium", high: "high", max: "high" };

    /// The words for all efforts of OpenAI. Each model supports only some of them.
    pub const OPENAI: Self = Self { minimal: "minimal", max: "xhigh", ..Self::COMMON };

    /// Limits the words to the efforts that a model supports.
    pub(in crate::provider) fn narrowed(self, traits: &OpenAiTraits) -> Self {
        let word = |effort| self.word(supported_effort(&traits.efforts, effort).unwrap_or(effort));
        Self {
            off: self.off.filter(|_| traits.off),
            minimal: word(Effort::Minimal),
            low: word(Effort::Low),
            medium: word(Effort::Medium),
            high: word(Effort::High),
            max: word(Effort::Max),
        }
    }

    pub(super) const fn word(self, effort: Effort) -> &'static str {
        match effort {
            Effort::Minimal => self.minimal,
            Effort::Low => self.low,
            Effort::Medium => self.medium,
            Effort::High => self.high,
            Effort::Max => self.max,
        }
    }
}

/// Returns the lowest of the supported efforts that is not below `wanted`. If all supported efforts are below `wanted`,
/// returns the highest of them. Returns `None` if the list is empty.
pub(super) fn supported_effort(efforts: &[Effort], wanted: Effort) -> Option<Effort> {
    efforts.iter().find(|effort| **effort >= wanted).or(efforts.last()).copied()
}

/// Returns this crate's name for an effort.
pub(super) const fn effort_name(effort: Effort) -> &'static str {
    EffortWords { minimal: "minimal", max: "max", ..EffortWords::COMMON }.word(effort)
}

/// Returns the usual token budget of an effort.
pub(super) const fn budget_of(effort: Effort) -> u32 {
    match effort {
        Effort::Minimal => 1024,
        Effort::Low => 4096,
        Effort::Medium => 16_384,
        Effort::High => 24_576,
        Effort::Max => 32_768,
    }
}

/// Returns the highest usual budget that is not above `tokens`, or else the smallest one.
pub(super) fn budget_within(tokens: u32) -> u32 {
    let levels = [Effort::Max, Effort::High, Effort::Medium, Effort::Low].map(budget_of);
    levels.into_iter().find(|budget| *budget <= tokens).unwrap_or(budget_of(Effort::Minimal))
}

/// Returns the effort whose usual budget is nearest to `tokens`.
pub(super) fn nearest(tokens: u32) -> Effort {
    let levels = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::Max];
    let distance = |effort: &Effort| budget_of(*effort).abs_diff(tokens);
    levels.into_iter().min_by_key(distance).unwrap_or(Effort::Max)
}

/// Returns the word for the reasoning effort, and warns if it is not exactly the requested effort. Returns `None` if
/// the request turns thinking off and the service has no word for this.
pub(super) fn effort_word(words: EffortWords, mode: ThinkingMode, out: &mut Encoded) -> Option<&'static str> {
    match mode {
        ThinkingMode::Off | ThinkingMode::Budget(0) => {
            if words.off.is_none() {
                out.warn("`thinking` stays on: it cannot be turned off for this model");
            } else if words.off == Some(words.low) {
                out.warn(format!(
                    "`thinking` is changed from off to effort {}: it cannot be turned off for this model",
                    words.low
                ));
            }
            words.off
        }
        ThinkingMode::Effort(effort) => {
            let (asked, word) = (effort_name(effort), words.word(effort));
            // `xhigh` is OpenAI's word for the highest effort, so its use for `Effort::Max` causes no warning.
            if word != asked && !(effort == Effort::Max && word == "xhigh") {
                out.warn(format!(
                    "`thinking` is changed from effort {asked} to {word}: \
                     the service has no effort {asked} for this model"
                ));
            }
            Some(word)
        }
        ThinkingMode::Budget(budget) => {
            let word = words.word(nearest(budget));
            out.warn(format!(
                "`thinking` is changed from a budget of {budget} tokens to effort {word}: \
                 the service accepts no budget for this model"
            ));
            Some(word)
        }
    }
}

/// Returns temperature and top-p, as far as the model accepts them. `taken` indicates whether it accepts values other
/// than the default.
pub(super) fn sampling(options: &Options, taken: bool, out: &mut Encoded) -> Vec<(String, Value)> {
    let mut accepted = Vec::new();
    for (key, value) in [("temperature", options.temperature()), ("top_p", options.top_p())] {
        match value.map(Number::from_f64) {
            None => {}
            // Every model accepts the default value 1, so it causes no warning.
            Some(Some(number)) if !taken && number.as_f64() != Some(1.0) => {
                out.warn(format!(
                    "`{key}` is ignored: for this request, the model accepts only the default value"
                ));
            }
            Some(Some(number)) => accepted.push((key.to_owned(), Value::Number(number))),
            Some(None) => out.warn(format!("`{key}` is ignored: it is not a finite number")),
        }
    }
    accepted
}

/// Returns the stop sequences, at most `limit`. `service` names the service in the warning about the others.
pub(super) fn stop_sequences<'a>(
    options: &'a Options,
    limit: usize,
    service: &str,
    out: &mut Encoded,
) -> Vec<&'a str> {
    let all = options.stop_sequences().into_iter().flatten().map(String::as_str);
    let mut stop: Vec<&str> = all.filter(|stop| !stop.is_empty()).collect();
    if stop.len() > limit {
        let left_out = stop.len() - limit;
        out.warn(format!(
            "`stop_sequences` is shortened: {service} supports only {limit}, and the last {left_out} are ignored"
        ));
        stop.truncate(limit);
    }
    stop
}

/// Returns the application's labels. The service accepts only strings as their values, so each other value becomes its
/// JSON text.
pub(super) fn labels(metadata: &Map<String, Value>) -> Map<String, Value> {
    let labels = metadata.iter().map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        (key.clone(), Value::String(text))
    });
    labels.collect()
}

/// Returns the output limit for a request with this body. The limit lies within the model's limit and within the
/// estimated rest of its context window, but is not below [`MIN_TOKENS`] unless the model's limit is.
pub(in crate::provider) fn default_limit(
    info: Option<&ModelInfo>,
    body: &Map<String, Value>,
    budget: Option<u32>,
) -> u32 {
    let window = info.and_then(|info| info.context_window);
    let free = window.map(|window| window.saturating_sub(object_len(body) / BYTES_PER_TOKEN));
    u32::try_from(limit_within(info, free, budget)).unwrap_or(u32::MAX)
}

/// Returns the default output limit if `free` tokens of the context window are left.
fn limit_within(info: Option<&ModelInfo>, free: Option<u64>, budget: Option<u32>) -> u64 {
    let min = u64::from(MIN_TOKENS);
    let wanted = MAX_TOKENS.max(u64::from(budget.unwrap_or(0)) + min);
    let fitting = wanted.min(free.unwrap_or(u64::MAX)).max(min);
    fitting.min(info.and_then(|info| info.output_limit).unwrap_or(u64::MAX))
}

/// Returns the number of tokens that a request to a model may have, if it is known. If the model has no limit for its
/// input, the context window has to hold the response, too. At most half of a small window is kept free for the response.
pub(crate) fn room(info: &ModelInfo, options: &Options) -> Option<u64> {
    let budget = match options.thinking() {
        Some(ThinkingMode::Budget(budget)) => Some(budget),
        _ => None,
    };
    let reserve = options.max_tokens().map(u64::from);
    let reserve = reserve.unwrap_or_else(|| limit_within(Some(info), None, budget));
    info.input_limit.or_else(|| info.context_window.map(|window| window - reserve.min(window / 2)))
}

/// Returns the approximate length of an object in JSON text, without the escapes of strings and without base64. The
/// time depends on the number of values, and not on the length of their texts.
fn object_len(members: &Map<String, Value>) -> u64 {
    let is_base64 = members.get("type").is_some_and(|kind| kind == "base64");
    let sent = members.iter().filter(|(key, _)| !is_base64 || *key != "data");
    sent.map(|(key, value)| key.len() as u64 + 4 + json_len(value)).sum()
}

fn json_len(value: &Value) -> u64 {
    match value {
        Value::String(text) if text.starts_with("data:") => 0,
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => items.iter().map(|item| json_len(item) + 1).sum(),
        Value::Object(members) => object_len(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}

/// Returns the value of `cache_control` that marks a text. Anthropic's models cache the prompt up to the marked text.
pub(super) fn cache_control(hint: CacheHint) -> Value {
    match hint {
        CacheHint::Short => json!({"type": "ephemeral"}),
        CacheHint::Long => json!({"type": "ephemeral", "ttl": "1h"}),
    }
}

/// Returns the media type of a file in lower case, without its parameters.
pub(super) fn essence(attachment: &Attachment) -> String {
    attachment.media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns the input of a tool use for services that accept only objects. Any other value is wrapped in an object.
pub(super) fn input_object(tool_use: &ToolUse) -> Value {
    match &tool_use.input {
        input @ Value::Object(_) => input.clone(),
        Value::Null => json!({}),
        other => json!({"value": other}),
    }
}

/// Returns the input of a tool use as JSON text. The request must be valid even if the model wrote invalid JSON.
pub(super) fn input_text(tool_use: &ToolUse) -> String {
    if tool_use.malformed.is_some() { "{}".to_owned() } else { tool_use.input.to_string() }
}

/// Returns whether the ids of the message's tool uses are sent unchanged, because the service of this request made them.
/// Models such as Kimi K2 fail if their ids come back changed, and some gateways keep data in the ids. Claude and
/// OpenAI's models reject the ids of other models, so their requests keep no ids: a gateway may offer all of them under
/// names of its own, or choose between them.
pub(super) fn keeps_ids(request: &Request, message: &Message, format: &str) -> bool {
    !is_strict(request) && message.provider_data.contains_key(format)
}

/// Returns whether the model of the request may be Claude or one of OpenAI's models, which check what is sent back.
pub(super) fn is_strict(request: &Request) -> bool {
    let (traits, unknown) = (request.traits(), ModelTraits::unknown());
    let name = request.model.to_ascii_lowercase();
    let is_named = name.contains("claude") || name.contains("gpt-") && !name.contains("gpt-oss");
    is_named
        || name.ends_with("/auto")
        || traits.messages.sampling != unknown.messages.sampling
        || traits.openai != unknown.openai
}

/// Returns a tool's description. A blank description is replaced by the tool's name, because Amazon Bedrock and gateways
/// to it reject an empty one, and some of them a missing one too.
pub(super) fn description(tool: &dyn Tool) -> Cow<'_, str> {
    let description = tool.description();
    if description.trim().is_empty() { tool.name().into() } else { description }
}

/// Returns whether a tool choice forces the use of a tool.
pub(super) fn is_forced(choice: Option<&ToolChoice>) -> bool {
    matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_)))
}

/// Warns about a tool choice that forces a tool, for a request without tools. Services reject a tool choice without
/// tools, so none is sent.
pub(super) fn warn_without_tools(choice: Option<&ToolChoice>, out: &mut Encoded) {
    if is_forced(choice) {
        out.warn("`tool_choice` is ignored: the request has no tools");
    }
}

/// Returns a file's bytes as a data URL.
pub(super) fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}

/// Returns whether a file of this media type is text, such as `application/json`, `application/x-yaml` or
/// `application/atom+xml`. The media type has to be in lower case and without parameters.
pub(super) fn is_text(media_type: &str) -> bool {
    let format = media_type.strip_prefix("application/").and_then(|subtype| subtype.rsplit('+').next());
    let format = format.map(|format| format.strip_prefix("x-").unwrap_or(format));
    media_type.starts_with("text/") || format.is_some_and(|format| TEXTS.contains(&format))
}

/// Returns the text of a text file, or the reason why the file has no text.
pub(super) fn decoded(data: &str) -> Result<String, &'static str> {
    let bytes = BASE64.decode(data).map_err(|_| "its base64 is invalid")?;
    String::from_utf8(bytes).map_err(|_| "its text is not UTF-8")
}

/// Returns the text of a text file together with its name, for services that do not accept the file as a document. If
/// the file has no text, returns a [`placeholder`]. Returns `None` if the file is not a text file or is not sent as data.
///
/// # Errors
///
/// Fails like [`placeholder`].
pub(super) fn inlined(request: &Request, attachment: &Attachment) -> Result<Option<String>, ProviderError> {
    let Attachment { source: Source::Base64 { data }, media_type, name, .. } = attachment else {
        return Ok(None);
    };
    if !is_text(&essence(attachment)) {
        return Ok(None);
    }
    let name = name.as_deref().unwrap_or("unnamed");
    match decoded(data) {
        Ok(text) => {
            Ok(Some(format!("[attachment {name} ({media_type})]\n{text}\n[end of attachment {name}]")))
        }
        Err(why) => placeholder(request, attachment, why).map(Some),
    }
}

/// Returns the text of a tool result, for wire formats without a flag for failure. A blank text is replaced, because
/// services reject it.
pub(super) fn result_text(text: String, is_error: bool) -> String {
    match (is_error, text.trim().is_empty()) {
        (true, true) => "Error: the tool failed without saying why.".to_owned(),
        (true, false) if !text.starts_with("Error") => format!("Error: {text}"),
        (false, true) => "(no output)".to_owned(),
        _ => text,
    }
}

/// Returns the text that replaces an attachment that the wire format or the model does not support.
///
/// The text names the attachment and the reason `why`.
///
/// # Errors
///
/// Returns [`ProviderErrorKind::Unsupported`], unless
/// [`Options::unsupported_attachment`](crate::provider::Options::unsupported_attachment) asks for a placeholder.
pub fn placeholder(request: &Request, attachment: &Attachment, why: &str) -> Result<String, ProviderError> {
    let name = attachment.name.as_deref().unwrap_or("unnamed");
    let media_type = &attachment.media_type;
    match request.options.unsupported_attachment().unwrap_or_default() {
        UnsupportedAttachment::Placeholder => {
            Ok(format!("[attachment {name} ({media_type}) left out: {why}]"))
        }
        UnsupportedAttachment::Error => Err(ProviderError::new(
            ProviderErrorKind::Unsupported,
            format!(
                "attachment {name} ({media_type}): {why}; set Options::unsupported_attachment to send a placeholder"
            ),
        )),
    }
}

/// Returns the text that replaces an unsupported attachment of `message`. A file that a model made is only mentioned,
/// because an error would block the conversation. All other attachments are replaced by a [`placeholder`].
///
/// # Errors
///
/// Fails like [`placeholder`].
pub(in crate::provider) fn mention(
    request: &Request,
    message: &Message,
    attachment: &Attachment,
    why: &str,
) -> Result<String, ProviderError> {
    // Each response has provider data. Assistant messages that the application wrote have none.
    if message.role == Role::Assistant && !message.provider_data.is_empty() {
        return Ok(format!("[{} of this answer, omitted]", attachment.media_type));
    }
    placeholder(request, attachment, why)
}
