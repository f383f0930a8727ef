//! A posted request to run.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{AgUiVersion, messages::newest_call_of};
use crate::{
    agent::Status,
    message::{Attachment, Blocks, Content, MessageId, Text, ToolResult, ToolUse, ToolUseId},
    run::{Error, ErrorKind, PendingUse, PromptId},
    session::{SessionCommand, SessionSnapshot},
    tool::{Decision, Schema, ToolDeclaration, ToolSet, declared_tool_with_schema},
    web::{
        Problem,
        front::{
            exchange::stored_id,
            intent::{
                self, PostedMessageUse, RequestIntent, StoredMessageRef, decide, intent, is_known, open_uses,
                pause_id,
            },
        },
    },
};

/// Returns the reason why a request is not possible in the current state of the conversation. Nothing was changed.
fn refused(code: &'static str, message: impl Into<String>) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, "The run cannot start.").with_detail(message)
}

/// A request to run, as the client posts it.
///
/// The client posts all messages that it has. Only the newest message and the results of client tools are used. The
/// other messages show where the newest message belongs in the conversation.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgUiInput {
    pub(crate) thread_id: String,
    pub(crate) run_id: String,
    #[serde(default)]
    pub(crate) protocol_version: Option<String>,
    pub(crate) messages: Vec<AgUiPostedMessage>,
    #[serde(default)]
    pub(crate) tools: Option<Vec<AgUiTool>>,
    #[serde(default)]
    pub(crate) resume: Option<Vec<AgUiAnswer>>,
    #[serde(default)]
    pub(crate) state: Value,
}

/// A message in a request.
#[derive(Clone, Debug, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgUiPostedMessage {
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
pub(crate) struct AgUiTool {
    name: String,
    description: String,
    #[serde(default)]
    parameters: Option<Value>,
}

/// The answer to an interrupt.
#[derive(Clone, Debug, PartialEq, Hash, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgUiAnswer {
    pub(crate) interrupt_id: String,
    pub(crate) status: AgUiAnswerStatus,
    #[serde(default)]
    pub(crate) payload: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AgUiAnswerStatus {
    Resolved,
    Cancelled,
}

impl AgUiInput {
    /// Returns the version of the protocol that the client reads.
    pub(crate) fn level(&self) -> AgUiVersion {
        AgUiVersion::of(self.protocol_version.as_deref())
    }

    /// Returns the ids under which the messages that the client has are stored.
    pub(crate) fn known(&self) -> HashSet<String> {
        self.messages.iter().map(|message| stored_id(&message.id).into_owned()).collect()
    }

    /// Returns whether the request can begin a conversation: its last user message has content that can be read.
    pub(crate) fn has_prompt(&self) -> bool {
        let last = self.messages.iter().rfind(|message| message.role == "user");
        last.is_some_and(|last| last.blocks().is_ok_and(|blocks| !blocks.0.is_empty()))
    }

    /// Returns the state of the client, if it is an object.
    pub(crate) fn state(&self) -> Map<String, Value> {
        self.state.as_object().cloned().unwrap_or_default()
    }

    /// Returns whether the request asks for something new: it is not refused, except because a run is active. A message
    /// in flight counts as new, because the id of the run is another one.
    pub(crate) fn is_new(&self, view: &SessionSnapshot) -> bool {
        match self.intent(view) {
            Ok(intent) => !matches!(intent, RequestIntent::Ended(..)),
            Err(problem) => problem.code() == ErrorKind::Busy.code(),
        }
    }

    /// Returns the work that the request asks for.
    ///
    /// - If the request has answers to interrupts, each interrupt is decided. There must be exactly one answer per
    ///   interrupt. Only the questions of running tools may be answered one by one, because the client may not have seen
    ///   the latest of them. Without answers, the request is refused while an interrupt is open.
    /// - If the newest message has results of client tools, the results are the prompt.
    /// - A new user message is the prompt.
    /// - A user message that the server knows is edited if its content differs. Otherwise it gets another answer. But
    ///   if the message is staged or part of the turn in flight, nothing is changed, and other content is refused.
    pub(crate) fn intent(&self, view: &SessionSnapshot) -> Result<RequestIntent, Problem> {
        let pauses = &view.agent.pauses;
        let is_turn = |message: &AgUiPostedMessage| matches!(&*message.role, "user" | "assistant" | "tool");
        let count = self.messages.iter().rposition(is_turn).map_or(0, |newest| newest + 1);
        let (newest, before) = self.messages[..count].split_last().unzip();
        let decisions = self.decisions(pauses)?;
        let is_late = decisions.is_empty() && !pauses.is_empty();
        let (trigger, blocks) = match newest {
            Some(newest) if self.decides_before(newest, view) && !is_late => {
                (PostedMessageUse::Newest, newest.blocks()?.0)
            }
            _ if self.has_answers() && decisions.is_empty() => return Ok(RequestIntent::Join(None)),
            _ if self.has_answers() => (PostedMessageUse::Decide(decisions), Vec::new()),
            _ if !pauses.is_empty() => return Err(missing_answer(&interrupt_id(&pauses[0]))),
            Some(newest) if newest.role == "user" => (PostedMessageUse::Newest, newest.blocks()?.0),
            Some(newest) if newest.role == "tool" => (PostedMessageUse::Results, self.results(view)?),
            _ => return Err(nothing_new()),
        };
        let is_late = matches!(trigger, PostedMessageUse::Results) && view.agent.status == Status::Busy;
        let own = newest.map_or("", |newest| &newest.id);
        // The original message keeps its id in the tree, so the edited message gets another id.
        let fresh = match trigger {
            PostedMessageUse::Newest => prompt_id(&format!("run-{}", self.run_id)),
            _ => prompt_id(own),
        };
        let posted = intent::PostedRequest {
            before: before.into_iter().flatten().filter_map(AgUiPostedMessage::name).collect(),
            whole: false,
            newest: newest.and_then(AgUiPostedMessage::name),
            results: match trigger {
                PostedMessageUse::Newest => self.results(view)?,
                _ => Vec::new(),
            },
            trigger,
            blocks,
            id: prompt_id(own),
            fresh,
        };
        intent(posted, view)?.ok_or_else(|| if is_late { busy() } else { nothing_new() })
    }

    fn has_answers(&self) -> bool {
        self.resume.as_ref().is_some_and(|answers| !answers.is_empty())
    }

    /// Returns the command that decides before the newest message is used, if the request has both: while an interrupt is
    /// open, clients send no message without an answer to it.
    pub(crate) fn decided_before(&self, view: &SessionSnapshot) -> Result<Option<SessionCommand>, Problem> {
        if !self.messages.last().is_some_and(|newest| self.decides_before(newest, view)) {
            return Ok(None);
        }
        Ok(decide(self.decisions(&view.agent.pauses)?, view))
    }

    fn decides_before(&self, newest: &AgUiPostedMessage, view: &SessionSnapshot) -> bool {
        let is_new = || newest.name().is_some_and(|name| !is_known(&name, view));
        self.has_answers() && newest.role == "user" && is_new()
    }

    /// Returns the ids of the answered interrupts that are not open, because somebody else has decided, or nobody in time.
    pub(crate) fn stale_answers(&self, view: &SessionSnapshot) -> Vec<&str> {
        let open: HashSet<_> = view.agent.pauses.iter().map(|pause| interrupt_id(pause)).collect();
        let answers = self.resume.iter().flatten().map(|answer| answer.interrupt_id.as_str());
        answers.filter(|id| !open.contains(*id)).collect()
    }

    /// Returns the decision about each pause. Fails unless there is exactly one answer per pause. A question of a running
    /// tool may have none. Answers to other interrupts are ignored, because the client learns nothing about its interrupts
    /// from a refusal. If all are, nothing is decided.
    fn decisions(&self, pauses: &[Arc<PendingUse>]) -> Result<Vec<(ToolUseId, Decision)>, Problem> {
        let mut answers = HashMap::new();
        let ids: HashSet<_> = pauses.iter().map(|pause| interrupt_id(pause)).collect();
        for answer in self.resume.iter().flatten() {
            let id = answer.interrupt_id.as_str();
            if ids.contains(id) && answers.insert(id, answer).is_some() {
                return Err(refused("invalid-answer", format!("The interrupt {id:?} has two answers.")));
            }
        }
        let decide = |pause: &Arc<PendingUse>| {
            let id = interrupt_id(pause);
            let answer = answers.get(id.as_str()).ok_or_else(|| missing_answer(&id))?;
            Ok((pause.tool_use.id.clone(), decision(answer)?))
        };
        let is_due = |pause: &&Arc<PendingUse>| {
            !pause.is_of_running_tool() || answers.contains_key(interrupt_id(pause).as_str())
        };
        if answers.is_empty() {
            return Ok(Vec::new());
        }
        pauses.iter().filter(is_due).map(decide).collect()
    }

    /// Returns the posted results of the tool uses that the last turn has left open.
    fn results(&self, view: &SessionSnapshot) -> Result<Vec<Content>, Problem> {
        let result = |tool_use: &ToolUse| {
            let call = newest_call_of(&view.agent, &tool_use.id);
            let answers = |message: &&AgUiPostedMessage| {
                message.role == "tool" && message.tool_call_id.as_deref() == Some(&*call)
            };
            self.messages.iter().rev().find(answers).map(|message| message.result(tool_use))
        };
        open_uses(view).filter_map(result).collect()
    }

    /// Returns the tools that the client runs, sorted by name. `own` are the tools of the agent, which a client can't
    /// replace: if the agent runs a tool of the same name, the client's declaration is ignored. If the agent only
    /// declares the tool, the client runs it, so both must expect the same inputs.
    pub(crate) fn client_tools(&self, own: &[ToolDeclaration]) -> Result<ToolSet, Problem> {
        let mut tools: Vec<_> = self.tools.iter().flatten().collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let mut set = ToolSet::new();
        for AgUiTool { name, description, parameters } in tools {
            let refused = |reason: String| refused("invalid-tool", reason);
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
enum AgUiPostedPart {
    Text {
        text: String,
    },
    Image(AgUiPostedMedia),
    Audio(AgUiPostedMedia),
    Video(AgUiPostedMedia),
    Document(AgUiPostedMedia),
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
struct AgUiPostedMedia {
    source: AgUiPostedSource,
    #[serde(default)]
    metadata: Value,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum AgUiPostedSource {
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

impl AgUiPostedMessage {
    /// Returns the content of a message from the user, or of a result.
    pub(crate) fn blocks(&self) -> Result<Blocks, Problem> {
        if let Value::String(text) = &self.content {
            return Ok(text.into());
        }
        let parts = Vec::<AgUiPostedPart>::deserialize(&self.content).map_err(|error| {
            let message = format!("The content of the message {:?} cannot be read: {error}", self.id);
            refused("invalid-prompt", message)
        })?;
        parts.into_iter().map(AgUiPostedPart::block).collect()
    }

    /// Returns the text of content that has no parts.
    fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            content => content.to_string(),
        }
    }

    /// Returns the stored message to which the message belongs.
    fn name(&self) -> Option<StoredMessageRef> {
        match &*self.role {
            "user" => Some(StoredMessageRef::Message(MessageId::new(&*stored_id(&self.id)))),
            // The id of a block is `MESSAGE-INDEX`, so the part before the dash is the id of its message.
            "assistant" | "reasoning" => {
                Some(StoredMessageRef::Message(MessageId::new(self.id.rsplit_once('-')?.0)))
            }
            "tool" => self.tool_call_id.clone().map(StoredMessageRef::Result),
            _ => None,
        }
    }

    /// Returns the result of a client tool.
    fn result(&self, tool_use: &ToolUse) -> Result<Content, Problem> {
        if let Some(error) = self.error.as_deref().filter(|error| !error.is_empty()) {
            return Ok(ToolResult::error(tool_use, error).into());
        }
        let blocks = if self.content.is_array() { self.blocks()?.0 } else { vec![self.text().into()] };
        let content = blocks.into_iter().filter_map(|block| match block {
            Content::Text(text) => Some(text.into()),
            Content::Attachment(file) => Some(Attachment::into(file)),
            _ => None,
        });
        Ok(ToolResult::ok(tool_use, "").with_content(content.collect()).into())
    }
}

impl AgUiPostedPart {
    fn block(self) -> Result<Content, Problem> {
        let (AgUiPostedMedia { source, metadata }, any) = match self {
            Self::Text { text } => return Ok(Text::new(text).into()),
            Self::Binary { mime_type, url, data, filename } => {
                let file = match (data, url) {
                    (Some(data), _) => Attachment::base64(mime_type, data),
                    (None, Some(url)) => Attachment::url(mime_type, url),
                    (None, None) => {
                        let message = "A file has neither data nor an address. Send one of them.";
                        return Err(refused("invalid-prompt", message));
                    }
                };
                return Ok(named(file, filename.as_deref()).into());
            }
            Self::Image(media) => (media, "image/*"),
            Self::Audio(media) => (media, "audio/*"),
            Self::Video(media) => (media, "video/*"),
            Self::Document(media) => (media, "application/octet-stream"),
        };
        let file = match source {
            AgUiPostedSource::Data { value, mime_type } => Attachment::base64(mime_type, value),
            AgUiPostedSource::Url { value, mime_type } => {
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

fn nothing_new() -> Problem {
    refused("nothing-new", "The request contains neither a new message nor an answer. Add one of them.")
}

fn busy() -> Problem {
    let text = "a prompt with tool results cannot be staged; send it when the agent is idle";
    Error::new(ErrorKind::Busy, text).into()
}

/// Returns the id of the interrupt for a pause.
pub(super) fn interrupt_id(pause: &PendingUse) -> String {
    pause_id(&pause.tool_use.id, pause.turn)
}

fn missing_answer(id: &str) -> Problem {
    refused("missing-answer", format!("The interrupt {id:?} is open. Answer all open interrupts."))
}

/// Returns `id` as the id of a prompt. An empty id is replaced.
pub(super) fn prompt_id(id: &str) -> PromptId {
    PromptId::new(if id.is_empty() { "run".into() } else { stored_id(id) })
}

fn decision(answer: &AgUiAnswer) -> Result<Decision, Problem> {
    let reason = |default: &str| answer.payload["reason"].as_str().unwrap_or(default).to_owned();
    if answer.status == AgUiAnswerStatus::Cancelled {
        return Ok(Decision::Reject(reason("Cancelled by the user.")));
    }
    match (answer.payload["approved"].as_bool(), answer.payload.get("editedArgs")) {
        (Some(true), None) => Ok(Decision::Execute),
        (Some(true), Some(input)) if input.is_object() => Ok(Decision::ExecuteWith(input.clone())),
        (Some(false), _) => Ok(Decision::Reject(reason("Rejected by the user."))),
        _ => {
            let message = format!(
                "The answer to the interrupt {:?} is invalid. Send `approved`, and `editedArgs` as an object if at all.",
                answer.interrupt_id
            );
            Err(refused("invalid-answer", message))
        }
    }
}
