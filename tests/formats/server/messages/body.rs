//! The body of a request. Members that are not listed here are rejected.

#![allow(dead_code, reason = "listed members may be present, but are not read")]

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    pub(super) model: String,
    pub(super) max_tokens: u32,
    pub(super) stream: bool,
    pub(super) messages: Vec<Turn>,
    pub(super) system: Option<System>,
    pub(super) thinking: Option<Thinking>,
    pub(super) tools: Option<Vec<Tool>>,
    pub(super) tool_choice: Option<Choice>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) stop_sequences: Option<Vec<String>>,
    pub(super) output_config: Option<OutputConfig>,
    pub(super) metadata: Option<Metadata>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    pub(super) role: String,
    pub(super) content: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum System {
    Text(String),
    Blocks(Vec<Block>),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Thinking {
    Enabled { budget_tokens: u32 },
    Adaptive {},
    Disabled {},
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tool {
    pub(super) name: String,
    pub(super) description: Option<String>,
    pub(super) input_schema: Map<String, Value>,
    pub(super) cache_control: Option<Cache>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Choice {
    Auto {},
    None {},
    Any {},
    Tool { name: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputConfig {
    pub(super) effort: Option<String>,
    pub(super) format: Option<OutputFormat>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum OutputFormat {
    JsonSchema { schema: Value },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    pub(super) user_id: String,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Cache {
    Ephemeral { ttl: Option<Ttl> },
}

#[derive(Deserialize)]
pub(super) enum Ttl {
    #[serde(rename = "5m")]
    Minutes,
    #[serde(rename = "1h")]
    Hour,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Block {
    Text {
        text: String,
        cache_control: Option<Cache>,
    },
    Image {
        source: Source,
        cache_control: Option<Cache>,
    },
    Document {
        source: Source,
        title: Option<String>,
        cache_control: Option<Cache>,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
        cache_control: Option<Cache>,
    },
    ToolResult {
        tool_use_id: String,
        #[serde(default)]
        content: Vec<Block>,
        #[serde(default)]
        is_error: bool,
        cache_control: Option<Cache>,
    },
    Thinking {
        thinking: String,
        signature: String,
    },
    ServerToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
    WebSearchToolResult {
        tool_use_id: String,
        content: Value,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Source {
    Base64 { media_type: String, data: String },
    Url { url: String },
}
