//! Writes the frames of blocks, tools, approvals and steps, and keeps track of the parts that are open.

mod approvals;
mod content;

pub(super) use content::user_parts;

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

use self::content::{file_url, has_linked_files, output};
use super::{Frame, Level, Settings};
use crate::{
    message::{Attachment, Content, Message, MessageId, ProviderItem, ToolResult, ToolUse, ToolUseId},
    provider::PartialBlock,
};

/// The kind of a part that consists of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Reasoning,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Reasoning => "reasoning",
        }
    }
}

/// A block of text that has not ended.
#[derive(Debug)]
struct OpenText {
    kind: Kind,
    /// The id of the part. `None` if no part is open.
    part: Option<String>,
    /// The length of the text that was sent, in this stream or in an earlier one.
    sent: usize,
}

/// The state of a tool use in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UseState {
    /// The input is streaming.
    Input,
    /// The input is complete.
    Available,
    /// The input is unusable. The part shows an error already.
    Malformed,
    /// The result was sent.
    Answered,
}

/// A tool use of the current step.
#[derive(Debug)]
struct Use {
    id: ToolUseId,
    name: String,
    /// The text of the input so far.
    input: String,
    state: UseState,
    /// Whether an approval was requested.
    is_asked: bool,
    /// The decision: approved or not.
    decided: Option<bool>,
    /// Whether the service itself runs the tool, so that no result will arrive.
    is_question: bool,
}

/// Writes frames.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) settings: Settings,
    /// The names of the agent's tools. All other tools are dynamic.
    tools: HashSet<String>,
    frames: Vec<Frame>,
    /// The number of the step.
    step: u32,
    /// The id of the step's message.
    message: Option<MessageId>,
    /// Whether `start-step` was sent, and `finish-step` was not.
    is_step_open: bool,
    /// Whether the client has a step for the current request, which a reset would empty.
    has_step: bool,
    /// Whether the client's step was emptied, so that the next step uses it.
    is_step_reset: bool,
    texts: BTreeMap<usize, OpenText>,
    inputs: BTreeMap<usize, ToolUseId>,
    uses: Vec<Use>,
    items: HashSet<usize>,
    retries: u32,
}

impl Writer {
    pub(super) fn new(settings: Settings, tools: impl IntoIterator<Item = String>) -> Self {
        Self {
            settings,
            tools: tools.into_iter().collect(),
            frames: Vec::new(),
            step: 0,
            message: None,
            is_step_open: false,
            has_step: false,
            is_step_reset: false,
            texts: BTreeMap::new(),
            inputs: BTreeMap::new(),
            uses: Vec::new(),
            items: HashSet::new(),
            retries: 0,
        }
    }

    /// Returns the frames that were written since the last call.
    pub(super) fn take(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    pub(super) fn frame(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    fn is_seven(&self) -> bool {
        self.settings.level == Level::Seven
    }

    /// Sends a part of the type `data-omni-NAME`. Without an `id`, the part is transient: the client does not keep it
    /// in the message.
    pub(super) fn data(&mut self, name: &str, id: Option<&str>, data: &Value) {
        let mut frame = json!({ "type": format!("data-omni-{name}"), "data": data });
        match id {
            Some(id) => frame["id"] = id.into(),
            None => frame["transient"] = true.into(),
        }
        self.frame(frame);
    }

    // ---- steps ----

    /// Begins a step, because a request is sent.
    pub(super) fn step_start(&mut self, step: u32, message: Option<MessageId>) {
        self.step_end();
        self.forget_step();
        if !std::mem::take(&mut self.is_step_reset) {
            self.frame(json!({ "type": "start-step" }));
        }
        (self.step, self.message) = (step, message);
        (self.is_step_open, self.has_step) = (true, true);
    }

    /// Continues a step that an earlier stream has started.
    pub(super) fn continue_step(&mut self, step: u32, message: Option<MessageId>) {
        (self.step, self.message) = (step, message);
        (self.is_step_open, self.has_step) = (true, true);
    }

    /// Ends the open step, because the response is complete or its stream ends.
    pub(super) fn step_end(&mut self) {
        if std::mem::take(&mut self.is_step_open) {
            self.end_texts();
            self.frame(json!({ "type": "finish-step" }));
        }
    }

    /// Records that the results of the step are complete. The next request belongs to another step.
    pub(super) fn step_over(&mut self) {
        self.step_end();
        self.has_step = false;
    }

    /// Sends an empty step if the last step used tools and all of them have results. A client that sends results
    /// automatically looks only at the last step. Without an empty step, it would send the results of the server's
    /// tools as if they were its own.
    pub(super) fn seal(&mut self) {
        let is_done = |tool_use: &Use| matches!(tool_use.state, UseState::Answered | UseState::Malformed);
        if !self.uses.is_empty() && self.uses.iter().all(is_done) {
            self.step_end();
            self.frame(json!({ "type": "start-step" }));
            self.frame(json!({ "type": "finish-step" }));
            self.forget_step();
        }
    }

    fn forget_step(&mut self) {
        self.texts.clear();
        self.inputs.clear();
        self.uses.clear();
        self.items.clear();
    }

    /// Handles the repetition of a request. Everything that the step has sent is void.
    pub(super) fn retry(&mut self, data: &Value) {
        self.retries += 1;
        if self.is_seven() {
            if self.has_step {
                self.frame(json!({ "type": "reset-step" }));
                self.is_step_reset = true;
            }
            self.is_step_open = false;
            self.data("retry", None, data);
        } else {
            // In level 6, the parts stay in the message. The data part that follows them marks them as void.
            let is_marked = self.has_step;
            self.close("The request is repeated.");
            let id = format!("retry-{}", self.retries);
            self.data("retry", is_marked.then_some(&id), data);
            self.step_end();
        }
        self.has_step = false;
        self.forget_step();
    }

    // ---- texts ----

    pub(super) fn text_start(&mut self, index: usize) {
        self.texts.insert(index, OpenText { kind: Kind::Text, part: None, sent: 0 });
        self.open(index);
    }

    /// The part for the reasoning is opened when its first text arrives, because many services send reasoning without
    /// readable text.
    pub(super) fn thinking_start(&mut self, index: usize) {
        self.texts.insert(index, OpenText { kind: Kind::Reasoning, part: None, sent: 0 });
    }

    pub(super) fn text_delta(&mut self, index: usize, delta: &str) {
        if delta.is_empty() || !self.texts.contains_key(&index) {
            return;
        }
        self.open(index);
        let Some(text) = self.texts.get_mut(&index) else { return };
        text.sent += delta.len();
        let frame = json!({ "type": format!("{}-delta", text.kind.name()), "id": text.part, "delta": delta });
        self.frame(frame);
    }

    /// Ends a block of text. Text that was not part of any delta is sent now.
    pub(super) fn text_end(&mut self, index: usize, whole: &str) {
        let sent = self.texts.get(&index).map_or(0, |text| text.sent);
        if let Some(rest) = whole.get(sent..) {
            self.text_delta(index, rest);
        }
        self.end_text(index);
    }

    fn open(&mut self, index: usize) {
        let Some(text) = self.texts.get_mut(&index).filter(|text| text.part.is_none()) else { return };
        // If an earlier stream has sent the beginning of a block, the rest of the block is another part.
        let part = match text.sent {
            0 => format!("{}-{index}", self.step),
            sent => format!("{}-{index}-{sent}", self.step),
        };
        let frame = json!({ "type": format!("{}-start", text.kind.name()), "id": part });
        text.part = Some(part);
        self.frame(frame);
    }

    fn end_text(&mut self, index: usize) {
        if let Some(text) = self.texts.remove(&index)
            && let Some(part) = text.part
        {
            self.frame(json!({ "type": format!("{}-end", text.kind.name()), "id": part }));
        }
    }

    /// Ends all open parts of text.
    fn end_texts(&mut self) {
        let open: Vec<usize> = self.texts.keys().copied().collect();
        for index in open {
            self.end_text(index);
        }
    }

    // ---- other blocks ----

    pub(super) fn file(&mut self, index: usize, file: &Attachment) {
        let url = file_url(&self.settings, self.message.as_ref(), &index.to_string(), file);
        self.frame(json!({ "type": "file", "url": url, "mediaType": file.media_type }));
    }

    pub(super) fn item(&mut self, index: usize, item: &ProviderItem) {
        if self.is_seven() && self.settings.provider_items && self.items.insert(index) {
            let kind = item.data.get("type").and_then(Value::as_str).unwrap_or("item");
            self.frame(json!({ "type": "custom", "kind": format!("{}.{kind}", item.format) }));
        }
    }

    /// Writes a whole block of an answer.
    pub(super) fn block(&mut self, index: usize, block: &Content) {
        match block {
            Content::Text(text) => {
                self.text_start(index);
                self.text_end(index, &text.text);
            }
            Content::Thinking(thinking) => {
                self.thinking_start(index);
                self.text_end(index, &thinking.text);
            }
            Content::Attachment(file) => self.file(index, file),
            Content::ToolUse(tool_use) => self.tool_input(index, tool_use),
            Content::ProviderItem(item) => self.item(index, item),
            Content::ToolResult(_) => {}
        }
    }

    /// Writes a block of an answer that is still streaming.
    pub(super) fn partial(&mut self, index: usize, block: &PartialBlock) {
        match &block.content {
            Content::Text(text) if !block.ended => {
                self.text_start(index);
                self.text_delta(index, &text.text);
            }
            Content::Thinking(thinking) if !block.ended => {
                self.thinking_start(index);
                self.text_delta(index, &thinking.text);
            }
            Content::ToolUse(tool_use) if !block.ended => {
                self.tool_start(index, &tool_use.id, &tool_use.name);
                self.tool_delta(index, &block.input);
            }
            content => self.block(index, content),
        }
    }

    /// Records a block that an earlier stream has sent, completely or in part. If the block has not ended, this stream
    /// sends the rest.
    pub(super) fn continue_block(&mut self, index: usize, block: &PartialBlock) {
        let (kind, sent) = match &block.content {
            _ if block.ended => return self.note(&block.content),
            Content::Text(text) => (Kind::Text, text.text.len()),
            Content::Thinking(thinking) => (Kind::Reasoning, thinking.text.len()),
            Content::ToolUse(tool_use) => {
                self.inputs.insert(index, tool_use.id.clone());
                self.add_use(&tool_use.id, &tool_use.name, UseState::Input).input.clone_from(&block.input);
                return;
            }
            _ => return,
        };
        self.texts.insert(index, OpenText { kind, part: None, sent });
    }

    /// Records a tool use that an earlier stream has sent. Other blocks are ignored.
    pub(super) fn note(&mut self, block: &Content) {
        if let Content::ToolUse(tool_use) = block {
            let is_malformed = tool_use.malformed.is_some();
            let state = if is_malformed { UseState::Malformed } else { UseState::Available };
            self.add_use(&tool_use.id, &tool_use.name, state);
        }
    }

    // ---- tools ----

    fn find(&mut self, id: &ToolUseId) -> Option<&mut Use> {
        self.uses.iter_mut().find(|tool_use| tool_use.id == *id)
    }

    fn add_use(&mut self, id: &ToolUseId, name: &str, state: UseState) -> &mut Use {
        let place = self.uses.iter().position(|tool_use| tool_use.id == *id).unwrap_or_else(|| {
            self.uses.push(Use {
                id: id.clone(),
                name: name.to_owned(),
                input: String::new(),
                state,
                is_asked: false,
                decided: None,
                is_question: false,
            });
            self.uses.len() - 1
        });
        self.uses[place].state = state;
        &mut self.uses[place]
    }

    fn tool_frame(&self, kind: &str, id: &ToolUseId, name: &str) -> Frame {
        let mut frame = json!({ "type": kind, "toolCallId": id, "toolName": name });
        if !self.tools.contains(name) {
            frame["dynamic"] = true.into();
        }
        frame
    }

    pub(super) fn tool_start(&mut self, index: usize, id: &ToolUseId, name: &str) {
        self.inputs.insert(index, id.clone());
        self.add_use(id, name, UseState::Input);
        self.frame(self.tool_frame("tool-input-start", id, name));
    }

    pub(super) fn tool_delta(&mut self, index: usize, delta: &str) {
        if delta.is_empty() {
            return;
        }
        let Some(id) = self.inputs.get(&index).cloned() else { return };
        self.frame(json!({ "type": "tool-input-delta", "toolCallId": id, "inputTextDelta": delta }));
        if let Some(tool_use) = self.find(&id) {
            tool_use.input.push_str(delta);
        }
    }

    pub(super) fn tool_input(&mut self, index: usize, tool_use: &ToolUse) {
        self.inputs.remove(&index);
        let ToolUse { id, name, input, malformed, .. } = tool_use;
        if let Some(raw) = malformed {
            let mut frame = self.tool_frame("tool-input-error", id, name);
            frame["input"] = raw.as_str().into();
            frame["errorText"] = "The input is not a JSON object.".into();
            self.frame(frame);
            self.add_use(id, name, UseState::Malformed);
        } else {
            let mut frame = self.tool_frame("tool-input-available", id, name);
            frame["input"] = input.clone();
            self.frame(frame);
            self.add_use(id, name, UseState::Available);
        }
    }

    /// Sends the progress that a tool reported.
    pub(super) fn progress(&mut self, id: &ToolUseId, data: &Value) {
        if self.find(id).is_some_and(|tool_use| tool_use.state == UseState::Available) {
            self.frame(json!({
                "type": "tool-output-available", "toolCallId": id, "output": data, "preliminary": true,
            }));
        }
    }

    /// Writes the result of a tool that has ended. A result with a large file is not written yet, because the file gets
    /// its address from the message that will contain the result.
    pub(super) fn tool_end(&mut self, result: &ToolResult) {
        if !has_linked_files(result, &self.settings) {
            self.result(result, None);
        }
    }

    /// Writes a result, unless it was written already. `block` is the message and the index of the result in it.
    pub(super) fn result(&mut self, result: &ToolResult, block: Option<(&MessageId, usize)>) {
        let id = &result.tool_use_id;
        let is_denied = match self.find(id) {
            Some(tool_use) if tool_use.state == UseState::Answered => return,
            Some(tool_use) => {
                tool_use.state = UseState::Answered;
                tool_use.is_asked && tool_use.decided == Some(false)
            }
            None => false,
        };
        if let Some(decision) = &result.decision {
            let mut data = json!(decision);
            data["toolCallId"] = json!(id);
            self.data("decision", Some(id.as_str()), &data);
        }
        self.frame(if is_denied {
            json!({ "type": "tool-output-denied", "toolCallId": id })
        } else if result.is_error {
            json!({ "type": "tool-output-error", "toolCallId": id, "errorText": result.output_text() })
        } else {
            json!({ "type": "tool-output-available", "toolCallId": id, "output": output(result, block, &self.settings) })
        });
    }

    /// Writes a result in place of the one that was written before.
    pub(super) fn replace(&mut self, result: &ToolResult, block: Option<(&MessageId, usize)>) {
        if let Some(tool_use) = self.find(&result.tool_use_id) {
            tool_use.state = UseState::Available;
        }
        self.result(result, block);
    }

    // ---- ends ----

    /// Closes everything that is open, because the answer ends here. Tool uses without a result get `reason` as an
    /// error.
    pub(super) fn close(&mut self, reason: &str) {
        self.end_texts();
        for tool_use in std::mem::take(&mut self.uses) {
            let Use { id, name, input, state, .. } = &tool_use;
            match state {
                UseState::Input => {
                    let mut frame = self.tool_frame("tool-input-error", id, name);
                    frame["input"] = input.as_str().into();
                    frame["errorText"] = reason.into();
                    self.frame(frame);
                }
                UseState::Available => {
                    self.frame(json!({ "type": "tool-output-error", "toolCallId": id, "errorText": reason }));
                }
                UseState::Malformed | UseState::Answered => {}
            }
            self.uses.push(Use { state: UseState::Answered, ..tool_use });
        }
        self.inputs.clear();
    }

    /// Sends a prompt that joined the turn.
    pub(super) fn steering(&mut self, id: &str, message: &Message) {
        let parts = user_parts(message, &self.settings);
        if self.is_seven() {
            self.frame(json!({ "type": "steering-message", "id": id, "parts": parts }));
        } else {
            self.data("steering", Some(id), &json!({ "id": id, "parts": parts }));
        }
    }
}
