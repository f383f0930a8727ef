//! Requests for approvals, and the decisions on them.

use std::{mem, sync::Arc};

use serde_json::{Map, json};

use super::{AiSdkFrameWriter, AiSdkStreamedToolUse, AiSdkToolUseState};
use crate::{
    message::{MessageId, ToolUse, ToolUseId},
    run::PendingUse,
    tool::Decision,
    web::front::intent::pause_id,
};

impl AiSdkFrameWriter {
    /// Sends the frames for a decision that was made.
    pub(in crate::web::ui_messages) fn decided(&mut self, id: &ToolUseId, decision: &Decision) {
        let approved = !matches!(decision, Decision::Reject(_));
        let own = self.find(id).map(|tool_use| {
            tool_use.decided = Some(approved);
            (tool_use.is_asked, tool_use.is_question)
        });
        // The question of a running tool is not a tool use. The tool's result will show the effect of the answer.
        let (is_asked, is_question) = own.unwrap_or_else(|| {
            let call = self.find(&call_of(id));
            (call.is_some_and(|tool_use| tool_use.is_asked), false)
        });
        if let Some(turn) = self.turn.filter(|_| is_asked && self.is_seven()) {
            let approval = pause_id(id, turn);
            let mut frame =
                json!({ "type": "tool-approval-response", "approvalId": approval, "approved": approved });
            if let Decision::Reject(reason) = decision {
                frame["reason"] = reason.as_str().into();
            }
            self.frame(frame);
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

    /// Drops all frames, because an earlier stream has sent them and the requests for these pauses. If text continues, the
    /// rest is another part.
    pub(in crate::web::ui_messages) fn continue_from(&mut self, pauses: &[Arc<PendingUse>]) {
        for pause in pauses {
            self.note_pause(pause);
        }
        self.end_texts();
        self.frames.clear();
    }

    fn note_pause(&mut self, pause: &PendingUse) {
        let call = pause.call();
        self.turn = Some(pause.turn);
        let is_known = self.find(call).is_some();
        let noted = self.add_use(call, &pause.tool_use.name, AiSdkToolUseState::Available);
        noted.is_asked = true;
        noted.is_question |= !is_known;
    }

    /// Asks for the decisions of a pause. Level 7 gets an automatic request and response for each other use of the
    /// step, because a client of level 7 sends its decisions only when every tool use of the step has a decision.
    pub(in crate::web::ui_messages) fn pauses(&mut self, pauses: &[Arc<PendingUse>]) {
        for pause in pauses {
            let ToolUse { name, input, .. } = &pause.tool_use;
            let (id, call) = (pause_id(&pause.tool_use.id, pause.turn), pause.call());
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
            self.approval_details(pause, &id);
        }
        if !self.is_seven() {
            return;
        }
        for index in 0..self.uses.len() {
            let AiSdkStreamedToolUse { id, name, state, is_asked, decided, .. } = &mut self.uses[index];
            // The client may already have added the output of its own tool.
            let is_clients = self.tools.get(name) == Some(&false);
            if *state == AiSdkToolUseState::Available && !is_clients && !mem::replace(is_asked, true) {
                let (id, approved) = (id.clone(), decided.unwrap_or(true));
                // A later step can have a pause about a tool use with the same id.
                let answer = self.message.as_ref().map(MessageId::to_string).unwrap_or_default();
                let approval = format!("{id}@{answer}");
                self.frame(json!({
                    "type": "tool-approval-request", "approvalId": approval, "toolCallId": id, "isAutomatic": true,
                }));
                self.frame(
                    json!({ "type": "tool-approval-response", "approvalId": approval, "approved": approved }),
                );
            }
        }
    }

    fn approval_details(&mut self, pause: &PendingUse, approval: &str) {
        let mut data = Map::new();
        data.insert("toolCallId".into(), json!(pause.call()));
        data.insert("approvalId".into(), approval.into());
        data.insert("toolUse".into(), json!(pause.tool_use.id));
        if let Some(own) = &pause.sub_agent {
            data.insert("tool".into(), json!(pause.tool_use.name));
            data.insert("subAgent".into(), json!(own.name));
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
        self.data("approval", Some(approval), &data.into());
    }
}

/// Returns the id of the call whose question has this id.
fn call_of(id: &ToolUseId) -> ToolUseId {
    id.as_str().rsplit_once('?').map_or_else(|| id.clone(), |(call, _)| call.into())
}
