//! Decoding of responses to requests with an output schema. No matter how a wire format requests the value, the decoded
//! response contains the value as text.

use crate::provider::{
    BlockStart, Delta, MessageDelta, Part, ProviderError, StopReason,
    dialect::{Decoder, Frame, wrapping::Unwrapper},
};

/// How the response to a request is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// The name of the tool whose input is the requested value.
    pub(super) tool: Option<String>,
    /// Whether the value is requested as the only member of an enclosing object.
    pub(super) wrapped: bool,
    /// Whether the service guarantees that the response fits the schema.
    pub(super) enforced: bool,
}

/// Returns a decoder that applies `reading` to the deltas of `inner`.
pub(super) fn read(inner: impl Decoder + 'static, reading: Reading) -> Box<dyn Decoder> {
    if reading == Reading::default() {
        return Box::new(inner);
    }
    Box::new(OutputDecoder { inner, reading, blocks: Vec::new(), uses_tools: false, fresh: Vec::new() })
}

struct OutputDecoder<D> {
    inner: D,
    reading: Reading,
    /// How each block is translated.
    blocks: Vec<Block>,
    /// Whether the response uses tools of the application.
    uses_tools: bool,
    /// The deltas that `inner` just emitted. Empty between two frames.
    fresh: Vec<Delta>,
}

enum Block {
    /// A block that is passed on unchanged.
    Other,
    /// A text. If there is an unwrapper, the value is extracted from the object that encloses it.
    Text(Option<Unwrapper>),
    /// A use of the output tool, which becomes a text block.
    Output { unwrapper: Option<Unwrapper>, empty: bool, ended: bool },
}

impl<D: Decoder> OutputDecoder<D> {
    fn unwrapper(&self) -> Option<Unwrapper> {
        self.reading.wrapped.then(Unwrapper::default)
    }

    fn translate(&mut self, deltas: &mut Vec<Delta>) {
        for delta in std::mem::take(&mut self.fresh) {
            match delta {
                Delta::Start { index, block } => self.start(index, block, deltas),
                Delta::Extend { index, part } => self.extend(index, part, deltas),
                Delta::End { index } => self.end_block(index, deltas),
                Delta::Message(message) => self.message(message, deltas),
                retry @ Delta::Retry { .. } => {
                    self.blocks.clear();
                    self.uses_tools = false;
                    deltas.push(retry);
                }
            }
        }
    }

    fn start(&mut self, index: usize, block: BlockStart, deltas: &mut Vec<Delta>) {
        let (own, block) = match block {
            BlockStart::ToolUse { name, .. } if self.reading.tool.as_ref() == Some(&name) => {
                let output = Block::Output { unwrapper: self.unwrapper(), empty: true, ended: false };
                (output, BlockStart::Text)
            }
            BlockStart::ToolUse { .. } => {
                self.uses_tools = true;
                (Block::Other, block)
            }
            BlockStart::Text if self.reading.tool.is_none() => (Block::Text(self.unwrapper()), block),
            _ => (Block::Other, block),
        };
        if index == self.blocks.len() {
            self.blocks.push(own);
        }
        deltas.push(Delta::Start { index, block });
    }

    fn extend(&mut self, index: usize, part: Part, deltas: &mut Vec<Delta>) {
        let part = match (self.blocks.get_mut(index), part) {
            (Some(Block::Output { unwrapper, empty, .. }), Part::Input(json)) => {
                *empty &= json.is_empty();
                Part::Text(unwrapped(unwrapper.as_mut(), json))
            }
            // A signature belongs to a tool use. This block is now a text, so the signature is dropped.
            (Some(Block::Output { .. }), _) => return,
            (Some(Block::Text(Some(unwrapper))), Part::Text(text)) => {
                Part::Text(unwrapped(Some(unwrapper), text))
            }
            (_, part) => part,
        };
        if !matches!(&part, Part::Text(text) if text.is_empty()) {
            deltas.push(Delta::Extend { index, part });
        }
    }

    fn end_block(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        match self.blocks.get_mut(index) {
            // The stop reason decides whether a missing input means an empty object, so this block ends later.
            Some(Block::Output { empty: true, ended, .. }) => {
                *ended = true;
                return;
            }
            Some(Block::Output { unwrapper, .. } | Block::Text(unwrapper)) => {
                rest(index, unwrapper.as_mut(), deltas);
            }
            _ => {}
        }
        deltas.push(Delta::End { index });
    }

    fn message(&mut self, mut message: Box<MessageDelta>, deltas: &mut Vec<Delta>) {
        if let Some(reason) = &mut message.stop_reason {
            let whole = matches!(reason, StopReason::Stop | StopReason::ToolUse);
            let mut answered = false;
            for (index, block) in self.blocks.iter_mut().enumerate() {
                match block {
                    Block::Output { unwrapper, empty, ended } => {
                        answered = true;
                        if *empty && whole {
                            deltas.push(Delta::Extend { index, part: Part::Text("{}".to_owned()) });
                        }
                        rest(index, unwrapper.as_mut(), deltas);
                        if std::mem::take(empty) && *ended {
                            deltas.push(Delta::End { index });
                        }
                    }
                    Block::Text(unwrapper) => rest(index, unwrapper.as_mut(), deltas),
                    Block::Other => {}
                }
            }
            if answered && !self.uses_tools && *reason == StopReason::ToolUse {
                *reason = StopReason::Stop;
            }
            message.output_enforced |= self.reading.enforced;
        }
        deltas.push(Delta::Message(message));
    }
}

fn unwrapped(unwrapper: Option<&mut Unwrapper>, text: String) -> String {
    match unwrapper {
        Some(unwrapper) => unwrapper.push(&text),
        None => text,
    }
}

fn rest(index: usize, unwrapper: Option<&mut Unwrapper>, deltas: &mut Vec<Delta>) {
    let text = unwrapper.map(Unwrapper::finish).unwrap_or_default();
    if !text.is_empty() {
        deltas.push(Delta::Extend { index, part: Part::Text(text) });
    }
}

impl<D: Decoder> Decoder for OutputDecoder<D> {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let decoded = self.inner.decode(frame, &mut self.fresh);
        self.translate(deltas);
        decoded
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let ended = self.inner.end(&mut self.fresh);
        self.translate(deltas);
        ended
    }
}
