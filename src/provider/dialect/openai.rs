//! What OpenAI's two formats say in the same words.

mod models;

pub(super) use models::{Family, ToolsInChat, keeps_long};
use serde_json::{Map, Number, Value};

use super::{
    EffortWords, OutputSupport,
    effort::{name, nearest},
    output::Reading,
    output_tool,
    strict::strict,
    words,
    wrapping::wrapped,
};
use crate::provider::{Effort, Options, OutputSchema, Request, ThinkingMode};

/// Characters of a schema's name, and of a tool's: <https://platform.openai.com/docs/api-reference/chat/create>.
pub(super) const NAME_LIMIT: usize = 64;

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
            let (asked, word) = (name(effort), words.word(effort));
            // `xhigh` is OpenAI's word for the most.
            if word != asked && !(effort == Effort::Max && word == "xhigh") {
                warnings.push(format!("thinking: {asked} became {word}"));
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

/// Temperature and top-p; `taken` says whether the model takes other values than the default.
pub(super) fn sampling(
    options: &Options,
    taken: bool,
    body: &mut Map<String, Value>,
    warnings: &mut Vec<String>,
) {
    for (key, value) in [("temperature", options.temperature), ("top_p", options.top_p)] {
        match value.map(Number::from_f64) {
            None => {}
            // The default may be said.
            Some(Some(number)) if !taken && number.as_f64() != Some(1.0) => {
                warnings.push(format!("{key}: the model takes none here, left out"));
            }
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

/// How an answer's JSON is asked for.
pub(super) enum Format {
    /// As any object.
    Object,
    /// As what fits this schema, strictly or not.
    Schema(Value, bool),
}

/// How an output schema is said to the request's model, where it is said this way to others.
pub(super) fn supported(support: OutputSupport, request: &Request) -> OutputSupport {
    let support = match support {
        OutputSupport::Strict | OutputSupport::Schema if output_tool::is_needed(request) => {
            OutputSupport::Tool
        }
        support => support,
    };
    match support {
        OutputSupport::Tool if !output_tool::is_possible(request) => OutputSupport::None,
        support => support,
    }
}

/// How the request's output schema is said, if it has one.
pub(super) fn format(
    support: OutputSupport,
    output: Option<&OutputSchema>,
    warnings: &mut Vec<String>,
) -> Option<Format> {
    let schema = output?.schema.as_value();
    Some(match support {
        OutputSupport::None => {
            warnings.push(words::UNENFORCED.to_owned());
            return None;
        }
        OutputSupport::Object => Format::Object,
        OutputSupport::Strict => {
            if let Some(strict) = strict(schema) {
                Format::Schema(strict.schema, true)
            } else {
                warnings.push("output: strict mode can't say this schema, sent without `strict`".to_owned());
                // The root has to be an object's here too.
                Format::Schema(wrapped(schema).unwrap_or_else(|| schema.clone()), false)
            }
        }
        // The tool stands in its place, but for a schema that can't be a tool's.
        OutputSupport::Schema | OutputSupport::Tool => Format::Schema(schema.clone(), false),
    })
}

/// How the answer to a request is read whose output schema is said this way. `enforced` says whether the service holds
/// answers to a strict schema.
pub(super) fn reading(support: OutputSupport, enforced: bool, request: &Request) -> Reading {
    let Some(output) = &request.options.output else {
        return Reading::default();
    };
    let schema = output.schema.as_value();
    match support {
        OutputSupport::Tool => output_tool::reading(request),
        OutputSupport::Strict => match strict(schema) {
            Some(strict) => Reading { tool: None, wrapped: strict.wrapped, enforced },
            None => Reading { wrapped: wrapped(schema).is_some(), ..Reading::default() },
        },
        OutputSupport::Object | OutputSupport::None => {
            Reading { wrapped: wrapped(schema).is_some(), ..Reading::default() }
        }
        OutputSupport::Schema => Reading::default(),
    }
}

/// A file's bytes as a URL.
pub(super) fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}
