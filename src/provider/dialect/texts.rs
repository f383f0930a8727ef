//! Functions for texts that several wire formats share.

/// The media types, other than `text/*`, whose content is text.
const TEXTS: [&str; 5] =
    ["application/json", "application/xml", "application/yaml", "application/toml", "application/javascript"];

/// Returns whether a file of this media type is text. The media type has to be in lower case and without parameters.
pub(super) fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/") || TEXTS.contains(&media_type)
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
