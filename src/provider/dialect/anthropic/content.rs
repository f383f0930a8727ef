//! Encoding of a history as messages. Source of the rules: <https://platform.claude.com/docs/en/api/messages>.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::NAME;
use crate::{
    message::{
        Attachment, Content, History, Message, ResultBlock, Role, Source, Thinking, ToolResult, ToolUse,
        ToolUseId,
    },
    provider::{
        ProviderError, Request,
        dialect::{
            encoding::{self, mention, placeholder},
            names::ToolNames,
        },
    },
};

type AnthropicObject = Map<String, Value>;

/// The image types that the service supports.
const IMAGES: [&str; 4] = ["image/jpeg", "image/png", "image/gif", "image/webp"];

/// The text that replaces the empty output of a failed tool, which the service rejects.
const SILENT_FAILURE: &str = "The tool failed without a message.";

/// A message on the wire.
struct AnthropicMessage {
    role: Role,
    blocks: Vec<AnthropicBlock>,
}

struct AnthropicBlock {
    kind: AnthropicBlockKind,
    value: AnthropicObject,
    /// Whether the next requests contain the block too.
    lasts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AnthropicBlockKind {
    /// Text, attachments and tool uses.
    Plain,
    ToolResult,
    Thinking,
    /// Data that only the service understands and that must not be changed.
    Opaque,
}

/// Selects which thinking of a conversation is sent back to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptThinking {
    All,
    /// The thinking of the turn in flight, if tools were used in the turn.
    Open,
    None,
}

impl KeptThinking {
    /// Returns the index of the first message whose thinking is sent back.
    fn start(self, history: &History) -> usize {
        let is_prompt = |message: &Message| {
            let is_result = |content: &Content| matches!(content, Content::ToolResult(_));
            message.role == Role::User && !message.content.iter().any(is_result)
        };
        match self {
            Self::All => 0,
            Self::Open => history.iter().rposition(|message| is_prompt(message)).unwrap_or(0),
            Self::None => usize::MAX,
        }
    }
}

/// Returns whether the turn in flight has answers, but no thinking that is sent back, for example because a model of
/// another service began the turn. Claude then rejects a thinking budget: "a final `assistant` message must start with
/// a thinking block".
pub(super) fn is_open_without_thinking(request: &Request) -> bool {
    let start = KeptThinking::Open.start(&request.history);
    let mut answers =
        request.history.iter().skip(start).filter(|message| message.role == Role::Assistant).peekable();
    let is_sent = |content: &Content| match content {
        Content::Thinking(Thinking { redacted, signature, .. }) => {
            [redacted, signature].into_iter().flatten().any(|payload| !payload.is_empty())
        }
        _ => false,
    };
    answers.peek().is_some()
        && !answers.any(|answer| answer.is_native_to(NAME) && answer.content.iter().any(is_sent))
}

/// The number of cache breakpoints that the service accepts in a request:
/// <https://platform.claude.com/docs/en/build-with-claude/prompt-caching>.
const MAX_BREAKPOINTS: usize = 4;

/// The number of blocks among which the service searches for a cached beginning, counted back from a breakpoint. The
/// page above names it.
const LOOKBACK: usize = 20;

/// Encodes the messages with the thinking that `kept` selects. Adds `cache` to the last block that may carry a cache
/// breakpoint. `marked` is the number of breakpoints outside of the messages. If `fills` is true, each assistant message
/// without thinking gets a blank one.
pub(super) fn messages(
    request: &Request,
    names: &ToolNames<'_>,
    cache: Option<&Value>,
    marked: usize,
    kept: KeptThinking,
    fills: bool,
) -> Result<Value, ProviderError> {
    let start = kept.start(&request.history);
    let mut encoder = AnthropicHistoryEncoder {
        request,
        names,
        keeps_thinking: true,
        keeps_unsigned: !encoding::is_strict(request),
        ids: AnthropicToolUseIds::default(),
        void: HashSet::new(),
    };
    let mut turns: Vec<AnthropicMessage> = Vec::new();
    for (number, message) in request.history.iter().enumerate() {
        encoder.keeps_thinking = number >= start;
        let blocks = encoder.message(number, message)?;
        match turns.last_mut() {
            _ if blocks.is_empty() => {}
            Some(last) if last.role == message.role => last.blocks.extend(blocks),
            _ => turns.push(AnthropicMessage { role: message.role, blocks }),
        }
    }
    drop_unanswered(&mut turns);
    // The service rejects an assistant message that ends in thinking, so remove such thinking. A response that was cut
    // off can end in this way.
    for turn in turns.iter_mut().filter(|turn| turn.role == Role::Assistant) {
        while turn.blocks.last().is_some_and(|block| block.kind == AnthropicBlockKind::Thinking) {
            turn.blocks.pop();
        }
    }
    turns.retain(|turn| !turn.blocks.is_empty());
    // A removed message may have separated two messages of the same role. The two messages are then merged.
    turns.dedup_by(|next, turn| {
        let same = next.role == turn.role;
        if same {
            turn.blocks.append(&mut next.blocks);
        }
        same
    });
    if fills {
        for turn in turns.iter_mut().filter(|turn| turn.role == Role::Assistant) {
            if !turn.blocks.iter().any(|block| block.kind == AnthropicBlockKind::Thinking) {
                let (kind, value) = (AnthropicBlockKind::Thinking, thinking_block(" ", ""));
                turn.blocks.insert(0, AnthropicBlock { kind, value, lasts: true });
            }
        }
    }
    // Tool results come first in their message, because otherwise the service does not find them. The sort is stable.
    for turn in turns.iter_mut().filter(|turn| turn.role == Role::User) {
        turn.blocks.sort_by_key(|block| block.kind != AnthropicBlockKind::ToolResult);
    }
    if let Some(AnthropicMessage { role: Role::Assistant, blocks }) = turns.last_mut() {
        trim_end(blocks);
    }
    if let Some(cache) = cache {
        let own = turns.iter().flat_map(|turn| &turn.blocks).map(|block| breakpoints_of(&block.value));
        let mut free = MAX_BREAKPOINTS.saturating_sub(marked + own.sum::<usize>() + 1);
        let blocks = turns.iter_mut().rev().flat_map(|turn| turn.blocks.iter_mut().rev());
        let mut blocks = blocks.filter(|block| block.carries_breakpoint());
        let last = blocks.next();
        // The next requests don't contain what a callback added to this request, so their cached beginning ends before.
        let lasts = last.as_ref().is_some_and(|last| last.lasts);
        let lasting = if lasts || free == 0 { None } else { blocks.find(|block| block.lasts) };
        free -= usize::from(lasting.is_some());
        let mark = |block: &mut AnthropicBlock| block.value.insert("cache_control".to_owned(), cache.clone());
        for block in last.into_iter().chain(lasting) {
            mark(block);
        }
        if free > 0
            && let Some(block) = distant_end(&mut turns)
        {
            mark(block);
        }
    }
    let mut messages: Vec<Value> = turns.into_iter().map(AnthropicMessage::into_value).collect();
    // The service rejects a conversation whose first message is not a user message.
    if messages.first().is_some_and(|first| first["role"] == "assistant") {
        let content = json!([{"type": "text", "text": encoding::OPENING}]);
        messages.insert(0, json!({"role": "user", "content": content}));
    }
    Ok(messages.into())
}

/// Returns the block that ended the previous request, if the service does not find it from the end of this request.
/// Then the response to the previous request has many parallel calls, and the conversation would be cached anew.
fn distant_end(turns: &mut [AnthropicMessage]) -> Option<&mut AnthropicBlock> {
    let answer = turns.iter().rposition(|turn| turn.role == Role::Assistant)?;
    let (earlier, added) = turns.split_at_mut(answer);
    let is_distant = added.iter().map(|turn| turn.blocks.len()).sum::<usize>() + 1 >= LOOKBACK;
    let end = earlier.last_mut().filter(|_| is_distant)?;
    end.blocks.iter_mut().rev().find(|block| block.carries_breakpoint())
}

/// Returns the number of cache breakpoints in a list of blocks or tools.
pub(super) fn breakpoints(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(breakpoints).sum(),
        Value::Object(block) => breakpoints_of(block),
        _ => 0,
    }
}

/// Returns the number of cache breakpoints of a block and of its content.
fn breakpoints_of(block: &AnthropicObject) -> usize {
    let own = block.get("cache_control").is_some_and(|control| !control.is_null());
    usize::from(own) + block.get("content").map_or(0, breakpoints)
}

impl AnthropicBlock {
    /// Returns whether the service accepts a cache breakpoint on the block.
    fn carries_breakpoint(&self) -> bool {
        matches!(self.kind, AnthropicBlockKind::Plain | AnthropicBlockKind::ToolResult)
    }
}

impl AnthropicMessage {
    fn into_value(self) -> Value {
        let role = match self.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let content: Vec<Value> = self.blocks.into_iter().map(|block| Value::Object(block.value)).collect();
        json!({"role": role, "content": content})
    }
}

/// Removes the white space at the end of an assistant message that ends the conversation and that the model continues.
/// The service rejects such white space.
fn trim_end(blocks: &mut [AnthropicBlock]) {
    if let Some(AnthropicBlock { kind: AnthropicBlockKind::Plain, value, .. }) = blocks.last_mut()
        && let Some(Value::String(text)) = value.get_mut("text")
    {
        text.truncate(text.trim_end().len());
    }
}

/// Removes uses of the service's own tools that have no results because the response was cut off there. The service
/// rejects a conversation that continues after such a use. Three kinds of uses are kept, because the service continues
/// them: uses in the last message, uses next to uses of the application's tools whose results are the whole last message,
/// and code executions that wait for a tool of the application. The page "Server tools" of the service's documentation
/// describes the second kind: <https://platform.claude.com/docs/en/agents-and-tools/tool-use/server-tools>. A text next to
/// the results ends the turn, and the service then rejects the use that still waits:
/// <https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls>.
fn drop_unanswered(turns: &mut [AnthropicMessage]) {
    let Some((last, mut earlier)) = turns.split_last() else {
        return;
    };
    if last.blocks.iter().all(|block| block.kind == AnthropicBlockKind::ToolResult) {
        earlier = earlier.split_last().map_or(earlier, |(_, earlier)| earlier);
    }
    let own_use = |block: &AnthropicBlock| {
        let kind = block.value.get("type").and_then(Value::as_str);
        block.kind == AnthropicBlockKind::Opaque && matches!(kind, Some("server_tool_use" | "mcp_tool_use"))
    };
    if !earlier.iter().flat_map(|turn| &turn.blocks).any(own_use) {
        return;
    }
    let blocks = turns.iter().flat_map(|turn| &turn.blocks);
    let answered: HashSet<String> = blocks
        .flat_map(|block| {
            [block.value.get("tool_use_id"), block.value.get("caller").and_then(|c| c.get("tool_id"))]
        })
        .filter_map(|id| id?.as_str().map(ToOwned::to_owned))
        .collect();
    let count = earlier.len();
    for turn in &mut turns[..count] {
        turn.blocks.retain(|block| {
            let id = block.value.get("id").and_then(Value::as_str);
            !own_use(block) || id.is_some_and(|id| answered.contains(id))
        });
    }
}

struct AnthropicHistoryEncoder<'a> {
    request: &'a Request,
    names: &'a ToolNames<'a>,
    keeps_thinking: bool,
    /// Whether thinking without a signature is sent back. Claude, which signs its thinking, rejects such thinking. Many
    /// other models don't sign, and some of them reject a tool use without the thinking that preceded it.
    keeps_unsigned: bool,
    ids: AnthropicToolUseIds,
    /// The ids of the tool uses that are not sent because another model has taken over.
    void: HashSet<ToolUseId>,
}

impl AnthropicHistoryEncoder<'_> {
    fn message(&mut self, number: usize, message: &Message) -> Result<Vec<AnthropicBlock>, ProviderError> {
        let native = message.is_native_to(NAME);
        let mut blocks = Vec::with_capacity(message.content.len());
        let fallback = message.content.iter().rposition(is_fallback);
        let start = fallback.filter(|_| message.role == Role::Assistant).unwrap_or(0);
        // The decoder removes void blocks, but stored and imported conversations may contain them.
        self.void.extend(message.content[..start].iter().filter_map(|content| match content {
            Content::ToolUse(tool_use) => Some(tool_use.id.clone()),
            _ => None,
        }));
        for (index, content) in message.content.iter().enumerate().skip(start) {
            let block = self.block(message, native, content)?;
            let lasts = self.request.lasting.is_none_or(|end| (number, index) < end);
            blocks.extend(block.map(|(kind, value)| AnthropicBlock { kind, value, lasts }));
        }
        Ok(blocks)
    }

    fn block(
        &mut self,
        message: &Message,
        native: bool,
        content: &Content,
    ) -> Result<Option<(AnthropicBlockKind, AnthropicObject)>, ProviderError> {
        let block = match (content, message.role) {
            (Content::Text(text), _) => {
                let citations = text.signature.as_deref().filter(|_| native).and_then(citations);
                text_block(&text.text).map(|mut value| {
                    value.extend(citations.map(|citations| ("citations".to_owned(), citations)));
                    (AnthropicBlockKind::Plain, value)
                })
            }
            (Content::Thinking(thinking), Role::Assistant) if native && self.keeps_thinking => {
                let given = |payload: &Option<String>| payload.clone().filter(|text| !text.is_empty());
                let value = match (given(&thinking.redacted), given(&thinking.signature)) {
                    (Some(data), _) => Some(object(json!({"type": "redacted_thinking", "data": data}))),
                    (None, Some(signature)) => Some(thinking_block(&thinking.text, &signature)),
                    (None, None) => (self.keeps_unsigned && !thinking.text.is_empty())
                        .then(|| thinking_block(&thinking.text, "")),
                };
                value.map(|value| (AnthropicBlockKind::Thinking, value))
            }
            (Content::Attachment(attachment), Role::Assistant) => {
                let why = "the Messages wire format does not support files in assistant messages";
                let text = mention(self.request, message, attachment, why)?;
                text_block(&text).map(|value| (AnthropicBlockKind::Plain, value))
            }
            (Content::Attachment(attachment), Role::User) => {
                let value = self.attachment(attachment)?;
                value.map(|value| (AnthropicBlockKind::Plain, value))
            }
            (Content::ToolUse(tool_use), Role::Assistant) => {
                Some((AnthropicBlockKind::Plain, self.tool_use(tool_use, message, native)))
            }
            (Content::ToolResult(result), Role::User) if !self.void.contains(&result.tool_use_id) => {
                Some((AnthropicBlockKind::ToolResult, self.tool_result(result)?))
            }
            (Content::ProviderItem(item), _) if item.format == NAME => match &item.data {
                Value::Object(value) if is_empty_compaction(value) => None,
                Value::Object(value) => Some((AnthropicBlockKind::Opaque, value.clone())),
                _ => None,
            },
            _ => None,
        };
        Ok(block)
    }

    fn tool_use(&mut self, tool_use: &ToolUse, message: &Message, native: bool) -> AnthropicObject {
        let input = self.names.input(&tool_use.name, encoding::input_object(tool_use));
        let id = self.ids.assign(&tool_use.id, encoding::keeps_ids(self.request, message, NAME));
        self.void.remove(&tool_use.id);
        let name = self.names.get(&tool_use.name);
        let mut value = object(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
        let caller = tool_use.signature.as_deref().filter(|_| native);
        if let Some(Ok(caller @ Value::Object(_))) = caller.map(serde_json::from_str) {
            value.insert("caller".to_owned(), caller);
        }
        value
    }

    fn tool_result(&self, result: &ToolResult) -> Result<AnthropicObject, ProviderError> {
        let mut content = Vec::with_capacity(result.content.len());
        for block in &result.content {
            let value = match block {
                ResultBlock::Text(text) => text_block(&text.text),
                ResultBlock::Attachment(attachment) => self.attachment(attachment)?,
            };
            content.extend(value.map(Value::Object));
        }
        if content.is_empty() && result.is_error {
            content.extend(text_block(SILENT_FAILURE).map(Value::Object));
        }
        let id = self.ids.of(&result.tool_use_id);
        let mut value = object(json!({"type": "tool_result", "tool_use_id": id}));
        if !content.is_empty() {
            value.insert("content".to_owned(), content.into());
        }
        if result.is_error {
            value.insert("is_error".to_owned(), true.into());
        }
        Ok(value)
    }

    /// Encodes an image, a PDF or a text file in the form that the service supports. All other attachments become a
    /// [`placeholder`], or an error.
    fn attachment(&self, attachment: &Attachment) -> Result<Option<AnthropicObject>, ProviderError> {
        let essence = encoding::essence(attachment);
        let media_type = &*essence;
        let refused = if media_type == "image/jpg" || IMAGES.contains(&media_type) {
            let media_type = if media_type == "image/jpg" { "image/jpeg" } else { media_type };
            let value = json!({"type": "image", "source": source(&attachment.source, media_type)});
            return Ok(Some(object(value)));
        } else if media_type == "application/pdf" {
            let source = source(&attachment.source, media_type);
            return Ok(Some(document(attachment, &source)));
        } else if encoding::is_text(media_type) {
            match text(&attachment.source) {
                Ok(text) => {
                    let source = json!({"type": "text", "media_type": "text/plain", "data": text});
                    return Ok(Some(document(attachment, &source)));
                }
                Err(why) => why,
            }
        } else if attachment.is_image() {
            "the Messages wire format supports only JPEG, PNG, GIF and WebP images"
        } else {
            "the Messages wire format supports only images, PDF and text"
        };
        placeholder(self.request, attachment, refused).map(|text| text_block(&text))
    }
}

/// Returns whether the content is the block with which another model takes over. The blocks before it are void:
/// <https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback>.
fn is_fallback(content: &Content) -> bool {
    matches!(content, Content::ProviderItem(item) if item.format == NAME && item.data["type"] == "fallback")
}

/// Returns whether the item is a compaction without content. The service itself sends such an item if its compaction
/// failed, but rejects it in requests.
fn is_empty_compaction(item: &AnthropicObject) -> bool {
    let has = |key: &str| item.get(key).is_some_and(|content| !content.is_null() && content != "");
    item.get("type").is_some_and(|kind| kind == "compaction") && !has("content") && !has("encrypted_content")
}

fn thinking_block(thinking: &str, signature: &str) -> AnthropicObject {
    object(json!({"type": "thinking", "thinking": thinking, "signature": signature}))
}

/// Encodes a text block. Returns `None` for a blank text, because the service rejects it.
fn text_block(text: &str) -> Option<AnthropicObject> {
    (!text.trim().is_empty()).then(|| object(json!({"type": "text", "text": text})))
}

fn source(source: &Source, media_type: &str) -> Value {
    match source {
        Source::Base64 { data } => json!({"type": "base64", "media_type": media_type, "data": data}),
        Source::Url { url } => json!({"type": "url", "url": url}),
    }
}

fn document(attachment: &Attachment, source: &Value) -> AnthropicObject {
    let mut value = object(json!({"type": "document", "source": source}));
    if let Some(name) = attachment.name.as_deref().filter(|name| !name.trim().is_empty()) {
        value.insert("title".to_owned(), name.into());
    }
    value
}

/// Returns the text of a text file, or the reason why the file has no text.
fn text(source: &Source) -> Result<String, &'static str> {
    let Source::Base64 { data } = source else {
        return Err("the Messages wire format supports only images and PDF by URL");
    };
    encoding::decoded(data)
        .and_then(|text| if text.trim().is_empty() { Err("it is empty") } else { Ok(text) })
}

/// Returns the citations that the decoder put into a text's signature, one JSON object per line.
fn citations(signature: &str) -> Option<Value> {
    let lines = signature.lines().map(serde_json::from_str::<AnthropicObject>);
    let citations: Vec<Value> = lines.map(|line| line.map(Value::Object)).collect::<Result<_, _>>().ok()?;
    (!citations.is_empty()).then_some(Value::Array(citations))
}

/// The ids of tool uses on the wire. Each id is unique in a conversation, and consists of characters that the service
/// supports, unless the service itself made the id. An id depends only on earlier tool uses, so that the encoded
/// beginning of a conversation stays the same when the conversation grows.
#[derive(Default)]
struct AnthropicToolUseIds {
    taken: HashSet<String>,
    /// How often each stem was requested. A stem is an id whose unsupported characters were replaced.
    stems: HashMap<String, usize>,
    /// The id on the wire for each id of a tool use. If several uses have the same id, the last use is stored, because
    /// results follow directly after their uses.
    sent: HashMap<ToolUseId, String>,
}

impl AnthropicToolUseIds {
    fn assign(&mut self, id: &ToolUseId, keeps: bool) -> String {
        let own = Some(id.as_str()).filter(|id| keeps && !id.is_empty());
        let stem = own.map_or_else(|| clean(id.as_str()), ToOwned::to_owned);
        let wanted = self.stems.entry(stem.clone()).or_default();
        let mut wire = stem.clone();
        loop {
            *wanted += 1;
            if *wanted > 1 {
                wire = format!("{stem}_{wanted}");
            }
            if self.taken.insert(wire.clone()) {
                break;
            }
        }
        self.sent.insert(id.clone(), wire.clone());
        wire
    }

    fn of(&self, id: &ToolUseId) -> String {
        self.sent.get(id).cloned().unwrap_or_else(|| clean(id.as_str()))
    }
}

/// Replaces all characters other than letters, digits, `_` and `-` with `_`. An empty text becomes `tool_use`.
fn clean(text: &str) -> String {
    if text.is_empty() {
        return "tool_use".to_owned();
    }
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

pub(super) fn object(value: Value) -> AnthropicObject {
    match value {
        Value::Object(object) => object,
        _ => AnthropicObject::new(),
    }
}
