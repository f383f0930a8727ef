//! Ends and voids that single events and snapshots state.

use crate::{
    agent::{Event, Failure, Response, RunEnd, RunOutcome},
    agent::{Follow, FollowFrom, FollowTarget, Prompt, PromptId, PromptState, RunProgress, Snapshot, Status},
    message::{History, Message, MessageId, TurnId},
    provider::StopReason,
    run::{Accepted, KnownPrompt},
    subscription::EventId,
};
use std::{sync::Arc, time::Duration};

const TURN: TurnId = TurnId::new(1);
const NEXT: TurnId = TurnId::new(2);

/// A follower, and the progress that it has reported.
struct Reader(Follow, Vec<String>);

impl Reader {
    fn of(id: &str) -> Self {
        Self(Follow::new(FollowTarget::Prompt(id.into()), FollowFrom::Start), Vec::new())
    }

    fn event(&mut self, event: &Event) {
        self.0.event(event, &mut |progress| self.1.push(words(progress)));
    }

    fn events(&mut self, events: &[Event]) {
        for event in events {
            self.event(event);
        }
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        let history = &snapshot.state.history;
        self.0.snapshot(history, snapshot, &mut |progress| self.1.push(words(progress)));
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.1)
    }
}

fn words(progress: RunProgress<'_>) -> String {
    match progress {
        RunProgress::Turn(turn) if turn == TURN => "turn 1".to_owned(),
        RunProgress::Turn(_) => "turn 2".to_owned(),
        RunProgress::User(message) => format!("user {}", message.text()),
        RunProgress::Answer(message) => format!("answer {}", message.text()),
        RunProgress::Request { .. } => "request".to_owned(),
        RunProgress::Block { new, ended, .. } => format!("block {new}{}", if ended { "." } else { "" }),
        RunProgress::Void { failure, .. } => format!("void {}", failure.is_some()),
        RunProgress::Ended { outcome, response, message } => {
            let outcome = match outcome {
                Some(RunOutcome::Stopped { .. }) => "stopped",
                Some(RunOutcome::Cancelled) => "cancelled",
                Some(RunOutcome::Failed { .. }) => "failed",
                Some(_) => "other",
                None => "unknown",
            };
            let message = message.map(|message| message.text()).unwrap_or_default();
            format!("ended {outcome} {} {message}", response.is_some())
        }
        RunProgress::Returned { outcome } => format!("returned {}", outcome.is_some()),
        other => format!("{other:?}"),
    }
}

fn state(id: &str, state: PromptState) -> Event {
    Event::Prompt { id: id.into(), state, prompt: None }
}

fn stopped() -> RunOutcome {
    RunOutcome::Stopped { stop_reason: StopReason::Stop }
}

fn user(id: &str) -> Arc<Message> {
    Arc::new(Message { id: Some(MessageId::from(PromptId::new(id))), ..Message::user(id) })
}

fn answer(turn: TurnId, text: &str) -> Arc<Message> {
    Arc::new(Message { id: Some(MessageId::made(turn, 1)), ..Message::assistant(text) })
}

fn message(message: &Arc<Message>, turn: TurnId) -> Event {
    Event::Message { message: Arc::clone(message), step: 1, turn, run: 1 }
}

fn request(turn: TurnId) -> Event {
    Event::StepStart { step: 1, message_id: MessageId::made(turn, 1) }
}

fn text(delta: &str) -> Event {
    Event::TextDelta { index: 0, delta: delta.to_owned() }
}

fn response(message: Option<Arc<Message>>) -> Arc<Response> {
    Arc::new(Response { message, turn: Some(TURN), ..Response::empty("model", StopReason::Stop, 1, 1) })
}

/// Returns the events of the turn of the prompt `a`, whose answer is `text`, up to its commit.
fn turn(whole: &Arc<Message>) -> Vec<Event> {
    vec![
        state("a", PromptState::InFlight { turn: TURN }),
        message(&user("a"), TURN),
        request(TURN),
        Event::TextStart { index: 0 },
        text("Ye"),
        message(whole, TURN),
    ]
}

fn snapshot(history: Vec<Arc<Message>>, prompts: Vec<KnownPrompt>) -> Snapshot {
    let history: History = history.into_iter().map(|message| Message::clone(&message)).collect();
    let core = crate::agent::core::simulation::process::idle_snapshot(history);
    Snapshot { prompts, run: 1, last: EventId { life: 0, number: 9 }, ..core }
}

#[test]
fn rest_of_an_answer_is_reported_with_its_message() {
    let mut reader = Reader::of("a");
    reader.events(&turn(&answer(TURN, "Yes.")));
    let expected =
        ["turn 1", "user a", "request", "block ", "block Ye", "block s..", "answer Yes."].map(str::to_owned);
    assert_eq!(reader.take(), expected);
}

#[test]
fn end_that_was_stated_before_the_end_event_has_its_response() {
    let (mut reader, whole) = (Reader::of("a"), answer(TURN, "Yes."));
    reader.events(&turn(&whole));
    reader.event(&state("a", PromptState::Ended { outcome: stopped() }));
    assert!(!reader.0.is_ended());
    reader.take();
    reader.event(&Event::Turn { response: response(Some(whole)), continues: true });
    assert_eq!(reader.take(), ["ended stopped true Yes."]);
    assert!(reader.0.is_ended());
}

#[test]
fn prompt_that_is_used_between_two_turns_ends_the_earlier_one_with_the_last_response() {
    let (mut reader, whole) = (Reader::of("a"), answer(TURN, "Yes."));
    reader.events(&turn(&whole));
    reader.event(&Event::Turn { response: response(Some(whole)), continues: true });
    reader.take();
    reader.event(&state("a", PromptState::Ended { outcome: stopped() }));
    assert_eq!(reader.take(), ["ended stopped true Yes."]);
    reader.event(&state("b", PromptState::InFlight { turn: NEXT }));
    reader.event(&message(&user("b"), NEXT));
    assert!(reader.take().is_empty());
}

#[test]
fn repetition_voids_the_answer_and_an_unkept_answer_is_void_at_the_end() {
    let (mut reader, whole) = (Reader::of("a"), answer(TURN, "Yes."));
    reader.events(&turn(&whole)[..5]);
    reader.take();
    let failure = Failure::Interrupted;
    reader.event(&Event::Retry {
        failure,
        delay: Duration::ZERO,
        pending: 1,
        complete: true,
        step: 2,
        model: None,
    });
    assert_eq!(reader.take(), ["void true"]);
    reader.event(&Event::StepStart { step: 2, message_id: MessageId::made(TURN, 2) });
    reader.event(&state("a", PromptState::Ended { outcome: RunOutcome::Cancelled }));
    reader.event(&Event::Cancelled { response: response(None) });
    assert_eq!(reader.take(), ["request", "void false", "ended cancelled true "]);
}

#[test]
fn snapshot_continues_where_the_events_stopped() {
    let (mut reader, whole) = (Reader::of("a"), answer(TURN, "Yes."));
    reader.events(&turn(&whole)[..5]);
    reader.take();
    let ended = KnownPrompt::new("a", PromptState::Ended { outcome: stopped() });
    reader.snapshot(&snapshot(vec![user("a"), whole], vec![ended]));
    assert_eq!(reader.take(), ["block s..", "answer Yes.", "ended stopped false Yes."]);
}

#[test]
fn prompt_whose_message_was_missed_is_read_from_its_message_on() {
    let whole = answer(TURN, "Yes.");
    for before in [Vec::new(), vec![user("z"), answer(NEXT, "No.")]] {
        let mut reader = Reader::of("a");
        if !before.is_empty() {
            reader.snapshot(&snapshot(before.clone(), Vec::new()));
        }
        reader.events(&turn(&whole)[..1]);
        assert_eq!(reader.take(), ["turn 1"]);
        let ended = KnownPrompt::new("a", PromptState::Ended { outcome: stopped() });
        let history = before.into_iter().chain([user("a"), whole.clone()]).collect();
        reader.snapshot(&snapshot(history, vec![ended]));
        let expected = ["user a", "request", "block Yes..", "answer Yes.", "ended stopped false Yes."];
        assert_eq!(reader.take(), expected);
    }
}

#[test]
fn snapshot_that_contains_other_text_voids_the_reported_text() {
    let mut reader = Reader::of("a");
    reader.events(&turn(&answer(TURN, ""))[..5]);
    reader.take();
    let ended = KnownPrompt::new("a", PromptState::Ended { outcome: stopped() });
    let other = Arc::new(Message { id: Some(MessageId::made(TURN, 2)), ..Message::assistant("No.") });
    reader.snapshot(&snapshot(vec![user("a"), other], vec![ended]));
    let expected = ["void false", "request", "block No..", "answer No.", "ended stopped false No."];
    assert_eq!(reader.take(), expected);
}

#[test]
fn unknown_prompt_ends_without_an_outcome_only_after_it_was_accepted() {
    let mut reader = Reader::of("a");
    reader.snapshot(&snapshot(Vec::new(), Vec::new()));
    assert!(reader.take().is_empty());
    reader.0.accepted(&Accepted::Started { turn: TURN });
    let mut other = Reader(reader.0.clone(), Vec::new());
    other.snapshot(&snapshot(Vec::new(), Vec::new()));
    assert_eq!(other.take(), ["ended unknown false "]);
    reader.snapshot(&snapshot(vec![user("a"), answer(TURN, "Yes.")], Vec::new()));
    let expected = ["turn 1", "user a", "request", "block Yes..", "answer Yes.", "ended unknown false Yes."];
    assert_eq!(reader.take(), expected);
}

#[test]
fn returned_prompt_has_the_outcome_of_the_run_unless_it_was_withdrawn() {
    let known = || vec![KnownPrompt::new("b", PromptState::Returned)];
    let mut reader = Reader::of("b");
    reader.event(&state("b", PromptState::Staged));
    let mut other = Reader(reader.0.clone(), Vec::new());
    reader.event(&state("b", PromptState::Returned));
    assert_eq!(reader.take(), ["Waiting", "returned false"]);

    let mut later = Reader(other.0.clone(), Vec::new());
    let prompt = Arc::new(Prompt::new("Hi").with_id("b"));
    let (id, state) = ("b".into(), PromptState::Returned);
    other.event(&Event::Prompt { id, state, prompt: Some(Arc::clone(&prompt)) });
    assert!(other.take().is_empty());
    other.event(&Event::Cancelled { response: response(None) });
    assert_eq!(other.take(), ["returned true"]);

    let end = RunEnd::new(RunOutcome::Cancelled).with_staged(vec![prompt]);
    later.snapshot(&Snapshot { last_run: Some(Arc::new(end)), ..snapshot(Vec::new(), known()) });
    assert_eq!(later.take(), ["returned true"]);
}

#[test]
fn prompt_that_joins_a_turn_is_read_from_its_message_on() {
    let mut reader = Reader::of("b");
    reader.events(&turn(&answer(TURN, "Yes.")));
    assert!(reader.take().is_empty());
    let pending = vec![user("a"), answer(TURN, "Yes."), user("b")];
    let known = |id| KnownPrompt::new(id, PromptState::InFlight { turn: TURN });
    let prompts = vec![known("a"), known("b")];
    let idle = snapshot(Vec::new(), prompts);
    reader.snapshot(&Snapshot { pending, status: Status::Busy, turn: Some(TURN), ..idle });
    assert_eq!(reader.take(), ["turn 1", "user b"]);
}
