//! Texts that several formats need in the same words or treat alike.

/// Types beside `text/*` whose bytes are text.
const TEXTS: [&str; 5] =
    ["application/json", "application/xml", "application/yaml", "application/toml", "application/javascript"];

/// Whether a file of this media type, in lower case and without parameters, is text.
pub(super) fn is_text(media_type: &str) -> bool {
    media_type.starts_with("text/") || TEXTS.contains(&media_type)
}

/// A tool result's text, for formats without a flag for failure. Services refuse a blank one.
pub(super) fn of_result(text: String, is_error: bool) -> String {
    match (is_error, text.trim().is_empty()) {
        (true, true) => "Error: the tool failed without saying why.".to_owned(),
        (true, false) if !text.starts_with("Error") => format!("Error: {text}"),
        (false, true) => "(no output)".to_owned(),
        _ => text,
    }
}
