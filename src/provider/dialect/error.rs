//! Interpretation of a service's errors, in all of their usual shapes.

use std::{borrow::Cow, time::Duration};

use serde_json::{Map, Value};

use crate::{
    json::halves,
    provider::{ProviderError, ProviderErrorKind},
};

/// The maximum length, in bytes, of a service's text that an error message contains.
const MESSAGE_LIMIT: usize = 1000;

/// Returns the error for an HTTP response with this status and body.
pub(crate) fn from_body(status: u16, body: &str) -> ProviderError {
    ErrorReport::of(body).into_error(Some(status)).with_status(status).with_body(body)
}

/// Adds the delay that a header of the response requests, if there is one. A quota that is available again after the
/// delay is a rate limit.
#[cfg(feature = "http")]
pub(crate) fn with_wait(mut error: ProviderError, wait: Option<Duration>) -> ProviderError {
    let names_quota = || error.body.as_deref().is_some_and(|body| ErrorReport::of(body).names_quota());
    if wait.is_some() && error.kind == ProviderErrorKind::Quota && error.status != Some(402) && names_quota()
    {
        (error.kind, error.retryable) = (ProviderErrorKind::RateLimit, true);
    }
    error.retry_after = wait.or(error.retry_after);
    error
}

/// Returns the error for an error object inside a response. `error` is the error object itself or its envelope, which
/// is an object that contains the error object as the member `error`.
///
/// The HTTP status of such a response reported success. If the error object contains a status, that status is used
/// instead.
pub(crate) fn from_value(error: &Value) -> ProviderError {
    let report = match error {
        Value::String(text) => ErrorReport::plain(text),
        error => ErrorReport::read(error, 0),
    };
    let status = report.code;
    let body = error.to_string();
    let error = report.into_error(status).with_body(&body);
    match status {
        Some(status) => error.with_status(status),
        None => error,
    }
}

/// Returns the error that an event reports. The event contains an error object, its envelope, or a text.
pub(crate) fn from_event(data: &str) -> ProviderError {
    let error = halves::parse(data.as_bytes()).unwrap_or_else(|_| Value::from(data));
    from_value(&error).with_body(data)
}

/// Returns whether the service has refused private data of earlier answers, because it can't verify the data.
#[cfg(feature = "http")]
pub(crate) fn is_unverified(error: &ProviderError) -> bool {
    let text = error.message.to_lowercase().replace('`', "");
    error.kind == ProviderErrorKind::InvalidRequest
        && UNVERIFIED.iter().any(|parts| parts.iter().all(|part| text.contains(part)))
}

/// Returns whether an `error` member reports an error. Some servers also send this member for a success, with a value
/// such as null.
pub(crate) fn is_error(error: &Value) -> bool {
    match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => true,
    }
}

/// The content of an error body, without its envelope.
#[derive(Default)]
struct ErrorReport {
    message: String,
    /// The types, codes and statuses that are words, reduced to lower-case letters and digits. Services write the same
    /// word in different ways, such as `rate_limit_exceeded`, `RateLimitExceeded` and `RATE_LIMIT_EXCEEDED`.
    words: Vec<String>,
    /// A number that can be an HTTP status.
    code: Option<u16>,
    request_id: Option<String>,
    retry_after: Option<Duration>,
    /// Whether the prompt was rejected by a content check.
    flagged: bool,
}

impl ErrorReport {
    fn of(body: &str) -> Self {
        match halves::parse(body.as_bytes()) {
            Ok(value) if value.is_object() || value.is_array() => Self::read(&value, 0),
            Ok(Value::String(text)) => Self::plain(&text),
            _ => Self::plain(body),
        }
    }

    /// Returns whether a code names a quota. Services send such codes for a spent budget, and also for a limit per
    /// minute: Cerebras sends `token_quota_exceeded` and `request_quota_exceeded`.
    fn names_quota(&self) -> bool {
        self.words.iter().any(|word| word.contains("quota"))
    }

    fn plain(text: &str) -> Self {
        Self { message: readable(text), ..Self::default() }
    }

    /// Reads an envelope, or the content of an envelope. `depth` is the number of outer errors that quote this error.
    fn read(value: &Value, depth: usize) -> Self {
        let outer = match value {
            // Google's compatible endpoint wraps the envelope in a list.
            Value::Array(items) => items.iter().find_map(Value::as_object),
            value => value.as_object(),
        };
        let Some(outer) = outer else {
            return Self { message: cap(&value.to_string()), ..Self::default() };
        };
        let mut report = Self::default();
        let first = outer.get("errors").and_then(|errors| errors.get(0));
        let own = outer.get("error").or(first);
        // Some gateways wrap the envelope of another service, under any name. The words of the gateway itself, if there
        // are any, come first.
        let mut nested = outer.values().filter_map(|member| member.get("error"));
        let wrapped = if own.is_some() { None } else { nested.find(|error| is_error(error)) };
        let speaks = ["message", "msg", "detail", "code", "type"].iter().any(|key| {
            let is_event = |word: &Value| word == "error" || word == "response.error";
            outer.get(*key).is_some_and(|word| is_error(word) && !word.is_object() && !is_event(word))
        });
        match own.or(wrapped.filter(|_| !speaks)) {
            Some(Value::Object(inner)) => report.read_object(inner, depth),
            Some(Value::String(text)) => {
                report.read_object(outer, depth);
                // In `{"error": "Bad Request", "message": "…"}`, `error` is only a word, and `message` has the longer
                // text.
                report.add_word(text);
                if report.message.is_empty() {
                    report.message = readable(text);
                }
            }
            _ => report.read_object(outer, depth),
        }
        if let Some(wrapped) = wrapped.filter(|_| speaks && depth < 2) {
            report.merge(Self::read(wrapped, depth + 1));
        }
        report.request_id = report.request_id.or_else(|| text_at(outer, "request_id"));
        if report.message.is_empty() {
            report.message = cap(&value.to_string());
        }
        report
    }

    fn read_object(&mut self, error: &Map<String, Value>, depth: usize) {
        for key in ["type", "code", "status", "reason", "error_type"] {
            match error.get(key) {
                Some(Value::String(word)) => self.add_word(word),
                Some(Value::Number(number)) => self.add_code(number.as_u64()),
                _ => {}
            }
        }
        self.request_id = text_at(error, "request_id");
        self.message = ["message", "msg", "detail", "error_description", "error_message", "title"]
            .iter()
            .filter_map(|key| error.get(*key))
            .map(words_of)
            .find(|text| !text.is_empty())
            .unwrap_or_default();
        for detail in error.get("details").and_then(Value::as_array).into_iter().flatten() {
            self.read_detail(detail);
        }
        if let Some(nested) = error.get("error").filter(|nested| nested.is_object() && depth < 2) {
            let mut nested = Self::read(nested, depth + 1);
            self.words.append(&mut nested.words);
            self.code = self.code.or(nested.code);
            self.merge(nested);
        }
        if let Some(metadata) = error.get("metadata").and_then(Value::as_object) {
            self.read_metadata(metadata, depth);
        }
    }

    /// Adds the facts of a nested error that this error lacks.
    fn merge(&mut self, nested: Self) {
        if self.message.is_empty() {
            self.message = nested.message;
        }
        self.request_id = self.request_id.take().or(nested.request_id);
        self.retry_after = self.retry_after.or(nested.retry_after);
        self.flagged |= nested.flagged;
    }

    fn add_word(&mut self, word: &str) {
        let word: String = word
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .take(64)
            .collect();
        match word.parse() {
            Ok(number) => self.add_code(Some(number)),
            Err(_) if word.is_empty() => {}
            Err(_) => self.words.push(word),
        }
    }

    fn add_code(&mut self, number: Option<u64>) {
        let status = number.and_then(|number| u16::try_from(number).ok());
        self.code = self.code.or(status.filter(|status| (400..600).contains(status)));
    }

    /// Reads the delay from a `google.rpc.RetryInfo`, or the reason from a `google.rpc.ErrorInfo`.
    fn read_detail(&mut self, detail: &Value) {
        if let Some(reason) = detail.get("reason").and_then(Value::as_str) {
            self.add_word(reason);
        }
        let delay = detail.get("retryDelay").and_then(Value::as_str);
        let seconds = delay.and_then(|delay| delay.strip_suffix('s')).and_then(|text| text.parse().ok());
        self.retry_after = self.retry_after.or(seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()));
    }

    /// Reads the error that OpenRouter quotes from the underlying service:
    /// <https://openrouter.ai/docs/api-reference/errors>.
    fn read_metadata(&mut self, metadata: &Map<String, Value>, depth: usize) {
        self.flagged |= metadata.contains_key("flagged_input");
        let raw = match metadata.get("raw") {
            Some(Value::String(text)) => {
                Cow::Owned(serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())))
            }
            Some(raw) => Cow::Borrowed(raw),
            None => return,
        };
        let quoted = match &*raw {
            Value::String(text) => Self::plain(text),
            Value::Null => return,
            raw if depth < 2 => Self::read(raw, depth + 1),
            raw => Self { message: cap(&raw.to_string()), ..Self::default() },
        };
        self.words.extend(quoted.words);
        self.retry_after = self.retry_after.or(quoted.retry_after);
        self.flagged |= quoted.flagged;
        if !quoted.message.is_empty() && !self.message.contains(&quoted.message) {
            let from = metadata.get("provider_name").and_then(Value::as_str).unwrap_or("upstream");
            self.message = cap(&format!("{} ({from}: {})", self.message, quoted.message));
        }
    }

    fn into_error(self, status: Option<u16>) -> ProviderError {
        let message = self.message.to_lowercase();
        let kind = self.kind(status, &message);
        let text = if self.message.is_empty() { "the service gave no reason" } else { &self.message };
        let is_limit = kind == ProviderErrorKind::RateLimit;
        let stated = || if is_limit { stated_delay(&message) } else { None };
        let mut error = ProviderError::new(kind, text).with_retry_after(self.retry_after.or_else(stated));
        // A single request that exceeds the limit would exceed it again after any wait, so it is not retried.
        if is_limit && message.contains("request too large") {
            error.retryable = false;
        }
        error.request_id = self.request_id;
        error
    }

    fn kind(&self, status: Option<u16>, message: &str) -> ProviderErrorKind {
        if self.flagged {
            return ProviderErrorKind::InvalidRequest;
        }
        let by_word = |rules: &[(&str, ProviderErrorKind)]| {
            let hit = |part: &str| self.words.iter().any(|word| word.contains(part));
            rules.iter().find(|(part, _)| hit(part)).map(|(_, kind)| *kind)
        };
        // OpenCode sends `ModelError`, with status 401, for a model that OpenCode does not have or does not offer in
        // this wire format.
        let refused = status.is_none_or(|status| status < 500);
        if refused && self.words.iter().any(|word| word == "modelerror") {
            return ProviderErrorKind::InvalidRequest;
        }
        // Kimi Code sends this with status 401 if the user's plan includes only a part of the model's context.
        if message.contains("supports only") && message.contains("k context") {
            return ProviderErrorKind::ContextTooLong;
        }
        let may_be_request = matches!(status, None | Some(..=400 | 413 | 422 | 500..));
        let waits = self.retry_after.is_some() || message.contains("per min");
        let is_short = waits && status != Some(402) && self.names_quota();
        by_word(TELLING_WORDS)
            .map(|kind| {
                if kind == ProviderErrorKind::Quota && is_short { ProviderErrorKind::RateLimit } else { kind }
            })
            .or_else(|| find(PHRASES, message))
            .or_else(|| if may_be_request { find(TOO_LONG, message) } else { None })
            // Many services describe every rejected request as invalid, so the status is more precise than a vague
            // word.
            .or_else(|| status.filter(|status| (400..500).contains(status)).map(|s| by_status(s, message)))
            .or_else(|| by_word(VAGUE_WORDS))
            .unwrap_or_else(|| by_status(status.or(self.code).unwrap_or(500), message))
    }
}

/// Words that determine the kind regardless of the status. The first match counts.
const TELLING_WORDS: &[(&str, ProviderErrorKind)] = &[
    // Groq sends these two words with status 400 if the model wrote an unreadable call or unreadable JSON. Another
    // response may be readable: <https://console.groq.com/docs/errors>.
    ("toolusefailed", ProviderErrorKind::Service),
    ("jsonvalidatefailed", ProviderErrorKind::Service),
    ("contextlength", ProviderErrorKind::ContextTooLong),
    ("contextwindow", ProviderErrorKind::ContextTooLong),
    ("contextsize", ProviderErrorKind::ContextTooLong),
    // GitHub Models, and Amazon's Kiro.
    ("tokenslimitreached", ProviderErrorKind::ContextTooLong),
    ("contentlengthexceeds", ProviderErrorKind::ContextTooLong),
    // In this list, the words for rate limits come before the words for quotas, because Alibaba's
    // `Throttling.RateQuota` is a rate limit.
    ("throttl", ProviderErrorKind::RateLimit),
    ("resourceexhausted", ProviderErrorKind::RateLimit),
    ("overloaded", ProviderErrorKind::Overloaded),
    ("serverbusy", ProviderErrorKind::Overloaded),
    ("slowdown", ProviderErrorKind::Overloaded),
    ("capacityexceeded", ProviderErrorKind::Overloaded),
    ("insufficientquota", ProviderErrorKind::Quota),
    ("insufficientbalance", ProviderErrorKind::Quota),
    ("insufficientcredit", ProviderErrorKind::Quota),
    ("insufficientfunds", ProviderErrorKind::Quota),
    ("currentquota", ProviderErrorKind::Quota),
    ("quotaexceeded", ProviderErrorKind::Quota),
    ("billing", ProviderErrorKind::Quota),
    // OpenCode sends the following three words with status 401.
    ("creditserror", ProviderErrorKind::Quota),
    ("monthlylimiterror", ProviderErrorKind::Quota),
    ("userlimiterror", ProviderErrorKind::Quota),
    ("paymentrequired", ProviderErrorKind::Quota),
    ("arrearage", ProviderErrorKind::Quota),
    ("ratelimit", ProviderErrorKind::RateLimit),
    ("toomanyrequests", ProviderErrorKind::RateLimit),
    ("apikey", ProviderErrorKind::Auth),
    ("authenticat", ProviderErrorKind::Auth),
    ("unauthorized", ProviderErrorKind::Auth),
    ("permission", ProviderErrorKind::Auth),
    ("forbidden", ProviderErrorKind::Auth),
    ("accessdenied", ProviderErrorKind::Auth),
    ("timeout", ProviderErrorKind::Timeout),
    ("deadlineexceeded", ProviderErrorKind::Timeout),
    // In HTTP and at Anthropic, this word reports a limit on bytes. The conversation may still fit the model's context.
    ("requesttoolarge", ProviderErrorKind::InvalidRequest),
    ("notsupportederror", ProviderErrorKind::Unsupported),
    ("unimplemented", ProviderErrorKind::Unsupported),
    ("unavailable", ProviderErrorKind::Overloaded),
];

/// Words with several meanings. They count only if the HTTP status does not describe the error more precisely.
const VAGUE_WORDS: &[(&str, ProviderErrorKind)] = &[
    ("invalid", ProviderErrorKind::InvalidRequest),
    ("badrequest", ProviderErrorKind::InvalidRequest),
    ("notfound", ProviderErrorKind::InvalidRequest),
    ("failedprecondition", ProviderErrorKind::InvalidRequest),
    ("outofrange", ProviderErrorKind::InvalidRequest),
    ("unprocessable", ProviderErrorKind::InvalidRequest),
    ("unsupported", ProviderErrorKind::InvalidRequest),
    // OpenAI reports these errors inside a response: `image_too_large`, `failed_to_download_image`.
    ("image", ProviderErrorKind::InvalidRequest),
    ("policy", ProviderErrorKind::InvalidRequest),
];

/// Phrases in the messages of services that report the reason only as text.
const PHRASES: &[(&str, ProviderErrorKind)] = &[
    ("check your plan and billing", ProviderErrorKind::Quota),
    ("credit balance", ProviderErrorKind::Quota),
    ("insufficient balance", ProviderErrorKind::Quota),
    ("insufficient credits", ProviderErrorKind::Quota),
    ("more credits", ProviderErrorKind::Quota),
    // Anthropic sends the first phrase with status 400, and Z.ai sends the second one with 429.
    ("specified api usage limits", ProviderErrorKind::Quota),
    ("limit will reset at", ProviderErrorKind::Quota),
    ("api key not valid", ProviderErrorKind::Auth),
    ("invalid api key", ProviderErrorKind::Auth),
    ("incorrect api key", ProviderErrorKind::Auth),
    // OpenRouter sends this with 404 if no host of the model reads images.
    ("support image input", ProviderErrorKind::Unsupported),
];

/// Phrases in messages about a prompt that does not fit the model's context.
const TOO_LONG: &[(&str, ProviderErrorKind)] = &[
    ("maximum context length", ProviderErrorKind::ContextTooLong),
    ("maximum prompt length", ProviderErrorKind::ContextTooLong),
    ("maximum model length", ProviderErrorKind::ContextTooLong),
    ("prompt is too long", ProviderErrorKind::ContextTooLong),
    ("prompt too long", ProviderErrorKind::ContextTooLong),
    ("prompt token count", ProviderErrorKind::ContextTooLong),
    ("input is too long", ProviderErrorKind::ContextTooLong),
    ("prompt exceeds max length", ProviderErrorKind::ContextTooLong),
    ("context limit", ProviderErrorKind::ContextTooLong),
    ("context window", ProviderErrorKind::ContextTooLong),
    ("context size", ProviderErrorKind::ContextTooLong),
    ("context length", ProviderErrorKind::ContextTooLong),
    ("context_length", ProviderErrorKind::ContextTooLong),
    ("maximum number of tokens allowed", ProviderErrorKind::ContextTooLong),
    ("model token limit", ProviderErrorKind::ContextTooLong),
    ("reduce the length of the messages", ProviderErrorKind::ContextTooLong),
    ("range of input length", ProviderErrorKind::ContextTooLong),
    // The first two are those of Hugging Face's TGI, and the next one is that of DeepInfra.
    ("`inputs` tokens + `max_new_tokens` must be", ProviderErrorKind::ContextTooLong),
    ("`inputs` must have less than", ProviderErrorKind::ContextTooLong),
    ("exceeds maximum input length", ProviderErrorKind::ContextTooLong),
    ("must be less than max_seq_len", ProviderErrorKind::ContextTooLong),
    ("context overflow", ProviderErrorKind::ContextTooLong),
    ("more than max tokens allowed", ProviderErrorKind::ContextTooLong),
    // SiliconFlow.
    ("has exceeded max_prompt_tokens", ProviderErrorKind::ContextTooLong),
    ("has exceeded max_seq_len", ProviderErrorKind::ContextTooLong),
    // SGLang, OpenRouter, Volcengine and Bedrock.
    ("tokens) exceeds the maximum allowed length (", ProviderErrorKind::ContextTooLong),
    ("maximum allowed input length", ProviderErrorKind::ContextTooLong),
    ("exceed max message tokens", ProviderErrorKind::ContextTooLong),
    ("number of input tokens exceeds maximum length", ProviderErrorKind::ContextTooLong),
    ("too many input tokens", ProviderErrorKind::ContextTooLong),
    // SambaNova.
    ("maximum supported sequence length", ProviderErrorKind::ContextTooLong),
    // Anthropic limits the images of a request, and their sizes if there are many. A compaction removes older images.
    ("too much media", ProviderErrorKind::ContextTooLong),
    ("too many images and documents", ProviderErrorKind::ContextTooLong),
    ("max allowed size for many-image requests", ProviderErrorKind::ContextTooLong),
    // Moonshot counts the bytes of the messages only, so the limit is one on the conversation.
    ("total message size", ProviderErrorKind::ContextTooLong),
];

/// Parts of messages about signatures and encrypted reasoning that a service can't verify. The first is that of OpenAI, the
/// next two are those of Anthropic, and the others are those of Google.
#[cfg(feature = "http")]
const UNVERIFIED: &[[&str; 2]] = &[
    ["encrypted content", "could not be"],
    ["invalid signature in", "thinking block"],
    ["redacted_thinking blocks", "cannot be modified"],
    ["corrupted", "thought signature"],
    ["invalid", "thought signature"],
    ["thought signature", "is not valid"],
];

fn find(rules: &[(&str, ProviderErrorKind)], message: &str) -> Option<ProviderErrorKind> {
    rules.iter().find(|(part, _)| message.contains(part)).map(|(_, kind)| *kind)
}

fn by_status(status: u16, message: &str) -> ProviderErrorKind {
    match status {
        // OpenRouter also sends 403 when a prompt fails moderation.
        403 if message.contains("flagged") => ProviderErrorKind::InvalidRequest,
        401 | 403 | 407 => ProviderErrorKind::Auth,
        402 => ProviderErrorKind::Quota,
        // Cloudflare sends 522 and 524 if the service behind it did not respond in time.
        408 | 504 | 522 | 524 => ProviderErrorKind::Timeout,
        429 => ProviderErrorKind::RateLimit,
        529 => ProviderErrorKind::Overloaded,
        500..=503 if message.contains("overloaded") => ProviderErrorKind::Overloaded,
        // Groq sends 498 if the capacity of its flex tier is exceeded.
        498 | 503 if message.contains("capacity") => ProviderErrorKind::Overloaded,
        501 | 505 => ProviderErrorKind::Unsupported,
        // A request that failed because of a lock can be retried, as the official SDKs do.
        409 | 425 => ProviderErrorKind::Service,
        300..=499 => ProviderErrorKind::InvalidRequest,
        _ => ProviderErrorKind::Service,
    }
}

/// Returns the delay that a message in lower case asks for, such as the end of `please try again in 7m12.5s`.
fn stated_delay(message: &str) -> Option<Duration> {
    let phrases = ["try again in ", "try again after ", "retry in ", "retry after "];
    let mut rest = phrases.iter().find_map(|phrase| Some(message.split_once(phrase)?.1))?;
    let mut total = None;
    loop {
        let split =
            |text: &'_ str, is_part: fn(char) -> bool| text.find(|c| !is_part(c)).unwrap_or(text.len());
        let (number, unit) = rest.split_at(split(rest, |c| c.is_ascii_digit() || c == '.'));
        let unit = unit.trim_start();
        let (unit, others) = unit.split_at(split(unit, |c| c.is_ascii_alphabetic()));
        let seconds = match unit {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return total,
        };
        let part =
            number.parse::<f64>().ok().and_then(|count| Duration::try_from_secs_f64(count * seconds).ok());
        let Some(part) = part else { return total };
        total = Some(total.unwrap_or(Duration::ZERO).saturating_add(part));
        rest = others.trim_start();
    }
}

fn text_at(object: &Map<String, Value>, key: &str) -> Option<String> {
    object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(ToOwned::to_owned)
}

/// Returns the text of a message. The message is a string, or the list of problems that a validating server sends.
fn words_of(message: &Value) -> String {
    match message {
        Value::Null => String::new(),
        Value::String(text) => readable(text),
        Value::Array(items) => {
            let texts = items.iter().map(|item| {
                let text = item.get("msg").or(item.get("message")).unwrap_or(item);
                text.as_str().map_or_else(|| text.to_string(), ToOwned::to_owned)
            });
            cap(&texts.take(10).collect::<Vec<_>>().join("; "))
        }
        Value::Object(object) => match object.get("message").or(object.get("msg")) {
            Some(Value::String(text)) => readable(text),
            _ => cap(&message.to_string()),
        },
        other => other.to_string(),
    }
}

/// Makes a text readable in an error message. An HTML page is replaced by its title.
fn readable(text: &str) -> String {
    let text = text.trim();
    if !text.starts_with('<') {
        return cap(text);
    }
    // The title is near the beginning of a page.
    let head = cut(text, 4096).to_ascii_lowercase();
    let title = head.find("<title").and_then(|at| {
        let start = at + head[at..].find('>')? + 1;
        let length = head[start..].find("</title")?;
        text.get(start..start + length)
    });
    match title.map(str::trim).filter(|title| !title.is_empty()) {
        Some(title) => cap(&title.split_whitespace().collect::<Vec<_>>().join(" ")),
        None => "the service sent a page of markup".to_owned(),
    }
}

fn cap(text: &str) -> String {
    let text = text.trim();
    if text.len() <= MESSAGE_LIMIT {
        return text.to_owned();
    }
    format!("{}…", cut(text, MESSAGE_LIMIT))
}

/// Returns the longest prefix of at most `limit` bytes.
fn cut(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}
