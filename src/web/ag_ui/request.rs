//! A posted request to run.

use std::{collections::HashSet, sync::Arc};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Level, Refusal};
use crate::{
    message::{Attachment, Blocks, Content, Text},
    tool::{Schema, ToolDeclaration, ToolSet, declared_tool_with_schema},
};

/// A request to run, as the client posts it.
///
/// The client posts all messages that it has. Only the newest message and the results of client tools are used. The
/// other messages show where the newest message belongs in the conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunInput {
    pub(crate) thread_id: String,
    pub(crate) run_id: String,
    #[serde(default)]
    pub(crate) protocol_version: Option<String>,
    pub(crate) messages: Vec<Posted>,
    #[serde(default)]
    pub(crate) tools: Option<Vec<ClientTool>>,
    #[serde(default)]
    pub(crate) resume: Option<Vec<Answer>>,
    #[serde(default)]
    pub(crate) state: Value,
}

/// A message in a request.
#[derive(Clone, Debug, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Posted {
    pub(crate) id: String,
    pub(crate) role: String,
    #[serde(default)]
    pub(crate) content: Value,
    #[serde(default)]
    pub(crate) tool_call_id: Option<String>,
    #[serde(default)]
    pub(crate) error: Option<String>,
}

/// A tool that the client runs.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ClientTool {
    name: String,
    description: String,
    #[serde(default)]
    parameters: Option<Value>,
}

/// The answer to an interrupt.
#[derive(Clone, Debug, PartialEq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Answer {
    pub(crate) interrupt_id: String,
    pub(crate) status: AnswerStatus,
    #[serde(default)]
    pub(crate) payload: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AnswerStatus {
    Resolved,
    Cancelled,
}

impl RunInput {
    /// Returns the version of the protocol that the client reads.
    pub(crate) fn level(&self) -> Level {
        Level::of(self.protocol_version.as_deref())
    }

    /// Returns the ids of the messages that the client has.
    pub(crate) fn known(&self) -> HashSet<String> {
        self.messages.iter().map(|message| message.id.clone()).collect()
    }

    /// Returns the state of the client, if it is an object.
    pub(crate) fn state(&self) -> Map<String, Value> {
        self.state.as_object().cloned().unwrap_or_default()
    }

    /// Returns the tools that the client runs, sorted by name. `own` are the tools of the agent, which a client can't
    /// replace: if the agent runs a tool of the same name, the client's declaration is ignored. If the agent only
    /// declares the tool, the client runs it, so both must expect the same inputs.
    pub(crate) fn client_tools(&self, own: &[ToolDeclaration]) -> Result<ToolSet, Refusal> {
        let mut tools: Vec<_> = self.tools.iter().flatten().collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let mut set = ToolSet::new();
        for ClientTool { name, description, parameters } in tools {
            let refused = |reason: String| Refusal::new("invalid-tool", reason);
            let parameters = parameters.clone().unwrap_or_else(|| json!({ "type": "object" }));
            let schema = Schema::new(parameters)
                .map_err(|error| refused(format!("The schema of the tool {name:?} is invalid: {error}")))?;
            match own.iter().find(|tool| tool.name == *name) {
                Some(tool) if tool.has_handler || tool.schema == schema => continue,
                Some(_) => {
                    return Err(refused(format!(
                        "The agent declares the tool {name:?} with another schema. Give the client's tool another name."
                    )));
                }
                None => {}
            }
            let tool = Arc::new(declared_tool_with_schema(name, description, schema));
            set.insert(tool).map_err(|error| refused(format!("A tool is not acceptable: {error}.")))?;
        }
        Ok(set)
    }
}

/// A part of a posted message.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum PostedPart {
    Text {
        text: String,
    },
    Image {
        source: PostedSource,
        #[serde(default)]
        metadata: Value,
    },
    Audio {
        source: PostedSource,
        #[serde(default)]
        metadata: Value,
    },
    Video {
        source: PostedSource,
        #[serde(default)]
        metadata: Value,
    },
    Document {
        source: PostedSource,
        #[serde(default)]
        metadata: Value,
    },
    /// The form of files in versions of the npm packages before 0.0.48.
    #[serde(rename_all = "camelCase")]
    Binary {
        mime_type: String,
        #[serde(default)]
        url: Option<String>,
        #[serde(default)]
        data: Option<String>,
        #[serde(default)]
        filename: Option<String>,
    },
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum PostedSource {
    Data {
        value: String,
        mime_type: String,
    },
    Url {
        value: String,
        #[serde(default)]
        mime_type: Option<String>,
    },
}

impl Posted {
    /// Returns the content of a message from the user, or of a result.
    pub(crate) fn blocks(&self) -> Result<Blocks, Refusal> {
        if let Value::String(text) = &self.content {
            return Ok(text.into());
        }
        let parts = Vec::<PostedPart>::deserialize(&self.content).map_err(|error| {
            let message = format!("The content of the message {:?} cannot be read: {error}", self.id);
            Refusal::new("invalid-prompt", message)
        })?;
        parts.into_iter().map(PostedPart::block).collect()
    }

    /// Returns the texts of the content.
    pub(crate) fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
            Value::Null => String::new(),
            content => content.to_string(),
        }
    }

    /// Returns the number of parts that are not texts.
    pub(crate) fn files(&self) -> usize {
        let parts = self.content.as_array().map(Vec::as_slice).unwrap_or_default();
        parts.iter().filter(|part| part["type"] != "text").count()
    }
}

impl PostedPart {
    fn block(self) -> Result<Content, Refusal> {
        let (source, metadata, any) = match self {
            Self::Text { text } => return Ok(Text::new(text).into()),
            Self::Binary { mime_type, url, data, filename } => {
                let file = match (data, url) {
                    (Some(data), _) => Attachment::base64(mime_type, data),
                    (None, Some(url)) => Attachment::url(mime_type, url),
                    (None, None) => {
                        let message = "A file has neither data nor an address. Send one of them.";
                        return Err(Refusal::new("invalid-prompt", message));
                    }
                };
                return Ok(named(file, filename.as_deref()).into());
            }
            Self::Image { source, metadata } => (source, metadata, "image/*"),
            Self::Audio { source, metadata } => (source, metadata, "audio/*"),
            Self::Video { source, metadata } => (source, metadata, "video/*"),
            Self::Document { source, metadata } => (source, metadata, "application/octet-stream"),
        };
        let file = match source {
            PostedSource::Data { value, mime_type } => Attachment::base64(mime_type, value),
            PostedSource::Url { value, mime_type } => {
                Attachment::url(mime_type.unwrap_or_else(|| any.to_owned()), value)
            }
        };
        let name = metadata["name"].as_str().or_else(|| metadata["filename"].as_str());
        Ok(named(file, name).into())
    }
}

fn named(file: Attachment, name: Option<&str>) -> Attachment {
    match name {
        Some(name) => file.named(name),
        None => file,
    }
}
