//! The conversation as the client sees it. Converts each event and each message to updates once. Performs no I/O.

use std::{collections::HashMap, sync::Arc};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, Meta, SessionUpdate, ToolCall, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use serde_json::json;

use super::content;
use crate::{
    agent::{Event, Follow, FollowFrom, FollowTarget, RunProgress, ToolChange},
    message::{Content, Message, MessageId, Role, ToolResult, ToolUse, ToolUseId},
    run::PendingUse,
    session::SessionSnapshot,
};

/// How a client joins a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EditorJoinMode {
    /// The client knows the messages so far.
    Resumed,
    /// The client gets the messages so far.
    Loaded,
}

pub(super) struct EditorView {
    follow: Follow,
    shown: ShownConversation,
}

/// The parts of the conversation that the client sees.
struct ShownConversation {
    /// The prefix of the ids of this client's prompts. The client shows the messages of these prompts itself.
    own: String,
    /// The last response.
    answer: Option<MessageId>,
    /// The tool uses of the last response.
    tools: HashMap<ToolUseId, ShownTool>,
    /// The last message with results that was shown.
    results: Option<Arc<Message>>,
    updates: Vec<SessionUpdate>,
}

struct ShownTool {
    /// The id in the protocol. The ids that a model uses are unique within one message only.
    id: String,
    /// The name and the input.
    own: ToolCallUpdateFields,
    /// Whether the client was asked about a tool of the sub-agent that the tool runs. It then shows the name and the input
    /// of that tool.
    is_asked: bool,
    has_ended: bool,
}

impl EditorView {
    pub(super) fn new(own: String) -> Self {
        let (tools, updates) = (HashMap::new(), Vec::new());
        let shown = ShownConversation { own, answer: None, tools, results: None, updates };
        Self { follow: Follow::new(FollowTarget::InFlight, FollowFrom::Start), shown }
    }

    /// Returns the updates with which a client joins.
    pub(super) fn join(&mut self, snapshot: &SessionSnapshot, joining: EditorJoinMode) -> Vec<SessionUpdate> {
        if joining == EditorJoinMode::Resumed {
            return self.catch_up(snapshot);
        }
        let own = std::mem::take(&mut self.shown.own);
        for message in snapshot.tree.history().iter() {
            self.shown.message(message);
        }
        if let Some((node, failure)) = snapshot.unanswered() {
            let from = self.shown.updates.len();
            self.shown.message(node.message());
            self.shown.note(from, "omni.error", failure.map(ToString::to_string));
        }
        let mut updates = std::mem::take(&mut self.shown.updates);
        updates.extend(self.catch_up(snapshot));
        self.shown.own = own;
        updates
    }

    /// Returns the updates for everything that was missed before this snapshot. If the last message that was shown is
    /// not on the current path, only the turn in flight is shown.
    pub(super) fn catch_up(&mut self, snapshot: &SessionSnapshot) -> Vec<SessionUpdate> {
        let messages: Vec<_> = snapshot.messages().collect();
        self.follow.snapshot(snapshot.tree.history(), &snapshot.agent, &mut |progress| {
            self.shown.progress(progress, &messages);
        });
        std::mem::take(&mut self.shown.updates)
    }

    /// Returns the updates for an event.
    pub(super) fn event(&mut self, event: &Event) -> Vec<SessionUpdate> {
        self.follow.event(event, &mut |progress| self.shown.progress(progress, &[]));
        std::mem::take(&mut self.shown.updates)
    }

    /// Returns the tool call about which a pause asks.
    pub(super) fn asked(&self, pause: &PendingUse) -> ToolCallUpdate {
        self.shown.asked(pause)
    }
}

impl ShownConversation {
    /// Adds the updates for the progress of a run. `messages` are all messages if the progress comes from a snapshot.
    fn progress(&mut self, progress: RunProgress<'_>, messages: &[&Arc<Message>]) {
        match progress {
            RunProgress::Request { answer, .. } => self.begin(answer),
            RunProgress::Block { index, content, new, ended } => self.block(index, content, new, ended),
            RunProgress::User(message) => self.user(message),
            RunProgress::Tool { id, change: ToolChange::Started { input } } => {
                if let (Some(tool), Some(_)) = (self.tools.get_mut(id), input) {
                    tool.own.raw_input = input.cloned();
                }
                let fields = ToolCallUpdateFields::new().status(ToolCallStatus::InProgress);
                self.update(id, fields.raw_input(input.cloned()));
            }
            RunProgress::Tool { id, change: ToolChange::Progress(data) } => {
                self.update(id, ToolCallUpdateFields::new().content(vec![content::words(data).into()]));
            }
            RunProgress::Tool { change: ToolChange::Result(result), .. } => self.result(result),
            RunProgress::Pauses(pauses) => self.paused(pauses),
            RunProgress::Answer(message) => self.state_end(0, message),
            RunProgress::Ended { response: Some(response), .. } => {
                self.run_ended(&response.messages.iter().collect::<Vec<_>>());
            }
            RunProgress::Ended { .. } => self.run_ended(messages),
            _ => {}
        }
    }

    /// Adds the updates for a whole message.
    fn message(&mut self, message: &Arc<Message>) {
        let from = self.updates.len();
        if message.role == Role::User {
            message.tool_results().for_each(|result| self.result(result));
            self.user(message);
            return self.state_end(from, message);
        }
        self.begin(message.id.as_ref());
        for (index, content) in message.content.iter().enumerate() {
            let text = match content {
                Content::Text(text) => text.text.as_str(),
                Content::Thinking(thinking) => thinking.text.as_str(),
                _ => "",
            };
            self.block(index, content, text, true);
        }
        self.state_end(from, message);
    }

    /// States in the last update of a message why the message ended. `from` is the number of updates before it.
    fn state_end(&mut self, from: usize, message: &Message) {
        self.note(from, "omni.ended", message.ended.as_ref().map(ToString::to_string));
    }

    /// Adds a fact to the last update of a message. `from` is the number of updates before the message.
    fn note(&mut self, from: usize, name: &str, fact: Option<String>) {
        let (Some(fact), Some(last)) = (fact, self.updates[from..].last_mut()) else { return };
        let meta = match last {
            SessionUpdate::UserMessageChunk(chunk)
            | SessionUpdate::AgentMessageChunk(chunk)
            | SessionUpdate::AgentThoughtChunk(chunk) => &mut chunk.meta,
            SessionUpdate::ToolCall(call) => &mut call.meta,
            SessionUpdate::ToolCallUpdate(update) => &mut update.meta,
            _ => return,
        };
        meta.get_or_insert_default().insert(name.to_owned(), fact.into());
    }

    fn begin(&mut self, answer: Option<&MessageId>) {
        self.answer = answer.cloned();
        self.tools.clear();
    }

    fn block(&mut self, index: usize, block: &Content, new: &str, ended: bool) {
        // Clients show the chunks of one message together, so a thought is a message of its own.
        let id = match block {
            Content::Thinking(_) => self.answer.as_ref().map(|id| format!("{id}.{index}").into()),
            _ => self.answer.as_ref().map(|id| id.to_string().into()),
        };
        let chunk = |content: ContentBlock| ContentChunk::new(content).message_id(id);
        let update = match block {
            Content::Text(_) if !new.is_empty() => {
                SessionUpdate::AgentMessageChunk(chunk(new.to_owned().into()))
            }
            Content::Thinking(_) if !new.is_empty() => {
                SessionUpdate::AgentThoughtChunk(chunk(new.to_owned().into()))
            }
            Content::Attachment(file) => SessionUpdate::AgentMessageChunk(chunk(content::attachment(file))),
            Content::ToolUse(tool_use) if ended => SessionUpdate::ToolCall(self.tool_use(index, tool_use)),
            _ => return,
        };
        self.updates.push(update);
        if let Content::ToolUse(ToolUse { decided: Some(result), .. }) = block {
            self.result(result);
        }
    }

    fn tool_use(&mut self, index: usize, tool_use: &ToolUse) -> ToolCall {
        let id = match &self.answer {
            Some(message) => format!("{message}.{index}"),
            None => tool_use.id.to_string(),
        };
        let tool = ShownTool { id: id.clone(), own: fields(tool_use), is_asked: false, has_ended: false };
        self.tools.insert(tool_use.id.clone(), tool);
        let call = ToolCall::new(id, tool_use.name.clone()).name(tool_use.name.clone());
        call.raw_input(tool_use.input.clone())
    }

    /// Restores the names and the inputs of calls when no question about a tool of their sub-agents waits any more.
    fn paused(&mut self, pauses: &[Arc<PendingUse>]) {
        for (id, tool) in &mut self.tools {
            let is_asked = pauses.iter().any(|pause| pause.sub_agent.is_some() && pause.call() == id);
            if std::mem::replace(&mut tool.is_asked, is_asked) && !is_asked {
                let update = ToolCallUpdate::new(tool.id.clone(), tool.own.clone());
                self.updates.push(SessionUpdate::ToolCallUpdate(update));
            }
        }
    }

    /// Adds the content of a user message, unless the client has sent it.
    fn user(&mut self, message: &Arc<Message>) {
        if message.compaction.is_some() {
            return;
        }
        if message.id.is_some() && message.tool_results().next().is_some() {
            self.results = Some(Arc::clone(message));
        }
        let id = message.id.as_ref().map(MessageId::to_string);
        if !self.own.is_empty() && id.as_ref().is_some_and(|id| id.starts_with(&self.own)) {
            return;
        }
        let blocks = message.content.iter().filter_map(|content| match content {
            Content::Text(text) => Some(text.text.clone().into()),
            Content::Attachment(file) => Some(content::attachment(file)),
            _ => None,
        });
        let chunk = |block| ContentChunk::new(block).message_id(id.clone().map(Into::into));
        self.updates.extend(blocks.map(|block| SessionUpdate::UserMessageChunk(chunk(block))));
    }

    /// Returns the id of a tool use in the protocol. If the tool use is not part of a response, as in a provider's
    /// question, its own id is used.
    fn wire_id(&self, id: &ToolUseId) -> String {
        self.tools.get(id).map_or_else(|| id.to_string(), |tool| tool.id.clone())
    }

    fn update(&mut self, id: &ToolUseId, fields: ToolCallUpdateFields) {
        let update = ToolCallUpdate::new(self.wire_id(id), fields);
        self.updates.push(SessionUpdate::ToolCallUpdate(update));
    }

    fn result(&mut self, result: &ToolResult) {
        let Some(tool) = self.tools.get_mut(&result.tool_use_id) else { return };
        if !std::mem::replace(&mut tool.has_ended, true) {
            let status = if result.is_error { ToolCallStatus::Failed } else { ToolCallStatus::Completed };
            let fields = ToolCallUpdateFields::new().status(status).content(content::output(result.output()));
            let decision = result.decision.as_deref();
            let fields = fields.raw_input(result.changed_input().cloned());
            let meta =
                decision.map(|decision| Meta::from_iter([("omni.decision".to_owned(), json!(decision))]));
            let update = ToolCallUpdate::new(self.wire_id(&result.tool_use_id), fields).meta(meta);
            self.updates.push(SessionUpdate::ToolCallUpdate(update));
        }
    }

    /// Returns the tool call about which a pause asks.
    fn asked(&self, pause: &PendingUse) -> ToolCallUpdate {
        let mut fields = fields(&pause.tool_use);
        // A tool that asks while it runs stays in progress.
        if !pause.is_of_running_tool() {
            fields = fields.status(ToolCallStatus::Pending);
        }
        if pause.reason.as_str() != Some("needs approval") && !pause.reason.is_null() {
            fields = fields.content(vec![content::words(&pause.reason).into()]);
        }
        ToolCallUpdate::new(self.wire_id(pause.call()), fields)
    }

    /// Adds the results that the end of the run has replaced: if a service refuses a request, the newest results in it
    /// are kept in a shorter form.
    fn replaced(&mut self, messages: &[&Arc<Message>]) {
        let Some(shown) = self.results.take() else { return };
        let mut earlier = messages.iter().rev().skip_while(|message| message.id != shown.id);
        // A message with results follows the response that has used the tools.
        let (Some(kept), Some(answer)) = (earlier.next(), earlier.next()) else { return };
        self.begin(answer.id.as_ref());
        for (index, block) in answer.content.iter().enumerate() {
            if let Content::ToolUse(tool_use) = block {
                self.tool_use(index, tool_use);
            }
        }
        let is_new = |result: &&ToolResult| shown.tool_results().all(|other| other != *result);
        kept.tool_results().filter(is_new).for_each(|result| self.result(result));
        (self.answer, self.tools) = (None, HashMap::new());
    }

    /// Adds the updates for the end of a run with these messages: the failures of the tools that the run has left
    /// without a result, and the results that differ from those that were shown.
    fn run_ended(&mut self, messages: &[&Arc<Message>]) {
        let mut open: Vec<_> =
            self.tools.drain().filter(|(_, tool)| !tool.has_ended).map(|(_, tool)| tool.id).collect();
        open.sort_unstable();
        let failed = || ToolCallUpdateFields::new().status(ToolCallStatus::Failed);
        let failed = |id| SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, failed()));
        self.updates.extend(open.into_iter().map(failed));
        self.replaced(messages);
    }
}

/// Returns the name and the input of a tool use.
fn fields(tool_use: &ToolUse) -> ToolCallUpdateFields {
    let fields = ToolCallUpdateFields::new().title(tool_use.name.clone()).name(tool_use.name.clone());
    fields.raw_input(tool_use.input.clone())
}

#[cfg(all(test, feature = "test-util"))]
mod tests;
