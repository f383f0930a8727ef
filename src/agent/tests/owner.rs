//! An agent whose history has an owner: setting the history, and running on another history.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{
        AgentBuilder, AgentSubscription, Event, FirstMessageOfRun, HistoryChangeRight, Prompt, Snapshot,
        Status, ToolDecision,
    },
    message::{Content, History, HistoryError, Message, ToolResult, ToolUse},
    provider::{ProviderError, ProviderErrorKind},
    run::{Error, ErrorKind},
    subscription::{EventId, Update},
    telemetry::CallerSpan,
    testing::{Gate, Step},
    tool::Decision,
};
use futures_channel::mpsc;
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, brief, reached, sent},
    rig::{Act, At, Misbehaving, answered, echo, echoing},
    support::{apply, name, names, returned, scripted},
};

/// The history with which the agents begin.
const BEFORE: [&str; 2] = ["user: Old", "assistant: Known"];
/// Another history.
const BASE: [&str; 2] = ["user: Root", "assistant: Trunk"];

fn before() -> History {
    History::from_iter([Message::user("Old"), Message::assistant("Known")])
}

fn base() -> History {
    History::from_iter([Message::user("Root"), Message::assistant("Trunk")])
}

/// A history whose last message has an open tool use.
fn open_ended() -> History {
    let tool_use = ToolUse::new("open", "look", json!({}));
    History::from_iter([Message::user("Look"), Message::assistant(tool_use)])
}

fn briefs(history: &History) -> Vec<String> {
    history.iter().map(|message| brief(message)).collect()
}

impl HistoryChangeRight {
    /// Starts a run on `base` with a prompt.
    async fn prompt(
        &self,
        at: Option<EventId>,
        base: History,
        prompt: impl Into<Prompt>,
    ) -> Result<EventId, Error> {
        let opening = FirstMessageOfRun::Prompt(prompt.into());
        self.begin(at, base, opening, None, CallerSpan::default()).await.map(|(with, _)| with)
    }

    /// Starts a run on `base` in which the model answers an existing message again.
    async fn answer(
        &self,
        at: Option<EventId>,
        base: History,
        message: Arc<Message>,
    ) -> Result<EventId, Error> {
        let opening = FirstMessageOfRun::Message(message, Prompt::default());
        self.begin(at, base, opening, None, CallerSpan::default()).await.map(|(with, _)| with)
    }
}

async fn owned(builder: AgentBuilder) -> (Watched, HistoryChangeRight) {
    let (agent, owner) = builder.history(before()).start_owned().await.unwrap();
    (Watched::of(agent).await, owner)
}

/// Checks that the run ends with `end` and that the next event restores the previous history.
async fn rolled_back(agent: &mut Watched, end: &str) {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|event: &Arc<Event>| !super::support::ends_run(event)) {
        seen.push(agent.next().await);
    }
    let next = agent.next().await;
    assert_eq!(name(seen.last().unwrap()), end);
    let Event::State(state) = &*next else { panic!("{next:?} follows {end}") };
    assert_eq!(briefs(&state.history), BEFORE);
}

/// The next event with its id.
async fn numbered(events: &mut AgentSubscription) -> (EventId, Arc<Event>) {
    match answered(events.next()).await {
        Some(Update::Event(numbered)) => (numbered.id, numbered.event),
        other => panic!("expected an event, got {other:?}"),
    }
}

// ---- runs on another history ----

#[tokio::test(start_paused = true)]
async fn prompt_on_base_state_event_first_with_the_returned_id() {
    let (provider, builder) = scripted([Step::text("Leaf")]);
    let (mut agent, owner) = owned(builder).await;
    let mut events = agent.agent.subscribe().await.unwrap();
    let id = owner.prompt(None, base(), "Hi").await.unwrap();
    let (first, event) = numbered(&mut events).await;
    assert_eq!(first, id);
    let Event::State(state) = &*event else { panic!("{event:?}") };
    assert_eq!(briefs(&state.history), BASE);
    let names = names(&agent.end().await);
    assert_eq!(names[..3], ["state", "status(busy)", "message(user)"]);
    assert_eq!(names.iter().filter(|name| *name == "state").count(), 1, "{names:?}");
    assert_eq!(sent(&provider.requests()[0]), ["user: Root", "assistant: Trunk", "user: Hi"]);
    assert_eq!(agent.history().await, ["user: Root", "assistant: Trunk", "user: Hi", "assistant: Leaf"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_on_base_applies_its_options_and_limits() {
    let (provider, builder) = scripted([Step::tool_use("t1", "echo", json!({}))]);
    let (mut agent, owner) = owned(builder.tool(echo())).await;
    owner.prompt(None, base(), Prompt::new("Hi").with_max_steps(1)).await.unwrap();
    let response = super::hooks::stopped(&agent.end().await);
    assert_eq!(response.stop_reason, crate::provider::StopReason::MaxSteps);
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn prompt_on_base_with_open_tool_uses_answers_them() {
    let (provider, builder) = scripted([Step::text("Seen"), Step::text("Well")]);
    let (mut agent, owner) = owned(builder).await;
    let result = ToolResult::ok(&ToolUse::new("open", "look", json!({})), "a cat");
    owner.prompt(None, open_ended(), vec![Content::from(result)]).await.unwrap();
    agent.end().await;
    owner.prompt(None, open_ended(), "Never mind").await.unwrap();
    agent.end().await;
    let closing = |index: usize| sent(&provider.requests()[index]).pop().unwrap();
    assert_eq!(
        (closing(0).as_str(), closing(1).as_str()),
        ("user: result open", "user: result open, Never mind")
    );
}

#[tokio::test(start_paused = true)]
async fn answer_message_is_sent_unchanged() {
    let (provider, builder) = scripted([Step::text("Anew")]);
    let (mut agent, owner) = owned(builder).await;
    let message = Arc::clone(before().first().unwrap());
    let id = owner.answer(None, History::new(), Arc::clone(&message)).await.unwrap();
    assert_eq!(id, EventId { number: 1, ..id });
    let events = agent.end().await;
    let Event::Message { message: emitted, .. } = &*events[2] else { panic!("{:?}", names(&events)) };
    assert!(Arc::ptr_eq(emitted, &message));
    assert_eq!(sent(&provider.requests()[0]), ["user: Old"]);
    let history = agent.agent.state().await.unwrap().history().clone();
    assert!(Arc::ptr_eq(history.first().unwrap(), &message));
    assert_eq!(briefs(&history), ["user: Old", "assistant: Anew"]);
}

#[tokio::test(start_paused = true)]
async fn answer_message_with_results_for_open_tool_uses_sends_them() {
    let (provider, builder) = scripted([Step::text("Seen")]);
    let (mut agent, owner) = owned(builder).await;
    let result = ToolResult::ok(&ToolUse::new("open", "look", json!({})), "a cat");
    owner.answer(None, open_ended(), Arc::new(Message::user(result))).await.unwrap();
    agent.end().await;
    assert_eq!(sent(&provider.requests()[0])[2], "user: result open");
    agent.check().await;
}

#[tokio::test(start_paused = true)]
async fn answer_cancelled_previous_history_restored() {
    let (_, builder) = scripted([Step::new().hang()]);
    let (mut agent, owner) = owned(builder).await;
    owner.answer(None, History::new(), Arc::new(Message::user("Old"))).await.unwrap();
    agent.agent.cancel().await.unwrap();
    rolled_back(&mut agent, "cancelled").await;
    agent.check().await;
}

// ---- before the first commit, everything is rolled back ----

const IN_A_RUN: [At; 5] =
    [At::PrepareStep, At::HandleToolUse, At::HandleToolResult, At::HandleTurn, At::HandleError];

/// Starts a run on another history. The run reaches the callback `at`, which misbehaves.
async fn misbehaving(at: At, act: Act) -> (Watched, HistoryChangeRight, Gate) {
    let gate = Gate::new();
    let callbacks = Misbehaving { at, act, gate: gate.clone(), done: false };
    let builder = echoing([at.step(), Step::text("Again.")]).callbacks(callbacks);
    let (agent, owner) = owned(builder).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    (agent, owner, gate)
}

#[tokio::test(start_paused = true)]
async fn cancel_before_the_first_commit_previous_history_restored() {
    for at in IN_A_RUN {
        let (mut agent, _owner, gate) = misbehaving(at, Act::Hang).await;
        reached(&gate).await;
        let view = answered(agent.agent.snapshot()).await.unwrap();
        assert_eq!(briefs(&view.state.history), BASE, "{at:?}");
        answered(agent.agent.cancel()).await.unwrap();
        assert_eq!(agent.history().await, BEFORE, "{at:?}: immediately");
        rolled_back(&mut agent, "cancelled").await;
        agent.check().await;
        agent.agent.prompt("And now").await.unwrap();
        agent.end().await;
        assert_eq!(agent.history().await[..2], BEFORE, "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn callback_panics_before_the_first_commit_previous_history_restored() {
    for at in IN_A_RUN {
        for act in [Act::Panic, Act::Spoil] {
            let (mut agent, _owner, _) = misbehaving(at, act).await;
            rolled_back(&mut agent, "error").await;
            agent.check().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stop_discarding_before_the_first_commit_last_snapshot_has_the_previous_history() {
    for at in IN_A_RUN {
        let (mut agent, owner, gate) = misbehaving(at, Act::Hang).await;
        reached(&gate).await;
        answered(agent.agent.stop_discarding(Duration::from_secs(1))).await.unwrap();
        rolled_back(&mut agent, "cancelled").await;
        let last = agent.agent.end().unwrap().snapshot.unwrap();
        assert_eq!(briefs(&last.state.history), BEFORE, "{at:?}");
        assert_eq!(last.state.history, agent.view.state.history, "{at:?}");
        let after = answered(owner.set(None, base())).await;
        let error = after.unwrap_err();
        assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"stopped".into())));
    }
}

#[tokio::test(start_paused = true)]
async fn failure_before_the_first_commit_previous_history_restored() {
    let refused = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    for step in [refused, Step::new().panic("broke"), Step::new().hang()] {
        let (_, builder) = scripted([step, Step::text("Again.")]);
        let (mut agent, owner) = owned(builder).await;
        let prompt = Prompt::new("Hi").with_turn_timeout(Duration::from_secs(9));
        owner.prompt(None, base(), prompt).await.unwrap();
        rolled_back(&mut agent, "error").await;
        agent.check().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failure_that_keeps_a_text_stays_on_the_new_history() {
    let half = || Step::new().then_text(["Half"]);
    for step in [half().panic("broke"), half().hang()] {
        let (_, builder) = scripted([step, Step::text("Again.")]);
        let (mut agent, owner) = owned(builder).await;
        let prompt = Prompt::new("Hi").with_turn_timeout(Duration::from_secs(9));
        owner.prompt(None, base(), prompt).await.unwrap();
        agent.end().await;
        assert_eq!(agent.history().await, [BASE[0], BASE[1], "user: Hi", "assistant: Half"]);
    }
}

#[tokio::test(start_paused = true)]
async fn interrupt_nothing_to_keep_previous_history_restored() {
    let (_, builder) = scripted([Step::new().hang()]);
    let (mut agent, owner) = owned(builder).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.agent.interrupt().await.unwrap();
    rolled_back(&mut agent, "cancelled").await;
}

#[tokio::test(start_paused = true)]
async fn cancel_staged_prompt_carried_back_and_started_on_neither_history() {
    let (_, builder) = scripted([Step::new().hang()]);
    let (mut agent, owner) = owned(builder).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.agent.prompt("staged").await.unwrap();
    agent.agent.cancel().await.unwrap();
    let mut events = agent.until("prompt(returned)").await;
    events.push(agent.next().await);
    assert_eq!(names(&events).last().unwrap(), "cancelled");
    assert_eq!(returned(&events)[0].content, "staged".into());
    agent.until("state").await;
    agent.check().await;
    assert_eq!(agent.view.status, Status::Idle);
}

#[tokio::test(start_paused = true)]
async fn notify_waiting_when_the_run_is_cancelled_sees_the_previous_history() {
    let seen = Log::<Vec<String>>::default();
    let log = seen.clone();
    let hooks = Hooks::new().on_event(move |_, state| {
        log.push(briefs(state.history()));
        Some("From the event".into())
    });
    let (provider, builder) = scripted([Step::new().hang(), Step::text("Noted")]);
    let (mut agent, owner) = owned(builder.callbacks(hooks)).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.agent.notify("an event").await.unwrap();
    agent.agent.cancel().await.unwrap();
    rolled_back(&mut agent, "cancelled").await;
    agent.end().await;
    assert_eq!(seen.all(), [BEFORE]);
    let expected = ["user: Old", "assistant: Known", "user: From the event", "assistant: Noted"];
    assert_eq!(agent.history().await, expected);
    assert_eq!(sent(&provider.last_request().unwrap()), expected[..3]);
}

#[tokio::test(start_paused = true)]
async fn cancel_run_begun_while_handle_event_hangs_previous_history_restored() {
    let gate = Gate::new();
    let callbacks = Misbehaving { at: At::HandleEvent, act: Act::Hang, gate: gate.clone(), done: false };
    let (mut agent, owner) = owned(echoing([Step::text("Again.")]).callbacks(callbacks)).await;
    agent.agent.notify("an event").await.unwrap();
    reached(&gate).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.until("message(user)").await;
    agent.agent.cancel().await.unwrap();
    rolled_back(&mut agent, "cancelled").await;
    agent.check().await;
}

// ---- after the first commit, nothing is rolled back ----

#[tokio::test(start_paused = true)]
async fn interrupt_with_something_to_keep_commits_on_the_base() {
    let (_, builder) = scripted([Step::new().then_text(["Half"]).hang()]);
    let (mut agent, owner) = owned(builder).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.until("text_delta").await;
    agent.agent.interrupt().await.unwrap();
    agent.end().await;
    let last = agent.agent.snapshot().await.unwrap().last;
    assert_eq!(agent.history().await, ["user: Root", "assistant: Trunk", "user: Hi", "assistant: Half"]);
    assert_eq!(owner.position().await.unwrap().last, last, "no state event follows");
}

/// How the second turn of a run ends early.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    Cancelled,
    Failed,
}

/// Ends the second turn of a run early, and checks that the first turn remains committed.
async fn cut_second(staged: bool, cut: Cut) {
    let gate = Gate::new();
    let second = match cut {
        Cut::Cancelled => Step::new().hang(),
        Cut::Failed => Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
    };
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["Leaf"]).stop(), second]);
    let hooks = if staged { Hooks::new() } else { Hooks::new().continuing(["More"]) };
    let (mut agent, owner) = owned(builder.callbacks(hooks)).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    reached(&gate).await;
    if staged {
        agent.agent.prompt("More").await.unwrap();
    }
    gate.open();
    agent.until("turn(continue)").await;
    agent.until("message(user)").await;
    if cut == Cut::Cancelled {
        agent.agent.cancel().await.unwrap();
    }
    let events = agent.end().await;
    let end = if cut == Cut::Cancelled { "cancelled" } else { "error" };
    assert_eq!(name(events.last().unwrap()), end, "{staged} {cut:?}");
    assert_eq!(agent.history().await, ["user: Root", "assistant: Trunk", "user: Hi", "assistant: Leaf"]);
    let subscription = agent.agent.subscribe().await.unwrap();
    let now = owner.position().await.unwrap();
    assert_eq!((now.last, now.status), (subscription.last_id(), Status::Idle));
    // The next event belongs to `owner.set`, so no other `state` event was emitted before it.
    let id = owner.set(None, before()).await.unwrap();
    assert_eq!(name(&*agent.next().await), "state", "{staged} {cut:?}");
    assert_eq!(id.number, now.last.number + 1);
}

#[tokio::test(start_paused = true)]
async fn cancel_or_failure_in_a_continuation_first_turn_stays() {
    cut_second(false, Cut::Cancelled).await;
    cut_second(false, Cut::Failed).await;
}

#[tokio::test(start_paused = true)]
async fn cancel_or_failure_in_a_staged_prompts_turn_first_turn_stays() {
    cut_second(true, Cut::Cancelled).await;
    cut_second(true, Cut::Failed).await;
}

#[tokio::test(start_paused = true)]
async fn cancel_of_an_ordinary_run_after_one_on_a_base_rolls_nothing_back() {
    let (_, builder) = scripted([Step::text("Leaf"), Step::new().hang()]);
    let (mut agent, owner) = owned(builder).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.end().await;
    agent.agent.prompt("And").await.unwrap();
    agent.agent.cancel().await.unwrap();
    agent.end().await;
    assert_eq!(agent.history().await, ["user: Root", "assistant: Trunk", "user: Hi", "assistant: Leaf"]);
}

// ---- setting the history, and refused operations ----

#[tokio::test(start_paused = true)]
async fn set_idle_agent_replaced_and_emitted_with_the_returned_id() {
    let (_, builder) = scripted([]);
    let (mut agent, owner) = owned(builder).await;
    let mut events = agent.agent.subscribe().await.unwrap();
    let id = owner.set(None, base()).await.unwrap();
    let (at, event) = numbered(&mut events).await;
    assert_eq!((at, name(&event).as_str()), (id, "state"));
    agent.until("state").await;
    agent.check().await;
    assert_eq!(agent.history().await, BASE);
}

/// Asserts that every operation of the owner is refused and changes nothing.
async fn assert_busy(agent: &Watched, owner: &HistoryChangeRight, status: Status) {
    let snapshot = answered(agent.agent.snapshot()).await.unwrap();
    let message = Arc::new(Message::user("Hi"));
    for refused in [
        answered(owner.set(None, base())).await,
        answered(owner.prompt(None, base(), "Hi")).await,
        answered(owner.answer(None, base(), message)).await,
    ] {
        let error = refused.unwrap_err();
        assert_eq!((error.kind(), error.typed("activity")), (ErrorKind::Busy, Some(status)));
    }
    assert_eq!(answered(agent.agent.snapshot()).await.unwrap(), snapshot);
}

async fn assert_moment(agent: &Watched, owner: &HistoryChangeRight, status: Status) {
    let moment = answered(owner.position()).await.unwrap();
    let last = answered(agent.agent.snapshot()).await.unwrap().last;
    assert_eq!((moment.last, moment.status), (last, status));
}

#[tokio::test(start_paused = true)]
async fn owner_while_a_run_is_active_refused_and_moment_returned() {
    for at in IN_A_RUN {
        let (agent, owner, gate) = misbehaving(at, Act::Hang).await;
        reached(&gate).await;
        assert_busy(&agent, &owner, Status::Busy).await;
        assert_moment(&agent, &owner, Status::Busy).await;
    }
}

#[tokio::test(start_paused = true)]
async fn owner_while_the_agent_streams_or_is_paused_refused_and_moment_returned() {
    let hooks = Hooks::new().deciding([("echo", ToolDecision::Pause(Value::Null))]);
    let gate = Gate::new();
    let step =
        Step::new().then_text(["Let me see"]).gate(&gate).then_tool_use("t1", "echo", json!({})).stop();
    let (mut agent, owner) = owned(echoing([step, Step::text("Done")]).callbacks(hooks)).await;
    assert_moment(&agent, &owner, Status::Idle).await;
    agent.agent.prompt("Hi").await.unwrap();
    agent.until("text_delta").await;
    assert_busy(&agent, &owner, Status::Busy).await;
    assert_moment(&agent, &owner, Status::Busy).await;
    gate.open();
    agent.until("pause").await;
    assert_busy(&agent, &owner, Status::Paused).await;
    assert_moment(&agent, &owner, Status::Paused).await;
    agent.agent.resume("t1", Decision::Execute).await.unwrap();
    agent.end().await;
    assert_moment(&agent, &owner, Status::Idle).await;
}

#[tokio::test(start_paused = true)]
async fn owner_no_room_in_the_commit_channel_answered_and_delivered_in_order() {
    let (sender, mut receiver) = mpsc::channel(0);
    let builder = scripted([Step::text("Leaf")]).1.history(before()).commit_channel(sender);
    let (agent, owner) = builder.start_owned().await.unwrap();
    let set = answered(owner.set(None, History::new())).await.unwrap();
    let begun = answered(owner.prompt(None, base(), "Hi")).await.unwrap();
    let moment = answered(owner.position()).await.unwrap();
    assert_eq!((set.number, begun.number, moment.last.number), (1, 2, 4));
    assert_eq!(moment.status, Status::Busy);
    answered(agent.cancel()).await.unwrap();
    let last = answered(owner.position()).await.unwrap().last;
    let mut events_seen = Vec::new();
    while events_seen.len() < usize::try_from(last.number).unwrap() {
        let delivery = answered(receiver.next()).await.unwrap();
        events_seen.push(Arc::clone(&delivery.event.as_ref().unwrap().event));
        assert_eq!(delivery.event.as_ref().unwrap().id.number, events_seen.len() as u64);
    }
    assert_eq!(
        names(&events_seen),
        ["state", "state", "status(busy)", "message(user)", "status(idle)", "cancelled", "state"]
    );
    let lengths: Vec<_> = events_seen
        .iter()
        .filter_map(|event| match &**event {
            Event::State(state) => Some(state.history.len()),
            _ => None,
        })
        .collect();
    assert_eq!(lengths, [0, 2, 0]);
}

#[tokio::test(start_paused = true)]
async fn owner_far_behind_in_the_commit_channel_refused_until_it_is_read() {
    let (sender, mut receiver) = mpsc::channel(0);
    let builder = scripted([]).1.commit_channel(sender);
    let (_agent, owner) = builder.start_owned().await.unwrap();
    let mut set = 0;
    let refused = loop {
        match answered(owner.set(None, base())).await {
            Ok(id) => set = id.number,
            Err(error) => break error,
        }
        assert!(set < 10_000, "the number of waiting events is not bounded");
    };
    assert_eq!(refused.kind(), ErrorKind::Backlog, "{refused:?}");
    let refused = answered(owner.prompt(None, base(), "Hi")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Backlog);
    assert_eq!(answered(owner.position()).await.unwrap().last.number, set);
    for _ in 0..set {
        answered(receiver.next()).await.unwrap();
    }
    answered(owner.set(None, before())).await.unwrap();
}

/// A function that checks whether an operation failed for a particular reason.
type Reason = fn(&Error) -> bool;

#[tokio::test(start_paused = true)]
async fn prompt_or_base_invalid_refused_and_no_event_emitted() {
    let (provider, builder) = scripted([]);
    let (agent, owner) = owned(builder).await;
    let unlawful = || History::from_iter([Message::user("Hi")]);
    let stray = || ToolResult::ok(&ToolUse::new("stray", "look", json!({})), "what?");
    let user = |content: Vec<Content>| Arc::new(Message::user(content));
    let invalid_history: Reason = |error| {
        let cause = error.cause().and_then(|cause| cause.downcast_ref());
        error.kind() == ErrorKind::Config && matches!(cause, Some(HistoryError::EndsInPrompt { index: 0 }))
    };
    let invalid_prompt: Reason = |error| error.kind() == ErrorKind::InvalidPrompt;
    let empty: Reason = |error| error.kind() == ErrorKind::EmptyPrompt;
    let no_prompt: Reason = |error| error.kind() == ErrorKind::NotAPrompt;
    let zero: Reason = |error| error.kind() == ErrorKind::InvalidSettings;
    let attempts = [
        (owner.set(None, unlawful()).await, invalid_history),
        (owner.prompt(None, unlawful(), "Hi").await, invalid_history),
        (owner.answer(None, unlawful(), user(vec!["Hi".into()])).await, invalid_history),
        (owner.prompt(None, base(), " ").await, empty),
        (owner.answer(None, base(), user(vec![" ".into()])).await, empty),
        (owner.prompt(None, base(), Prompt::new("Hi").with_max_steps(0)).await, zero),
        (owner.prompt(None, base(), vec![Content::from(stray())]).await, invalid_prompt),
        (owner.answer(None, open_ended(), user(vec!["Hi".into()])).await, invalid_prompt),
        (
            owner.answer(None, base(), user(vec![ToolUse::new("a", "look", json!({})).into()])).await,
            invalid_prompt,
        ),
        (owner.answer(None, base(), user(vec![stray().into()])).await, invalid_prompt),
        (owner.answer(None, open_ended(), user(vec![stray().into()])).await, invalid_prompt),
        (owner.answer(None, base(), Arc::new(Message::assistant("Hi"))).await, no_prompt),
    ];
    for (place, (attempt, reason)) in attempts.iter().enumerate() {
        let error = attempt.as_ref().unwrap_err();
        assert!(reason(error), "attempt {place}: {error:?}");
    }
    let moment = owner.position().await.unwrap();
    assert_eq!((moment.last.number, moment.status), (0, Status::Idle));
    assert_eq!(agent.history().await, BEFORE);
    assert!(provider.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn init_changes_an_owned_history_refused() {
    let changing = || {
        Hooks::new().on_init(|draft, _| {
            draft.history = History::new();
            Ok(())
        })
    };
    let builder = || scripted([]).1.history(before()).callbacks(changing());
    let started = builder().start_owned().await;
    let error = started.unwrap_err();
    assert!(error.to_string().starts_with("the history belongs to the agent's session"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    builder().start().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn set_state_changes_an_owned_history_refused_and_nothing_changed() {
    let (_, builder) = scripted([]);
    let (agent, owner) = owned(builder).await;
    let set = agent.agent.set_state(|draft| {
        draft.config.settings.system = Some("changed".into());
        draft.history.push(Message::assistant("Psst"));
        Ok(())
    });
    let set = set.await;
    let error = set.unwrap_err();
    assert!(error.to_string().starts_with("the history belongs to the agent's session"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    let state = agent.agent.state().await.unwrap();
    assert_eq!(
        (state.config().settings.system.as_deref(), briefs(state.history())),
        (None, briefs(&before()))
    );
    assert_eq!(owner.position().await.unwrap().last.number, 0);
}

#[tokio::test(start_paused = true)]
async fn set_state_leaves_an_owned_history_configuration_changed() {
    let (_, builder) = scripted([]);
    let (agent, _owner) = owned(builder).await;
    let own = agent.agent.state().await.unwrap().history().clone();
    let set = agent.agent.set_state(|draft| {
        draft.config.settings.system = Some("changed".into());
        // The edited history consists of copies of the messages. It equals the agent's history, so the edit is not
        // refused.
        draft.history = draft.history.iter().map(|message| Message::clone(message)).collect();
        Ok(())
    });
    set.await.unwrap();
    let state = agent.agent.state().await.unwrap();
    assert_eq!(state.config().settings.system.as_deref(), Some("changed"));
    assert!(Arc::ptr_eq(state.history().first().unwrap(), own.first().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn owner_kept_agent_dropped_ends_and_reports_why() {
    let (agent, owner) = scripted([]).1.start_owned().await.unwrap();
    drop(agent);
    let moment = answered(owner.position()).await;
    let error = moment.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"handles_dropped".into())));
    let set = answered(owner.set(None, base())).await;
    let error = set.unwrap_err();
    assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"handles_dropped".into())));
}

#[tokio::test(start_paused = true)]
async fn snapshot_in_a_run_on_a_base_and_the_later_events_match_the_agent() {
    let (_, builder) = scripted([Step::new().then_text(["Half"]).hang()]);
    let (mut agent, owner) = owned(builder).await;
    owner.prompt(None, base(), "Hi").await.unwrap();
    agent.until("text_delta").await;
    let mut view: Snapshot = agent.agent.snapshot().await.unwrap();
    agent.agent.cancel().await.unwrap();
    for expected in ["status(idle)", "cancelled", "state"] {
        let event = agent.next().await;
        assert_eq!(name(&event), expected);
        apply(&mut view, &event);
    }
    let truth = agent.agent.snapshot().await.unwrap();
    view.last = truth.last;
    assert_eq!(view, truth);
}
