//! The conversation as the client sees it. Converts each event and each message to updates once. Performs no I/O.

use std::{collections::HashMap, sync::Arc};

use agent_client_protocol_schema::v1::{
    ContentBlock, ContentChunk, Meta, SessionUpdate, ToolCall, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use serde_json::{Value, json};

use super::content;
use crate::{
    agent::{Event, Snapshot, Status},
    message::{Content, Message, MessageId, Role, StopReason, ToolResult, ToolUse, ToolUseId},
    run::PendingUse,
    session::SessionSnapshot,
};

/// How a client joins a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joining {
    /// The client knows the messages so far.
    Resumed,
    /// The client gets the messages so far.
    Loaded,
}

pub(super) struct View {
    /// The prefix of the ids of this client's prompts. The client shows the messages of these prompts itself.
    own: String,
    /// The last message that was shown completely.
    last: Option<MessageId>,
    /// The response that is being streamed.
    answer: Option<MessageId>,
    /// The number of bytes that were shown of each block of the response.
    shown: Vec<usize>,
    /// The tool uses of the last response.
    tools: HashMap<ToolUseId, ShownTool>,
    /// The last message with results that was shown.
    results: Option<Arc<Message>>,
}

struct ShownTool {
    /// The id in the protocol. The ids that a model uses are unique within one message only.
    id: String,
    has_ended: bool,
}

/// States in the last update of a message why the message ended.
fn state_end(last: &mut SessionUpdate, reason: &StopReason) {
    let meta = match last {
        SessionUpdate::UserMessageChunk(chunk)
        | SessionUpdate::AgentMessageChunk(chunk)
        | SessionUpdate::AgentThoughtChunk(chunk) => &mut chunk.meta,
        SessionUpdate::ToolCall(call) => &mut call.meta,
        SessionUpdate::ToolCallUpdate(update) => &mut update.meta,
        _ => return,
    };
    meta.get_or_insert_default().insert("omni.ended".to_owned(), reason.to_string().into());
}

impl View {
    pub(super) fn new(own: String) -> Self {
        Self { own, last: None, answer: None, shown: Vec::new(), tools: HashMap::new(), results: None }
    }

    /// Returns the updates with which a client joins.
    pub(super) fn join(&mut self, snapshot: &SessionSnapshot, joining: Joining) -> Vec<SessionUpdate> {
        match joining {
            Joining::Loaded => {
                let own = std::mem::take(&mut self.own);
                let mut updates = self.messages(snapshot.messages());
                self.own = own;
                updates.extend(self.in_flight(&snapshot.agent));
                updates
            }
            Joining::Resumed => {
                self.last = snapshot.tree.history().last().and_then(|message| message.id.clone());
                let mut updates = self.messages(snapshot.agent.pending.iter());
                updates.extend(self.in_flight(&snapshot.agent));
                updates
            }
        }
    }

    /// Returns the updates for everything that was missed before this snapshot.
    pub(super) fn catch_up(&mut self, snapshot: &SessionSnapshot) -> Vec<SessionUpdate> {
        let messages: Vec<_> = snapshot.messages().collect();
        let known = |message: &&Arc<Message>| message.id.is_some() && message.id == self.last;
        // If the last shown message is not on the current path, only the turn in flight is shown.
        let unknown = messages.len() - snapshot.agent.pending.len();
        let from = messages.iter().rposition(known).map_or(unknown, |known| known + 1);
        let mut updates = self.messages(messages[from..].iter().copied());
        updates.extend(self.in_flight(&snapshot.agent));
        if snapshot.agent.status == Status::Idle {
            updates.extend(self.run_ended(messages.iter().copied()));
        }
        updates
    }

    fn messages<'a>(&mut self, messages: impl Iterator<Item = &'a Arc<Message>>) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        for message in messages {
            let from = updates.len();
            match message.role {
                Role::User => {
                    for result in message.tool_results() {
                        updates.extend(self.result(result));
                    }
                    updates.extend(self.user(message));
                    self.note_results(message);
                }
                Role::Assistant => {
                    self.begin(message.id.as_ref());
                    for (index, content) in message.content.iter().enumerate() {
                        updates.extend(self.block(index, content));
                        if let Content::ToolUse(ToolUse { decided: Some(result), .. }) = content {
                            updates.extend(self.result(result));
                        }
                    }
                    self.answer = None;
                }
            }
            self.last.clone_from(&message.id);
            if let (Some(reason), Some(last)) = (&message.ended, updates[from..].last_mut()) {
                state_end(last, reason);
            }
        }
        updates
    }

    fn in_flight(&mut self, agent: &Snapshot) -> Vec<SessionUpdate> {
        let mut updates = Vec::new();
        if let Some(id) = &agent.answer {
            self.begin(Some(id));
            for (index, block) in agent.partial.iter().enumerate() {
                match &block.content {
                    Content::ToolUse(tool_use) if block.ended => {
                        let input =
                            serde_json::from_str(&block.input).unwrap_or_else(|_| tool_use.input.clone());
                        updates.extend(self.block(index, &ToolUse { input, ..tool_use.clone() }.into()));
                    }
                    Content::ToolUse(_) => {}
                    content => updates.extend(self.block(index, content)),
                }
            }
        }
        for tool in &agent.tools {
            updates.push(self.started(&tool.tool_use_id, tool.input.as_ref()));
        }
        updates
    }

    /// Begins a response, unless it is the response whose beginning was shown.
    fn begin(&mut self, id: Option<&MessageId>) {
        if id.is_none() || self.answer.as_ref() != id {
            self.answer = id.cloned();
            self.shown.clear();
            self.tools.clear();
        }
    }

    fn chunk(&self, content: ContentBlock) -> ContentChunk {
        let id = self.answer.as_ref().map(|id| id.to_string().into());
        ContentChunk::new(content).message_id(id)
    }

    /// Returns how many bytes of a block were shown so far, and records that `length` bytes are shown now.
    fn show(&mut self, index: usize, length: usize) -> usize {
        if self.shown.len() <= index {
            self.shown.resize(index + 1, 0);
        }
        std::mem::replace(&mut self.shown[index], length)
    }

    /// Returns the part of a block of the response that was not shown yet.
    fn block(&mut self, index: usize, content: &Content) -> Option<SessionUpdate> {
        match content {
            Content::Text(text) => self.rest(index, &text.text).map(SessionUpdate::AgentMessageChunk),
            Content::Thinking(thinking) => {
                self.rest(index, &thinking.text).map(SessionUpdate::AgentThoughtChunk)
            }
            Content::Attachment(file) => {
                let is_new = self.show(index, 1) == 0;
                is_new.then(|| SessionUpdate::AgentMessageChunk(self.chunk(content::attachment(file))))
            }
            Content::ToolUse(tool_use) => {
                let is_new = self.show(index, 1) == 0;
                is_new.then(|| SessionUpdate::ToolCall(self.tool_use(index, tool_use)))
            }
            Content::ToolResult(_) | Content::ProviderItem(_) => None,
        }
    }

    fn rest(&mut self, index: usize, text: &str) -> Option<ContentChunk> {
        let shown = self.show(index, text.len());
        let rest = text.get(shown..).filter(|rest| !rest.is_empty())?;
        Some(self.chunk(rest.to_owned().into()))
    }

    fn delta(&mut self, index: usize, delta: &str) -> Option<ContentChunk> {
        let shown = self.show(index, 0);
        self.show(index, shown + delta.len());
        (!delta.is_empty()).then(|| self.chunk(delta.to_owned().into()))
    }

    fn tool_use(&mut self, index: usize, tool_use: &ToolUse) -> ToolCall {
        let id = match &self.answer {
            Some(message) => format!("{message}.{index}"),
            None => tool_use.id.to_string(),
        };
        self.tools.insert(tool_use.id.clone(), ShownTool { id: id.clone(), has_ended: false });
        let call = ToolCall::new(id, tool_use.name.clone()).name(tool_use.name.clone());
        call.raw_input(tool_use.input.clone())
    }

    /// Returns the content of a user message, unless the client has sent it.
    fn user(&self, message: &Message) -> Vec<SessionUpdate> {
        let id = message.id.as_ref().map(MessageId::to_string);
        if !self.own.is_empty() && id.as_ref().is_some_and(|id| id.starts_with(&self.own)) {
            return Vec::new();
        }
        let blocks = message.content.iter().filter_map(|content| match content {
            Content::Text(text) => Some(text.text.clone().into()),
            Content::Attachment(file) => Some(content::attachment(file)),
            _ => None,
        });
        let chunk = |block| ContentChunk::new(block).message_id(id.clone().map(Into::into));
        blocks.map(|block| SessionUpdate::UserMessageChunk(chunk(block))).collect()
    }

    /// Returns the id of a tool use in the protocol. If the tool use is not part of a response, as in a provider's
    /// question, its own id is used.
    fn wire_id(&self, id: &ToolUseId) -> String {
        self.tools.get(id).map_or_else(|| id.to_string(), |tool| tool.id.clone())
    }

    fn update(&self, id: &ToolUseId, fields: ToolCallUpdateFields) -> SessionUpdate {
        SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(self.wire_id(id), fields))
    }

    fn started(&self, id: &ToolUseId, input: Option<&Value>) -> SessionUpdate {
        let fields = ToolCallUpdateFields::new().status(ToolCallStatus::InProgress).raw_input(input.cloned());
        self.update(id, fields)
    }

    fn result(&mut self, result: &ToolResult) -> Option<SessionUpdate> {
        let tool = self.tools.get_mut(&result.tool_use_id)?;
        if std::mem::replace(&mut tool.has_ended, true) {
            return None;
        }
        let status = if result.is_error { ToolCallStatus::Failed } else { ToolCallStatus::Completed };
        let fields = ToolCallUpdateFields::new().status(status).content(content::output(result.output()));
        let decision = result.decision.as_deref();
        let fields = fields.raw_input(result.changed_input().cloned());
        let meta = decision.map(|decision| Meta::from_iter([("omni.decision".to_owned(), json!(decision))]));
        let update = ToolCallUpdate::new(self.wire_id(&result.tool_use_id), fields).meta(meta);
        Some(SessionUpdate::ToolCallUpdate(update))
    }

    /// Returns the tool call about which a pause asks.
    pub(super) fn asked(&self, pause: &PendingUse) -> ToolCallUpdate {
        let tool_use = &pause.tool_use;
        let mut fields = ToolCallUpdateFields::new()
            .title(tool_use.name.clone())
            .name(tool_use.name.clone())
            .raw_input(tool_use.input.clone());
        // A tool that asks while it runs stays in progress.
        if pause.asked_by.is_none() {
            fields = fields.status(ToolCallStatus::Pending);
        }
        if pause.reason.as_str() != Some("needs approval") && !pause.reason.is_null() {
            fields = fields.content(vec![content::words(&pause.reason).into()]);
        }
        ToolCallUpdate::new(self.wire_id(pause.call()), fields)
    }

    fn note_results(&mut self, message: &Arc<Message>) {
        if message.id.is_some() && message.tool_results().next().is_some() {
            self.results = Some(Arc::clone(message));
        }
    }

    /// Returns the results that the end of the run has replaced: if a service refuses a request, the newest results in
    /// it are kept in a shorter form.
    fn replaced<'a>(
        &mut self,
        messages: impl DoubleEndedIterator<Item = &'a Arc<Message>>,
    ) -> Vec<SessionUpdate> {
        let Some(shown) = self.results.take() else { return Vec::new() };
        let mut earlier = messages.rev().skip_while(|message| message.id != shown.id);
        // A message with results follows the response that has used the tools.
        let (Some(kept), Some(answer)) = (earlier.next(), earlier.next()) else { return Vec::new() };
        self.begin(answer.id.as_ref());
        for (index, block) in answer.content.iter().enumerate() {
            if let Content::ToolUse(tool_use) = block {
                self.tool_use(index, tool_use);
            }
        }
        let is_new = |result: &&ToolResult| shown.tool_results().all(|other| other != *result);
        let updates = kept.tool_results().filter(is_new).filter_map(|result| self.result(result)).collect();
        (self.answer, self.tools) = (None, HashMap::new());
        updates
    }

    /// Returns the updates for the end of a run with these messages: the failures of the tools that the run has left
    /// without a result, and the results that differ from those that were shown.
    fn run_ended<'a>(
        &mut self,
        messages: impl DoubleEndedIterator<Item = &'a Arc<Message>>,
    ) -> Vec<SessionUpdate> {
        let mut open: Vec<_> =
            self.tools.drain().filter(|(_, tool)| !tool.has_ended).map(|(_, tool)| tool.id).collect();
        open.sort_unstable();
        let failed = || ToolCallUpdateFields::new().status(ToolCallStatus::Failed);
        let failed = |id| SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(id, failed()));
        open.into_iter().map(failed).chain(self.replaced(messages)).collect()
    }

    /// Returns the updates for an event.
    pub(super) fn event(&mut self, event: &Event) -> Vec<SessionUpdate> {
        let update = match event {
            Event::StepStart { message_id, .. } => {
                self.begin(Some(message_id));
                None
            }
            Event::TextDelta { index, delta } => {
                self.delta(*index, delta).map(SessionUpdate::AgentMessageChunk)
            }
            Event::ThinkingDelta { index, delta } => {
                self.delta(*index, delta).map(SessionUpdate::AgentThoughtChunk)
            }
            Event::TextEnd { index, content } => self.block(*index, &Content::Text(content.clone())),
            Event::ThinkingEnd { index, content } => self.block(*index, &Content::Thinking(content.clone())),
            Event::Attachment { index, content } => {
                self.block(*index, &Content::Attachment((**content).clone()))
            }
            Event::ToolUseEnd { index, content } => {
                self.block(*index, &Content::ToolUse((**content).clone()))
            }
            Event::Message { message, .. } => {
                self.last.clone_from(&message.id);
                self.note_results(message);
                if message.role == Role::User {
                    return self.user(message);
                }
                self.answer = None;
                None
            }
            Event::ToolStart { tool_use_id, input } => Some(self.started(tool_use_id, input.as_ref())),
            Event::ToolProgress { tool_use_id, data } => {
                let fields = ToolCallUpdateFields::new().content(vec![content::words(data).into()]);
                Some(self.update(tool_use_id, fields))
            }
            Event::ToolResult { result, .. } => self.result(result),
            Event::Turn { response, .. }
            | Event::Cancelled { response, .. }
            | Event::Error { response, .. } => {
                return self.run_ended(response.messages.iter());
            }
            _ => None,
        };
        update.into_iter().collect()
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;
    use crate::{
        session::tests::decided::{decided, left_open},
        store::MemoryStore,
    };

    #[tokio::test]
    async fn replay_states_the_decisions_about_tool_uses_and_the_unusual_end_of_an_answer() {
        for (reason, ended) in [(StopReason::Length, json!("length")), (StopReason::Stop, Value::Null)] {
            let snapshot = decided(&MemoryStore::new(), reason).await.snapshot().await.unwrap();
            let updates = View::new(String::new()).join(&snapshot, Joining::Loaded);
            let updates: Vec<_> =
                updates.iter().map(|update| serde_json::to_value(update).unwrap()).collect();
            let results: Vec<_> =
                updates.iter().filter(|one| one["sessionUpdate"] == "tool_call_update").collect();
            let decision = |place: usize| &results[place]["_meta"]["omni.decision"];
            assert_eq!(results[0]["rawInput"], json!({ "eur": 20 }));
            assert_eq!(results[0]["content"][0]["content"]["text"], "paid {\"eur\":20}");
            assert_eq!((&decision(0)["kind"], &decision(0)["by"]), (&json!("execute_with"), &json!("ann")));
            assert_eq!((&decision(1)["kind"], &decision(1)["by"]), (&json!("reject"), &json!("ben")));
            assert_eq!(decision(2), &Value::Null);
            assert_eq!(updates.last().unwrap()["_meta"]["omni.ended"], ended);
        }
    }

    #[tokio::test]
    async fn replay_states_decisions_of_a_turn_that_left_tool_uses_open() {
        let snapshot = left_open(&MemoryStore::new()).await.snapshot().await.unwrap();
        let updates = View::new(String::new()).join(&snapshot, Joining::Loaded);
        let updates = serde_json::to_value(updates).unwrap();
        let decided = |update: &&Value| update["_meta"]["omni.decision"]["by"] == "ben";
        let decided: Vec<_> = updates.as_array().unwrap().iter().filter(decided).collect();
        assert_eq!((decided.len(), &decided[0]["status"]), (1, &json!("failed")), "{updates}");
    }
}
