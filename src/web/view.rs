//! The parts of events and snapshots that a client sees.

use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

use super::front::files::{ClientFileForm, MAX_INLINE};
use crate::{
    agent::{Event, Snapshot, StateView},
    message::{
        Attachment, Content, History, Message, MessageId, ProviderItem, ResultBlock, Source, Text, Thinking,
        ToolResult, ToolUse,
    },
    provider::{Options, PartialBlock},
    run::{PendingUse, Response, Settings},
    session::{SessionEvent, SessionSnapshot, StoreReport},
    subscription::{End, Numbered, Update},
    tool::{Schema, ToolDeclaration},
    tree::{Changes, Node},
};

/// The parts of events and snapshots that a client sees.
///
/// An attachment with more than 64 KiB of base64 appears as a URL below the conversation's `files` route, so that
/// events stay small. [`View::inline_files`] changes this.
///
/// ```
/// use omni_agent::web::View;
///
/// // For a front end that authenticates by a header, which an `img` element cannot send:
/// let view = View::chat().inline_files();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub(super) everything: bool,
    pub(super) inline_files: bool,
}

/// The schema that replaces a hidden schema. It accepts any value.
static HIDDEN_SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::of::<Value>);

impl View {
    /// Returns the view of a chat: without the system prompt, the options, the schemas of tools, signatures and the data
    /// of providers. The reasons for failed writes and for damage are hidden, too. The path of the tree is the history, so the agent's
    /// state has an empty history.
    pub const fn chat() -> Self {
        Self { everything: false, inline_files: false }
    }

    /// Returns the view of an operator, who sees everything.
    pub const fn full() -> Self {
        Self { everything: true, inline_files: false }
    }

    /// Returns the same view with all attachments inside the messages.
    pub const fn inline_files(self) -> Self {
        Self { inline_files: true, ..self }
    }

    /// Returns the form of a conversation's files in this view. `base` is the address of the files. `most` is the
    /// greatest size of a file if files stay inside the messages.
    pub(super) const fn files(&self, base: String, most: usize) -> ClientFileForm {
        ClientFileForm { base: Some(base), limit: if self.inline_files { most } else { MAX_INLINE } }
    }

    /// Returns this view of one conversation. `files` is the address of the conversation's files.
    pub(super) const fn of(&self, files: String) -> ConversationViewFilter {
        ConversationViewFilter {
            everything: self.everything,
            files: self.files(files, usize::MAX),
            answer: None,
        }
    }
}

/// A view of one conversation.
#[derive(Debug)]
pub(super) struct ConversationViewFilter {
    everything: bool,
    files: ClientFileForm,
    /// The id of the response that is being streamed.
    answer: Option<MessageId>,
}

type ViewedSessionUpdate = Update<SessionSnapshot, SessionEvent>;

impl ConversationViewFilter {
    pub(super) fn update(&mut self, update: ViewedSessionUpdate) -> ViewedSessionUpdate {
        match update {
            Update::Event(Numbered { id, event }) => {
                let event = match self.event(&event) {
                    Some(seen) => Arc::new(seen),
                    None => event,
                };
                Update::Event(Numbered::new(id, event))
            }
            Update::Resync(snapshot) => Update::Resync(Arc::new(self.snapshot(&snapshot))),
            Update::Closed(End { reason, snapshot }) => {
                let snapshot = snapshot.map(|snapshot| Arc::new(self.snapshot(&snapshot)));
                Update::Closed(End { reason, snapshot })
            }
        }
    }

    /// Returns the visible part of a snapshot.
    pub(super) fn snapshot(&mut self, snapshot: &SessionSnapshot) -> SessionSnapshot {
        self.answer.clone_from(&snapshot.agent.answer);
        SessionSnapshot {
            tree: snapshot.tree.with_messages(|message| self.message(message)),
            agent: self.agent(&snapshot.agent),
            store: snapshot
                .store
                .as_ref()
                .map(|report| self.report(report).unwrap_or_else(|| report.clone())),
            ..snapshot.clone()
        }
    }

    fn pauses(&self, pauses: &[Arc<PendingUse>]) -> Vec<Arc<PendingUse>> {
        pauses.iter().map(|pause| Arc::new(self.pause(pause))).collect()
    }

    pub(super) fn pause(&self, pause: &PendingUse) -> PendingUse {
        PendingUse { tool_use: self.tool_use(&pause.tool_use), ..pause.clone() }
    }

    fn agent(&self, agent: &Snapshot) -> Snapshot {
        let shared = |message: &Arc<Message>| self.shared(message);
        let answer = agent.answer.as_ref();
        let partial = |(index, block): (usize, &PartialBlock)| {
            let content = self.block(&block.content, answer, index).unwrap_or_else(|| block.content.clone());
            PartialBlock { content, ..block.clone() }
        };
        Snapshot {
            state: self.state(&agent.state),
            pending: agent.pending.iter().map(shared).collect(),
            partial: agent.partial.iter().enumerate().map(partial).collect(),
            pauses: self.pauses(&agent.pauses),
            ..agent.clone()
        }
    }

    /// Returns the visible part of an event, or `None` if the whole event is visible.
    fn event(&mut self, event: &SessionEvent) -> Option<SessionEvent> {
        Some(match event {
            SessionEvent::Agent(event) => SessionEvent::Agent(Arc::new(self.agent_event(event)?)),
            SessionEvent::Tree(changes) => {
                let nodes = changes.nodes.iter().map(|node| self.node(node)).collect();
                SessionEvent::Tree(Arc::new(Changes { nodes, ..Changes::clone(changes) }))
            }
            SessionEvent::Store(report) => SessionEvent::Store(self.report(report)?),
            _ => return None,
        })
    }

    fn agent_event(&mut self, event: &Event) -> Option<Event> {
        Some(match event {
            Event::StepStart { message_id, .. } => {
                self.answer = Some(message_id.clone());
                return None;
            }
            Event::TextEnd { index, content } if content.signature.is_some() => {
                Event::TextEnd { index: *index, content: self.text(content) }
            }
            Event::ThinkingEnd { index, content } => {
                Event::ThinkingEnd { index: *index, content: self.thinking(content) }
            }
            Event::ToolUseEnd { index, content } => {
                Event::ToolUseEnd { index: *index, content: Box::new(self.tool_use(content)) }
            }
            Event::Attachment { index, content } => {
                let content = Box::new(self.attachment(content, self.answer.as_ref(), &index.to_string())?);
                Event::Attachment { index: *index, content }
            }
            Event::ProviderItem { index, content } => {
                Event::ProviderItem { index: *index, content: Box::new(self.item(content)) }
            }
            Event::Message { message, step, turn, run } => {
                let message = Arc::new(self.message(message)?);
                Event::Message { message, step: *step, turn: *turn, run: *run }
            }
            Event::ToolResult { result, input } => {
                // Attachments that appear as URLs are omitted from this event. The message with the results follows,
                // and contains the URLs.
                let is_small = |block: &ResultBlock| match block {
                    ResultBlock::Attachment(attachment) => !self.files.links(attachment),
                    ResultBlock::Text(_) => true,
                };
                if result.content.iter().all(is_small) {
                    return None;
                }
                let content = result.content.iter().filter(|block| is_small(block)).cloned().collect();
                let result = ToolResult { content, ..ToolResult::clone(result) };
                Event::ToolResult { result: Box::new(result), input: input.clone() }
            }
            Event::Step(response) => Event::Step(self.response(response)),
            Event::Turn { response, continues } => {
                Event::Turn { response: self.response(response), continues: *continues }
            }
            Event::Error { failure, response, committed } => Event::Error {
                failure: failure.clone(),
                response: self.response(response),
                committed: *committed,
            },
            Event::Cancelled { response } => Event::Cancelled { response: self.response(response) },
            Event::State(state) => Event::State(Arc::new(self.state(state))),
            Event::Status { status, pauses } if !pauses.is_empty() => {
                Event::Status { status: *status, pauses: self.pauses(pauses) }
            }
            _ => return None,
        })
    }

    fn response(&self, response: &Arc<Response>) -> Arc<Response> {
        Arc::new(Response {
            message: response.message.as_ref().map(|message| self.shared(message)),
            messages: response.messages.iter().map(|message| self.shared(message)).collect(),
            open_tool_uses: response.open_tool_uses.iter().map(|tool_use| self.tool_use(tool_use)).collect(),
            ..Response::clone(response)
        })
    }

    fn state(&self, state: &StateView) -> StateView {
        if self.everything {
            return state.clone();
        }
        let tool = |tool: &ToolDeclaration| ToolDeclaration { schema: HIDDEN_SCHEMA.clone(), ..tool.clone() };
        StateView {
            settings: Settings { system: None, options: Options::default(), ..state.settings.clone() },
            tools: state.tools.iter().map(tool).collect(),
            history: History::new(),
            ..state.clone()
        }
    }

    /// Returns the visible part of a report, or `None` if the whole report is visible.
    fn report(&self, report: &StoreReport) -> Option<StoreReport> {
        const HIDDEN: &str = "the store failed";
        if self.everything {
            return None;
        }
        Some(match report {
            StoreReport::Saved { .. } => return None,
            StoreReport::Failed { what, retry_in, .. } => {
                StoreReport::Failed { what: *what, error: HIDDEN.into(), retry_in: *retry_in }
            }
            StoreReport::Lost { .. } => StoreReport::Lost { error: HIDDEN.into() },
        })
    }

    /// Returns the node with the visible part of its message.
    pub(super) fn node(&self, node: &Node) -> Node {
        match self.message(node.message()) {
            Some(message) => node.with_message(message),
            None => node.clone(),
        }
    }

    fn shared(&self, message: &Arc<Message>) -> Arc<Message> {
        self.message(message).map_or_else(|| Arc::clone(message), Arc::new)
    }

    /// Returns the visible part of a message, or `None` if the whole message is visible.
    pub(super) fn message(&self, message: &Message) -> Option<Message> {
        let id = message.id.as_ref();
        let hides_data = !self.everything && !message.provider_data.is_empty();
        let blocks = || message.content.iter().enumerate();
        if !hides_data && blocks().all(|(index, block)| self.block(block, id, index).is_none()) {
            return None;
        }
        let seen =
            |(index, block): (usize, &Content)| self.block(block, id, index).unwrap_or_else(|| block.clone());
        let provider_data = if hides_data { Map::new() } else { message.provider_data.clone() };
        Some(Message {
            role: message.role,
            content: blocks().map(seen).collect(),
            timestamp: message.timestamp,
            provider_data,
            id: message.id.clone(),
            app_data: message.app_data.clone(),
            ended: message.ended.clone(),
            compaction: message.compaction.clone(),
            context_tokens: message.context_tokens,
        })
    }

    /// Returns the visible part of a block, or `None` if the whole block is visible. The number of blocks never changes,
    /// because clients know blocks by their indices.
    fn block(&self, block: &Content, message: Option<&MessageId>, index: usize) -> Option<Content> {
        Some(match block {
            Content::Text(text) if !self.everything && text.signature.is_some() => self.text(text).into(),
            Content::Thinking(thinking) if !self.everything && thinking.is_signed() => {
                self.thinking(thinking).into()
            }
            Content::ToolUse(tool_use) if !self.everything && tool_use.signature.is_some() => {
                self.tool_use(tool_use).into()
            }
            Content::ProviderItem(item) if !self.everything => self.item(item).into(),
            Content::Attachment(attachment) => {
                self.attachment(attachment, message, &index.to_string())?.into()
            }
            Content::ToolResult(result) => self.result(result, message?, index)?.into(),
            _ => return None,
        })
    }

    fn text(&self, text: &Text) -> Text {
        Text { signature: text.signature.clone().filter(|_| self.everything), ..text.clone() }
    }

    fn thinking(&self, thinking: &Thinking) -> Thinking {
        if self.everything { thinking.clone() } else { Thinking::new(thinking.text.clone()) }
    }

    pub(super) fn tool_use(&self, tool_use: &ToolUse) -> ToolUse {
        ToolUse { signature: tool_use.signature.clone().filter(|_| self.everything), ..tool_use.clone() }
    }

    fn item(&self, item: &ProviderItem) -> ProviderItem {
        let data = if self.everything { item.data.clone() } else { Value::Null };
        ProviderItem::new(item.format.clone(), data)
    }

    /// Returns the attachment with the URL of its bytes, or `None` if the bytes stay inside the message.
    fn attachment(
        &self,
        attachment: &Attachment,
        message: Option<&MessageId>,
        block: &str,
    ) -> Option<Attachment> {
        let url = self.files.address(attachment, message?, block)?;
        Some(Attachment { source: Source::Url { url }, ..attachment.clone() })
    }

    fn result(&self, result: &ToolResult, message: &MessageId, index: usize) -> Option<ToolResult> {
        let seen = |(inner, block): (usize, &ResultBlock)| match block {
            ResultBlock::Attachment(attachment) => {
                self.attachment(attachment, Some(message), &format!("{index}-{inner}"))
            }
            ResultBlock::Text(_) => None,
        };
        let blocks = || result.content.iter().enumerate();
        if blocks().all(|block| seen(block).is_none()) {
            return None;
        }
        let content =
            blocks().map(|(inner, block)| seen((inner, block)).map_or_else(|| block.clone(), Into::into));
        Some(ToolResult { content: content.collect(), ..result.clone() })
    }
}
