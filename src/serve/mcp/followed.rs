//! One prompt, followed through the events of its session until it is answered. Performs no I/O.

use std::{collections::HashMap, sync::Arc};

use crate::{
    agent::{Event, Follow, FollowFrom, FollowTarget, RunProgress, ToolChange},
    error_chain,
    message::{Content, Message, ToolUseId, TurnId},
    provider::StopReason,
    run::{Accepted, PendingUse, PromptId, Response, RunOutcome},
    session::SessionSnapshot,
};

/// How a prompt ended.
#[derive(Debug, PartialEq)]
pub(super) enum PromptEnd {
    /// The prompt's turn is complete.
    Answered {
        /// The last assistant message. `None` if the turn has none.
        message: Option<Arc<Message>>,
        /// The reason why the turn ended. `None` if the events that contained it were missed.
        stop_reason: Option<StopReason>,
    },
    /// The prompt was not answered, for this reason.
    Unanswered(String),
}

/// A change that a client is interested in.
#[derive(Debug, PartialEq)]
pub(super) enum RunChange {
    /// The run makes progress that the client can show with this text.
    Progress(String),
    /// The pauses of the run have changed.
    Pauses,
    Ended(PromptEnd),
}

pub(super) struct FollowedPrompt {
    id: PromptId,
    follow: Follow,
    /// The names of the tool uses of the prompt's run.
    names: HashMap<ToolUseId, String>,
}

impl FollowedPrompt {
    /// Follows a prompt that is about to be sent.
    pub(super) fn new(id: PromptId) -> Self {
        let follow = Follow::new(FollowTarget::Prompt(id.clone()), FollowFrom::Start);
        Self { id, follow, names: HashMap::new() }
    }

    /// Follows a prompt that was accepted.
    pub(super) fn of(id: PromptId, accepted: &Accepted) -> Self {
        let mut followed = Self::new(id);
        followed.follow.accepted(accepted);
        followed
    }

    pub(super) fn id(&self) -> &PromptId {
        &self.id
    }

    /// Returns the last turn of the prompt's run, or `None` as long as the prompt waits.
    pub(super) fn turn(&self) -> Option<TurnId> {
        self.follow.turn()
    }

    /// Returns the tool uses and questions of the prompt's run that wait for a decision.
    pub(super) fn pauses(&self) -> &[Arc<PendingUse>] {
        self.follow.pauses()
    }

    /// Processes an event of the session.
    pub(super) fn event(&mut self, event: &Event) -> Option<RunChange> {
        let (names, mut change) = (&mut self.names, None);
        self.follow.event(event, &mut |progress| note(names, &mut change, progress));
        change
    }

    /// Processes a snapshot, after events were missed or to follow a prompt that was sent earlier.
    pub(super) fn snapshot(&mut self, snapshot: &SessionSnapshot) -> Option<RunChange> {
        let (names, mut change) = (&mut self.names, None);
        let history = snapshot.tree.history();
        self.follow.snapshot(history, &snapshot.agent, &mut |progress| note(names, &mut change, progress));
        change
    }
}

/// Notes the change that the progress of the run causes. The last change counts.
fn note(names: &mut HashMap<ToolUseId, String>, change: &mut Option<RunChange>, progress: RunProgress<'_>) {
    match progress {
        RunProgress::Block { content: Content::ToolUse(tool_use), ended: true, .. } => {
            names.insert(tool_use.id.clone(), tool_use.name.clone());
        }
        RunProgress::Tool { id, change: ToolChange::Started { .. } } => {
            *change = names.get(id).map(|tool| RunChange::Progress(format!("Running {tool}")));
        }
        RunProgress::Compaction { message: None, failure: None } => {
            *change = Some(RunChange::Progress("Compacting the conversation".to_owned()));
        }
        RunProgress::Pauses(_) => *change = Some(RunChange::Pauses),
        RunProgress::Ended { outcome, response, message } => {
            *change = Some(RunChange::Ended(end(outcome, response, message)));
        }
        RunProgress::Returned { outcome: Some(outcome) } => {
            let why = format!("the run ended, so the prompt was not used: {}", reason(outcome, false));
            *change = Some(RunChange::Ended(PromptEnd::Unanswered(why)));
        }
        RunProgress::Returned { outcome: None } => {
            *change = Some(RunChange::Ended(PromptEnd::Unanswered("the prompt was withdrawn".to_owned())));
        }
        _ => {}
    }
}

/// Returns the end of a prompt that was used. `message` is the last answer that the conversation contains.
fn end(
    outcome: Option<&RunOutcome>,
    response: Option<&Arc<Response>>,
    message: Option<&Arc<Message>>,
) -> PromptEnd {
    let stop_reason = response.map(|response| response.stop_reason.clone());
    match outcome {
        Some(RunOutcome::Stopped { stop_reason }) => {
            PromptEnd::Answered { message: message.cloned(), stop_reason: Some(stop_reason.clone()) }
        }
        Some(RunOutcome::Abandoned) if message.is_some() => {
            PromptEnd::Answered { message: message.cloned(), stop_reason }
        }
        // An earlier turn of the run is part of the conversation.
        None | Some(RunOutcome::Cancelled | RunOutcome::Discarded) if message.is_some() => {
            PromptEnd::Answered { message: message.cloned(), stop_reason: None }
        }
        Some(outcome) => PromptEnd::Unanswered(reason(outcome, message.is_some())),
        None => PromptEnd::Unanswered("the conversation does not contain the prompt any more".to_owned()),
    }
}

fn reason(outcome: &RunOutcome, kept: bool) -> String {
    match outcome {
        RunOutcome::Failed { failure } if kept => {
            format!("{}. The conversation contains the work that was done before", error_chain(failure))
        }
        RunOutcome::Failed { failure } => error_chain(failure),
        RunOutcome::Abandoned => "the run was ended after too many restarts".to_owned(),
        _ => "the run was cancelled".to_owned(),
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests;
