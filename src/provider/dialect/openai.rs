//! The common parts of OpenAI's two wire formats. Other wire formats use some of them too.

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

/// The maximum length of the name of a schema or a tool, in characters:
/// <https://platform.openai.com/docs/api-reference/chat/create>.
pub(super) const NAME_LIMIT: usize = 64;

/// Returns the word for the reasoning effort, and warns if it is not exactly the requested effort. Returns `None` if
/// the request turns thinking off and the service has no word for this.
pub(super) fn effort(
    words: EffortWords,
    mode: ThinkingMode,
    warnings: &mut Vec<String>,
) -> Option<&'static str> {
    match mode {
        ThinkingMode::Off | ThinkingMode::Budget(0) => {
            if words.off.is_none() {
                warnings.push("`thinking` stays on: it cannot be turned off for this model".to_owned());
            } else if words.off == Some(words.low) {
                warnings.push(format!(
                    "`thinking` is changed from off to effort {}: it cannot be turned off for this model",
                    words.low
                ));
            }
            words.off
        }
        ThinkingMode::Effort(effort) => {
            let (asked, word) = (name(effort), words.word(effort));
            // `xhigh` is OpenAI's word for the highest effort, so its use for `Effort::Max` causes no warning.
            if word != asked && !(effort == Effort::Max && word == "xhigh") {
                warnings.push(format!(
                    "`thinking` is changed from effort {asked} to {word}: \
                     the service has no effort {asked} for this model"
                ));
            }
            Some(word)
        }
        ThinkingMode::Budget(budget) => {
            let word = words.word(nearest(budget));
            warnings.push(format!(
                "`thinking` is changed from a budget of {budget} tokens to effort {word}: \
                 the service accepts no budget for this model"
            ));
            Some(word)
        }
    }
}

/// Encodes temperature and top-p. `taken` indicates whether the model accepts values other than the default.
pub(super) fn sampling(
    options: &Options,
    taken: bool,
    body: &mut Map<String, Value>,
    warnings: &mut Vec<String>,
) {
    for (key, value) in [("temperature", options.temperature()), ("top_p", options.top_p())] {
        match value.map(Number::from_f64) {
            None => {}
            // Every model accepts the default value 1, so it causes no warning.
            Some(Some(number)) if !taken && number.as_f64() != Some(1.0) => {
                warnings.push(format!(
                    "`{key}` is ignored: for this request, the model accepts only the default value"
                ));
            }
            Some(Some(number)) => {
                body.insert(key.to_owned(), Value::Number(number));
            }
            Some(None) => warnings.push(format!("`{key}` is ignored: it is not a finite number")),
        }
    }
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

/// Returns the name of a schema, reduced to the allowed characters.
pub(super) fn schema_name(output: &OutputSchema) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let mut name: String = output.name.chars().map(allowed).take(NAME_LIMIT).collect();
    if name.is_empty() {
        name.push_str("output");
    }
    name
}

/// The form in which a request asks for JSON.
pub(super) enum Format {
    /// The request asks for any JSON object.
    Object,
    /// The request asks for a value that fits this schema. The flag states whether the schema is strict.
    Schema(Value, bool),
}

/// Returns how an output schema is sent to the request's model. `support` states how the service generally accepts
/// output schemas.
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

/// Returns the form in which a request asks for this output schema. Returns `None` if `output` is `None`. If the schema
/// is sent only in the system prompt, adds a warning and returns `None`.
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
                warnings.push(
                    "`output` is sent without `strict`: strict mode cannot express the schema".to_owned(),
                );
                // The service requires an object at the root even without `strict`, so any other schema is wrapped.
                Format::Schema(wrapped(schema).unwrap_or_else(|| schema.clone()), false)
            }
        }
        // With `OutputSupport::Tool`, an output tool has usually replaced the schema before this point. The schema is
        // still here only if it cannot be the schema of a tool.
        OutputSupport::Schema | OutputSupport::Tool => Format::Schema(schema.clone(), false),
    })
}

/// Returns how to decode the response to a request whose output schema is sent according to `support`. `enforced`
/// indicates whether the service guarantees that responses fit a strict schema.
pub(super) fn reading(support: OutputSupport, enforced: bool, request: &Request) -> Reading {
    let Some(output) = request.options.output() else {
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

/// Returns a file's bytes as a data URL.
pub(super) fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}
