//! The prompts of one session that wait for their answers. Performs no I/O.

use agent_client_protocol_schema::v1::{Error, StopReason as Reason};
use tokio::sync::oneshot;

use crate::{
    agent::{Event, Follow, FollowFrom, FollowTarget, RunProgress},
    error_chain,
    message::TurnId,
    provider::StopReason,
    run::{Failure, PromptId, RunOutcome},
    session::SessionSnapshot,
};

/// The maximum number of prompts of a session that wait.
pub(super) const MOST: usize = 16;

pub(super) type EditorPromptResult = Result<Reason, Error>;

struct UnansweredEditorPrompt {
    id: PromptId,
    follow: Follow,
    /// Whether the session has accepted the prompt.
    is_accepted: bool,
    cancelled: bool,
    reply: oneshot::Sender<EditorPromptResult>,
}

impl UnansweredEditorPrompt {
    fn answer(self, answer: EditorPromptResult) {
        let answer = if self.cancelled { Ok(Reason::Cancelled) } else { answer };
        // Sending fails if the request no longer waits for the answer.
        let _ = self.reply.send(answer);
    }
}

/// The prompts that nobody waits for any more, because the client is gone.
pub(super) struct AbandonedEditorPrompts {
    /// The turn in flight, if it belongs to a prompt of the client.
    pub(super) turn: Option<TurnId>,
    /// The prompts that are not known to be part of a turn.
    pub(super) staged: Vec<PromptId>,
}

#[derive(Default)]
pub(super) struct UnansweredEditorPrompts(Vec<UnansweredEditorPrompt>);

impl UnansweredEditorPrompts {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the prompts that are not answered yet.
    pub(super) fn abandoned(&self) -> AbandonedEditorPrompts {
        let staged = self.0.iter().filter(|waiting| waiting.follow.turn().is_none());
        let turn = self.0.iter().rev().find_map(|waiting| waiting.follow.turn());
        AbandonedEditorPrompts { turn, staged: staged.map(|waiting| waiting.id.clone()).collect() }
    }

    /// Adds a prompt. Returns `None` if too many prompts wait.
    pub(super) fn add(&mut self, id: PromptId) -> Option<oneshot::Receiver<EditorPromptResult>> {
        if self.0.len() >= MOST {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let follow = Follow::new(FollowTarget::Prompt(id.clone()), FollowFrom::Start);
        self.0.push(UnansweredEditorPrompt { id, follow, is_accepted: false, cancelled: false, reply });
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

    /// Records that the session has accepted a prompt. A snapshot that is older may still be on its way, so the prompt's
    /// absence from a snapshot has no meaning.
    pub(super) fn accepted(&mut self, id: &PromptId) {
        self.0.iter_mut().filter(|waiting| waiting.id == *id).for_each(|waiting| waiting.is_accepted = true);
    }

    /// Processes an event.
    pub(super) fn event(&mut self, event: &Event) {
        self.read(|follow, out| follow.event(event, out));
    }

    /// Processes a snapshot, after events were missed.
    pub(super) fn missed(&mut self, snapshot: &SessionSnapshot) {
        self.read(|follow, out| follow.snapshot(snapshot.tree.history(), &snapshot.agent, out));
    }

    /// Answers the prompts that have ended. A staged prompt that was not used counts as cancelled.
    fn read(&mut self, read: impl Fn(&mut Follow, &mut dyn FnMut(RunProgress<'_>))) {
        for mut waiting in std::mem::take(&mut self.0) {
            let mut end = None;
            read(&mut waiting.follow, &mut |progress| match progress {
                RunProgress::Ended { outcome, .. } => end = Some(reason(outcome)),
                RunProgress::Returned { .. } => end = Some(Ok(Reason::Cancelled)),
                _ => waiting.is_accepted = true,
            });
            match end {
                Some(end) => waiting.answer(end),
                None => self.0.push(waiting),
            }
        }
    }

    /// Answers all accepted prompts, because the session has ended. A later session has other turns.
    pub(super) fn closed(&mut self, why: &str) {
        for waiting in self.0.extract_if(.., |waiting| waiting.is_accepted) {
            waiting.answer(Err(Error::internal_error().data(format!("the session has ended: {why}"))));
        }
    }
}

fn reason(outcome: Option<&RunOutcome>) -> EditorPromptResult {
    match outcome {
        // Later prompts have displaced the outcome.
        None => Ok(Reason::EndTurn),
        Some(RunOutcome::Stopped { stop_reason }) => Ok(match stop_reason {
            StopReason::Length | StopReason::ContextLength => Reason::MaxTokens,
            StopReason::MaxSteps | StopReason::Budget => Reason::MaxTurnRequests,
            StopReason::Refusal => Reason::Refusal,
            StopReason::Interrupted | StopReason::Cancelled => Reason::Cancelled,
            _ => Reason::EndTurn,
        }),
        Some(RunOutcome::Cancelled | RunOutcome::Discarded) => Ok(Reason::Cancelled),
        Some(RunOutcome::Abandoned) => {
            Err(Error::internal_error().data("the run was ended after too many restarts".to_owned()))
        }
        Some(RunOutcome::Failed { failure: Failure::Budget { .. } }) => Ok(Reason::MaxTurnRequests),
        Some(RunOutcome::Failed { failure }) => Err(Error::internal_error().data(error_chain(failure))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        message::Message,
        run::{PromptState, Response},
    };

    fn stopped(stop_reason: StopReason) -> RunOutcome {
        RunOutcome::Stopped { stop_reason }
    }

    fn state(prompts: &mut UnansweredEditorPrompts, id: &str, state: PromptState) {
        let prompt = (state == PromptState::Returned).then(|| Arc::new(crate::run::Prompt::new("Hi")));
        prompts.event(&Event::Prompt { id: id.into(), state, prompt });
    }

    fn begin(prompts: &mut UnansweredEditorPrompts, id: &str, turn: u128) {
        let turn = TurnId::new(turn);
        state(prompts, id, PromptState::InFlight { turn });
        let message = Arc::new(Message { id: Some(PromptId::new(id).into()), ..Message::user("Hi") });
        prompts.event(&Event::Message { message, step: 1, turn, run: 1 });
    }

    fn began(prompts: &mut UnansweredEditorPrompts, id: &str) -> oneshot::Receiver<EditorPromptResult> {
        let answer = prompts.add(id.into()).unwrap();
        begin(prompts, id, 1);
        answer
    }

    fn end(prompts: &mut UnansweredEditorPrompts, id: &str, outcome: RunOutcome) {
        state(prompts, id, PromptState::Ended { outcome });
        end_run(prompts, false);
    }

    fn end_run(prompts: &mut UnansweredEditorPrompts, continues: bool) {
        let response = Arc::new(Response::empty("model", StopReason::Stop, 1, 1));
        prompts.event(&Event::Turn { response, continues });
    }

    #[test]
    fn outcomes_become_the_protocols_stop_reasons() {
        for (outcome, expected) in [
            (stopped(StopReason::Stop), Reason::EndTurn),
            (stopped(StopReason::ToolUse), Reason::EndTurn),
            (stopped(StopReason::Length), Reason::MaxTokens),
            (stopped(StopReason::ContextLength), Reason::MaxTokens),
            (stopped(StopReason::MaxSteps), Reason::MaxTurnRequests),
            (stopped(StopReason::Budget), Reason::MaxTurnRequests),
            (
                RunOutcome::Failed { failure: Failure::Budget { report: Box::default() } },
                Reason::MaxTurnRequests,
            ),
            (stopped(StopReason::Refusal), Reason::Refusal),
            (stopped(StopReason::Interrupted), Reason::Cancelled),
            (RunOutcome::Cancelled, Reason::Cancelled),
        ] {
            let mut prompts = UnansweredEditorPrompts::default();
            let mut answer = began(&mut prompts, "a");
            end(&mut prompts, "a", outcome.clone());
            assert_eq!(answer.try_recv().unwrap().unwrap(), expected, "{outcome:?}");
        }
    }

    #[test]
    fn end_of_an_earlier_run_answers_no_later_prompt() {
        let mut prompts = UnansweredEditorPrompts::default();
        let mut answer = prompts.add("a".into()).unwrap();
        prompts.accepted(&"a".into());
        end_run(&mut prompts, false);
        assert!(answer.try_recv().is_err());
        begin(&mut prompts, "a", 1);
        end(&mut prompts, "a", stopped(StopReason::Stop));
        assert_eq!(answer.try_recv().unwrap().unwrap(), Reason::EndTurn);
    }

    #[test]
    fn staged_prompt_ends_the_turn_before_it_and_is_cancelled_if_unused() {
        let mut prompts = UnansweredEditorPrompts::default();
        let mut first = began(&mut prompts, "a");
        let mut second = prompts.add("b".into()).unwrap();
        state(&mut prompts, "b", PromptState::Staged);
        let mut third = prompts.add("c".into()).unwrap();
        state(&mut prompts, "c", PromptState::Staged);
        state(&mut prompts, "a", PromptState::Ended { outcome: stopped(StopReason::Stop) });
        end_run(&mut prompts, true);
        assert_eq!(first.try_recv().unwrap().unwrap(), Reason::EndTurn);
        begin(&mut prompts, "b", 2);
        state(&mut prompts, "b", PromptState::Ended { outcome: stopped(StopReason::Length) });
        state(&mut prompts, "c", PromptState::Returned);
        end_run(&mut prompts, false);
        assert_eq!(second.try_recv().unwrap().unwrap(), Reason::MaxTokens);
        assert_eq!(third.try_recv().unwrap().unwrap(), Reason::Cancelled);
        assert!(prompts.is_empty());
    }

    #[test]
    fn turn_in_flight_is_abandoned_until_a_prompt_of_another_client_is_used() {
        let turn = TurnId::new;
        let mut prompts = UnansweredEditorPrompts::default();
        let _answer = prompts.add("a".into()).unwrap();
        assert_eq!(prompts.abandoned().staged, ["a".into()]);
        begin(&mut prompts, "a", 1);
        assert_eq!((prompts.abandoned().turn, prompts.abandoned().staged), (Some(turn(1)), vec![]));
        // A callback has continued the run.
        end_run(&mut prompts, true);
        let message = Arc::new(Message::user("Continue"));
        prompts.event(&Event::Message { message, step: 2, turn: turn(2), run: 1 });
        assert_eq!(prompts.abandoned().turn, Some(turn(2)));
        // A prompt of another client joins the turn, and then one begins the next turn.
        begin(&mut prompts, "b", 2);
        assert_eq!(prompts.abandoned().turn, Some(turn(2)));
        state(&mut prompts, "a", PromptState::Ended { outcome: stopped(StopReason::Stop) });
        end_run(&mut prompts, true);
        begin(&mut prompts, "c", 3);
        assert_eq!(prompts.abandoned().turn, None);
    }

    #[test]
    fn cancelled_prompt_is_cancelled_however_its_run_ends() {
        let mut prompts = UnansweredEditorPrompts::default();
        let mut answer = began(&mut prompts, "a");
        prompts.cancel();
        assert!(prompts.is_cancelled(&"a".into()));
        prompts.closed("its agent ended");
        assert_eq!(answer.try_recv().unwrap().unwrap(), Reason::Cancelled);
    }

    #[test]
    fn prompts_above_the_limit_are_refused() {
        let mut prompts = UnansweredEditorPrompts::default();
        let waiting: Vec<_> = (0..MOST).map(|n| prompts.add(n.to_string().as_str().into())).collect();
        assert!(waiting.iter().all(Option::is_some));
        assert!(prompts.add("one more".into()).is_none());
        prompts.remove(&"0".into());
        assert!(prompts.add("one more".into()).is_some());
    }
}
