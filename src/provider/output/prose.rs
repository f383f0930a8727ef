//! Finds JSON in a response that also contains other text.

use serde_json::{Deserializer, Value};

use crate::message::{Content, Message};

/// The maximum number of positions that are tried, since each may cost a scan of the rest of the text.
const MAX_TRIES: usize = 64;

/// Returns the JSON values in a response: first text blocks that are JSON, then code fences that are JSON, then objects
/// and arrays inside text. In each of these groups, later values come first, because models often reason in text before
/// the final value.
pub(super) fn values(answer: &Message, text: &str) -> Vec<Value> {
    let parse = |text: &str| serde_json::from_str::<Value>(text.trim()).ok();
    let blocks = answer.content.iter().filter_map(Content::as_text).filter_map(parse);
    let mut values: Vec<Value> = blocks.collect();
    values.reverse();
    let mut fenced: Vec<Value> = fences(text).filter_map(parse).collect();
    values.extend(fenced.drain(..).rev());
    let mut among: Vec<Value> = among_words(text);
    values.extend(among.drain(..).rev());
    values
}

/// Returns the content of code fences of three backticks, without the language.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split("```").enumerate().filter(|(index, _)| index % 2 == 1).map(|(_, piece)| piece);
    pieces.take(MAX_TRIES).map(|piece| match piece.split_once('\n') {
        Some((language, rest)) if language.trim().chars().all(char::is_alphanumeric) => rest,
        _ => piece,
    })
}

/// Returns the outermost JSON objects and arrays in a text.
fn among_words(text: &str) -> Vec<Value> {
    let mut values = Vec::new();
    let mut rest = text;
    for _ in 0..MAX_TRIES {
        let Some(at) = rest.find(['{', '[']) else { break };
        rest = &rest[at..];
        let mut stream = Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(value)) = stream.next() {
            rest = &rest[stream.byte_offset()..];
            values.push(value);
        } else {
            // No JSON value begins at this bracket, so skip it. Both kinds of brackets are one byte long.
            rest = &rest[1..];
        }
    }
    values
}
