//! The commands that a posted request asks for.

use std::{collections::HashSet, sync::Arc};

use super::request::{Answer, AnswerStatus, Posted, RunInput};
use crate::{
    message::{Attachment, Blocks, Content, MessageId, Role, ToolResult, ToolUse},
    run::{PendingUse, Prompt, PromptId},
    session::{SessionCommand, SessionSnapshot},
    text::start,
    tool::Decision,
    tree::{Node, NodeId},
};

/// The greatest size of a prompt's id, in bytes.
const MAX_ID: usize = 64;

/// The work that a request asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plan {
    /// No command is needed: the prompt was accepted before, and it is staged or its run is active. The id is that of
    /// the staged prompt.
    Join(Option<PromptId>),
    /// These commands, in this order.
    Perform(Vec<SessionCommand>),
}

/// The reason why a request is not possible in the current state of the conversation. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl RunInput {
    /// Returns the work that the request asks for.
    ///
    /// - If the request has answers to interrupts, each interrupt is decided. There must be exactly one answer per
    ///   interrupt. Without answers, the request is refused while an interrupt is open.
    /// - If the newest message has results of client tools, the results are the prompt.
    /// - A new user message is the prompt. It is added after the newest earlier message that the server knows. Messages
    ///   that the server does not know, such as those of a cancelled run, are ignored.
    /// - A user message that the server knows is edited if its content differs. Otherwise it gets another answer. But
    ///   if the message is staged or part of the turn in flight, nothing is changed.
    pub(crate) fn plan(&self, view: &SessionSnapshot) -> Result<Plan, Refusal> {
        let answers = self.resume.as_deref().unwrap_or_default();
        if !answers.is_empty() {
            return decisions(answers, &view.agent.pauses).map(Plan::Perform);
        }
        if let Some(pause) = view.agent.pauses.first() {
            let message =
                format!("The interrupt {:?} is open. Answer all open interrupts.", pause.tool_use.id);
            return Err(Refusal::new("missing-answer", message));
        }
        let is_turn = |message: &&Posted| matches!(&*message.role, "user" | "assistant" | "tool");
        match self.messages.iter().rev().find(is_turn) {
            Some(newest) if newest.role == "user" => self.prompt(newest, view),
            Some(newest) if newest.role == "tool" => self.results(newest, view),
            _ => Err(nothing_new()),
        }
    }

    fn prompt(&self, newest: &Posted, view: &SessionSnapshot) -> Result<Plan, Refusal> {
        let id = MessageId::new(&*newest.id);
        if let Some(prompt) = view
            .agent
            .staged
            .iter()
            .find_map(|prompt| prompt.id.clone().filter(|staged| staged.as_str() == newest.id))
        {
            return Ok(Plan::Join(Some(prompt)));
        }
        if view.agent.pending.iter().any(|message| message.id.as_ref() == Some(&id)) {
            return Ok(Plan::Join(None));
        }
        let prompt = |id: &str| newest.blocks().map(|blocks| Prompt::new(blocks).with_id(prompt_id(id)));
        // The original message keeps its id in the tree, so the edited message gets another id.
        let edit_id = format!("run-{}", self.run_id);
        let known = view.tree.find(&id).and_then(|node| view.tree.node(node));
        let command = if let Some(node) = known.filter(|node| node.message().role == Role::User) {
            let node = on_path(node.id(), view)?;
            if is_equal(newest, node) {
                SessionCommand::Regenerate { node: node.id() }
            } else {
                SessionCommand::Edit { node: node.id(), prompt: prompt(&edit_id)? }
            }
        } else {
            // A prompt of a run that failed is known to the agent, but it is not part of the tree.
            let was_tried = view
                .agent
                .last_run
                .as_ref()
                .is_some_and(|end| end.unanswered.iter().any(|message| message.id.as_ref() == Some(&id)));
            let prompt = prompt(if was_tried { &edit_id } else { &newest.id })?;
            let before = self.messages.iter().take_while(|message| message.id != newest.id);
            let known = before.filter_map(|message| known_position(message, view)).last();
            match known {
                None | Some(KnownPosition::InFlight) => SessionCommand::Prompt { prompt },
                Some(KnownPosition::Node(node)) => {
                    let node = on_path(node, view)?;
                    if view.tree.head() == Some(node.id()) {
                        SessionCommand::Prompt { prompt }
                    } else if node.message().role == Role::Assistant {
                        SessionCommand::Branch { node: Some(node.id()), prompt }
                    } else {
                        return Err(diverged());
                    }
                }
            }
        };
        Ok(Plan::Perform(vec![command]))
    }

    fn results(&self, newest: &Posted, view: &SessionSnapshot) -> Result<Plan, Refusal> {
        let last = view.tree.history().last().filter(|message| message.role == Role::Assistant);
        let is_open = |tool_use: &&ToolUse| tool_use.decided.is_none();
        let open: Vec<_> = last.into_iter().flat_map(|message| message.tool_uses()).filter(is_open).collect();
        let mut results = Vec::new();
        for tool_use in open {
            let answers = |message: &&Posted| {
                message.role == "tool" && message.tool_call_id.as_deref() == Some(tool_use.id.as_str())
            };
            if let Some(message) = self.messages.iter().rev().find(answers) {
                results.push(posted_result(tool_use, message)?);
            }
        }
        if results.is_empty() {
            return Err(nothing_new());
        }
        let prompt = Prompt::new(Blocks::from(results)).with_id(prompt_id(&newest.id));
        Ok(Plan::Perform(vec![SessionCommand::Prompt { prompt }]))
    }
}

fn nothing_new() -> Refusal {
    Refusal::new("nothing-new", "The request contains neither a new message nor an answer. Add one of them.")
}

fn diverged() -> Refusal {
    Refusal::new("diverged", "The conversation has changed. Load its messages and try again.")
}

/// Returns `id` as the id of a prompt, cut at 64 bytes. An empty id is replaced.
fn prompt_id(id: &str) -> PromptId {
    PromptId::new(if id.is_empty() { "run" } else { start(id, MAX_ID) })
}

/// The position of a posted message that the server knows.
enum KnownPosition {
    Node(NodeId),
    InFlight,
}

fn known_position(message: &Posted, view: &SessionSnapshot) -> Option<KnownPosition> {
    let is_of = |stored: &crate::message::Message| match &*message.role {
        "tool" => stored
            .tool_results()
            .any(|result| Some(result.tool_use_id.as_str()) == message.tool_call_id.as_deref()),
        _ => false,
    };
    let id = match &*message.role {
        "user" => MessageId::new(&*message.id),
        // The id of a block is `MESSAGE-INDEX`, so the part before the dash is the id of its message.
        "assistant" | "reasoning" => MessageId::new(message.id.rsplit_once('-')?.0),
        "tool" => {
            if view.agent.pending.iter().any(|stored| is_of(stored)) {
                return Some(KnownPosition::InFlight);
            }
            return view
                .tree
                .iter()
                .rev()
                .find(|node| is_of(node.message()))
                .map(|node| KnownPosition::Node(node.id()));
        }
        _ => return None,
    };
    let has_id = |stored: &&std::sync::Arc<crate::message::Message>| stored.id.as_ref() == Some(&id);
    if view.agent.pending.iter().any(|stored| has_id(&stored)) || view.agent.answer.as_ref() == Some(&id) {
        return Some(KnownPosition::InFlight);
    }
    view.tree.find(&id).map(KnownPosition::Node)
}

/// Returns the node if it is on the path.
fn on_path(node: NodeId, view: &SessionSnapshot) -> Result<&Node, Refusal> {
    view.tree.iter().find(|stored| stored.id() == node).ok_or_else(diverged)
}

/// Returns whether a posted message has the text of the stored message and the same number of files. The files are not
/// compared, because a client may have only their addresses.
fn is_equal(posted: &Posted, node: &Node) -> bool {
    let files = node.message().content.iter().filter(|block| matches!(block, Content::Attachment(_)));
    posted.text() == node.message().text() && posted.files() == files.count()
}

/// Returns the result of a client tool, as the client has posted it.
fn posted_result(tool_use: &ToolUse, message: &Posted) -> Result<Content, Refusal> {
    if let Some(error) = message.error.as_deref().filter(|error| !error.is_empty()) {
        return Ok(ToolResult::error(tool_use, error).into());
    }
    let blocks = if message.content.is_array() { message.blocks()?.0 } else { vec![message.text().into()] };
    let content = blocks.into_iter().filter_map(|block| match block {
        Content::Text(text) => Some(text.into()),
        Content::Attachment(file) => Some(Attachment::into(file)),
        _ => None,
    });
    Ok(ToolResult::ok(tool_use, "").with_content(content.collect()).into())
}

/// Returns one command per pause, with the decision about it. Fails unless there is exactly one answer per pause.
fn decisions(answers: &[Answer], pauses: &[Arc<PendingUse>]) -> Result<Vec<SessionCommand>, Refusal> {
    let mut answered = HashSet::new();
    for answer in answers {
        let id = &answer.interrupt_id;
        if pauses.iter().all(|pause| pause.tool_use.id.as_str() != id) {
            return Err(Refusal::new("stale-decision", format!("The interrupt {id:?} is not open.")));
        }
        if !answered.insert(id.as_str()) {
            return Err(Refusal::new("invalid-answer", format!("The interrupt {id:?} has two answers.")));
        }
    }
    let command = |pause: &Arc<PendingUse>| {
        let id = &pause.tool_use.id;
        let answer = answers.iter().find(|answer| answer.interrupt_id == id.as_str()).ok_or_else(|| {
            Refusal::new(
                "missing-answer",
                format!("The interrupt {id:?} is open. Answer all open interrupts."),
            )
        })?;
        let (tool_use_id, turn, decision) = (id.clone(), Some(pause.turn), decision(answer)?);
        Ok(SessionCommand::Resume { tool_use_id, turn, decision })
    };
    pauses.iter().map(command).collect()
}

fn decision(answer: &Answer) -> Result<Decision, Refusal> {
    let reason = |default: &str| answer.payload["reason"].as_str().unwrap_or(default).to_owned();
    if answer.status == AnswerStatus::Cancelled {
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
            Err(Refusal::new("invalid-answer", message))
        }
    }
}
