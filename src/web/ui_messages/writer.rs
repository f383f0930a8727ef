//! Writes the frames of blocks, tools, approvals and steps, and keeps track of the parts that are open.

mod approvals;
mod content;

pub(super) use content::user_parts;

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    mem,
    sync::Arc,
};

use serde_json::{Value, json};

use self::content::{file_url, has_linked_files, output};
use super::{
    AiSdkFrame, AiSdkTranslationSettings, AiSdkVersion,
    exchange::{has_own_content, has_results, ui_id},
};
use crate::{
    message::{
        Attachment, Content, DecisionKind, Message, MessageId, ProviderItem, Role, ToolResult, ToolUse,
        ToolUseId, TurnId,
    },
    session::SessionSnapshot,
    web::front::intent::pause_id,
};

/// The state of the client's last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AiSdkStepState {
    /// The client has no step, or the results of its last step are complete.
    #[default]
    Over,
    /// The frame `start-step` was sent.
    Open,
    /// The frame `finish-step` was sent. Results may follow.
    Finished,
    /// The step was emptied, so the next step uses it.
    Reset,
}

/// The state of a tool use in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AiSdkToolUseState {
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
struct AiSdkStreamedToolUse {
    id: ToolUseId,
    name: String,
    /// The text of the input so far.
    input: String,
    state: AiSdkToolUseState,
    /// The result that was sent.
    result: Option<ToolResult>,
    /// Whether an approval was requested.
    is_asked: bool,
    /// The decision: approved or not.
    decided: Option<bool>,
    /// Whether the service itself runs the tool, so that no result will arrive.
    is_question: bool,
}

/// Writes frames.
#[derive(Debug, Default)]
pub(super) struct AiSdkFrameWriter {
    pub(super) settings: AiSdkTranslationSettings,
    /// The frames that were not sent yet.
    pub(super) frames: VecDeque<AiSdkFrame>,
    /// The names of the agent's tools, and whether each has a handler. All other tools are dynamic.
    tools: HashMap<String, bool>,
    /// The number of the step.
    step: u32,
    /// The id of the step's message.
    message: Option<MessageId>,
    state: AiSdkStepState,
    /// The open parts of text, by the index of their block: the kind and the id of each part.
    texts: BTreeMap<usize, (&'static str, String)>,
    uses: Vec<AiSdkStreamedToolUse>,
    items: HashSet<usize>,
    retries: u32,
    /// The turn of the last pauses.
    turn: Option<TurnId>,
}

impl AiSdkFrameWriter {
    pub(super) fn new(settings: AiSdkTranslationSettings, snapshot: &SessionSnapshot) -> Self {
        let tools =
            snapshot.agent.state.tools.iter().map(|tool| (tool.name.clone(), tool.has_handler)).collect();
        Self { settings, tools, ..Self::default() }
    }

    pub(super) fn frame(&mut self, frame: AiSdkFrame) {
        self.frames.push_back(frame);
    }

    fn is_seven(&self) -> bool {
        self.settings.level == AiSdkVersion::Seven
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

    // ---- messages ----

    /// Writes whole messages of an answer: each assistant message is a step.
    pub(super) fn replay<'a>(&mut self, messages: impl Iterator<Item = &'a Arc<Message>>) {
        for message in messages {
            if message.role == Role::User {
                self.results(message);
                if !has_results(message) {
                    self.steering(message);
                }
                continue;
            }
            self.step_start(self.step + 1, message.id.as_ref());
            for (index, content) in message.content.iter().enumerate() {
                let text: &str = match content {
                    Content::Text(text) => &text.text,
                    Content::Thinking(thinking) => &thinking.text,
                    _ => "",
                };
                self.block(index, content, text, true);
            }
            self.answer(message);
        }
    }

    /// Marks the inputs of tools whose results are known: from these frames, or from `message`, which follows them. A client
    /// does not run a tool again if its input has this mark.
    pub(super) fn mark_answered(&mut self, message: Option<&Arc<Message>>) {
        let results = message.into_iter().flat_map(|message| message.tool_results());
        let mut answered: HashSet<_> = results.map(|result| json!(result.tool_use_id)).collect();
        for frame in self.frames.iter_mut().rev() {
            let kind = frame["type"].as_str().unwrap_or_default();
            if kind.starts_with("tool-output-") {
                answered.insert(frame["toolCallId"].clone());
            } else if kind == "tool-input-available" && answered.remove(&frame["toolCallId"]) {
                frame["providerExecuted"] = true.into();
            }
        }
    }

    /// Writes the end of an answer. If a step ended while some tool uses were open, its other tool uses contain their
    /// results, because no message contains them yet.
    pub(super) fn answer(&mut self, message: &Message) {
        self.step_end();
        let decided = message.tool_uses().filter_map(|tool_use| tool_use.decided.as_deref());
        decided.for_each(|result| self.result(result, None));
    }

    /// Writes the results in a message, unless they were written before.
    pub(super) fn results(&mut self, message: &Message) {
        for (index, block) in message.content.iter().enumerate() {
            if let Content::ToolResult(result) = block {
                self.result(result, message.id.as_ref().map(|id| (id, index)));
            }
        }
        self.step_over();
    }

    /// Writes the results in `kept` that differ from those in `shown`, in place of these.
    pub(super) fn replace(&mut self, shown: &Message, kept: &Message) {
        for (index, block) in kept.content.iter().enumerate() {
            if let (Content::ToolResult(result), true) = (block, shown.content.get(index) != Some(block)) {
                self.result(result, kept.id.as_ref().map(|id| (id, index)));
            }
        }
    }

    /// Writes the content of a message that joined the turn.
    pub(super) fn steering(&mut self, message: &Message) {
        if !has_own_content(message) {
            return;
        }
        let (id, parts) = (ui_id(message, None), user_parts(message, &self.settings));
        if self.is_seven() {
            self.frame(json!({ "type": "steering-message", "id": id, "parts": parts }));
        } else {
            self.data("steering", Some(&id), &json!({ "id": id, "parts": parts }));
        }
    }

    // ---- steps ----

    /// Begins a step, because a request is sent.
    pub(super) fn step_start(&mut self, step: u32, message: Option<&MessageId>) {
        self.step_end();
        self.forget_step();
        if self.state != AiSdkStepState::Reset {
            self.frame(json!({ "type": "start-step" }));
        }
        (self.step, self.message, self.state) = (step, message.cloned(), AiSdkStepState::Open);
    }

    /// Ends the open step, because the response is complete or its stream ends.
    pub(super) fn step_end(&mut self) {
        if self.state == AiSdkStepState::Open {
            self.end_texts();
            self.frame(json!({ "type": "finish-step" }));
            self.state = AiSdkStepState::Finished;
        }
    }

    /// Records that the results of the step are complete. The next request belongs to another step.
    fn step_over(&mut self) {
        self.step_end();
        if self.state == AiSdkStepState::Finished {
            self.state = AiSdkStepState::Over;
        }
    }

    /// Sends an empty step if the last step used tools and all of them have results. A client that sends results
    /// automatically looks only at the last step. Without an empty step, it would send the results of the server's
    /// tools as if they were its own.
    pub(super) fn seal(&mut self) {
        let is_done = |tool_use: &AiSdkStreamedToolUse| {
            matches!(tool_use.state, AiSdkToolUseState::Answered | AiSdkToolUseState::Malformed)
        };
        if !self.uses.is_empty() && self.uses.iter().all(is_done) {
            self.step_end();
            self.frame(json!({ "type": "start-step" }));
            self.frame(json!({ "type": "finish-step" }));
            self.forget_step();
        }
    }

    fn forget_step(&mut self) {
        self.texts.clear();
        self.uses.clear();
        self.items.clear();
    }

    /// Handles the repetition of a request. If `is_void` is set, everything that the step has sent is void. `model` is the
    /// backup model that repeats the request, if one does.
    pub(super) fn retry(&mut self, is_void: bool, failure: &str, delay: u64, model: Option<&str>) {
        self.retries += 1;
        let is_void = is_void && matches!(self.state, AiSdkStepState::Open | AiSdkStepState::Finished);
        let mut mark = None;
        if is_void && self.is_seven() {
            self.frame(json!({ "type": "reset-step" }));
            self.state = AiSdkStepState::Reset;
        } else if is_void {
            // In level 6, the parts stay in the message. The data part that follows them marks them as void.
            self.close("The request is repeated.");
            mark = Some(format!("retry-{}", self.retries));
        }
        self.data("retry", mark.as_deref(), &json!({ "failure": failure, "delay": delay, "model": model }));
        if is_void {
            self.step_over();
            self.forget_step();
        }
    }

    // ---- blocks ----

    /// Writes the part of a block that was not written before. `new` is the end of the block's text, or of the JSON text
    /// of a tool's input.
    pub(super) fn block(&mut self, index: usize, content: &Content, new: &str, ended: bool) {
        match content {
            Content::Text(text) => self.text("text", index, &text.text, new, ended),
            Content::Thinking(thinking) => self.text("reasoning", index, &thinking.text, new, ended),
            Content::Attachment(file) => self.file(index, file),
            Content::ProviderItem(item) => self.item(index, item),
            Content::ToolUse(tool_use) if ended => self.tool_input(tool_use),
            Content::ToolUse(ToolUse { id, name, .. }) => {
                if self.find(id).is_none() {
                    self.add_use(id, name, AiSdkToolUseState::Input);
                    self.frame(self.tool_frame("tool-input-start", id, name));
                }
                if !new.is_empty() {
                    self.frame(
                        json!({ "type": "tool-input-delta", "toolCallId": id, "inputTextDelta": new }),
                    );
                    self.add_use(id, name, AiSdkToolUseState::Input).input.push_str(new);
                }
            }
            Content::ToolResult(_) => {}
        }
    }

    /// Writes the text `new` at the end of `whole`. A part of reasoning is opened when its first text arrives, because
    /// many services send reasoning without readable text.
    fn text(&mut self, kind: &'static str, index: usize, whole: &str, new: &str, ended: bool) {
        let sent = whole.len() - new.len();
        if !self.texts.contains_key(&index) && (!new.is_empty() || kind == "text" && sent == 0) {
            // If an earlier stream has sent the beginning of a block, the rest of the block is another part.
            let part = match sent {
                0 => format!("{}-{index}", self.step),
                sent => format!("{}-{index}-{sent}", self.step),
            };
            self.frame(json!({ "type": format!("{kind}-start"), "id": part }));
            self.texts.insert(index, (kind, part));
        }
        if let (Some((_, part)), false) = (self.texts.get(&index), new.is_empty()) {
            let frame = json!({ "type": format!("{kind}-delta"), "id": part, "delta": new });
            self.frame(frame);
        }
        if ended {
            self.end_text(index);
        }
    }

    fn end_text(&mut self, index: usize) {
        if let Some((kind, part)) = self.texts.remove(&index) {
            self.frame(json!({ "type": format!("{kind}-end"), "id": part }));
        }
    }

    /// Ends all open parts of text.
    fn end_texts(&mut self) {
        let open: Vec<usize> = self.texts.keys().copied().collect();
        for index in open {
            self.end_text(index);
        }
    }

    fn file(&mut self, index: usize, file: &Attachment) {
        let url = file_url(&self.settings, self.message.as_ref(), &index.to_string(), file);
        self.frame(json!({ "type": "file", "url": url, "mediaType": file.media_type }));
    }

    fn item(&mut self, index: usize, item: &ProviderItem) {
        if self.is_seven() && self.settings.provider_items && self.items.insert(index) {
            let kind = item.data.get("type").and_then(Value::as_str).unwrap_or("item");
            self.frame(json!({ "type": "custom", "kind": format!("{}.{kind}", item.format) }));
        }
    }

    // ---- tools ----

    fn find(&mut self, id: &ToolUseId) -> Option<&mut AiSdkStreamedToolUse> {
        self.uses.iter_mut().find(|tool_use| tool_use.id == *id)
    }

    fn add_use(&mut self, id: &ToolUseId, name: &str, state: AiSdkToolUseState) -> &mut AiSdkStreamedToolUse {
        let place = self.uses.iter().position(|tool_use| tool_use.id == *id).unwrap_or_else(|| {
            self.uses.push(AiSdkStreamedToolUse {
                id: id.clone(),
                name: name.to_owned(),
                input: String::new(),
                state,
                result: None,
                is_asked: false,
                decided: None,
                is_question: false,
            });
            self.uses.len() - 1
        });
        self.uses[place].state = state;
        &mut self.uses[place]
    }

    fn tool_frame(&self, kind: &str, id: &ToolUseId, name: &str) -> AiSdkFrame {
        let mut frame = json!({ "type": kind, "toolCallId": id, "toolName": name });
        if !self.tools.contains_key(name) {
            frame["dynamic"] = true.into();
        }
        frame
    }

    fn tool_input(&mut self, tool_use: &ToolUse) {
        let ToolUse { id, name, input, malformed, .. } = tool_use;
        let (kind, state) = match malformed {
            Some(_) => ("tool-input-error", AiSdkToolUseState::Malformed),
            None => ("tool-input-available", AiSdkToolUseState::Available),
        };
        let mut frame = self.tool_frame(kind, id, name);
        frame["input"] = input.clone();
        if let Some(raw) = malformed {
            frame["input"] = raw.as_str().into();
            frame["errorText"] = "The input is not a JSON object.".into();
        }
        self.frame(frame);
        self.add_use(id, name, state);
    }

    /// Sends the progress that a tool reported.
    pub(super) fn progress(&mut self, id: &ToolUseId, data: &Value) {
        if let Some(tool_use) =
            self.find(id).filter(|tool_use| tool_use.state == AiSdkToolUseState::Available)
        {
            // A client of level 7 sends no decisions while a part shows a preliminary output. So if another tool use
            // waits, this one gets an automatic request and response again.
            tool_use.is_asked = false;
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

    /// Writes a result, unless it was written already. A message can contain a shorter form of a result that was
    /// written. `block` is the message and the index of the result in it.
    fn result(&mut self, result: &ToolResult, block: Option<(&MessageId, usize)>) {
        let id = &result.tool_use_id;
        let rejected = result.decision.as_deref().filter(|decision| decision.kind == DecisionKind::Reject);
        // A replay has no requests for approvals. A rejection without a name can be that of a callback.
        let is_named = rejected.is_some_and(|decision| decision.by.is_some());
        let turn = self.message.as_ref().and_then(MessageId::turn).filter(|_| is_named);
        let (mut asks, mut is_denied) = (None, false);
        match self.find(id) {
            Some(tool_use) if tool_use.result.as_ref() == Some(result) => return,
            Some(tool_use) => {
                (tool_use.state, tool_use.result) = (AiSdkToolUseState::Answered, Some(result.clone()));
                asks = turn.filter(|_| !tool_use.is_asked);
                tool_use.is_asked |= asks.is_some();
                is_denied = tool_use.is_asked && rejected.is_some();
            }
            None => {}
        }
        if let Some(turn) = asks {
            let approval = pause_id(id, turn);
            self.frame(json!({ "type": "tool-approval-request", "approvalId": approval, "toolCallId": id }));
            if self.is_seven() {
                let reason = result.output_text();
                self.frame(json!({
                    "type": "tool-approval-response", "approvalId": approval, "approved": false, "reason": reason,
                }));
            }
        }
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

    /// Closes everything that is open, because the answer ends here. Tool uses without a result get `reason` as an
    /// error.
    pub(super) fn close(&mut self, reason: &str) {
        self.end_texts();
        for tool_use in mem::take(&mut self.uses) {
            let AiSdkStreamedToolUse { id, name, input, state, .. } = &tool_use;
            match state {
                AiSdkToolUseState::Input => {
                    let mut frame = self.tool_frame("tool-input-error", id, name);
                    frame["input"] = input.as_str().into();
                    frame["errorText"] = reason.into();
                    self.frame(frame);
                }
                AiSdkToolUseState::Available => {
                    self.frame(json!({ "type": "tool-output-error", "toolCallId": id, "errorText": reason }));
                }
                AiSdkToolUseState::Malformed | AiSdkToolUseState::Answered => {}
            }
            self.uses.push(AiSdkStreamedToolUse { state: AiSdkToolUseState::Answered, ..tool_use });
        }
    }
}
