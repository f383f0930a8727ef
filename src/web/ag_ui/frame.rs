//! The events of the protocol as the clients read them.

use serde::Serialize;
use serde_json::{Map, Value};

/// An event of the protocol. Optional fields are omitted, never null.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE", rename_all_fields = "camelCase")]
pub(crate) enum AgUiFrame {
    RunStarted {
        thread_id: String,
        run_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        protocol_version: Option<&'static str>,
    },
    RunFinished {
        thread_id: String,
        run_id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<AgUiOutcome>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<AgUiUsage>,
    },
    RunError {
        message: String,
        code: String,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        usage: Vec<AgUiUsage>,
    },
    StepStarted {
        step_name: String,
    },
    StepFinished {
        step_name: String,
    },
    TextMessageStart {
        message_id: String,
        role: &'static str,
    },
    TextMessageContent {
        message_id: String,
        delta: String,
    },
    TextMessageEnd {
        message_id: String,
    },
    ReasoningStart {
        message_id: String,
    },
    ReasoningMessageStart {
        message_id: String,
        role: &'static str,
    },
    ReasoningMessageContent {
        message_id: String,
        delta: String,
    },
    ReasoningMessageEnd {
        message_id: String,
    },
    ReasoningEnd {
        message_id: String,
    },
    ToolCallStart {
        tool_call_id: String,
        tool_call_name: String,
        parent_message_id: String,
    },
    ToolCallArgs {
        tool_call_id: String,
        delta: String,
    },
    ToolCallEnd {
        tool_call_id: String,
    },
    ToolCallResult {
        message_id: String,
        tool_call_id: String,
        content: AgUiContent,
        role: &'static str,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
    },
    ActivitySnapshot {
        message_id: String,
        activity_type: &'static str,
        content: Value,
        replace: bool,
    },
    MessagesSnapshot {
        messages: Vec<AgUiMessage>,
        metadata: Value,
    },
    StateSnapshot {
        snapshot: Value,
    },
    StateDelta {
        /// A JSON Patch.
        delta: Value,
    },
    Custom {
        name: &'static str,
        value: Value,
    },
}

/// The outcome of a run that did not fail.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum AgUiOutcome {
    Success {
        /// The tool calls that the client has to answer.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pending_tool_call_ids: Vec<String>,
    },
    Interrupt {
        interrupts: Vec<AgUiInterrupt>,
    },
    Cancelled,
}

/// A question that a paused run asks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgUiInterrupt {
    pub(crate) id: String,
    pub(crate) reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    pub(crate) tool_call_id: String,
    pub(crate) response_schema: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) metadata: Map<String, Value>,
}

/// The tokens that one model has used.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgUiUsage {
    pub(crate) model: String,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) reasoning_tokens: u64,
    pub(crate) cached_input_tokens: u64,
    pub(crate) cache_write_input_tokens: u64,
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "role", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum AgUiMessage {
    User {
        id: String,
        content: AgUiContent,
    },
    Assistant {
        id: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<AgUiToolCall>,
    },
    Tool {
        id: String,
        tool_call_id: String,
        content: AgUiContent,
        /// The text of a failure.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
        #[serde(skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
    },
    Reasoning {
        id: String,
        content: String,
    },
    Activity {
        id: String,
        activity_type: &'static str,
        content: Value,
    },
}

impl AgUiMessage {
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::User { id, .. }
            | Self::Assistant { id, .. }
            | Self::Tool { id, .. }
            | Self::Reasoning { id, .. }
            | Self::Activity { id, .. } => id,
        }
    }

    pub(crate) fn tool_calls(&self) -> &[AgUiToolCall] {
        match self {
            Self::Assistant { tool_calls, .. } => tool_calls,
            _ => &[],
        }
    }
}

/// A tool call of an assistant message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AgUiToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: AgUiFunction,
}

/// The name of a tool, and the JSON text of its input.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AgUiFunction {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

impl AgUiToolCall {
    pub(crate) fn new(id: String, name: String, arguments: String) -> Self {
        Self { id, kind: "function", function: AgUiFunction { name, arguments } }
    }
}

/// The content of a message: a text, or a list of parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum AgUiContent {
    Text(String),
    Parts(Vec<AgUiPart>),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum AgUiPart {
    Text { text: String },
    Image(AgUiMedia),
    Audio(AgUiMedia),
    Video(AgUiMedia),
    Document(AgUiMedia),
}

/// A file in a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct AgUiMedia {
    pub(crate) source: AgUiSentSource,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) metadata: Map<String, Value>,
}

/// The bytes of a file, or its address.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub(crate) enum AgUiSentSource {
    Data { value: String, mime_type: String },
    Url { value: String, mime_type: String },
}
