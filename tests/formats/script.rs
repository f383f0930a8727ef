//! The content of a model's answer, and the faults in its transmission. Both are independent of the format.

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
    /// An action of the service in a form that only the service understands. It is omitted if the format has no such
    /// items.
    Opaque(String),
}

/// The reason why the model stopped. If the answer has tool calls, the reason is always that it uses tools.
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

    /// Returns a step that sends this answer with the given end.
    pub(crate) fn ending(self, end: End) -> Step {
        Step::Answer(self, end)
    }
}

/// How the stream of an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The stream ends as the format requires.
    Whole,
    /// The stream ends without the format's terminal event.
    Truncated,
    /// The stream ends with the terminal event twice.
    Twice,
    /// The stream stays open, but nothing follows the last block.
    Silent,
    /// The stream ends with an error event.
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

/// An error that is sent instead of an answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Auth,
    /// A rate limit, with the number of seconds to wait.
    RateLimit(u32),
    Overloaded,
    Invalid(String),
    ContextTooLong,
    Server,
}

/// Splits a text into a few pieces at character boundaries.
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
