//! Decoding of the starts of a message and its blocks.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Block, Decoded, MessagesDecoder, OpenKind, Phase, bad, citation,
    item::Item,
    wire::{self, Event, MessageStart, Str},
};
use crate::{
    message::{ProviderItem, map_weight},
    provider::{
        BlockStart, Delta, Fold, MessageDelta, Part, ProviderError, ProviderErrorKind,
        dialect::{Decoder, Frame, anthropic::NAME},
    },
};

impl MessagesDecoder {
    pub(super) fn message_start(
        &mut self,
        event: &Event<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> Decoded {
        let first = self.phase == Phase::Before;
        if !first && !self.repeats(event.message.as_ref()) {
            return Err(bad("a second message_start event", data));
        }
        self.phase = Phase::Open;
        let mut message = MessageDelta::default();
        if let Some(start) = &event.message {
            message.model = (!start.model.is_empty()).then(|| (*start.model).to_owned());
            if !start.id.is_empty() {
                self.data.insert("id".to_owned(), (*start.id).into());
            }
            let members = [("container", &start.container), ("stop_details", &start.stop_details)];
            message.stop_reason = self.ending(&start.stop_reason, members);
            if let Some(usage) = &start.usage {
                message.usage = self.count(usage, deltas);
            }
        }
        // The provider data is emitted even if it is empty, because it names the wire format of the message.
        message.provider_data = self.provider_data();
        deltas.push(Delta::Message(Box::new(message)));
        // If a response resumes inside a tool that the service runs, its start event may already contain the complete
        // message. In this case, read the blocks from the start event.
        let content = event.message.as_ref().filter(|_| first).and_then(|start| start.content.as_ref());
        for block in content.and_then(Value::as_array).into_iter().flatten() {
            let Value::Object(block) = block else {
                return Err(bad("a block starts without its content", data));
            };
            let position = self.begin(None, block, data, deltas)?;
            self.end_block(position, deltas);
        }
        Ok(())
    }

    /// Decodes a message that arrives as one object, which is how services without streaming send it. The object is
    /// decoded as the start of a message that already contains all content.
    pub(super) fn whole(&mut self, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        #[derive(Deserialize)]
        struct Probe<'a> {
            #[serde(borrow, default)]
            role: Str<'a>,
        }

        // An event that has the name `message` but contains no message is skipped, like every unknown event.
        if !serde_json::from_str::<Probe<'_>>(data).is_ok_and(|message| &*message.role == "assistant") {
            return Ok(());
        }
        let start = format!("{{\"type\":\"message_start\",\"message\":{data}}}");
        self.decode(Frame { event: "", data: &start }, deltas)?;
        self.message_stop(data, deltas)
    }

    /// Returns whether the same message starts again. Some gateways send a start event themselves and then forward the
    /// start event of the service.
    fn repeats(&self, start: Option<&MessageStart<'_>>) -> bool {
        let id = self.data.get("id").and_then(Value::as_str);
        start.is_some_and(|start| Some(&*start.id) == id)
    }

    pub(super) fn block_start(&mut self, event: &Event<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        self.must_be_open(data)?;
        let wire = event.index.ok_or_else(|| bad("a block starts without an index", data))?;
        if usize::try_from(wire).map_or(true, |wire| wire >= Fold::MAX_BLOCKS) {
            return Err(bad("a block's index exceeds the limit", data));
        }
        if self.blocks.iter().any(|block| block.wire == Some(wire)) {
            return Err(bad("a block starts a second time", data));
        }
        let Some(Value::Object(block)) = &event.content_block else {
            return Err(bad("a block starts without its content", data));
        };
        self.begin(Some(wire), block, data, deltas).map(drop)
    }

    /// Starts a block with the content in `block`, and returns its position.
    fn begin(
        &mut self,
        wire: Option<u64>,
        block: &Map<String, Value>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> Result<usize, ProviderError> {
        let position = self.blocks.len();
        if position >= Fold::MAX_BLOCKS {
            return Err(bad("a block's index exceeds the limit", data));
        }
        let text = |key: &str| match block.get(key) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(bad(&format!("a block's {key} is not a string"), data)),
        };
        let mut parts = Vec::new();
        let (block, kind) = match &*text("type")? {
            "text" => {
                parts.push(Part::Text(text("text")?));
                let citations = block.get("citations").and_then(Value::as_array);
                parts.extend(citations.into_iter().flatten().map(citation));
                (BlockStart::Text, OpenKind::Text)
            }
            "thinking" => {
                parts.push(Part::Text(text("thinking")?));
                let signature = text("signature")?;
                (BlockStart::Thinking, OpenKind::Thinking((!signature.is_empty()).then_some(signature)))
            }
            "redacted_thinking" => {
                parts.push(Part::Redacted(text("data")?));
                (BlockStart::Thinking, OpenKind::Redacted)
            }
            "tool_use" => {
                let caller = block.get("caller").filter(|caller| wire::is_foreign_caller(caller));
                parts.extend(caller.map(|caller| Part::Signature(caller.to_string())));
                let start = BlockStart::ToolUse { id: text("id")?.into(), name: text("name")? };
                (start, OpenKind::ToolUse(wire::whole_input(block.get("input"))))
            }
            "" => return Err(bad("a block starts without a type", data)),
            kind => {
                if kind == "fallback" {
                    self.take_over(block, deltas);
                }
                self.gather(map_weight(block), data)?;
                let item = ProviderItem { format: NAME.to_owned(), data: Value::Object(block.clone()) };
                (BlockStart::ProviderItem(item), OpenKind::Item(Box::new(Item::new(block.clone()))))
            }
        };
        self.blocks.push(Block { wire, open: true, kind });
        let index = position - self.void;
        deltas.push(Delta::Start { index, block });
        parts.retain(|part| !matches!(part, Part::Text(text) | Part::Redacted(text) if text.is_empty()));
        deltas.extend(parts.into_iter().map(|part| Delta::Extend { index, part }));
        Ok(position)
    }

    /// Called when another model takes over from a model that declined. The blocks so far are void: the application must
    /// neither act on them nor send them back. Source:
    /// <https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback>.
    fn take_over(&mut self, block: &Map<String, Value>, deltas: &mut Vec<Delta>) {
        let model = block.get("to").and_then(|to| Some(to.get("model")?.as_str()?.to_owned()));
        if self.blocks.len() > self.void {
            self.void = self.blocks.len();
            let next = model.as_deref().unwrap_or("another model");
            let message = format!("the model declined to continue its answer; {next} answers in its place");
            let error = Box::new(ProviderError::new(ProviderErrorKind::InvalidRequest, message));
            deltas.push(Delta::Retry { error, delay: Duration::ZERO });
        }
        deltas.push(Delta::Message(Box::new(MessageDelta { model, ..MessageDelta::default() })));
    }
}
