use std::{fmt::Write, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ResultBlock, Timestamp, ToolResult, cleared::grouped, value_weight};

/// The maximum length in bytes of an input in the text that tells the model of it.
const MAX_INPUT: usize = 4096;
/// The maximum size in bytes of an input that a view of the decision contains.
#[cfg(any(feature = "web", feature = "mcp-server"))]
const MAX_SHOWN: usize = 64 << 10;

/// How a tool use was decided. It is stored with the result of the tool use, and never sent to a model service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UseDecision {
    /// The kind of the decision.
    pub kind: DecisionKind,
    /// The name of the person or system that decided. `None` if a callback has decided, or if the decider gave no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Arc<str>>,
    /// The time of the decision. If the tool use was cut off, this is the time of its end.
    pub at: Timestamp,
    /// The input that the decision has set, if it differs from the input that the model sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// Whether the tool has started with this input, so that the first block of the result's content states it to the
    /// model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub noted: bool,
}

/// The kind of the decision about a tool use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionKind {
    /// The tool runs with the model's input.
    Execute,
    /// The tool runs with another input.
    ExecuteWith,
    /// The tool does not run. The model receives an error result.
    Reject,
    /// The model receives the decider's result. The tool does not run, or a running tool is ended.
    Provide,
    /// Nobody decided within the time limit, so the decision for its end applies.
    Expired,
    /// The end of its run or of its process, or the time limit of its turn, has cut off the tool use before the tool has
    /// ended.
    Interrupted,
}

impl UseDecision {
    /// Returns a decision without a name and without another input.
    pub(crate) const fn new(kind: DecisionKind, at: Timestamp) -> Self {
        Self { kind, by: None, at, input: None, noted: false }
    }

    /// Removes an input that is too large for a view.
    #[cfg(any(feature = "web", feature = "mcp-server"))]
    pub(crate) fn clip(&mut self) {
        self.input.take_if(|input| value_weight(input) > MAX_SHOWN);
    }

    pub(crate) fn weight(&self) -> usize {
        32 + self.by.as_ref().map_or(0, |by| by.len()) + self.input.as_ref().map_or(0, value_weight)
    }
}

impl ToolResult {
    /// Returns the tool's output without the text that tells the model of a changed input. The changed input is in
    /// [`decision`](Self::decision).
    pub fn output(&self) -> &[ResultBlock] {
        let has_note = self.decision.as_ref().is_some_and(|decision| decision.noted);
        self.content.get(usize::from(has_note)..).unwrap_or_default()
    }

    /// Returns the text that tells the model of a changed input, if there is one, and the blocks of
    /// [`output`](Self::output).
    pub(crate) fn parts_mut(&mut self) -> (Option<&mut ResultBlock>, &mut [ResultBlock]) {
        let notes = self.content.len() - self.output().len();
        let (notes, output) = self.content.split_at_mut(notes);
        (notes.first_mut(), output)
    }

    /// Returns the input with which the tool ran, if it is not the model's.
    #[cfg(feature = "acp")]
    pub(crate) fn changed_input(&self) -> Option<&Value> {
        self.decision.as_deref().filter(|decision| decision.noted)?.input.as_ref()
    }

    /// Returns all text of [`output`](Self::output), joined without a separator.
    #[cfg(any(test, feature = "terminal", feature = "web"))]
    pub(crate) fn output_text(&self) -> String {
        super::content::text_of(self.output())
    }

    /// Returns the blocks of [`output`](Self::output), each with its index in the content.
    #[cfg(feature = "web")]
    pub(crate) fn output_blocks(&self) -> impl Iterator<Item = (usize, &ResultBlock)> {
        self.content.iter().enumerate().skip(self.content.len() - self.output().len())
    }

    /// Adds how the tool use was decided. If the tool `ran` with another input, the first block of the content states
    /// this input to the model, because the history contains the model's own input.
    pub(crate) fn decided(mut self, mut decision: UseDecision, ran: bool, by_person: bool) -> Self {
        decision.noted = ran && decision.input.is_some();
        if let Some(input) = decision.input.as_ref().filter(|_| ran) {
            let input = input.to_string();
            let kept = &input[..input.floor_char_boundary(MAX_INPUT)];
            let who = if by_person { "A person" } else { "The application" };
            let mut note = format!("{who} changed the input of this call. It ran with: {kept}");
            if kept.len() < input.len() {
                // Writing to a string never fails.
                let _ = write!(note, "… ({} bytes)", grouped(input.len()));
            }
            self.content.insert(0, note.into());
        }
        self.decision = Some(Box::new(decision));
        self
    }
}
