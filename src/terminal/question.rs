//! Questions that a running tool asks the user: forms, pages to open, and other questions.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::{run::PendingUse, tool::Decision};

/// A field of a form.
struct Field {
    name: String,
    schema: Value,
    is_required: bool,
}

/// The answer to a question, as far as the user has given it.
pub(super) struct Question {
    /// The fields that have no value yet.
    fields: VecDeque<Field>,
    values: Map<String, Value>,
    is_form: bool,
    is_page: bool,
}

/// Returns a line that shows the question. Texts of the tool are shown as JSON, so that line breaks cannot hide the
/// question.
pub(super) fn shown(pause: &PendingUse) -> String {
    let question = &pause.reason;
    let text = match (&question["message"], &question["url"]) {
        (Value::Null, Value::Null) => question.to_string(),
        (message, Value::Null) => message.to_string(),
        (message, url) => format!("{message} Open this page: {url}"),
    };
    format!("{} asks: {text}", pause.tool_use.name)
}

impl Question {
    pub(super) fn of(pause: &PendingUse) -> Self {
        let question = &pause.reason;
        let schema = &question["schema"];
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = schema["properties"].as_object();
        let field = |(name, schema): (&String, &Value)| Field {
            is_required: required.contains(&name.as_str()),
            name: name.clone(),
            schema: schema.clone(),
        };
        Self {
            fields: properties.into_iter().flatten().map(field).collect(),
            values: Map::new(),
            is_form: properties.is_some(),
            is_page: question["url"].is_string(),
        }
    }

    /// Returns the text that asks for the next line.
    pub(super) fn prompt(&self) -> String {
        match self.fields.front() {
            Some(field) => field.prompt(),
            None if self.is_page => "done, or no [REASON]? ".to_owned(),
            None => "yes, no [REASON], or answer VALUE? ".to_owned(),
        }
    }

    /// Reads a line. Returns the decision if the answer is complete.
    pub(super) fn answer(&mut self, line: &str) -> Option<Decision> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let declined = || Some(Decision::reject(if rest.is_empty() { "The user said no." } else { rest }));
        if self.is_form {
            if word == "/no" {
                return declined();
            }
            if let Some(field) = self.fields.front() {
                let value = field.read(line)?;
                if !value.is_null() {
                    self.values.insert(field.name.clone(), value);
                }
                self.fields.pop_front();
            }
            let is_complete = self.fields.is_empty();
            return is_complete
                .then(|| Decision::ExecuteWith(Value::Object(std::mem::take(&mut self.values))));
        }
        match word {
            "y" | "yes" | "done" => Some(Decision::Execute),
            "n" | "no" => declined(),
            "a" | "answer" if !rest.is_empty() => {
                let value = serde_json::from_str(rest).unwrap_or_else(|_| rest.into());
                Some(Decision::ExecuteWith(value))
            }
            _ => None,
        }
    }
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
        let of = |schema: &'_ Value| {
            schema["enum"].is_array() || schema["oneOf"].is_array() || schema["anyOf"].is_array()
        };
        let schema = if of(&self.schema) { &self.schema } else { &self.schema["items"] };
        let alternatives = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
        if let Some(alternatives) = alternatives {
            return Some(alternatives.iter().filter_map(|choice| choice["const"].as_str()).collect());
        }
        schema["enum"].as_array().map(|choices| choices.iter().filter_map(Value::as_str).collect())
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
