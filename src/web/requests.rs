//! The bodies and queries of requests, and the bodies of responses.

use serde::{Deserialize, Deserializer, Serialize};

use super::{Action, Principal, Problem};
use crate::{
    agent::Prompt,
    manager::Listed,
    message::{Content, Timestamp, ToolUseId, TurnId, UsageRow},
    session::SessionCommand,
    store::{ConversationId, Position, Summary},
    tool::Decision,
};

/// The body of `POST /conversations`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct NewConversation {
    pub(super) title: Option<String>,
    pub(super) model: Option<String>,
}

/// The body of `PATCH C`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Change {
    pub(super) title: TitleChange,
    pub(super) model: Option<String>,
}

/// A change of the title. A title that is `null` removes the title.
#[derive(Debug, Default)]
pub(super) enum TitleChange {
    #[default]
    Keep,
    To(Option<String>),
}

impl<'de> Deserialize<'de> for TitleChange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::To)
    }
}

/// The body of `POST C/decisions`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecisionRequest {
    pub(super) turn: TurnId,
    pub(super) tool_use: ToolUseId,
    pub(super) decision: Decision,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ListQuery {
    pub(super) limit: Option<usize>,
    pub(super) after: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchQuery {
    pub(super) q: String,
    #[serde(default)]
    pub(super) limit: Option<usize>,
    #[serde(default)]
    pub(super) offset: usize,
}

/// A period, in milliseconds since the Unix epoch.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PeriodQuery {
    pub(super) from: Option<u64>,
    pub(super) to: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RowsQuery {
    pub(super) limit: Option<usize>,
    /// The number of rows to skip.
    pub(super) after: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Created {
    pub(super) id: ConversationId,
}

#[derive(Debug, Serialize)]
pub(super) struct ListPage {
    pub(super) items: Vec<Listed>,
    /// The `after` of the next page. `None` on the last page.
    pub(super) next: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct RowsPage {
    pub(super) rows: Vec<UsageRow>,
    /// The `after` of the next page. `None` on the last page.
    pub(super) next: Option<usize>,
}

/// Returns the text of a position in the list: the time of the last write and the id.
pub(super) fn position_text(last: &Summary) -> String {
    format!("{}.{}", last.updated.0, last.id)
}

pub(super) fn position(text: &str) -> Result<Position, Problem> {
    let invalid = || Problem::invalid_query(&"`after` must be the `next` of the page before, unchanged");
    let (updated, id) = text.split_once('.').ok_or_else(invalid)?;
    let updated = updated.parse().map_err(|_| invalid())?;
    let id = ConversationId::new(id).map_err(|_| invalid())?;
    Ok(Position { updated: Timestamp(updated), id })
}

/// Returns the action of a command.
pub(super) const fn action(command: &SessionCommand) -> Action {
    match command {
        SessionCommand::Prompt { .. } | SessionCommand::Unstage { .. } => Action::Prompt,
        SessionCommand::Resume { .. } => Action::Decide,
        SessionCommand::Cancel | SessionCommand::Interrupt => Action::Stop,
        SessionCommand::Regenerate { .. }
        | SessionCommand::Edit { .. }
        | SessionCommand::Branch { .. }
        | SessionCommand::Navigate { .. } => Action::Branch,
        SessionCommand::Title { .. } => Action::Rename,
        SessionCommand::Labels { .. } => Action::Configure,
        SessionCommand::Erase { .. } => Action::Delete,
    }
}

/// Returns whether the command can start a run.
pub(super) const fn starts_a_run(command: &SessionCommand) -> bool {
    matches!(
        command,
        SessionCommand::Prompt { .. }
            | SessionCommand::Regenerate { .. }
            | SessionCommand::Edit { .. }
            | SessionCommand::Branch { .. }
    )
}

/// Checks that a command contains only what a client may choose.
pub(super) fn check(command: &SessionCommand, principal: &Principal) -> Result<(), Problem> {
    match command {
        SessionCommand::Prompt { prompt }
        | SessionCommand::Edit { prompt, .. }
        | SessionCommand::Branch { prompt, .. } => check_prompt(prompt),
        SessionCommand::Labels { .. } if !principal.is_operator() => {
            Err(Problem::forbidden("Only operators can replace labels, because labels decide access."))
        }
        _ => Ok(()),
    }
}

/// Checks that a prompt has no settings, and only blocks that a user can write.
pub(super) fn check_prompt(prompt: &Prompt) -> Result<(), Problem> {
    if prompt.has_settings() {
        let detail = "A prompt of a client cannot have options or limits; remove them.";
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
