//! The bodies and queries of requests, the bodies of responses, and the checks of commands.

use serde::{Deserialize, Serialize};

use super::{Action, Principal, Problem};
use crate::{
    manager::Listed,
    message::{Content, Timestamp, ToolUseId, Usage, UsageRow},
    run::{Error, ErrorKind, PendingUse, Prompt, PromptId, RunAt, RunSpec},
    session::SessionCommand,
    store::{ConversationId, Position},
    tree::{Node, NodeId},
};

/// The settings of a new conversation.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NewConversation {
    /// The title.
    pub(super) title: Option<String>,
    /// The name of the model, which must be one of those that the server offers.
    pub(super) model: Option<String>,
}

/// The part of a list that the client requests.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// The maximum number of entries: 50 by default. The server limits it.
    pub(super) limit: Option<usize>,
    /// The value of `next` in the previous page.
    pub(super) after: Option<String>,
}

/// The message at which a conversation is forked.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct NewFork {
    /// The title. Without it, the new conversation has the title of the original.
    #[serde(default)]
    pub(super) title: Option<String>,
    /// The last message of the new conversation.
    pub(super) node: NodeId,
}

/// A search.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    /// The words, which must all occur. Words in double quotes must follow each other.
    pub(super) q: String,
    /// The maximum number of hits: 50 by default. The server limits it.
    #[serde(default)]
    pub(super) limit: Option<usize>,
    /// The number of hits to skip.
    #[serde(default)]
    pub(super) offset: usize,
}

/// A period, in milliseconds since the Unix epoch.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PeriodQuery {
    /// The start of the period, in milliseconds since the Unix epoch: 0 by default.
    pub(super) from: Option<u64>,
    /// The end of the period, which is not part of it: unlimited by default.
    pub(super) to: Option<u64>,
}

/// The part of a usage ledger that the client requests.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct UsageRowsQuery {
    /// The maximum number of rows: 50 by default. The server limits it.
    pub(super) limit: Option<usize>,
    /// The number of rows to skip, which is the value of `next` in the previous page.
    pub(super) after: usize,
}

/// The maximum number of messages on a page.
const MOST_MESSAGES: usize = 500;

/// The part of a branch that the client requests.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct MessagesQuery {
    /// The id of the node before which the page ends. This is the value of `next` in the previous page.
    pub(super) before: NodeId,
    /// The maximum number of messages: 50 by default.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST_MESSAGES)))]
    pub(super) limit: Option<usize>,
}

/// Checks a number of messages, which is the parameter with this name.
pub(super) fn check_count(name: &str, count: usize) -> Result<usize, Problem> {
    if (1..=MOST_MESSAGES).contains(&count) {
        return Ok(count);
    }
    Err(Problem::invalid_query(&format!("`{name}` is {count}; use a number from 1 to {MOST_MESSAGES}")))
}

/// The contents of a conversation's stream.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WatchQuery {
    /// The maximum number of messages in a snapshot: the last ones of the path. Without it, all messages are sent.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = MOST_MESSAGES)))]
    pub(super) messages: Option<usize>,
}

/// A part of a branch.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct MessagePage {
    /// The messages, oldest first. Each is the parent of the following one.
    pub(super) messages: Vec<Node>,
    /// The value of `before` for the request of the next page. Absent if the page begins with the first message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<NodeId>,
}

/// A new conversation.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Created {
    /// The id of the conversation.
    pub(super) id: ConversationId,
}

/// A part of the list of conversations.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ListPage {
    /// The conversations, most recently written first.
    pub(super) items: Vec<Listed>,
    /// The value of `after` for the request of the next page. `None` on the last page.
    pub(super) next: Option<String>,
}

/// A tool use that waits for a decision.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ListedApproval {
    /// The id of the conversation.
    pub(super) conversation: ConversationId,
    /// The tool use, the reason for the pause, and its times by the store's clock.
    #[serde(flatten)]
    pub(super) pending: PendingUse,
}

/// A part of the list of tool uses that wait for decisions.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct ApprovalPage {
    /// The tool uses. The first ones belong to the turn that has waited longest.
    pub(super) items: Vec<ListedApproval>,
    /// The value of `after` for the request of the next page. `None` on the last page.
    pub(super) next: Option<String>,
}

/// A part of a usage ledger.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RowsPage {
    /// The rows, newest first.
    pub(super) rows: Vec<UsageRow>,
    /// The value of `after` for the request of the next page. `None` on the last page.
    pub(super) next: Option<usize>,
    /// The usage of all sub-agents below the conversation, deleted ones included. The rows do not contain it. Absent if
    /// it is zero, and on pages after the first one.
    #[serde(skip_serializing_if = "Usage::is_zero")]
    pub(super) delegated: Usage,
}

/// Returns the value of `next` after this entry of a list: the time by which the list is sorted, and the conversation's
/// id.
pub(super) fn position_text(last: &Position) -> String {
    format!("{}.{}", last.updated.0, last.id)
}

pub(super) fn position(text: &str) -> Result<Position, Problem> {
    let invalid = || Problem::invalid_query(&"`after` must be the `next` of the page before, unchanged");
    let (updated, id) = text.split_once('.').ok_or_else(invalid)?;
    let updated = updated.parse().map_err(|_| invalid())?;
    let id = ConversationId::new(id).map_err(|_| invalid())?;
    Ok(Position { updated: Timestamp(updated), id })
}

/// Returns the action that access control must permit before this command is performed.
pub(super) const fn action(command: &SessionCommand) -> Action {
    match command {
        // A summary costs money, as an answer does.
        SessionCommand::Run(RunSpec { at: RunAt::Head, .. })
        | SessionCommand::Unstage { .. }
        | SessionCommand::Compact(_)
        | SessionCommand::Omit { .. }
        | SessionCommand::Restore { .. } => Action::Prompt,
        SessionCommand::Decide { .. } => Action::Decide,
        SessionCommand::Cancel | SessionCommand::Interrupt => Action::Stop,
        SessionCommand::Run(_) | SessionCommand::Navigate { .. } => Action::Branch,
        SessionCommand::Title { .. } => Action::Rename,
        SessionCommand::Labels { .. } | SessionCommand::Model { .. } => Action::Configure,
        SessionCommand::Erase { .. } => Action::Delete,
    }
}

/// Returns the prompt of a command.
pub(super) const fn prompt_of(command: &mut SessionCommand) -> Option<&mut Prompt> {
    match command {
        SessionCommand::Run(spec) => Some(&mut spec.prompt),
        _ => None,
    }
}

/// Returns the tool uses about which a command decides.
pub(super) fn decided_by(command: &SessionCommand) -> Vec<ToolUseId> {
    match command {
        SessionCommand::Decide { decisions, .. } => decisions.iter().map(|(id, _)| id.clone()).collect(),
        _ => Vec::new(),
    }
}

/// Checks the prompt of a command, and that the command does not wait for a response, because the streams have it. Also
/// checks that only an operator replaces labels.
pub(super) fn check(command: &SessionCommand, principal: &Principal) -> Result<(), Problem> {
    match command {
        SessionCommand::Run(RunSpec { wait: true, .. }) => {
            let text =
                "a client's command does not wait for the response; follow the conversation's events instead";
            let error = Error::new(ErrorKind::Unsupported, text);
            Err(error.with_member("operation", "waiting for a response").into())
        }
        SessionCommand::Run(spec) => check_prompt(&spec.prompt),
        SessionCommand::Labels { .. } if !principal.is_operator() => {
            Err(Problem::forbidden("Only operators can replace labels, because labels decide access."))
        }
        _ => Ok(()),
    }
}

/// Checks that a prompt has no settings, and only blocks that a user can write.
pub(super) fn check_prompt(prompt: &Prompt) -> Result<(), Problem> {
    if prompt.has_settings() {
        let detail = "A prompt of a client cannot have options, limits or a budget; remove them.";
        return Err(Problem::invalid_prompt(detail));
    }
    if prompt.id.as_ref().is_some_and(PromptId::is_reserved) {
        let detail = "The id of the prompt has the form of those of schedules; use another id.";
        return Err(Problem::invalid_prompt(detail));
    }
    let is_allowed = |block: &Content| match block {
        Content::Text(text) => text.signature.is_none(),
        Content::Attachment(_) | Content::ToolResult(_) => true,
        Content::Thinking(_) | Content::ToolUse(_) | Content::ProviderItem(_) => false,
    };
    if prompt.content.0.iter().all(is_allowed) {
        Ok(())
    } else {
        let detail = "A prompt can contain texts without signatures, attachments and tool results; remove other blocks.";
        Err(Problem::invalid_prompt(detail))
    }
}
