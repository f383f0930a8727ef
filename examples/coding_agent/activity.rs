//! The agent's activity, one line per change.

use std::collections::HashMap;

use omni_agent::provider::backend::PermissionOption;
use serde_json::Value;

use super::terminal::first_words;

/// The items of a turn as they were shown.
#[derive(Default)]
pub struct Activity {
    /// The last line of each item, by its index.
    shown: HashMap<usize, String>,
    /// The possible answers of the questions, in order.
    options: Vec<(String, Vec<PermissionOption>)>,
}

impl Activity {
    /// Returns the lines for the changes of an item.
    pub fn news(&mut self, index: usize, item: &Value) -> Vec<String> {
        let lines = match item["type"].as_str() {
            Some("tool") => self.tool(item),
            Some("plan") => plan(&item["data"]),
            Some("status") => match item["name"].as_str() {
                // This item is long and describes no activity.
                Some("commands" | "options") | None => return Vec::new(),
                Some(name) => vec![format!("[{}: {}]", words(name), words(&item["data"].to_string()))],
            },
            _ => return Vec::new(),
        };
        let line = lines.join("\n");
        let before = self.shown.insert(index, line.clone());
        if before.as_ref() == Some(&line) { Vec::new() } else { lines }
    }

    /// Returns the possible answers to the question about a tool use. Its id may have changed if it had waited before.
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
            // The result arrives at once; the question already shows the tool's input.
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

/// Returns the text shortened, on one line, and without control characters.
fn words(text: &str) -> String {
    first_words(text, 200)
}
