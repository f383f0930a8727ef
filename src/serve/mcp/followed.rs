//! One prompt, followed through the events of its session until it is answered. Performs no I/O.

use std::{collections::HashMap, sync::Arc};

use crate::{
    agent::{Event, Snapshot},
    error_chain,
    message::{Message, MessageId, Role, ToolUseId, TurnId},
    provider::StopReason,
    run::{PendingUse, PromptId, PromptState, RunOutcome},
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
pub(super) enum Change {
    /// A tool with this name began to run.
    Runs(String),
    /// The pauses of the turn have changed.
    Pauses,
    Ended(PromptEnd),
}

pub(super) struct FollowedPrompt {
    id: PromptId,
    /// The id of the prompt's message.
    message_id: MessageId,
    /// The turn that the prompt belongs to. `None` as long as the prompt waits.
    turn: Option<TurnId>,
    /// The last turn of the prompt's run. It differs from the prompt's turn if a callback has continued the run.
    running: Option<TurnId>,
    /// The answer, if the run continues after the prompt's turn.
    answered: Option<PromptEnd>,
    /// Whether the run returns the prompt unused.
    is_returned: bool,
    /// The names of the turn's tool uses.
    names: HashMap<ToolUseId, String>,
    /// The tool uses and questions of the turn that wait for a decision.
    pauses: Vec<Arc<PendingUse>>,
}

impl FollowedPrompt {
    /// Follows a prompt that is about to be sent.
    pub(super) fn new(id: PromptId) -> Self {
        let message_id = MessageId::new(id.as_str());
        let (names, pauses) = (HashMap::new(), Vec::new());
        Self { id, message_id, turn: None, running: None, answered: None, is_returned: false, names, pauses }
    }

    pub(super) fn id(&self) -> &PromptId {
        &self.id
    }

    /// Returns the turn that the prompt belongs to, or `None` as long as the prompt waits.
    pub(super) fn turn(&self) -> Option<TurnId> {
        self.turn
    }

    /// Returns the last turn of the prompt's run, or `None` as long as the prompt waits.
    pub(super) fn running(&self) -> Option<TurnId> {
        self.running
    }

    /// Returns the tool uses and questions of the prompt's turn that wait for a decision.
    pub(super) fn pauses(&self) -> &[Arc<PendingUse>] {
        &self.pauses
    }

    fn is(&self, message: &Message) -> bool {
        message.id.as_ref() == Some(&self.message_id)
    }

    /// Processes an event of the session.
    pub(super) fn event(&mut self, event: &Event) -> Option<Change> {
        match event {
            Event::Message { message, turn, .. } => self.message(message, *turn),
            Event::ToolStart { tool_use_id, .. } => {
                return self.turn.and(self.names.get(tool_use_id).cloned()).map(Change::Runs);
            }
            Event::Status { pauses, .. } => {
                let own = pauses.iter().filter(|pause| self.turn == Some(pause.turn)).cloned().collect();
                let before = std::mem::replace(&mut self.pauses, own);
                return (before != self.pauses).then_some(Change::Pauses);
            }
            Event::Prompt { id, state: PromptState::Returned, prompt } if *id == self.id => match prompt {
                Some(_) => self.is_returned = true,
                None => return ended("the prompt was withdrawn"),
            },
            // The next turn of the run answers another prompt, so this prompt's answer is complete.
            Event::Prompt { id, state: PromptState::InFlight { .. }, .. } if *id != self.id => {
                return self.answered.take().map(Change::Ended);
            }
            Event::Turn { response, continues } => {
                if self.turn.is_some() {
                    self.answered = Some(PromptEnd::Answered {
                        message: response.message.clone(),
                        stop_reason: Some(response.stop_reason.clone()),
                    });
                }
                if !continues {
                    return self.stopped(&RunOutcome::Cancelled, false);
                }
            }
            Event::Cancelled { .. } | Event::Error { .. } => {
                let outcome = RunOutcome::of(event)?;
                let kept = matches!(event, Event::Error { committed: true, .. });
                return self.stopped(&outcome, kept);
            }
            _ => {}
        }
        None
    }

    fn message(&mut self, message: &Message, turn: TurnId) {
        if self.is(message) {
            self.turn = Some(turn);
        }
        if self.turn.is_some() {
            self.running = Some(turn);
            self.names.extend(message.tool_uses().map(|tool| (tool.id.clone(), tool.name.clone())));
        }
    }

    /// Processes the end of the run. `kept` is whether a failed run has kept its messages.
    fn stopped(&mut self, outcome: &RunOutcome, kept: bool) -> Option<Change> {
        match self.answered.take() {
            // The prompt may have joined the turn. It then has a turn, but is not part of the history.
            _ if self.is_returned => not_used(outcome),
            Some(end) => Some(Change::Ended(end)),
            None if self.turn.is_some() => Some(Change::Ended(PromptEnd::Unanswered(reason(outcome, kept)))),
            None => None,
        }
    }

    /// Processes a snapshot, after events were missed or to follow a prompt that was sent earlier.
    pub(super) fn snapshot(&mut self, snapshot: &SessionSnapshot) -> Option<Change> {
        let agent = &snapshot.agent;
        let committed = || snapshot.tree.history().iter();
        if let Some(at) = committed().position(|message| self.is(message)) {
            let is_next = |message: &&Arc<Message>| {
                message.role == Role::User && message.tool_results().next().is_none()
            };
            let rest = committed().skip(at + 1).take_while(|message| !is_next(message));
            let mut turns = rest.clone().filter_map(|message| message.id.as_ref()?.turn());
            let last = agent.last_run.as_deref();
            let failed = last.filter(|run| matches!(run.outcome, RunOutcome::Failed { .. }));
            if let Some(run) = failed.filter(|run| turns.any(|turn| run.turn == Some(turn))) {
                return Some(Change::Ended(PromptEnd::Unanswered(reason(&run.outcome, true))));
            }
            let message = rest.filter(|message| message.role == Role::Assistant).last().cloned();
            return Some(Change::Ended(PromptEnd::Answered { message, stop_reason: None }));
        }
        if agent.pending.iter().any(|message| self.is(message)) {
            (self.turn, self.running) = (agent.turn, agent.turn);
            for message in &agent.pending {
                self.names.extend(message.tool_uses().map(|tool| (tool.id.clone(), tool.name.clone())));
            }
            self.pauses.clone_from(&agent.pauses);
            return Some(Change::Pauses);
        }
        self.absent(agent)
    }

    /// Processes a snapshot whose messages do not contain the prompt.
    fn absent(&mut self, agent: &Snapshot) -> Option<Change> {
        let is_own = |id: Option<&PromptId>| id == Some(&self.id);
        if agent.staged.iter().any(|prompt| is_own(prompt.id.as_ref())) {
            return None;
        }
        let last = agent.last_run.as_deref();
        if last.is_some_and(|run| run.unanswered.iter().any(|message| self.is(message))) {
            return last.map(|run| Change::Ended(PromptEnd::Unanswered(reason(&run.outcome, false))));
        }
        if let Some(run) = last.filter(|run| run.staged.iter().any(|prompt| is_own(prompt.id.as_ref()))) {
            return not_used(&run.outcome);
        }
        ended("the conversation does not contain the prompt any more")
    }
}

#[expect(clippy::unnecessary_wraps, reason = "all callers return it")]
fn ended(why: &str) -> Option<Change> {
    Some(Change::Ended(PromptEnd::Unanswered(why.to_owned())))
}

fn not_used(outcome: &RunOutcome) -> Option<Change> {
    ended(&format!("the run ended, so the prompt was not used: {}", reason(outcome, false)))
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
