//! Converts the events of a backend to deltas of a response. Performs no I/O.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Breach, PermissionAnswer, PermissionKind, PermissionOption};
use crate::{
    message::{ProviderItem, ToolResult, ToolUse, ToolUseId},
    provider::{BlockStart, Delta, Part},
};

/// Converts a turn's events to deltas, and checks that the events keep the contract.
#[derive(Debug)]
pub(super) struct BackendEventConverter {
    format: String,
    blocks: usize,
    /// The text or thinking block that is being extended.
    growing: Option<(usize, BackendTextKind)>,
    tools: HashMap<ToolUseId, BackendToolUse>,
    /// The block indexes of the plan and of each status, by name.
    items: HashMap<String, usize>,
    deltas: Vec<Delta>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackendTextKind {
    Text,
    Thinking,
}

/// A tool use of the backend.
#[derive(Debug)]
struct BackendToolUse {
    index: usize,
    item: Value,
    /// Whether the tool use itself has arrived. Otherwise only the request to allow it has arrived.
    used: bool,
    /// Whether the last answer to a permission request was a rejection.
    rejected: bool,
    finished: bool,
}

impl BackendEventConverter {
    /// Creates a recorder whose items have this format name.
    pub(super) fn new(format: &str) -> Self {
        Self {
            format: format.to_owned(),
            blocks: 0,
            growing: None,
            tools: HashMap::new(),
            items: HashMap::new(),
            deltas: Vec::new(),
        }
    }

    /// Returns the deltas since the last call.
    pub(super) fn take(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }

    pub(super) fn text(&mut self, text: String) {
        self.grow(BackendTextKind::Text, text);
    }

    pub(super) fn thinking(&mut self, text: String) {
        self.grow(BackendTextKind::Thinking, text);
    }

    fn grow(&mut self, what: BackendTextKind, text: String) {
        if text.is_empty() {
            return;
        }
        let index = match self.growing {
            Some((index, growing)) if growing == what => index,
            _ => {
                let block = match what {
                    BackendTextKind::Text => BlockStart::Text,
                    BackendTextKind::Thinking => BlockStart::Thinking,
                };
                let index = self.start(block);
                self.growing = Some((index, what));
                index
            }
        };
        self.deltas.push(Delta::Extend { index, part: Part::Text(text) });
    }

    /// Ends the block that is being extended.
    pub(super) fn settle(&mut self) {
        if let Some((index, _)) = self.growing.take() {
            self.deltas.push(Delta::End { index });
        }
    }

    /// Ends the response. A backend need not report the end of a tool. Therefore, every open tool gets a final status:
    /// `rejected` if permission was refused, otherwise `ended`.
    pub(super) fn finish(&mut self) {
        self.settle();
        let mut open: Vec<&mut BackendToolUse> =
            self.tools.values_mut().filter(|activity| !activity.finished).collect();
        open.sort_by_key(|activity| activity.index);
        for activity in open {
            activity.item["status"] = if activity.rejected { "rejected" } else { "ended" }.into();
            activity.finished = true;
            let (index, part) = (activity.index, Part::Item(activity.item.clone()));
            self.deltas.extend([Delta::Extend { index, part }, Delta::End { index }]);
        }
    }

    fn start(&mut self, block: BlockStart) -> usize {
        self.settle();
        let index = self.blocks;
        self.blocks += 1;
        self.deltas.push(Delta::Start { index, block });
        index
    }

    fn start_item(&mut self, data: Value) -> usize {
        self.start(BlockStart::ProviderItem(ProviderItem::new(self.format.clone(), data)))
    }

    pub(super) fn tool_use(&mut self, tool_use: &ToolUse) -> Result<(), Breach> {
        match self.tools.get_mut(&tool_use.id) {
            Some(activity) if activity.used => return Err(Breach::RepeatedToolUse(tool_use.id.clone())),
            Some(activity) => activity.used = true,
            None => self.begin(tool_use, true),
        }
        self.change(&tool_use.id, |item| {
            item["name"] = tool_use.name.as_str().into();
            item["input"] = tool_use.input.clone();
            item["status"] = "running".into();
        })
    }

    fn begin(&mut self, tool_use: &ToolUse, used: bool) {
        let item = json!({
            "type": "tool",
            "id": tool_use.id.as_str(),
            "name": tool_use.name,
            "input": tool_use.input,
            "status": if used { "running" } else { "asking" },
        });
        let index = self.start_item(item.clone());
        self.tools.insert(
            tool_use.id.clone(),
            BackendToolUse { index, item, used, rejected: false, finished: false },
        );
    }

    /// Changes a tool's item. A delta is added only if the change makes the item different.
    fn change(&mut self, id: &ToolUseId, edit: impl FnOnce(&mut Value)) -> Result<(), Breach> {
        let Some(activity) = self.tools.get_mut(id) else {
            return Err(Breach::UnknownToolUse(id.clone()));
        };
        if activity.finished {
            return Err(Breach::FinishedToolUse(id.clone()));
        }
        let before = activity.item.clone();
        edit(&mut activity.item);
        if activity.item != before {
            let (index, part) = (activity.index, Part::Item(activity.item.clone()));
            self.deltas.push(Delta::Extend { index, part });
        }
        Ok(())
    }

    pub(super) fn tool_input(&mut self, id: &ToolUseId, input: Value) -> Result<(), Breach> {
        self.change(id, |item| item["input"] = input)
    }

    pub(super) fn tool_update(&mut self, id: &ToolUseId, data: Value) -> Result<(), Breach> {
        self.change(id, |item| item["update"] = data)
    }

    pub(super) fn tool_result(&mut self, result: &ToolResult) -> Result<(), Breach> {
        let id = &result.tool_use_id;
        self.change(id, |item| {
            item["status"] = if result.is_error { "failed" } else { "done" }.into();
            item["result"] = json!(result.content);
        })?;
        if let Some(activity) = self.tools.get_mut(id) {
            activity.finished = true;
            self.deltas.push(Delta::End { index: activity.index });
        }
        Ok(())
    }

    /// Records a request for permission. The tool use may not have arrived yet.
    pub(super) fn asked(&mut self, tool_use: &ToolUse, options: &[PermissionOption]) -> Result<(), Breach> {
        if !self.tools.contains_key(&tool_use.id) {
            self.begin(tool_use, false);
        }
        self.change(&tool_use.id, |item| {
            // The input may have become known only after the tool use was reported.
            item["input"] = tool_use.input.clone();
            item["permission"] = json!({ "options": options });
        })
    }

    /// Records the answer to a request for permission. If the answer is `None`, the request was withdrawn.
    pub(super) fn answered(&mut self, id: &ToolUseId, answer: Option<&PermissionAnswer>) {
        let word = match answer {
            None => "withdrawn",
            Some(PermissionAnswer::Allow | PermissionAnswer::AllowWith(_)) => "allow",
            Some(PermissionAnswer::Reject(_)) => "reject",
            Some(PermissionAnswer::Choose(option)) => option,
        };
        let input = match answer {
            Some(PermissionAnswer::AllowWith(input)) => Some(input.clone()),
            _ => None,
        };
        if let Some(activity) = self.tools.get_mut(id) {
            activity.rejected = match answer {
                Some(PermissionAnswer::Reject(_)) => true,
                Some(PermissionAnswer::Choose(option)) => rejects(&activity.item, option),
                _ => false,
            };
        }
        // If the tool has finished in the meantime, its item stays unchanged.
        let _ = self.change(id, |item| {
            item["permission"]["answer"] = word.into();
            if let Some(input) = input {
                item["permission"]["input"] = input;
            }
        });
    }

    pub(super) fn plan(&mut self, data: &Value) {
        self.item("plan", json!({ "type": "plan", "data": data }));
    }

    pub(super) fn status(&mut self, name: &str, data: &Value) {
        self.item(&format!("status {name}"), json!({ "type": "status", "name": name, "data": data }));
    }

    fn item(&mut self, about: &str, item: Value) {
        if let Some(index) = self.items.get(about) {
            self.deltas.push(Delta::Extend { index: *index, part: Part::Item(item) });
        } else {
            let index = self.start_item(item);
            self.items.insert(about.to_owned(), index);
        }
    }
}

/// Returns whether the option with this id, among the options offered for a tool, is a rejection.
fn rejects(item: &Value, option: &str) -> bool {
    let offered = item["permission"]["options"].as_array().into_iter().flatten();
    offered.filter(|offer| offer["id"] == option).any(|offer| {
        let kind = PermissionKind::deserialize(&offer["kind"]);
        matches!(kind, Ok(PermissionKind::RejectOnce | PermissionKind::RejectAlways))
    })
}
