//! Questions to the user: decisions about tool uses, and the questions of running tools.

use std::{collections::VecDeque, mem};

use serde_json::{Map, Value};

use crate::{
    message::ToolUseId,
    run::PendingUse,
    tool::{Decision, ToolSet},
};

/// A field of a form.
struct Field {
    name: String,
    schema: Value,
    is_required: bool,
}

enum QuestionKind {
    /// Whether a tool may run. If the input of the tool is a single text, which can be typed without JSON, this is its
    /// name.
    Approval(Option<String>),
    /// The fields that have no value yet, and the values.
    Form(VecDeque<Field>, Map<String, Value>),
    /// Whether the user has finished on a page.
    Page,
    Value,
}

/// A question to the user, and the answer as far as the user has given it.
pub(super) struct Question {
    /// The id of the tool use that waits.
    pub(super) id: ToolUseId,
    kind: QuestionKind,
}

/// Returns a line that shows what waits. Texts of the tool are shown as JSON, so that line breaks cannot hide the
/// question.
pub(super) fn shown(pause: &PendingUse) -> String {
    let PendingUse { tool_use, reason, .. } = pause;
    if !pause.is_question() {
        let of = pause.sub_agent.as_ref().map_or_else(String::new, |own| format!("{}: ", own.name));
        return format!("{of}{} {} waits: {reason}", tool_use.name, tool_use.input);
    }
    let text = match (&reason["message"], &reason["url"]) {
        (Value::Null, Value::Null) => reason.to_string(),
        (message, Value::Null) => message.to_string(),
        (message, url) => format!("{message} Open this page: {url}"),
    };
    format!("{} asks: {text}", tool_use.name)
}

impl Question {
    pub(super) fn of(pause: &PendingUse, tools: &ToolSet) -> Self {
        let (reason, schema) = (&pause.reason, &pause.reason["schema"]);
        let kind = if !pause.is_question() {
            QuestionKind::Approval(text_field(pause, tools))
        } else if let Some(properties) = schema["properties"].as_object() {
            let required = schema["required"].as_array();
            let field = |(name, schema): (&String, &Value)| Field {
                is_required: required.is_some_and(|required| required.iter().any(|own| own == name)),
                name: name.clone(),
                schema: schema.clone(),
            };
            QuestionKind::Form(properties.iter().map(field).collect(), Map::new())
        } else if reason["url"].is_string() {
            QuestionKind::Page
        } else {
            QuestionKind::Value
        };
        Self { id: pause.tool_use.id.clone(), kind }
    }

    /// Returns the text that asks for the next line.
    pub(super) fn prompt(&self) -> String {
        match &self.kind {
            QuestionKind::Approval(field) => {
                let input = field.as_ref().map_or("JSON".to_owned(), |name| name.to_uppercase());
                format!("yes, no [REASON], or edit {input}? ")
            }
            QuestionKind::Form(fields, _) => {
                fields.front().map_or("yes, or /no [REASON]? ".to_owned(), Field::prompt)
            }
            QuestionKind::Page => "done, or no [REASON]? ".to_owned(),
            QuestionKind::Value => "yes, no [REASON], or answer VALUE? ".to_owned(),
        }
    }

    /// Reads a line. Returns the decision if the answer is complete, and the reason if the line is wrong.
    pub(super) fn answer(&mut self, line: &str) -> Result<Option<Decision>, &'static str> {
        use QuestionKind::{Approval, Form, Page, Value as Other};
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        Ok(match (word, &mut self.kind) {
            ("/no", _) | ("n" | "no", Approval(_) | Page | Other) => {
                Some(Decision::reject(match &self.kind {
                    _ if rest.is_empty() => "The user said no.".to_owned(),
                    Approval(_) => format!("The user said no: {rest}"),
                    _ => rest.to_owned(),
                }))
            }
            (_, Form(fields, values)) => {
                if let Some(field) = fields.front() {
                    let Some(value) = field.read(line) else { return Ok(None) };
                    if !value.is_null() {
                        values.insert(field.name.clone(), value);
                    }
                    fields.pop_front();
                }
                fields.is_empty().then(|| Decision::ExecuteWith(mem::take(values).into()))
            }
            ("y" | "yes", _) | ("done", Page) => Some(Decision::Execute),
            ("e" | "edit", Approval(field)) if !rest.is_empty() => {
                let input = match (serde_json::from_str(rest), field) {
                    (Ok(Value::Object(input)), _) => input,
                    (_, Some(field)) => Map::from_iter([(field.clone(), rest.into())]),
                    (_, None) => return Err("The input must be a JSON object."),
                };
                Some(Decision::ExecuteWith(input.into()))
            }
            ("a" | "answer", Page | Other) if !rest.is_empty() => {
                Some(Decision::ExecuteWith(serde_json::from_str(rest).unwrap_or_else(|_| rest.into())))
            }
            // The line is not an answer, so the question is asked again.
            _ => None,
        })
    }
}

/// Returns the name of the only member of the tool's input if it is a text.
fn text_field(pause: &PendingUse, tools: &ToolSet) -> Option<String> {
    let tool = tools.get(&pause.tool_use.name).filter(|_| pause.sub_agent.is_none())?;
    let members = tool.schema().as_value()["properties"].as_object()?;
    let (name, schema) = members.iter().next().filter(|_| members.len() == 1)?;
    (schema["type"] == "string" && schema.get("enum").is_none()).then(|| name.clone())
}

impl Field {
    fn prompt(&self) -> String {
        let schema = &self.schema;
        let about = schema["description"].as_str().or(schema["title"].as_str());
        let about = about.map(|text| format!(" ({})", Value::from(text))).unwrap_or_default();
        let choices = self.choices().map(|choices| format!(" {}", Value::from(choices))).unwrap_or_default();
        let hint = match &schema["default"] {
            Value::Null if self.is_required => String::new(),
            Value::Null => ", or nothing".to_owned(),
            default => format!(", or nothing for {default}"),
        };
        let kind = schema["type"].as_str().unwrap_or("text");
        format!("{}{about}: {kind}{choices}{hint}, or /no [REASON]? ", Value::from(self.name.as_str()))
    }

    /// Returns the values that are allowed, if the schema lists them.
    fn choices(&self) -> Option<Vec<&str>> {
        fn of(schema: &Value) -> Option<&Vec<Value>> {
            ["enum", "oneOf", "anyOf"].into_iter().find_map(|name| schema[name].as_array())
        }
        let choices = of(&self.schema).or_else(|| of(&self.schema["items"]))?;
        Some(choices.iter().filter_map(|choice| choice.as_str().or(choice["const"].as_str())).collect())
    }

    /// Reads the value in a line. Returns `None` if the line is not a value of the field, and null if the user omits
    /// the field.
    fn read(&self, line: &str) -> Option<Value> {
        let schema = &self.schema;
        if line.is_empty() {
            let default = schema["default"].clone();
            return (!default.is_null() || !self.is_required).then_some(default);
        }
        let choices = self.choices();
        let is_allowed = |text: &str| choices.as_ref().is_none_or(|choices| choices.contains(&text));
        match schema["type"].as_str() {
            Some("boolean") => match line {
                "y" | "yes" | "true" => Some(true.into()),
                "n" | "no" | "false" => Some(false.into()),
                _ => None,
            },
            Some("integer" | "number") => serde_json::from_str(line).ok().filter(Value::is_number),
            Some("array") => {
                let items: Vec<&str> = line.split(',').map(str::trim).collect();
                items.iter().all(|item| is_allowed(item)).then(|| items.into())
            }
            _ => is_allowed(line).then(|| line.into()),
        }
    }
}
