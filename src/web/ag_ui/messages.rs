//! Converts the messages of a session to messages of AG-UI.
//!
//! Each visible block of an answer is a message with its own id, `MESSAGE-INDEX`. Tool uses that follow each other
//! directly share one message, which has the id of the first tool use's block. The events of a stream use the same ids.
//!
//! A client finds a tool call by its id alone, but some services number their calls anew in each answer. So a tool use
//! whose id an earlier answer contains is the call `ID~MESSAGE`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{
    AgUiVersion,
    frame::{AgUiContent, AgUiMedia, AgUiMessage, AgUiPart, AgUiSentSource, AgUiToolCall},
};
use crate::{
    agent::Snapshot,
    message::{
        Attachment, Content, Message, MessageId, ResultBlock, Role, Source, ToolResult, ToolUse, ToolUseId,
    },
    session::SessionSnapshot,
    text::clip,
    web::front::{exchange::has_own_content, files::ClientFileForm, intent::repeated_call},
};

/// The greatest size of a text in one frame, in bytes. The JSON form of the text can be six times as long.
pub(super) const MAX_TEXT: usize = 1 << 20;

/// The greatest size of the error of a tool, in bytes. The content of the result repeats it.
const MAX_ERROR: usize = 4 << 10;

/// The greatest size of all messages in one frame, in bytes. The client refuses frames from 10 MiB on.
const MAX_MESSAGES: usize = 8 << 20;

/// The greatest size of a file if files stay in the stream.
pub(super) const MAX_DATA: usize = 4 << 20;

impl ClientFileForm {
    /// Returns whether the result of a tool contains a file whose bytes are replaced by an address.
    pub(super) fn links_in(&self, result: &ToolResult, level: AgUiVersion) -> bool {
        let is_linked = |block: &ResultBlock| match block {
            ResultBlock::Attachment(file) => self.links(file),
            ResultBlock::Text(_) => false,
        };
        level.has_result_parts() && result.content.iter().any(is_linked)
    }

    /// Returns the part for an attachment. `block` is the message's id and the block in it, if they are known.
    fn part(&self, file: &Attachment, block: Option<(&str, &str)>) -> AgUiPart {
        let mime_type = file.media_type.clone();
        let source = match (&file.source, block) {
            (Source::Url { url }, _) if url.len() <= MAX_TEXT => {
                AgUiSentSource::Url { value: url.clone(), mime_type }
            }
            (Source::Base64 { data }, _) if data.len() <= self.limit => {
                AgUiSentSource::Data { value: data.to_string(), mime_type }
            }
            (_, Some((message, block))) => match self.address(file, &message, block) {
                Some(value) => AgUiSentSource::Url { value, mime_type },
                None => return AgUiPart::Text { text: label(file) },
            },
            _ => return AgUiPart::Text { text: label(file) },
        };
        let name = file.name.as_deref().map(|name| ("name".to_owned(), clip(name, 1024).into()));
        let media = AgUiMedia { source, metadata: name.into_iter().collect() };
        match file.media_type.split('/').next().map(str::to_ascii_lowercase).as_deref() {
            Some("image") => AgUiPart::Image(media),
            Some("audio") => AgUiPart::Audio(media),
            Some("video") => AgUiPart::Video(media),
            _ => AgUiPart::Document(media),
        }
    }

    /// Returns the content of the activity that shows a file of an answer.
    pub(super) fn activity(&self, file: &Attachment, message: &str, block: usize) -> Value {
        json!({ "file": self.part(file, Some((message, &block.to_string()))) })
    }
}

/// Returns the text that replaces a file that is not sent.
fn label(file: &Attachment) -> String {
    let name = file.name.as_deref().map(|name| format!(" {}", clip(name, 1024))).unwrap_or_default();
    format!("[file{name}, {}]", clip(&file.media_type, 256))
}

/// Returns the id of a block of an answer.
pub(super) fn block_id(message: &impl std::fmt::Display, index: usize) -> String {
    format!("{message}-{index}")
}

/// Returns the id of the message with the result of a tool call.
pub(super) fn result_id(call: &str) -> String {
    format!("{call}-result")
}

fn uses(message: &Message, id: &ToolUseId) -> bool {
    message.tool_uses().any(|tool_use| tool_use.id == *id)
}

/// Returns the id of the call for a tool use in this answer.
pub(super) fn call_of(agent: &Snapshot, answer: &MessageId, id: &ToolUseId) -> String {
    let mut earlier = agent.messages().take_while(|message| message.id.as_ref() != Some(answer));
    if earlier.any(|message| uses(message, id)) { repeated_call(id, answer) } else { id.to_string() }
}

/// Returns the id of the newest call for a tool use with this id.
pub(super) fn newest_call_of(agent: &Snapshot, id: &ToolUseId) -> String {
    let messages = (1..).zip(agent.messages()).filter(|(_, message)| uses(message, id));
    let mut messages = messages.map(|(number, message)| message_id(message, number));
    match (messages.next(), messages.last()) {
        (_, Some(newest)) => repeated_call(id, &newest),
        (_, None) => id.to_string(),
    }
}

/// Returns the id of the message with this number in the conversation.
fn message_id(message: &Message, number: usize) -> String {
    message.id.as_ref().map_or_else(|| format!("message-{number}"), MessageId::to_string)
}

/// Returns the content of a message with a result, and the data that marks an error. `block` is the id of the stored
/// message with the result and the index of the result in it, if they are known.
pub(super) fn result(
    result: &ToolResult,
    block: Option<(&str, usize)>,
    level: AgUiVersion,
    files: &ClientFileForm,
) -> (AgUiContent, Map<String, Value>) {
    let mut metadata = Map::new();
    if result.is_error {
        metadata.insert("isError".to_owned(), true.into());
    }
    if let Some(mut decision) = result.decision.clone() {
        decision.clip();
        metadata.insert("decision".to_owned(), json!(decision));
    }
    let mut room = MAX_TEXT;
    let mut parts = Vec::new();
    for (inner, content) in result.output_blocks() {
        let part = match content {
            ResultBlock::Text(text) => {
                let text = clip(&text.text, room).into_owned();
                room -= text.len().min(room);
                AgUiPart::Text { text }
            }
            ResultBlock::Attachment(file) if level.has_result_parts() => {
                let block = block.map(|(message, index)| (message, format!("{index}-{inner}")));
                files.part(file, block.as_ref().map(|(message, block)| (*message, block.as_str())))
            }
            ResultBlock::Attachment(file) => AgUiPart::Text { text: label(file) },
        };
        parts.push(part);
    }
    (content(parts, level), metadata)
}

/// Returns the content of a result: one text if there are only texts, otherwise the parts.
fn content(parts: Vec<AgUiPart>, level: AgUiVersion) -> AgUiContent {
    let text = |part: &AgUiPart| match part {
        AgUiPart::Text { text } => Some(text.clone()),
        _ => None,
    };
    if !level.has_result_parts() || parts.iter().all(|part| text(part).is_some()) {
        return AgUiContent::Text(parts.iter().filter_map(text).collect::<Vec<_>>().join("\n"));
    }
    AgUiContent::Parts(parts)
}

/// The messages of a conversation, in the order in which the client shows them.
#[derive(Debug)]
pub(super) struct AgUiMessages<'a> {
    level: AgUiVersion,
    files: &'a ClientFileForm,
    list: Vec<AgUiMessage>,
    /// The number of messages so far, from which the ids of messages without an id are made.
    count: usize,
    /// The id of the newest call for each tool use.
    calls: HashMap<ToolUseId, String>,
}

impl<'a> AgUiMessages<'a> {
    pub(super) fn new(level: AgUiVersion, files: &'a ClientFileForm) -> Self {
        Self { level, files, list: Vec::new(), count: 0, calls: HashMap::new() }
    }

    /// Returns all messages of the path and of the turn in flight, with the answer that is being streamed, and the newest
    /// unanswered prompt. If `end` is given, returns the messages before the one with this id.
    pub(super) fn of(
        view: &SessionSnapshot,
        end: Option<&MessageId>,
        level: AgUiVersion,
        files: &'a ClientFileForm,
    ) -> Vec<AgUiMessage> {
        let (agent, mut messages) = (&view.agent, Self::new(level, files));
        for message in agent.messages().take_while(|message| end.is_none() || message.id.as_ref() != end) {
            messages.push(message);
        }
        if let Some(answer) = agent.answer.as_ref().filter(|_| end.is_none()) {
            let blocks = agent.partial.iter().map(|block| {
                let raw = (!block.ended).then_some(block.input.as_str());
                (&block.content, raw)
            });
            messages.push_answer(&answer.to_string(), blocks);
        }
        if let Some((node, _)) =
            view.unanswered().filter(|(node, _)| end.is_none() && has_own_content(node.message()))
        {
            messages.push(node.message());
        }
        fit(messages.list, MAX_MESSAGES)
    }

    pub(super) fn into_list(self) -> Vec<AgUiMessage> {
        self.list
    }

    pub(super) fn push(&mut self, message: &Message) {
        self.count += 1;
        if message.compaction.is_some() {
            return;
        }
        let id = message_id(message, self.count);
        match message.role {
            Role::Assistant => {
                let blocks = message.content.iter().map(|block| (block, None));
                self.push_answer(&id, blocks);
            }
            Role::User => self.push_user(&id, message),
        }
    }

    /// Adds the blocks of an answer. A tool use whose input is not complete comes with its JSON text so far.
    fn push_answer<'b>(
        &mut self,
        message: &str,
        blocks: impl Iterator<Item = (&'b Content, Option<&'b str>)>,
    ) {
        let mut follows_tool_use = false;
        for (index, (block, raw)) in blocks.enumerate() {
            let id = block_id(&message, index);
            match block {
                Content::Text(text) if !text.text.is_empty() => {
                    let content = Some(text.text.clone());
                    self.list.push(AgUiMessage::Assistant { id, content, tool_calls: Vec::new() });
                }
                Content::Thinking(thinking) if !thinking.text.is_empty() => {
                    self.list.push(AgUiMessage::Reasoning { id, content: thinking.text.clone() });
                }
                Content::Attachment(file) => {
                    let content = self.files.activity(file, message, index);
                    self.list.push(AgUiMessage::Activity { id, activity_type: super::FILE, content });
                }
                Content::ToolUse(tool_use) => {
                    let arguments = raw.map_or_else(|| arguments(tool_use), str::to_owned);
                    let call = if self.calls.contains_key(&tool_use.id) {
                        repeated_call(&tool_use.id, &message)
                    } else {
                        tool_use.id.to_string()
                    };
                    self.calls.insert(tool_use.id.clone(), call.clone());
                    let call = AgUiToolCall::new(call, tool_use.name.clone(), arguments);
                    match self.list.last_mut() {
                        Some(AgUiMessage::Assistant { tool_calls, .. }) if follows_tool_use => {
                            tool_calls.push(call);
                        }
                        _ => self.list.push(AgUiMessage::Assistant {
                            id,
                            content: None,
                            tool_calls: vec![call],
                        }),
                    }
                }
                _ => {}
            }
            follows_tool_use = matches!(block, Content::ToolUse(_));
        }
    }

    fn push_user(&mut self, id: &str, message: &Message) {
        let mut parts = Vec::new();
        let mut has_results = false;
        for (index, block) in message.content.iter().enumerate() {
            match block {
                Content::Text(text) => parts.push(AgUiPart::Text { text: text.text.clone() }),
                Content::Attachment(file) => {
                    parts.push(self.files.part(file, Some((id, &index.to_string()))));
                }
                Content::ToolResult(result) => {
                    self.push_result(result, Some((id, index)));
                    has_results = true;
                }
                _ => {}
            }
        }
        let content = match <[AgUiPart; 1]>::try_from(parts) {
            Ok([AgUiPart::Text { text }]) => AgUiContent::Text(text),
            Ok([part]) => AgUiContent::Parts(vec![part]),
            Err(parts) if parts.is_empty() && has_results => return,
            Err(parts) => AgUiContent::Parts(parts),
        };
        self.list.push(AgUiMessage::User { id: id.to_owned(), content });
    }

    /// Adds a result where the client puts it: behind the message with the tool call, and behind the other results for
    /// that message.
    fn push_result(&mut self, tool_result: &ToolResult, block: Option<(&str, usize)>) {
        let tool_use = &tool_result.tool_use_id;
        let tool_call_id = self.calls.get(tool_use).cloned().unwrap_or_else(|| tool_use.to_string());
        let owner = self
            .list
            .iter()
            .rposition(|message| message.tool_calls().iter().any(|call| call.id == tool_call_id));
        let mut place = owner.map_or(self.list.len(), |owner| owner + 1);
        while matches!(self.list.get(place), Some(AgUiMessage::Tool { .. })) {
            place += 1;
        }
        let (content, metadata) = result(tool_result, block, self.level, self.files);
        let id = result_id(&tool_call_id);
        let error = tool_result.is_error.then(|| clip(&tool_result.output_text(), MAX_ERROR).into_owned());
        self.list.insert(place, AgUiMessage::Tool { id, tool_call_id, content, error, metadata });
    }
}

/// Returns the input of a tool use as JSON text. If the model has sent another text than a JSON object, returns this
/// text.
pub(super) fn arguments(tool_use: &ToolUse) -> String {
    tool_use.malformed.clone().unwrap_or_else(|| tool_use.input.to_string())
}

/// Returns the messages in a form that needs at most `limit` bytes as JSON. The client drops each message that is
/// missing in the result, so the messages themselves are kept as long as possible: first the contents are shortened,
/// from the longest on, and then the oldest messages are omitted.
fn fit(mut messages: Vec<AgUiMessage>, limit: usize) -> Vec<AgUiMessage> {
    let size = |messages: &[AgUiMessage]| messages.iter().map(json_size).sum::<usize>();
    for cap in [MAX_TEXT, MAX_TEXT / 16, MAX_TEXT / 256, 256] {
        if size(&messages) <= limit {
            return messages;
        }
        for message in &mut messages {
            shorten(message, cap);
        }
    }
    let mut room = limit;
    let kept = messages.iter().rev().take_while(|message| {
        let size = json_size(message);
        let has_room = size <= room;
        room = room.saturating_sub(size);
        has_room
    });
    let dropped = messages.len() - kept.count();
    messages.split_off(dropped)
}

fn json_size(message: &AgUiMessage) -> usize {
    struct ByteCounter(usize);
    impl std::io::Write for ByteCounter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = ByteCounter(1);
    match serde_json::to_writer(&mut count, message) {
        Ok(()) => count.0,
        Err(_) => usize::MAX / 2,
    }
}

/// Shortens all contents of a message that are longer than `cap`.
fn shorten(message: &mut AgUiMessage, cap: usize) {
    let cut = |text: &mut String| {
        if text.len() > cap {
            *text = clip(text, cap).into_owned();
        }
    };
    if let AgUiMessage::Tool { error: Some(error), .. } = message {
        cut(error);
    }
    match message {
        AgUiMessage::User { content, .. } | AgUiMessage::Tool { content, .. } => match content {
            AgUiContent::Text(text) => cut(text),
            AgUiContent::Parts(parts) => parts.iter_mut().for_each(|part| match part {
                AgUiPart::Text { text } => cut(text),
                AgUiPart::Image(media)
                | AgUiPart::Audio(media)
                | AgUiPart::Video(media)
                | AgUiPart::Document(media) => {
                    let (AgUiSentSource::Data { value, .. } | AgUiSentSource::Url { value, .. }) =
                        &media.source;
                    if value.len() > cap {
                        *part = AgUiPart::Text { text: "[file]".to_owned() };
                    }
                }
            }),
        },
        AgUiMessage::Assistant { content, tool_calls, .. } => {
            content.iter_mut().for_each(cut);
            for call in tool_calls {
                // A shortened JSON text would be invalid, so it is replaced by an empty object.
                if call.function.arguments.len() > cap {
                    "{}".clone_into(&mut call.function.arguments);
                }
            }
        }
        AgUiMessage::Reasoning { content, .. } => cut(content),
        AgUiMessage::Activity { content, .. } => {
            if content.to_string().len() > cap {
                *content = json!({});
            }
        }
    }
}
