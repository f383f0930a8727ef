//! Finds tool calls in the demo model's prompts.

use std::collections::VecDeque;

use omni_agent::{
    provider::{Request, ToolChoice},
    tool::ToolDeclaration,
};
use serde_json::{Map, Value, json};

/// A tool and its input.
pub(super) struct Call {
    pub(super) name: String,
    pub(super) input: Value,
}

/// Returns the calls that the model makes in this step. `known` contains the tool results so far.
pub(super) fn find(request: &Request, asked: &str, step: usize, known: &str) -> Vec<Call> {
    let choice = request.options.tool_choice().cloned().unwrap_or(ToolChoice::Auto);
    let mut tools = request.tools.declarations();
    match &choice {
        ToolChoice::None => return Vec::new(),
        ToolChoice::Tool(name) => tools.retain(|tool| tool.name == *name),
        _ => {}
    }
    let mut steps = clauses(asked).into_iter().map(|clause| in_clause(&tools, clause, known));
    let found = steps.by_ref().filter(|calls| !calls.is_empty()).nth(step).unwrap_or_default();
    let forced = matches!(choice, ToolChoice::Required | ToolChoice::Tool(_));
    match tools.first() {
        Some(tool) if forced && found.is_empty() => {
            vec![Call { name: tool.name.clone(), input: sample(tool.schema.as_value(), asked) }]
        }
        _ => found,
    }
}

/// Splits a text at each word "then".
fn clauses(text: &str) -> Vec<&str> {
    let lower = text.to_ascii_lowercase();
    let mut clauses = Vec::new();
    let mut start = 0;
    for (at, _) in lower.match_indices("then") {
        if is_word(&lower, at, at + 4) {
            clauses.push(&text[start..at]);
            start = at + 4;
        }
    }
    clauses.push(&text[start..]);
    clauses
}

fn is_word(text: &str, start: usize, end: usize) -> bool {
    let inner = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].ends_with(inner) && !text[end..].starts_with(inner)
}

fn find_word(text: &str, word: &str) -> Option<usize> {
    let mut places = text.match_indices(word).map(|(at, _)| at);
    places.find(|&at| is_word(text, at, at + word.len()))
}

/// Returns the calls that one clause asks for, in the order in which it names the tools.
fn in_clause(tools: &[ToolDeclaration], clause: &str, known: &str) -> Vec<Call> {
    // Only ASCII letters are changed, so that each position is the same in both texts.
    let lower = clause.to_ascii_lowercase();
    let mut named: Vec<(usize, usize, &ToolDeclaration)> = tools
        .iter()
        .filter_map(|tool| {
            let name = tool.name.to_ascii_lowercase();
            let names = [name.clone(), name.replace(['_', '-'], " ")];
            let (at, name) = names.iter().find_map(|name| Some((find_word(&lower, name)?, name)))?;
            Some((at, at + name.len(), tool))
        })
        .collect();
    named.sort_by_key(|(at, ..)| *at);
    if named.is_empty() {
        // The text contains no tool name. But it may contain a word of a name and the complete input.
        let hinted = tools.iter().filter(|tool| {
            let mut words = tool.name.split(['_', '-']).filter(|word| word.len() > 2 && *word != "get");
            words.any(|word| find_word(&lower, &word.to_ascii_lowercase()).is_some())
        });
        return hinted.flat_map(|tool| fill(tool, clause, false, known)).collect();
    }
    let mut calls = Vec::new();
    let mut before = 0;
    for (place, &(at, end, tool)) in named.iter().enumerate() {
        let next = named.get(place + 1).map_or(clause.len(), |(at, ..)| *at);
        let after = &clause[end..next];
        // The input may follow the name or precede it. If neither is the case, the whole text after the name may be the
        // input.
        let tries = [(after, false), (&clause[before..at], false), (after, true)];
        let found =
            tries.iter().map(|&(text, whole)| fill(tool, text, whole, known)).find(|calls| !calls.is_empty());
        calls.extend(found.into_iter().flatten());
        before = end;
    }
    calls
}

/// Returns the calls of one tool whose inputs are found in a text. If the tool's input is a single string and the text
/// contains several candidates, there are several calls. With `whole`, the whole text may be the input.
fn fill(tool: &ToolDeclaration, text: &str, whole: bool, known: &str) -> Vec<Call> {
    let schema = tool.schema.as_value();
    let call = |input| Call { name: tool.name.clone(), input };
    if let Some(input) = whole_input(text).filter(|input| tool.schema.validate(input).is_ok()) {
        return vec![call(input)];
    }
    let mut evidence = Evidence::of(text, whole);
    let mut calls = Vec::new();
    while let Some(input) = evidence.object(schema, known) {
        let one_text = input.len() == 1 && input.values().all(Value::is_string);
        calls.push(call(Value::Object(input)));
        if !one_text || calls.len() == 8 || evidence.texts.is_empty() {
            break;
        }
    }
    calls
}

/// Returns the JSON object that the text contains, if any.
fn whole_input(text: &str) -> Option<Value> {
    let start = text.find('{')?;
    let end = text.rfind('}')?;
    serde_json::from_str(text.get(start..=end)?).ok()
}

/// The candidates for a tool's input in a text.
struct Evidence<'a> {
    text: &'a str,
    /// Whether the whole text is used as the input if no part of the text could be the input.
    whole: bool,
    /// The quoted parts of the text. If nothing is quoted, the capitalised words after the first word, with adjacent
    /// words joined into one name.
    texts: VecDeque<String>,
    quoted: bool,
    numbers: VecDeque<f64>,
}

impl<'a> Evidence<'a> {
    fn of(text: &'a str, whole: bool) -> Self {
        let mut quoted = VecDeque::new();
        for quotes in [['`', '`'], ['"', '"'], ['“', '”']] {
            let mut rest = text;
            while let Some((_, after)) = rest.split_once(quotes[0]) {
                let Some((inner, after)) = after.split_once(quotes[1]) else { break };
                quoted.push_back(inner.to_owned());
                rest = after;
            }
        }
        let words = text.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '.')).enumerate();
        let words = words.map(|(place, word)| (place, word.trim_end_matches(['.', '-'])));
        let mut names: VecDeque<String> = VecDeque::new();
        let mut last = 0;
        for (place, word) in words.clone().skip(1) {
            if word.len() > 1 && word.starts_with(char::is_uppercase) {
                match names.back_mut() {
                    Some(name) if last + 1 == place => *name = format!("{name} {word}"),
                    _ => names.push_back(word.to_owned()),
                }
                last = place;
            }
        }
        let numbers = words.filter_map(|(_, word)| word.parse().ok()).collect();
        let (texts, quoted) = if quoted.is_empty() { (names, false) } else { (quoted, true) };
        Self { text, whole, texts, quoted, numbers }
    }

    /// Returns an input that fits `schema` if all required members are found. `known` contains the tool results so far.
    fn object(&mut self, schema: &Value, known: &str) -> Option<Map<String, Value>> {
        let none = Map::new();
        let properties = schema["properties"].as_object().unwrap_or(&none);
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut input = Map::new();
        for (name, property) in properties {
            let needed = required.contains(&name.as_str());
            match self.value(name, property, needed, known) {
                Some(value) => _ = input.insert(name.clone(), value),
                None if needed => return None,
                None => {}
            }
        }
        Some(input)
    }

    fn value(&mut self, name: &str, property: &Value, needed: bool, known: &str) -> Option<Value> {
        let lower = self.text.to_ascii_lowercase();
        let mentioned = find_word(&lower, &name.to_ascii_lowercase()).is_some();
        if let Some(choices) = property["enum"].as_array() {
            let is_there = |choice: &&Value| {
                choice
                    .as_str()
                    .is_some_and(|choice| find_word(&lower, &choice.to_ascii_lowercase()).is_some())
            };
            return choices.iter().find(is_there).cloned();
        }
        if !needed && !mentioned {
            return None;
        }
        match kind(property) {
            "string" => self.string(name, known).map(Value::from),
            #[expect(clippy::cast_possible_truncation, reason = "a demo's whole numbers are small")]
            "integer" => self.numbers.pop_front().map(|number| json!(number as i64)),
            "number" => self.numbers.pop_front().map(Value::from),
            "boolean" => Some(json!(mentioned)),
            "array" if kind(&property["items"]) == "string" => {
                let texts: Vec<String> = self.texts.drain(..).collect();
                (!texts.is_empty()).then(|| json!(texts))
            }
            "array" => {
                let numbers: Vec<f64> = self.numbers.drain(..).collect();
                (!numbers.is_empty()).then(|| json!(numbers))
            }
            _ => None,
        }
    }

    fn string(&mut self, name: &str, known: &str) -> Option<String> {
        if DIGESTS.contains(&name) && !known.is_empty() {
            return Some(known.to_owned());
        }
        if SENTENCES.contains(&name) && !self.quoted {
            self.texts.clear();
        }
        let rest = self.text.trim_start_matches([':', ',', ' ']).trim();
        self.texts.pop_front().or((self.whole && !rest.is_empty()).then(|| rest.to_owned()))
    }
}

/// Names of properties that the model fills with the tool results so far.
const DIGESTS: [&str; 4] = ["summary", "report", "answer", "result"];
/// Names of properties whose values are longer texts.
const SENTENCES: [&str; 4] = ["command", "text", "question", "message"];

/// Returns the type that a schema names, or the first type if the schema names several.
fn kind(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(kinds) => kinds.first().and_then(Value::as_str).unwrap_or_default(),
        kind => kind.as_str().unwrap_or_default(),
    }
}

/// Returns a value that is valid for most schemas. Strings in the value are `text`.
pub(super) fn sample(schema: &Value, text: &str) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|choices| choices.first()) {
        return first.clone();
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    for choices in ["anyOf", "oneOf"] {
        if let Some(first) = schema[choices].as_array().and_then(|choices| choices.first()) {
            return sample(first, text);
        }
    }
    match kind(schema) {
        "string" => json!(text),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or(json!(1)),
        "boolean" => json!(true),
        "array" => {
            let least = schema["minItems"].as_u64().unwrap_or(1);
            (0..least).map(|_| sample(&schema["items"], text)).collect()
        }
        "null" => Value::Null,
        _ => {
            let properties = schema["properties"].as_object().into_iter().flatten();
            properties
                .map(|(name, property)| (name.clone(), sample(property, text)))
                .collect::<Map<_, _>>()
                .into()
        }
    }
}
