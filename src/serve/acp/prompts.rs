//! The prompts of one session that wait for their answers. Performs no I/O.

use agent_client_protocol::v1::schema::{Error, StopReason as Reason};
use tokio::sync::oneshot;

use crate::{
    agent::{PromptId, RunOutcome, Snapshot, Status},
    error_chain,
    provider::StopReason,
};

/// The maximum number of prompts of a session that wait.
pub(super) const MOST: usize = 16;

pub(super) type Answer = Result<Reason, Error>;

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Stage {
    /// The prompt is on its way to the session.
    Sent,
    /// The session has accepted the prompt.
    Accepted,
    /// The session's events have shown that the prompt is staged.
    Staged,
    /// The prompt's message is part of the turn in flight.
    InTurn,
}

struct Waiting {
    id: PromptId,
    stage: Stage,
    cancelled: bool,
    reply: oneshot::Sender<Answer>,
}

impl Waiting {
    fn answer(self, answer: Answer) {
        let answer = if self.cancelled { Ok(Reason::Cancelled) } else { answer };
        // Sending fails if the request no longer waits for the answer.
        let _ = self.reply.send(answer);
    }
}

#[derive(Default)]
pub(super) struct Prompts(Vec<Waiting>);

impl Prompts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a prompt. Returns `None` if too many prompts wait.
    pub(super) fn add(&mut self, id: PromptId) -> Option<oneshot::Receiver<Answer>> {
        if self.0.len() >= MOST {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.0.push(Waiting { id, stage: Stage::Sent, cancelled: false, reply });
        Some(answer)
    }

    /// Removes a prompt that the session did not accept.
    pub(super) fn remove(&mut self, id: &PromptId) {
        self.0.retain(|waiting| waiting.id != *id);
    }

    /// Records a cancellation of all prompts.
    pub(super) fn cancel(&mut self) {
        self.0.iter_mut().for_each(|waiting| waiting.cancelled = true);
    }

    pub(super) fn is_cancelled(&self, id: &PromptId) -> bool {
        self.0.iter().any(|waiting| waiting.id == *id && waiting.cancelled)
    }

    fn reach(&mut self, id: &str, stage: Stage) {
        for waiting in self.0.iter_mut().filter(|waiting| waiting.id.as_str() == id) {
            if waiting.stage < stage {
                waiting.stage = stage;
            }
        }
    }

    fn take(&mut self, is_taken: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.0.extract_if(.., |waiting| is_taken(waiting)).collect()
    }

    pub(super) fn accepted(&mut self, id: &PromptId) {
        self.reach(id.as_str(), Stage::Accepted);
    }

    pub(super) fn staged(&mut self, id: &PromptId) {
        self.reach(id.as_str(), Stage::Staged);
    }

    /// Records that a staged prompt was withdrawn, by this or another client.
    pub(super) fn withdrawn(&mut self, id: &PromptId) {
        for waiting in self.take(|waiting| waiting.id == *id) {
            waiting.answer(Ok(Reason::Cancelled));
        }
    }

    /// Records the message of a prompt, and answers the earlier prompt: its turn is over, or continues with this
    /// prompt.
    pub(super) fn began(&mut self, id: &str) {
        if !self.0.iter().any(|waiting| waiting.id.as_str() == id) {
            return;
        }
        for earlier in self.take(|waiting| waiting.stage == Stage::InTurn) {
            earlier.answer(Ok(Reason::EndTurn));
        }
        self.reach(id, Stage::InTurn);
    }

    /// Answers all prompts of a run that has ended. A staged prompt that the run did not use counts as cancelled.
    pub(super) fn ended(&mut self, outcome: &RunOutcome) {
        for waiting in self.take(|waiting| waiting.stage >= Stage::Staged) {
            let answer = if waiting.stage == Stage::InTurn { reason(outcome) } else { Ok(Reason::Cancelled) };
            waiting.answer(answer);
        }
    }

    /// Applies a snapshot, after events were missed.
    pub(super) fn missed(&mut self, snapshot: &Snapshot) {
        for prompt in &snapshot.staged {
            if let Some(id) = &prompt.id {
                self.reach(id.as_str(), Stage::Staged);
            }
        }
        let last = snapshot.last_run.as_deref();
        let unanswered = last.into_iter().flat_map(|run| &run.unanswered);
        let shown = snapshot.messages().chain(unanswered).filter_map(|message| message.id.as_ref());
        for id in shown {
            self.reach(&id.to_string(), Stage::InTurn);
        }
        for id in last.into_iter().flat_map(|run| &run.staged).filter_map(|prompt| prompt.id.as_ref()) {
            self.reach(id.as_str(), Stage::Staged);
        }
        if snapshot.status == Status::Idle
            && let Some(run) = last
        {
            self.ended(&run.outcome);
        }
    }

    /// Answers all accepted prompts, because the session has ended.
    pub(super) fn closed(&mut self, why: &str) {
        for waiting in self.take(|waiting| waiting.stage >= Stage::Accepted) {
            waiting.answer(Err(Error::internal_error().data(format!("the session has ended: {why}"))));
        }
    }
}

fn reason(outcome: &RunOutcome) -> Answer {
    match outcome {
        RunOutcome::Stopped { stop_reason } => Ok(match stop_reason {
            StopReason::Length | StopReason::ContextLength => Reason::MaxTokens,
            StopReason::MaxSteps => Reason::MaxTurnRequests,
            StopReason::Refusal => Reason::Refusal,
            StopReason::Interrupted | StopReason::Cancelled => Reason::Cancelled,
            _ => Reason::EndTurn,
        }),
        RunOutcome::Cancelled | RunOutcome::Discarded => Ok(Reason::Cancelled),
        RunOutcome::Abandoned => {
            Err(Error::internal_error().data("the run was ended after too many restarts".to_owned()))
        }
        RunOutcome::Failed { failure } => Err(Error::internal_error().data(error_chain(failure))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(stop_reason: StopReason) -> RunOutcome {
        RunOutcome::Stopped { stop_reason }
    }

    fn began(prompts: &mut Prompts, id: &str) -> oneshot::Receiver<Answer> {
        let answer = prompts.add(id.into()).unwrap();
        prompts.began(id);
        answer
    }

    #[test]
    fn outcomes_become_the_protocols_stop_reasons() {
        for (outcome, expected) in [
            (stopped(StopReason::Stop), Reason::EndTurn),
            (stopped(StopReason::ToolUse), Reason::EndTurn),
            (stopped(StopReason::Length), Reason::MaxTokens),
            (stopped(StopReason::ContextLength), Reason::MaxTokens),
            (stopped(StopReason::MaxSteps), Reason::MaxTurnRequests),
            (stopped(StopReason::Refusal), Reason::Refusal),
            (stopped(StopReason::Interrupted), Reason::Cancelled),
            (RunOutcome::Cancelled, Reason::Cancelled),
        ] {
            let mut prompts = Prompts::default();
            let mut answer = began(&mut prompts, "a");
            prompts.ended(&outcome);
            assert_eq!(answer.try_recv().unwrap().unwrap(), expected, "{outcome:?}");
        }
    }

    #[test]
    fn end_of_an_earlier_run_answers_no_later_prompt() {
        let mut prompts = Prompts::default();
        let mut answer = prompts.add("a".into()).unwrap();
        prompts.accepted(&"a".into());
        prompts.ended(&stopped(StopReason::Stop));
        assert!(answer.try_recv().is_err());
        prompts.began("a");
        prompts.ended(&stopped(StopReason::Stop));
        assert_eq!(answer.try_recv().unwrap().unwrap(), Reason::EndTurn);
    }

    #[test]
    fn staged_prompt_ends_the_turn_before_it_and_is_cancelled_if_unused() {
        let mut prompts = Prompts::default();
        let mut first = began(&mut prompts, "a");
        let mut second = prompts.add("b".into()).unwrap();
        prompts.staged(&"b".into());
        let mut third = prompts.add("c".into()).unwrap();
        prompts.staged(&"c".into());
        prompts.began("b");
        assert_eq!(first.try_recv().unwrap().unwrap(), Reason::EndTurn);
        prompts.ended(&stopped(StopReason::Length));
        assert_eq!(second.try_recv().unwrap().unwrap(), Reason::MaxTokens);
        assert_eq!(third.try_recv().unwrap().unwrap(), Reason::Cancelled);
        assert!(prompts.is_empty());
    }

    #[test]
    fn cancelled_prompt_is_cancelled_however_its_run_ends() {
        let mut prompts = Prompts::default();
        let mut answer = began(&mut prompts, "a");
        prompts.cancel();
        assert!(prompts.is_cancelled(&"a".into()));
        prompts.closed("its agent ended");
        assert_eq!(answer.try_recv().unwrap().unwrap(), Reason::Cancelled);
    }

    #[test]
    fn prompts_above_the_limit_are_refused() {
        let mut prompts = Prompts::default();
        let waiting: Vec<_> = (0..MOST).map(|n| prompts.add(n.to_string().as_str().into())).collect();
        assert!(waiting.iter().all(Option::is_some));
        assert!(prompts.add("one more".into()).is_none());
        prompts.remove(&"0".into());
        assert!(prompts.add("one more".into()).is_some());
    }
}
