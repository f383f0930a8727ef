//! The media types of files for which clients send none, or only a kind such as `image/*`.
//!
//! The protocols of the front ends allow both, but model services need the exact type.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use crate::message::{Attachment, Source};

/// The type of a file about which nothing is known.
const UNKNOWN: &str = "application/octet-stream";

/// The first bytes of files, and the types of these files.
const SIGNATURES: [(&[u8], &str); 5] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
];

/// The endings of names, and the types of these files.
const ENDINGS: [(&str, &str); 21] = [
    ("png", "image/png"),
    ("jpg", "image/jpeg"),
    ("jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("heic", "image/heic"),
    ("svg", "image/svg+xml"),
    ("pdf", "application/pdf"),
    ("txt", "text/plain"),
    ("md", "text/markdown"),
    ("csv", "text/csv"),
    ("html", "text/html"),
    ("json", "application/json"),
    ("mp3", "audio/mpeg"),
    ("wav", "audio/wav"),
    ("mp4", "video/mp4"),
    ("mov", "video/quicktime"),
    ("webm", "video/webm"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
];

/// Returns the kind of files that a media type names, such as `image`, if the type names no format. The kind is empty if
/// the type names no kind either.
fn kind(media_type: &str) -> Option<&str> {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case(UNKNOWN) {
        return Some("");
    }
    let (kind, format) = essence.split_once('/').unwrap_or((essence, "*"));
    let names_kind = !matches!(kind, "*" | "application");
    (format == "*").then_some(if names_kind { kind } else { "" })
}

/// Returns the more exact one of two media types. If both are inexact, the first one counts.
pub(in crate::web) fn more_exact<'a>(first: &'a str, second: &'a str) -> &'a str {
    if kind(first).is_some() && kind(second).is_none() { second } else { first }
}

/// Replaces the media type of a file if it names no format: by the format of the first bytes, by that of a text, or by
/// the format to which the ending of the name or of the URL belongs. If none of them is known, the type stays.
pub(in crate::web) fn complete(file: &mut Attachment) {
    let Some(kind) = kind(&file.media_type) else { return };
    let has_kind = |found: &&str| {
        kind.is_empty() || found.split('/').next().is_some_and(|own| own.eq_ignore_ascii_case(kind))
    };
    let (by_bytes, address) = match &file.source {
        Source::Base64 { data } => (of_data(data, kind), None),
        Source::Url { url } => (None, url.split(['?', '#']).next()),
    };
    let mut names = file.name.as_deref().into_iter().chain(address);
    let found = by_bytes.or_else(|| names.find_map(of_name).filter(has_kind));
    if let Some(found) = found.or(file.media_type.is_empty().then_some(UNKNOWN)) {
        found.clone_into(&mut file.media_type);
    }
}

/// Returns the type of a file by its bytes in base64. Only a file that may be a text can be one by its bytes.
fn of_data(data: &str, kind: &str) -> Option<&'static str> {
    // 24 characters are 18 bytes, and base64 without its end decodes if it has whole groups of four characters.
    let head = BASE64_STANDARD.decode(data.get(..24).unwrap_or(data)).ok()?;
    if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        return Some("image/webp");
    }
    let known = SIGNATURES.iter().find(|(signature, _)| head.starts_with(signature));
    if known.is_some() || !kind.is_empty() && !kind.eq_ignore_ascii_case("text") {
        return known.map(|(_, found)| *found);
    }
    let bytes = BASE64_STANDARD.decode(data).ok()?;
    (!bytes.contains(&0) && str::from_utf8(&bytes).is_ok()).then_some("text/plain")
}

fn of_name(name: &str) -> Option<&'static str> {
    let (_, ending) = name.rsplit('/').next()?.rsplit_once('.')?;
    let known = ENDINGS.iter().find(|(known, _)| ending.eq_ignore_ascii_case(known));
    known.map(|(_, found)| *found)
}
