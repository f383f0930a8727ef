//! The run that a stop means. A stop can arrive after its run has ended, when the run of somebody else is active.

use super::exchange::{PromptExchange, answer_id, base_id, exchanges, stored_base, stored_id, ui_id};
use crate::{
    agent::Status,
    message::{MessageId, TurnId},
    run::{Error, ErrorKind, PromptId},
    session::{Session, SessionSnapshot},
    store::ConversationId,
    tree::Node,
    web::{Action, Problem, Web, gate::WebRequest},
};

/// A run, or the part of it that answers one prompt.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::web) enum RunToStop {
    /// The run of this turn, with the turns that continue its answer.
    Turn(TurnId),
    /// The run of the prompt with this id.
    Prompt(PromptId),
    /// The run whose prompt or answer has this id in the AI SDK.
    Message(String),
    /// The run that continues when the conversation is opened.
    Opened,
    /// No run.
    Ended,
}

impl RunToStop {
    /// Returns the active run.
    fn active(snapshot: &SessionSnapshot) -> Self {
        let agent = &snapshot.agent;
        // Between two turns, the last turn is that of the newest answer.
        let last = || snapshot.tree.history().last().and_then(|message| message.id.as_ref()?.turn());
        agent.turn.or_else(|| (agent.status != Status::Idle).then(last)?).map_or(Self::Ended, Self::Turn)
    }

    fn is_prompt(&self, id: &str) -> bool {
        match self {
            Self::Turn(_) | Self::Opened | Self::Ended => false,
            Self::Prompt(own) => own.as_str() == id,
            Self::Message(own) => id == stored_id(own) || base_id(id) == stored_base(own),
        }
    }

    /// Returns the turn in flight, if it belongs to this run.
    fn in_flight(&self, snapshot: &SessionSnapshot) -> Option<TurnId> {
        let agent = &snapshot.agent;
        let turn = agent.turn?;
        let exchanges = exchanges(snapshot);
        // At the start of a turn, the last exchange can be that of the turn before.
        let has_begun = agent.pending.iter().any(|message| message.compaction.is_none());
        let last = exchanges.last().filter(|last| has_begun || last.rest.is_empty());
        let of_turn = |id: Option<&MessageId>, own| id.and_then(MessageId::turn) == Some(own);
        let is_own = match self {
            Self::Opened | Self::Ended => false,
            Self::Turn(own) => {
                let mut rest = last.iter().flat_map(|last| &last.rest);
                *own == turn || rest.any(|entry| of_turn(entry.message.id.as_ref(), *own))
            }
            Self::Prompt(_) => {
                let prompt = last.and_then(|last| last.prompt?.message.id.as_ref());
                prompt.is_some_and(|id| self.is_prompt(&id.to_string()))
            }
            Self::Message(own) => {
                let prompt = last.and_then(|last| last.prompt);
                let prompt = prompt.map(|entry| ui_id(entry.message, entry.node.map(Node::id)));
                let answer = last.and_then(PromptExchange::answer_id).unwrap_or_else(|| answer_id(turn));
                answer == *own || prompt.is_some_and(|prompt| self.is_prompt(&prompt) || prompt == *own)
            }
        };
        is_own.then_some(turn)
    }
}

impl Web {
    /// Returns the active run of a conversation.
    pub(in crate::web) async fn active_run(&self, id: &ConversationId) -> RunToStop {
        let Some(session) = self.0.manager.get(id) else { return RunToStop::Opened };
        session.snapshot().await.map_or(RunToStop::Opened, |snapshot| RunToStop::active(&snapshot))
    }
}

impl WebRequest {
    /// Ends a run of the route's conversation, or withdraws its prompt if the prompt is staged. Returns `false` if the run
    /// has ended. Without `run`, ends the run that was active when the request was admitted.
    pub(in crate::web) async fn stop(&self, run: Option<RunToStop>, discard: bool) -> Result<bool, Problem> {
        let run = run.as_ref().unwrap_or(&self.active);
        self.on_session(Action::Stop, |session| async move { end(run.clone(), &session, discard).await })
            .await
    }
}

/// Ends a run, unless it has ended.
async fn end(mut run: RunToStop, session: &Session, discard: bool) -> Result<bool, Error> {
    loop {
        let snapshot = session.snapshot().await?;
        let active = RunToStop::active(&snapshot);
        if run == RunToStop::Opened {
            run = active.clone();
        }
        let mut staged = snapshot.agent.staged.iter().filter_map(|prompt| prompt.id.clone());
        if let Some(prompt) = staged.find(|id| run.is_prompt(id.as_str())) {
            match session.unstage(prompt).await {
                // The prompt has started its turn since the snapshot.
                Err(error) if error.kind() == ErrorKind::NotStaged => continue,
                unstaged => return unstaged.map(|_| true),
            }
        }
        let ended = match run.in_flight(&snapshot) {
            Some(turn) if discard => session.cancel_turn(turn).await,
            Some(turn) => session.interrupt_turn(turn).await,
            // The run is between two turns.
            None if snapshot.agent.turn.is_none() && active == run && run != RunToStop::Ended => {
                let ended = if discard { session.cancel().await } else { session.interrupt().await };
                return match ended {
                    Err(error) if error.kind() == ErrorKind::Idle => Ok(false),
                    ended => ended.map(|()| true),
                };
            }
            None => return Ok(false),
        };
        if ended? {
            return Ok(true);
        }
        // The turn has ended since the snapshot, and the run can have another one.
    }
}
