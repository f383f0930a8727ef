//! The agent's activity, one line per change.

use std::collections::HashMap;

use omni_agent::provider::custom::PermissionOption;
use serde_json::Value;

use super::terminal::first_words;

/// The items of a turn, as they were last shown.
#[derive(Default)]
pub struct Activity {
    /// The last text shown for each item, by the item's index.
    shown: HashMap<usize, String>,
    /// The possible answers to each question, in the order of the questions.
    options: Vec<(String, Vec<PermissionOption>)>,
}

impl Activity {
    /// Returns the lines to show for an item if they have changed.
    pub fn news(&mut self, index: usize, item: &Value) -> Vec<String> {
        let lines = match item["type"].as_str() {
            Some("tool") => self.tool(item),
            Some("plan") => plan(&item["data"]),
            Some("status") => match item["name"].as_str() {
                // Items with these names are long and describe no activity.
                Some("commands" | "options") | None => return Vec::new(),
                Some(name) => vec![format!("[{}: {}]", words(name), words(&plain(&item["data"])))],
            },
            _ => return Vec::new(),
        };
        let line = lines.join("\n");
        let before = self.shown.insert(index, line.clone());
        if before.as_ref() == Some(&line) { Vec::new() } else { lines }
    }

    /// Returns the possible answers to the question about a tool use. If no question has the id of the tool use,
    /// because the id has changed while the tool use waited, returns the answers to the last question.
    pub fn options(&self, tool_use: &str) -> Vec<PermissionOption> {
        let of = self.options.iter().rev().find(|(id, _)| id == tool_use).or(self.options.last());
        of.map(|(_, options)| options.clone()).unwrap_or_default()
    }

    fn tool(&mut self, item: &Value) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let asked = &item["permission"];
        if asked["answer"].is_null()
            && let Ok(options) = serde_json::from_value(asked["options"].clone())
        {
            self.options.push((text(&item["id"]), options));
        }
        if item["update"].is_null() {
            // No line is needed before the first update: a result will follow at once, and a question already shows the
            // tool's input.
            return Vec::new();
        }
        let title = text(&item["update"]["title"]);
        let about = if title.is_empty() { item["input"].to_string() } else { title };
        let (name, about) = (words(&text(&item["name"])), words(&about));
        match item["status"].as_str() {
            Some(status @ ("done" | "failed")) => {
                let result = item["result"].as_array().into_iter().flatten();
                let result: String = result.filter_map(|block| block["text"].as_str()).collect();
                let failed = if status == "failed" { " failed" } else { "" };
                vec![format!("← {name} {about}{failed}: {}", words(&result))]
            }
            _ => vec![format!("→ {name} {about}")],
        }
    }
}

fn plan(entries: &Value) -> Vec<String> {
    let entries = entries.as_array().into_iter().flatten();
    let line = |entry: &Value| {
        let mark = match entry["status"].as_str() {
            Some("completed") => "x",
            Some("in_progress") => ">",
            _ => " ",
        };
        format!("[{mark}] {}", words(entry["content"].as_str().unwrap_or_default()))
    };
    entries.map(line).collect()
}

/// Returns a value in words, without the syntax of JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| format!("{name} {}", plain(value));
            members.iter().map(member).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}

/// Returns the beginning of the text on one line, without control characters.
fn words(text: &str) -> String {
    first_words(text, 200)
}
