//! The prompts of one session that wait for their answers. Performs no I/O.

use agent_client_protocol_schema::v1::{Error, StopReason as Reason};
use tokio::sync::oneshot;

use crate::{
    agent::{Snapshot, Status},
    error_chain,
    message::TurnId,
    provider::StopReason,
    run::{PromptId, RunOutcome},
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

/// The prompts that nobody waits for any more, because the client is gone.
pub(super) struct Abandoned {
    /// The turn in flight, if it belongs to a prompt of the client.
    pub(super) turn: Option<TurnId>,
    /// The prompts that are not known to be part of a turn.
    pub(super) staged: Vec<PromptId>,
}

#[derive(Default)]
pub(super) struct Prompts {
    list: Vec<Waiting>,
    /// The turn in flight, if it belongs to one of the prompts. A callback may have continued the prompt's own turn.
    turn: Option<TurnId>,
    /// Whether a prompt of another client was used since the last message.
    is_other_used: bool,
}

impl Prompts {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the prompts that are not answered yet.
    pub(super) fn abandoned(&self) -> Abandoned {
        let staged = self.list.iter().filter(|waiting| waiting.stage < Stage::InTurn);
        Abandoned { turn: self.turn, staged: staged.map(|waiting| waiting.id.clone()).collect() }
    }

    /// Adds a prompt. Returns `None` if too many prompts wait.
    pub(super) fn add(&mut self, id: PromptId) -> Option<oneshot::Receiver<Answer>> {
        if self.list.len() >= MOST {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        self.list.push(Waiting { id, stage: Stage::Sent, cancelled: false, reply });
        Some(answer)
    }

    /// Removes a prompt that the session did not accept.
    pub(super) fn remove(&mut self, id: &PromptId) {
        self.list.retain(|waiting| waiting.id != *id);
    }

    /// Records a cancellation of all prompts.
    pub(super) fn cancel(&mut self) {
        self.list.iter_mut().for_each(|waiting| waiting.cancelled = true);
    }

    pub(super) fn is_cancelled(&self, id: &PromptId) -> bool {
        self.list.iter().any(|waiting| waiting.id == *id && waiting.cancelled)
    }

    fn reach(&mut self, id: &str, stage: Stage) {
        for waiting in self.list.iter_mut().filter(|waiting| waiting.id.as_str() == id) {
            if waiting.stage < stage {
                waiting.stage = stage;
            }
        }
    }

    fn take(&mut self, is_taken: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        self.list.extract_if(.., |waiting| is_taken(waiting)).collect()
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

    /// Records that a prompt is in flight. The messages that follow belong to it.
    pub(super) fn used(&mut self, id: &PromptId) {
        self.is_other_used = self.list.iter().all(|waiting| waiting.id != *id);
    }

    /// Records a message of a turn. If it is the message of a prompt, answers the earlier prompt: its turn is over, or
    /// continues with this prompt.
    pub(super) fn message(&mut self, id: &str, turn: TurnId) {
        let is_other_used = std::mem::take(&mut self.is_other_used);
        if !self.list.iter().any(|waiting| waiting.id.as_str() == id) {
            if self.turn.is_some_and(|own| own != turn) {
                self.turn = Some(turn).filter(|_| !is_other_used);
            }
            return;
        }
        self.turn = Some(turn);
        for earlier in self.take(|waiting| waiting.stage == Stage::InTurn) {
            earlier.answer(Ok(Reason::EndTurn));
        }
        self.reach(id, Stage::InTurn);
    }

    /// Answers all prompts of a run that has ended. A staged prompt that the run did not use counts as cancelled.
    pub(super) fn ended(&mut self, outcome: &RunOutcome) {
        self.turn = None;
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
        let mut pending = snapshot.pending.iter().filter_map(|message| message.id.as_ref());
        let is_own = pending.any(|id| self.list.iter().any(|own| own.id.as_str() == id.to_string()));
        self.turn = snapshot.turn.filter(|_| is_own);
        for id in last.into_iter().flat_map(|run| &run.staged).filter_map(|prompt| prompt.id.as_ref()) {
            self.reach(id.as_str(), Stage::Staged);
        }
        if snapshot.status == Status::Idle
            && let Some(run) = last
        {
            self.ended(&run.outcome);
        }
    }

    /// Answers all accepted prompts, because the session has ended. A later session has other turns.
    pub(super) fn closed(&mut self, why: &str) {
        (self.turn, self.is_other_used) = (None, false);
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
        prompts.message(id, TurnId::default());
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
        prompts.message("a", TurnId::default());
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
        prompts.message("b", TurnId::default());
        assert_eq!(first.try_recv().unwrap().unwrap(), Reason::EndTurn);
        prompts.ended(&stopped(StopReason::Length));
        assert_eq!(second.try_recv().unwrap().unwrap(), Reason::MaxTokens);
        assert_eq!(third.try_recv().unwrap().unwrap(), Reason::Cancelled);
        assert!(prompts.is_empty());
    }

    #[test]
    fn turn_in_flight_is_abandoned_until_a_prompt_of_another_client_is_used() {
        let turn = TurnId::new;
        let mut prompts = Prompts::default();
        let _answer = prompts.add("a".into()).unwrap();
        assert_eq!(prompts.abandoned().staged, ["a".into()]);
        prompts.message("a", turn(1));
        assert_eq!((prompts.abandoned().turn, prompts.abandoned().staged), (Some(turn(1)), vec![]));
        // A callback has continued the run.
        prompts.message("m", turn(2));
        assert_eq!(prompts.abandoned().turn, Some(turn(2)));
        // A prompt of another client joins the turn, and then one begins the next turn.
        prompts.used(&"b".into());
        prompts.message("b", turn(2));
        assert_eq!(prompts.abandoned().turn, Some(turn(2)));
        prompts.used(&"c".into());
        prompts.message("c", turn(3));
        prompts.message("n", turn(3));
        assert_eq!(prompts.abandoned().turn, None);
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
