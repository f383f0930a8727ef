//! Finding JSON in an answer that also has other words.

use serde_json::{Deserializer, Value};

use crate::message::{Content, Message};

/// Places that are tried, at most: each may cost a look at all the text behind it.
const MAX_TRIES: usize = 64;

/// The JSON values in an answer: text blocks and code fences that are JSON, then objects and arrays among words.
/// The last ones first, since models think aloud before they answer.
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

/// What stands between fences of three backticks, without the language after the first.
fn fences(text: &str) -> impl Iterator<Item = &str> {
    let pieces = text.split("```").enumerate().filter(|(index, _)| index % 2 == 1).map(|(_, piece)| piece);
    pieces.take(MAX_TRIES).map(|piece| match piece.split_once('\n') {
        Some((language, rest)) if language.trim().chars().all(char::is_alphanumeric) => rest,
        _ => piece,
    })
}

/// Objects and arrays, the outermost ones.
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
            // Both brackets are one byte long.
            rest = &rest[1..];
        }
    }
    values
}
