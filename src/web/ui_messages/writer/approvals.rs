//! Requests for approvals, and the decisions on them.

use std::sync::Arc;

use serde_json::{Map, json};

use super::{Use, UseState, Writer};
use crate::{
    message::{ToolUse, ToolUseId},
    run::PendingUse,
    tool::Decision,
};

impl Writer {
    /// Sends the frames for a decision that was made.
    pub(in crate::web::ui_messages) fn decided(&mut self, id: &ToolUseId, decision: &Decision) {
        let approved = !matches!(decision, Decision::Reject(_));
        let is_seven = self.is_seven();
        if self.find(id).is_none() {
            // The decision answers a question of a running tool. The tool's result will show the effect of the answer.
            let call = call_of(id);
            if self.find(&call).is_some_and(|tool_use| tool_use.is_asked) && is_seven {
                self.response(id, approved, decision);
            }
            return;
        }
        let Some(tool_use) = self.find(id) else { return };
        tool_use.decided = Some(approved);
        let (is_asked, is_question) = (tool_use.is_asked, tool_use.is_question);
        if is_asked && is_seven {
            self.response(id, approved, decision);
        }
        if is_question {
            self.frame(if approved {
                json!({ "type": "tool-output-available", "toolCallId": id, "output": null })
            } else {
                json!({ "type": "tool-output-denied", "toolCallId": id })
            });
            self.uses.retain(|tool_use| tool_use.id != *id);
        }
    }

    fn response(&mut self, id: &ToolUseId, approved: bool, decision: &Decision) {
        let mut frame = json!({ "type": "tool-approval-response", "approvalId": id, "approved": approved });
        if let Decision::Reject(reason) = decision {
            frame["reason"] = reason.as_str().into();
        }
        self.frame(frame);
    }

    /// Notes a pause whose request an earlier stream has sent.
    pub(in crate::web::ui_messages) fn note_pause(&mut self, pause: &PendingUse) {
        let call = pause.call();
        let is_known = self.find(call).is_some();
        let noted = self.add_use(call, &pause.tool_use.name, UseState::Available);
        noted.is_asked = true;
        noted.is_question |= !is_known;
    }

    /// Asks for the decisions of a pause. Level 7 gets an automatic request and response for each other use of the
    /// step, because a client of level 7 sends its decisions only when every tool use of the step has a decision.
    pub(in crate::web::ui_messages) fn pauses(&mut self, pauses: &[Arc<PendingUse>]) {
        for pause in pauses {
            let ToolUse { id, name, input, .. } = &pause.tool_use;
            let call = pause.call();
            if self.find(call).is_none() {
                let mut frame = self.tool_frame("tool-input-available", call, name);
                frame["input"] = input.clone();
                self.frame(frame);
            }
            self.note_pause(pause);
            let mut frame = json!({ "type": "tool-approval-request", "approvalId": id, "toolCallId": call });
            if self.is_seven()
                && let Some(reason) = pause.reason.as_str()
            {
                frame["reason"] = reason.into();
            }
            self.frame(frame);
            self.approval_details(pause);
        }
        if !self.is_seven() {
            return;
        }
        let is_automatic = |tool_use: &&Use| tool_use.state == UseState::Available && !tool_use.is_asked;
        let automatic = self.uses.iter().filter(is_automatic);
        let automatic: Vec<_> = automatic.map(|tool_use| (tool_use.id.clone(), tool_use.decided)).collect();
        for (id, decided) in automatic {
            let approved = decided.unwrap_or(true);
            if let Some(tool_use) = self.find(&id) {
                tool_use.is_asked = true;
            }
            self.frame(json!({
                "type": "tool-approval-request", "approvalId": id, "toolCallId": id, "isAutomatic": true,
            }));
            self.frame(json!({ "type": "tool-approval-response", "approvalId": id, "approved": approved }));
        }
    }

    fn approval_details(&mut self, pause: &PendingUse) {
        let mut data = Map::new();
        data.insert("toolCallId".into(), json!(pause.call()));
        if pause.asked_by.is_some() {
            data.insert("approvalId".into(), json!(pause.tool_use.id));
        }
        data.insert("turn".into(), json!(pause.turn));
        data.insert("input".into(), pause.tool_use.input.clone());
        data.insert("inputReplaced".into(), pause.input_replaced.into());
        data.insert("reason".into(), pause.reason.clone());
        if let Some(expires) = pause.expires {
            data.insert("expiresAt".into(), json!(expires));
        }
        if let Some(conversation) = &self.settings.conversation {
            data.insert("commands".into(), format!("{conversation}/commands").into());
        }
        self.data("approval", Some(pause.tool_use.id.as_str()), &data.into());
    }
}

/// Returns the id of the call whose question has this id.
fn call_of(id: &ToolUseId) -> ToolUseId {
    id.as_str().rsplit_once('?').map_or_else(|| id.clone(), |(call, _)| call.into())
}
