use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    message::{Message, ToolResult, ToolUse, Usage, value_weight},
    provider::StopReason,
};

/// What came of a step, a turn or an [`ask`](super::Agent::ask).
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Response {
    /// The model that answered, as the service names it, or as it was asked for.
    pub model: String,
    /// The last assistant message; `None` if nothing came before a cancel or an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<Message>>,
    /// The messages of the step or turn, from the user message that prompted it. A step has exactly that
    /// message and the answer.
    pub messages: Vec<Arc<Message>>,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// What it used. A turn's usage includes the failed attempts that `handle_error` had repeated, as far as
    /// the service told what they used, and the answers that were asked for again.
    pub usage: Usage,
    /// Requests made since the prompt was taken.
    pub step: u32,
    /// The answer as JSON, if an output schema was set and the answer obeys it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Why `output` is missing although a schema was set, after the answer was asked for again as often as it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// Tool uses that the application has to answer, if the turn ended with
    /// [`StopReason::ToolUse`]. Send their results with the next prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_tool_uses: Vec<ToolUse>,
    /// Results of the same step that were decided before the turn ended. The next prompt sends them without being asked
    /// to: the history keeps each of them with its tool use, in [`ToolUse::decided`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decided: Vec<ToolResult>,
    /// What was asked for and could not be honoured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl fmt::Debug for Response {
    /// Stays short whatever the response holds, since a failed `main` prints it: lists show their lengths, texts their
    /// beginning, and what is empty is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 200;
        let begin = |text: &str| text[..text.floor_char_boundary(SHOWN)].to_owned();
        let mut shown = f.debug_struct("Response");
        shown.field("model", &self.model).field("stop_reason", &self.stop_reason).field("step", &self.step);
        if self.message.is_some() {
            shown.field("text", &begin(&self.text()));
        }
        if let Some(output) = &self.output {
            shown.field("output", &begin(&output.to_string()));
        }
        if let Some(error) = &self.output_error {
            shown.field("output_error", &begin(error));
        }
        let lists = [
            ("messages", self.messages.len()),
            ("open_tool_uses", self.open_tool_uses.len()),
            ("decided", self.decided.len()),
            ("warnings", self.warnings.len()),
        ];
        for (name, length) in lists.into_iter().filter(|(_, length)| *length > 0) {
            shown.field(name, &length);
        }
        shown.finish_non_exhaustive()
    }
}

impl Response {
    /// The answer's text.
    pub fn text(&self) -> String {
        self.message.as_ref().map(|message| message.text()).unwrap_or_default()
    }

    /// A response of which nothing is known but how it ended.
    pub(crate) fn empty(model: &str, stop_reason: StopReason, step: u32) -> Self {
        Self {
            model: model.to_owned(),
            message: None,
            messages: Vec::new(),
            stop_reason,
            usage: Usage::default(),
            step,
            output: None,
            output_error: None,
            open_tool_uses: Vec::new(),
            decided: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        128 + self.messages.iter().map(|message| message.weight()).sum::<usize>()
            + self.output.as_ref().map_or(0, value_weight)
            + self.output_error.as_ref().map_or(0, String::len)
            + self.open_tool_uses.iter().map(ToolUse::weight).sum::<usize>()
            + self.decided.iter().map(ToolResult::weight).sum::<usize>()
            + self.warnings.iter().map(String::len).sum::<usize>()
    }

    /// Takes in what was read of the answer under an output schema, if there is one.
    pub(crate) fn set_output(&mut self, read: Option<Result<Value, String>>) {
        match read {
            None => {}
            Some(Ok(value)) => self.output = Some(value),
            Some(Err(error)) => self.output_error = Some(error),
        }
    }
}
