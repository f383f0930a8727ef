//! The content of a model's answer and the faults during its transport, independent of the format.

use omni_agent::message::Usage;
use serde_json::Value;

/// A block of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    /// Reasoning, with a signature that must be sent back unchanged if the format has signatures.
    Thinking {
        text: String,
        signature: String,
    },
    Text(String),
    /// A tool call, whose input is the JSON text written by the model.
    Call {
        id: String,
        name: String,
        input: String,
    },
    /// An action of the service that only the service understands, if the format has such items.
    Opaque(String),
}

/// Why the model stopped. Calls imply their own reason.
#[derive(Clone, Debug, Default)]
pub(crate) enum Stop {
    #[default]
    Done,
    Length,
    Refusal,
    Sequence(String),
}

/// An answer of the model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) blocks: Vec<Block>,
    pub(crate) stop: Stop,
    pub(crate) usage: Usage,
}

impl Answer {
    pub(crate) fn text(text: &str) -> Self {
        Self::default().then_text(text)
    }

    pub(crate) fn thinking(text: &str, signature: &str) -> Self {
        Self::default().then(Block::Thinking { text: text.into(), signature: signature.into() })
    }

    pub(crate) fn call(id: &str, name: &str, input: &Value) -> Self {
        Self::default().then_call(id, name, input)
    }

    pub(crate) fn then(mut self, block: Block) -> Self {
        self.blocks.push(block);
        self
    }

    pub(crate) fn then_text(self, text: &str) -> Self {
        self.then(Block::Text(text.into()))
    }

    pub(crate) fn then_call(self, id: &str, name: &str, input: &Value) -> Self {
        self.then(Block::Call { id: id.into(), name: name.into(), input: input.to_string() })
    }

    pub(crate) fn then_opaque(self, name: &str) -> Self {
        self.then(Block::Opaque(name.into()))
    }

    pub(crate) fn stopping(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    pub(crate) fn using(mut self, usage: Usage) -> Self {
        self.usage = usage;
        self
    }

    /// Returns whether the answer calls a tool.
    pub(crate) fn calls(&self) -> bool {
        self.blocks.iter().any(|block| matches!(block, Block::Call { .. }))
    }

    /// Returns the answer with its end changed or omitted.
    pub(crate) fn ending(self, end: End) -> Step {
        Step::Answer(self, end)
    }
}

/// How the stream of an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As the format requires.
    Whole,
    /// Without the format's terminal event.
    Truncated,
    /// With the terminal event twice.
    Twice,
    /// Never: nothing follows the last block.
    Silent,
    /// With an error event.
    Failed,
}

/// The server's reaction to a request.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Answer(Answer, End),
    Fault(Fault),
}

impl From<Answer> for Step {
    fn from(answer: Answer) -> Self {
        Self::Answer(answer, End::Whole)
    }
}

impl From<Fault> for Step {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// An error in place of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Auth,
    /// With the number of seconds to wait.
    RateLimit(u32),
    Overloaded,
    Invalid(String),
    ContextTooLong,
    Server,
}

/// Splits a text into a few pieces between characters.
pub(crate) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let size = (text.len() / 3).max(1);
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = rest.ceil_char_boundary(size.min(rest.len()));
        let (piece, left) = rest.split_at(end);
        rest = left;
        (!piece.is_empty()).then_some(piece)
    })
}
