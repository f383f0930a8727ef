//! Reads a posted request: the action of the user, and the commands that perform this action.

use serde::Deserialize;
use serde_json::Value;

use super::{
    Follow, Settings,
    exchange::{Exchange, base_id, exchanges, ui_id, version_id},
};
use crate::{
    agent::Status,
    message::{
        Attachment, Blocks, Content, Message, MessageId, ResultBlock, Role, Text, ToolResult, ToolUse,
        ToolUseId,
    },
    provider::StopReason,
    run::{Prompt, PromptId, RunOutcome},
    session::{SessionCommand, SessionSnapshot},
    tool::Decision,
    tree::NodeId,
    web::view::encoded,
};

/// The body of a posted request. Other fields are ignored, because applications may add their own.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::web) struct Post {
    /// The id of the conversation.
    pub(in crate::web) id: String,
    messages: Vec<Posted>,
    trigger: Trigger,
    #[serde(default)]
    message_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Trigger {
    SubmitMessage,
    RegenerateMessage,
}

/// A message of the request.
#[derive(Debug, Deserialize)]
struct Posted {
    id: String,
    role: PostedRole,
    #[serde(default)]
    parts: Vec<Value>,
}

impl Posted {
    /// Returns whether the posted message has the same text as `message`.
    fn has_text_of(&self, message: &Message) -> bool {
        let texts = self.parts.iter().filter(|part| part["type"] == "text");
        texts.filter_map(|part| part["text"].as_str()).eq(message.content.iter().filter_map(Content::as_text))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PostedRole {
    System,
    User,
    Assistant,
}

/// The reason why a request cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::web) enum Refusal {
    /// The request does not follow the protocol.
    Invalid(String),
    /// The request builds on a message that is not on the path.
    Diverged,
    /// The request's decisions or results are for tool uses that do not wait.
    Stale { waiting: Vec<ToolUseId> },
    /// There is no message to regenerate or to edit.
    UnknownMessage,
}

/// The commands of a request, and the response that shows them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) struct Plan {
    /// The commands, in order. There are none if the prompt is known already.
    pub(in crate::web) commands: Vec<SessionCommand>,
    pub(in crate::web) follow: Follow,
}

/// Reads a request. The returned plan contains only the user's new message, or the decisions and results that the
/// conversation waits for. The rest of the posted history only shows where in the conversation the user is.
///
/// # Errors
///
/// Fails if the request does not fit the conversation.
pub(in crate::web) fn read(
    post: &Post,
    snapshot: &SessionSnapshot,
    settings: &Settings,
) -> Result<Plan, Refusal> {
    let reader = Reader { snapshot, settings, exchanges: exchanges(snapshot) };
    if post.trigger == Trigger::RegenerateMessage {
        return reader.regenerate(post);
    }
    let Some(id) = &post.message_id else { return reader.prompt(&post.messages) };
    let place = post.messages.iter().rposition(|message| message.id == *id);
    match place.map(|place| &post.messages[place]) {
        Some(message) if message.role == PostedRole::Assistant => reader.answer(message),
        Some(message) => reader.edit(message, id),
        // In version 7, an edited message may have another id. The edited message is the last posted message, because
        // the client removes the messages after it.
        None => match post.messages.last() {
            Some(message) if message.role == PostedRole::User => reader.edit(message, id),
            _ => Err(Refusal::UnknownMessage),
        },
    }
}

struct Reader<'a> {
    snapshot: &'a SessionSnapshot,
    settings: &'a Settings,
    exchanges: Vec<Exchange<'a>>,
}

impl<'a> Reader<'a> {
    // ---- actions ----

    /// Returns the plan for a new message.
    fn prompt(&self, messages: &[Posted]) -> Result<Plan, Refusal> {
        let Some((message, before)) = messages.split_last() else {
            return Err(Refusal::Invalid("`messages` is empty".to_owned()));
        };
        if message.role != PostedRole::User {
            // The request has no `messageId`, and its last message is from the assistant. The application has sent such
            // a request explicitly, to pass on decisions or results.
            return self.answer(message);
        }
        let id = MessageId::new(message.id.as_str());
        if self.snapshot.agent.pending.iter().any(|pending| pending.id.as_ref() == Some(&id)) {
            return Ok(Plan { commands: Vec::new(), follow: Follow::InFlight });
        }
        if self.snapshot.tree.find(&id).is_some() {
            let outcome = self.outcome(&id);
            return Ok(Plan { commands: Vec::new(), follow: Follow::Ended(id, outcome) });
        }
        let prompt = self.new_prompt(message, PromptId::new(message.id.as_str()))?;
        let command = match self.base(before)? {
            PromptBase::Head => SessionCommand::Prompt { prompt },
            PromptBase::Below(node) => SessionCommand::Branch { node: Some(node), prompt },
        };
        Ok(Plan { commands: vec![command], follow: Follow::Prompt(id) })
    }

    /// Returns the outcome of the run of a prompt that is part of the tree. Only the outcome of the last run is recorded,
    /// so an earlier run counts as complete.
    fn outcome(&self, prompt: &MessageId) -> RunOutcome {
        let is_asked = |exchange: &&Exchange<'_>| {
            exchange.prompt.is_some_and(|entry| entry.message.id.as_ref() == Some(prompt))
        };
        let answer = self.exchanges.iter().rfind(is_asked).into_iter().flat_map(|exchange| &exchange.rest);
        let mut turns = answer.filter_map(|entry| entry.message.id.as_ref()?.turn());
        let last = self.snapshot.agent.last_run.as_deref();
        match last.filter(|end| turns.any(|turn| end.turn == Some(turn))) {
            Some(end) => end.outcome.clone(),
            None => RunOutcome::Stopped { stop_reason: StopReason::Stop },
        }
    }

    /// Returns the plan for a new version of a message. `id` is the client's id of the message that the new version
    /// replaces.
    fn edit(&self, message: &Posted, id: &str) -> Result<Plan, Refusal> {
        let node = self.prompt_node(id)?;
        let new = self.fresh_id(&message.id);
        let prompt = self.new_prompt(message, PromptId::new(new.as_str()))?;
        let follow = Follow::Prompt(MessageId::new(new));
        let Some(node) = node else {
            // The message was never committed: its run was cancelled or has failed.
            return Ok(Plan { commands: vec![SessionCommand::Prompt { prompt }], follow });
        };
        Ok(Plan { commands: vec![SessionCommand::Edit { node, prompt }], follow })
    }

    /// Returns the plan for another answer to a prompt.
    fn regenerate(&self, post: &Post) -> Result<Plan, Refusal> {
        let named = post.message_id.as_deref();
        let last = post.messages.iter().rfind(|message| message.role == PostedRole::User);
        // The client cuts the list at the answer that it wants to replace. So the last user message is the one to
        // answer, unless the list was shortened on the way.
        let id = match (last, named) {
            (Some(last), _) => last.id.as_str(),
            (None, Some(named)) => named.strip_prefix("a-").unwrap_or(named),
            (None, None) => match self.exchanges.iter().rfind(|exchange| exchange.prompt.is_some()) {
                Some(exchange) => exchange.id.as_str(),
                None => return Err(Refusal::UnknownMessage),
            },
        };
        let node = self.prompt_node(id)?.and_then(|node| self.snapshot.tree.node(node));
        // If the run of a message was cancelled or has failed, the history does not contain the message, or it contains
        // an older version. The client still shows the message, so its user wants an answer to it.
        if let Some(message) = last
            && node.is_none_or(|node| !message.has_text_of(node.message()))
        {
            return self.edit(message, &message.id);
        }
        let node = node.ok_or(Refusal::UnknownMessage)?;
        let follow = node.message().id.clone().map_or(Follow::InFlight, Follow::Prompt);
        Ok(Plan { commands: vec![SessionCommand::Regenerate { node: node.id() }], follow })
    }

    /// Returns the plan for decisions about tool uses that wait, or for results of tools that the client runs.
    fn answer(&self, message: &Posted) -> Result<Plan, Refusal> {
        let parts = message.parts.iter().filter_map(|part| Some((part, part.get("state")?.as_str()?)));
        if self.snapshot.agent.status == Status::Paused {
            let commands: Vec<_> = parts
                .filter(|(_, state)| *state == "approval-responded")
                .filter_map(|(part, _)| self.decision(part))
                .collect();
            if !commands.is_empty() {
                return Ok(Plan { commands, follow: Follow::Decisions });
            }
        } else {
            let results: Vec<Content> = parts
                .filter(|(_, state)| matches!(*state, "output-available" | "output-error"))
                .filter_map(|(part, state)| self.result(part, state == "output-error"))
                .map(Content::from)
                .collect();
            if !results.is_empty() {
                let id = self.fresh_id("results");
                let prompt = Prompt::new(Blocks(results)).with_id(id.as_str());
                let follow = Follow::Results(MessageId::new(id));
                return Ok(Plan { commands: vec![SessionCommand::Prompt { prompt }], follow });
            }
        }
        let pauses = &self.snapshot.agent.pauses;
        Err(Refusal::Stale { waiting: pauses.iter().map(|pause| pause.tool_use.id.clone()).collect() })
    }

    /// Reads the decision in a part. Returns `None` if its tool use does not wait.
    fn decision(&self, part: &Value) -> Option<SessionCommand> {
        let approval = part.get("approval")?;
        let id = approval.get("id")?.as_str()?;
        let mut pauses = self.snapshot.agent.pauses.iter();
        let pause = pauses.find(|pause| pause.tool_use.id.as_str() == id)?;
        let decision = if approval.get("approved")?.as_bool()? {
            Decision::Execute
        } else {
            let reason =
                approval.get("reason").and_then(Value::as_str).unwrap_or("The user denied this use.");
            Decision::reject(reason)
        };
        Some(SessionCommand::Resume {
            tool_use_id: pause.tool_use.id.clone(),
            turn: Some(pause.turn),
            decision,
        })
    }

    /// Reads the result in a part. Returns `None` if its tool use is not open.
    fn result(&self, part: &Value, is_error: bool) -> Option<ToolResult> {
        let id = part.get("toolCallId")?.as_str()?;
        let tool_use = self.open_uses().find(|tool_use| tool_use.id.as_str() == id)?;
        if is_error {
            let text = part.get("errorText").and_then(Value::as_str).unwrap_or("The tool failed.");
            return Some(ToolResult::error(tool_use, text));
        }
        let text = match part.get("output")? {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        Some(ToolResult::ok(tool_use, ResultBlock::from(Text::new(text))))
    }

    /// Iterates over the tool uses that the last turn has left to the application.
    fn open_uses(&self) -> impl Iterator<Item = &'a ToolUse> {
        let is_idle = self.snapshot.agent.status == Status::Idle;
        let last = self.snapshot.agent.state.history.last().filter(|_| is_idle);
        let uses = last.into_iter().flat_map(|message| message.tool_uses());
        uses.filter(|tool_use| tool_use.decided.is_none())
    }

    // ---- where the request builds ----

    /// Returns the point on which a new message builds: the newest posted message that the conversation knows.
    fn base(&self, before: &[Posted]) -> Result<PromptBase, Refusal> {
        for message in before.iter().rev() {
            let id = base_id(message.id.strip_prefix("a-").unwrap_or(&message.id));
            let found = self.exchanges.iter().position(|exchange| exchange.id == id);
            match found {
                Some(index) if index + 1 == self.exchanges.len() => return Ok(PromptBase::Head),
                Some(index) => {
                    // Only the last exchange can be without a node, because the others are committed.
                    let node = self.exchanges[index].last_node();
                    return node.map(PromptBase::Below).ok_or(Refusal::Diverged);
                }
                None if self.is_elsewhere(id) => return Err(Refusal::Diverged),
                None => {}
            }
        }
        Ok(PromptBase::Head)
    }

    /// Returns the node of a prompt, or `None` if the conversation has never committed it. Fails if the prompt is
    /// outside the path.
    fn prompt_node(&self, id: &str) -> Result<Option<NodeId>, Refusal> {
        let id = base_id(id);
        let found = self.exchanges.iter().rfind(|exchange| exchange.id == id && exchange.prompt.is_some());
        match found.and_then(|exchange| exchange.prompt) {
            Some(entry) => match (entry.node, &entry.message.id) {
                (Some(node), _) => Ok(Some(node.id())),
                // The prompt of the turn in flight is part of the tree if it is answered again.
                (None, Some(message)) => Ok(self.snapshot.tree.find(message)),
                (None, None) => Ok(None),
            },
            None if self.is_elsewhere(id) => Err(Refusal::Diverged),
            None => Ok(None),
        }
    }

    /// Returns whether a user message of the tree has this id. It is called for ids that the path does not contain.
    fn is_elsewhere(&self, id: &str) -> bool {
        let is_it = |message: &Message, node| message.role == Role::User && ui_id(message, Some(node)) == id;
        self.snapshot.tree.nodes().any(|node| is_it(node.message(), node.id()))
    }

    /// Returns an id for a new version of a message.
    fn fresh_id(&self, id: &str) -> String {
        version_id(id, &self.snapshot.last.to_string())
    }

    // ---- content ----

    fn new_prompt(&self, message: &Posted, id: PromptId) -> Result<Prompt, Refusal> {
        let blocks = message.parts.iter().map(|part| self.block(part)).collect::<Result<Vec<_>, _>>()?;
        Ok(Prompt::new(Blocks(blocks.into_iter().flatten().collect())).with_id(id))
    }

    /// Reads a part of a user message. Parts of other kinds are ignored.
    fn block(&self, part: &Value) -> Result<Option<Content>, Refusal> {
        let text = |name: &str| part.get(name).and_then(Value::as_str);
        match text("type") {
            Some("text") => {
                let text =
                    text("text").ok_or_else(|| Refusal::Invalid("a text part has no `text`".to_owned()))?;
                Ok((!text.is_empty()).then(|| Content::from(text)))
            }
            Some("file") => {
                let (Some(url), Some(media_type)) = (text("url"), text("mediaType")) else {
                    return Err(Refusal::Invalid("a file part needs `url` and `mediaType`".to_owned()));
                };
                let file = self.file(url, media_type)?;
                Ok(Some(match text("filename") {
                    Some(name) => file.named(name).into(),
                    None => file.into(),
                }))
            }
            _ => Ok(None),
        }
    }

    fn file(&self, url: &str, media_type: &str) -> Result<Attachment, Refusal> {
        if let Some(data) = url.strip_prefix("data:") {
            let Some((head, data)) = data.split_once(',') else {
                return Err(Refusal::Invalid("the data URL of a file has no data".to_owned()));
            };
            if !head.ends_with(";base64") {
                return Err(Refusal::Invalid("the data URL of a file is not in base64".to_owned()));
            }
            return Ok(Attachment::base64(media_type, data));
        }
        if url.starts_with("https://") || url.starts_with("http://") {
            return Ok(Attachment::url(media_type, url));
        }
        self.stored_file(url)
            .ok_or_else(|| Refusal::Invalid(format!("the file address `{url}` is not usable")))
    }

    /// Returns the attachment behind an address that the list or the stream has shown.
    fn stored_file(&self, url: &str) -> Option<Attachment> {
        let path = url.strip_prefix(self.settings.conversation.as_deref()?)?.strip_prefix("/files/")?;
        let (message, block) = path.split_once('/')?;
        let is_it = |found: &Message| found.id.as_ref().is_some_and(|id| encoded(&id.to_string()) == message);
        let found = self.snapshot.messages().find(|found| is_it(found))?;
        match found.content.get(block.parse::<usize>().ok()?)? {
            Content::Attachment(file) => Some(file.clone()),
            _ => None,
        }
    }
}

/// The point of the conversation on which a new message builds.
enum PromptBase {
    Head,
    Below(NodeId),
}
