use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    message::{Message, RequestEnd, ToolResult, ToolUse, TurnId, Usage, UsageRow, value_weight},
    provider::StopReason,
};

/// The result of a step, a turn or an [`ask`](crate::agent::Agent::ask).
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
/// # let model = provider.model();
/// use omni_agent::{Agent, provider::StopReason};
///
/// let agent = Agent::builder().model(model).start().await?;
/// let response = agent.ask("Hi").await?;
/// assert_eq!(response.text(), "Hello!");
/// assert_eq!(response.stop_reason, StopReason::Stop);
/// // The prompt and the assistant message:
/// assert_eq!(response.messages.len(), 2);
/// for warning in &response.warnings {
///     eprintln!("warning: {warning}");
/// }
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Response {
    /// The name of the model that responded, without the provider: as the service reports it, or as in the request if
    /// the service reports no name.
    pub model: String,
    /// The last assistant message. `None` if a cancel or an error occurred before the first assistant message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<Arc<Message>>,
    /// The messages of the step or turn, starting with the user message that caused it. The messages of a step are one
    /// assistant message and, before it, the user messages that the step answers. There are several such user messages
    /// if prompts have joined the turn.
    pub messages: Vec<Arc<Message>>,
    /// The reason why the step or turn ended.
    pub stop_reason: StopReason,
    /// The usage of the step or turn. A turn's usage includes failed attempts that `handle_error` repeated, if the
    /// service reported their usage. It also includes responses that were discarded because they did not match the
    /// output schema, and the requests of sub-agents that have no session of their own.
    pub usage: Usage,
    /// The usage of sub-agents that are sessions. [`usage`](Self::usage) does not include it, because their sessions
    /// store it.
    #[serde(default, skip_serializing_if = "Usage::is_zero")]
    pub delegated: Usage,
    /// The number of requests made for the prompt so far.
    pub step: u32,
    /// The id of the turn. `None` if the run was ended between two turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The number of the run, counted from 1 since the agent's start. An agent that starts with a stored turn in flight
    /// continues the count of that turn.
    #[serde(default)]
    pub run: u32,
    /// The response as JSON, if an output schema was set and the response matches the schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The reason why `output` is missing although an output schema was set: the response does not match the schema,
    /// and no other response is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_error: Option<String>,
    /// The tool uses that are left to the application, which sends their results with the next prompt. Not empty if the
    /// turn ended with [`StopReason::ToolUse`]. If a callback or a person has decided on another input, a tool use has
    /// this input here. The history contains the input of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_tool_uses: Vec<ToolUse>,
    /// The results of the same step that were decided before the turn ended. The next prompt includes these results
    /// automatically, because the history stores each result with its tool use, in [`ToolUse::decided`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decided: Vec<ToolResult>,
    /// The settings that could not be applied, as readable warnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl fmt::Debug for Response {
    /// Writes a short form, because Rust prints the `Debug` form of an error that `main` returns, and such an error may
    /// contain a response. The short form contains lists as their lengths, only the beginning of texts, and no empty
    /// fields.
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
    /// Returns the text of the last assistant message.
    pub fn text(&self) -> String {
        self.message.as_ref().map(|message| message.text()).unwrap_or_default()
    }

    /// Returns a response without content that ended with `stop_reason`.
    pub(crate) fn empty(model: &str, stop_reason: StopReason, step: u32, run: u32) -> Self {
        Self {
            model: model.to_owned(),
            message: None,
            messages: Vec::new(),
            stop_reason,
            usage: Usage::default(),
            delegated: Usage::default(),
            step,
            turn: None,
            run,
            output: None,
            output_error: None,
            open_tool_uses: Vec::new(),
            decided: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns the row of the usage ledger for a step.
    pub(crate) fn usage_row(&self) -> UsageRow {
        let message = self.message.as_ref();
        let at = message.or(self.messages.last()).map(|message| message.timestamp);
        UsageRow::new(RequestEnd::Answered, self.usage)
            .with_at(at.unwrap_or_default())
            .with_turn(self.turn)
            .with_model(self.model.clone())
            .with_step(self.step)
            .with_message(message.and_then(|message| message.id.clone()))
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        128 + self.messages.iter().map(|message| message.weight()).sum::<usize>()
            + self.output.as_ref().map_or(0, value_weight)
            + self.output_error.as_ref().map_or(0, String::len)
            + self.open_tool_uses.iter().map(ToolUse::weight).sum::<usize>()
            + self.decided.iter().map(ToolResult::weight).sum::<usize>()
            + self.warnings.iter().map(String::len).sum::<usize>()
    }

    /// Stores the value that was read with the output schema, or the problem with the response. `read` is `None` if no
    /// schema was set, or if the response is not final.
    pub(crate) fn set_output(&mut self, read: Option<Result<Value, String>>) {
        match read {
            None => {}
            Some(Ok(value)) => self.output = Some(value),
            Some(Err(error)) => self.output_error = Some(error),
        }
    }
}
