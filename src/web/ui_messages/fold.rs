//! Folds frames into the parts of a message, as the client does.

use serde_json::{Map, Value, json};

use super::AiSdkFrame;

/// The parts of an assistant's message, and the indices of its open parts.
#[derive(Debug, Default)]
pub(super) struct AiSdkFrameFold {
    pub(super) parts: Vec<Value>,
    /// The id and the index of each part of text that is open.
    pub(super) open: Vec<(String, usize)>,
}

impl AiSdkFrameFold {
    /// Adds a frame.
    pub(super) fn add(&mut self, frame: &AiSdkFrame) {
        let text = |name: &str| frame.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = text("type");
        match kind {
            "start-step" => self.parts.push(json!({ "type": "step-start" })),
            "reset-step" => {
                self.parts.truncate(self.step());
                self.open.clear();
            }
            "text-start" | "reasoning-start" => {
                self.open.push((text("id").to_owned(), self.parts.len()));
                let kind = kind.trim_end_matches("-start");
                self.parts.push(json!({ "type": kind, "text": "", "state": "streaming" }));
            }
            "text-delta" | "reasoning-delta" => {
                if let Some((_, place)) = self.open.iter().find(|(id, _)| id == text("id"))
                    && let Some(Value::String(whole)) = self.parts[*place].get_mut("text")
                {
                    whole.push_str(text("delta"));
                }
            }
            "text-end" | "reasoning-end" => {
                if let Some(index) = self.open.iter().position(|(id, _)| id == text("id")) {
                    let (_, place) = self.open.swap_remove(index);
                    self.parts[place]["state"] = "done".into();
                }
            }
            "tool-input-start" | "tool-input-available" | "tool-input-error" => self.input(frame, kind),
            "tool-approval-request" | "tool-approval-response" => self.approval(frame, kind),
            "tool-output-available" | "tool-output-error" | "tool-output-denied" => {
                if let Some(part) = self.tool(text("toolCallId")) {
                    part.insert("state".into(), kind.trim_start_matches("tool-").into());
                    for name in ["output", "errorText", "preliminary"] {
                        part.remove(name);
                        part.extend(frame.get(name).map(|value| (name.to_owned(), value.clone())));
                    }
                    // Level 6 has no frame for the response.
                    if let Some(approval) = part.get_mut("approval").filter(|_| kind == "tool-output-denied")
                    {
                        approval["approved"] = false.into();
                    }
                }
            }
            "file" | "custom" | "steering-message" => self.parts.push(frame.clone()),
            _ if kind.starts_with("data-") && frame.get("transient").is_none() => {
                let is_same = |part: &&mut Value| part["type"] == frame["type"] && part["id"] == frame["id"];
                match self.parts.iter_mut().find(is_same) {
                    Some(part) => part["data"] = frame["data"].clone(),
                    None => self.parts.push(frame.clone()),
                }
            }
            _ => {}
        }
    }

    /// Returns the index of the first part of the current step.
    fn step(&self) -> usize {
        self.parts.iter().rposition(|part| part["type"] == "step-start").map_or(0, |place| place + 1)
    }

    fn tool(&mut self, id: &str) -> Option<&mut Map<String, Value>> {
        let found = self.parts.iter_mut().rfind(|part| part["toolCallId"] == id);
        found.and_then(Value::as_object_mut)
    }

    fn input(&mut self, frame: &AiSdkFrame, kind: &str) {
        let name = frame["toolName"].as_str().unwrap_or_default();
        let step = self.step();
        let found = self.parts[step..].iter().position(|part| part["toolCallId"] == frame["toolCallId"]);
        let place = found.map_or(self.parts.len(), |place| step + place);
        if found.is_none() {
            self.parts.push(if frame.get("dynamic").is_some() {
                json!({ "type": "dynamic-tool", "toolName": name, "toolCallId": frame["toolCallId"] })
            } else {
                json!({ "type": format!("tool-{name}"), "toolCallId": frame["toolCallId"] })
            });
        }
        let part = &mut self.parts[place];
        let state = match kind {
            "tool-input-start" => "input-streaming",
            "tool-input-available" => "input-available",
            _ => "output-error",
        };
        part["state"] = state.into();
        for name in ["input", "errorText"] {
            if let Some(value) = frame.get(name) {
                part[name] = value.clone();
            }
        }
    }

    fn approval(&mut self, frame: &AiSdkFrame, kind: &str) {
        // A response contains only the approval's id.
        let id = &frame["approvalId"];
        let asked = || self.parts.iter().rfind(|part| part["approval"]["id"] == *id);
        let call =
            frame.get("toolCallId").or_else(|| asked()?.get("toolCallId")).cloned().unwrap_or_default();
        let Some(part) = self.tool(call.as_str().unwrap_or_default()) else { return };
        if kind == "tool-approval-request" {
            let mut approval = json!({ "id": frame["approvalId"] });
            for (name, to) in [("reason", "requestReason"), ("isAutomatic", "isAutomatic")] {
                if let Some(value) = frame.get(name) {
                    approval[to] = value.clone();
                }
            }
            part.insert("state".into(), "approval-requested".into());
            part.insert("approval".into(), approval);
        } else {
            part.insert("state".into(), "approval-responded".into());
            let approval = part.entry("approval").or_insert_with(|| json!({ "id": frame["approvalId"] }));
            for name in ["approved", "reason"] {
                if let Some(value) = frame.get(name) {
                    approval[name] = value.clone();
                }
            }
        }
    }
}
