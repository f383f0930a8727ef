//! Functions for texts that several wire formats share.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::placeholder;
use crate::{
    message::{Attachment, Source},
    provider::{ProviderError, Request},
};

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
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !is_text(&essence) {
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
pub(super) fn of_result(text: String, is_error: bool) -> String {
    match (is_error, text.trim().is_empty()) {
        (true, true) => "Error: the tool failed without saying why.".to_owned(),
        (true, false) if !text.starts_with("Error") => format!("Error: {text}"),
        (false, true) => "(no output)".to_owned(),
        _ => text,
    }
}
