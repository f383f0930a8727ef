//! What OpenAI's two formats say in the same words.

use serde_json::{Map, Number, Value};

use super::{EffortWords, effort::nearest};
use crate::provider::{Effort, Options, OutputSchema, ThinkingMode};

/// Characters of a schema's name.
const NAME_LIMIT: usize = 64;

/// The word for how much to reason, and a warning where it is not quite what was asked for.
pub(super) fn effort(
    words: EffortWords,
    mode: ThinkingMode,
    warnings: &mut Vec<String>,
) -> Option<&'static str> {
    match mode {
        ThinkingMode::Off | ThinkingMode::Budget(0) => {
            if words.off.is_none() {
                warnings.push("thinking: it can't be turned off".to_owned());
            }
            words.off
        }
        ThinkingMode::Effort(effort) => {
            let word = words.word(effort);
            match effort {
                Effort::Minimal if word == words.low => {
                    warnings.push(format!("thinking: minimal became {word}"));
                }
                Effort::Max if word == words.high => warnings.push(format!("thinking: max became {word}")),
                _ => {}
            }
            Some(word)
        }
        ThinkingMode::Budget(budget) => {
            let word = words.word(nearest(budget));
            warnings.push(format!("thinking: a budget can't be said, {budget} tokens became effort {word}"));
            Some(word)
        }
    }
}

/// Temperature and top-p.
pub(super) fn sampling(options: &Options, body: &mut Map<String, Value>, warnings: &mut Vec<String>) {
    for (key, value) in [("temperature", options.temperature), ("top_p", options.top_p)] {
        match value.map(Number::from_f64) {
            None => {}
            Some(Some(number)) => {
                body.insert(key.to_owned(), Value::Number(number));
            }
            Some(None) => warnings.push(format!("{key}: not a number that JSON has, left out")),
        }
    }
}

/// The application's labels; their values have to be strings.
pub(super) fn labels(metadata: &Map<String, Value>) -> Map<String, Value> {
    let labels = metadata.iter().map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        (key.clone(), Value::String(text))
    });
    labels.collect()
}

/// A schema's name in the letters that are allowed.
pub(super) fn schema_name(output: &OutputSchema) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let mut name: String = output.name.chars().map(allowed).take(NAME_LIMIT).collect();
    if name.is_empty() {
        name.push_str("output");
    }
    name
}

/// A file's bytes as a URL.
pub(super) fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}
