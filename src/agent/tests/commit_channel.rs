//! The commit channel receives every event, in order. While it is full, the agent still serves commands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    agent::{Agent, AgentCallbacks, AgentCommitItem, Event, Response, State, Status, TurnDecision},
    run::ErrorKind,
    subscription::EndReason,
    testing::Step,
};
use async_trait::async_trait;
use futures_channel::mpsc;
use futures_util::StreamExt;

use super::{
    rig::{answered, echoing, unanswered},
    support::{ends_run, name, names, run_events, scripted},
};

/// Returns an agent whose commit channel holds one event, and the channel's receiver.
async fn cramped(steps: impl IntoIterator<Item = Step>) -> (Agent, mpsc::Receiver<AgentCommitItem>) {
    let (sender, receiver) = mpsc::channel(0);
    (echoing(steps).commit_channel(sender).start().await.unwrap(), receiver)
}

/// Receives the events with the numbers from `from` to `last`, and checks that no number is missing.
async fn receive(receiver: &mut mpsc::Receiver<AgentCommitItem>, from: u64, last: u64) -> Vec<Arc<Event>> {
    let mut events = Vec::new();
    for number in from..=last {
        let delivery = answered(receiver.next()).await.unwrap();
        assert_eq!(delivery.event.as_ref().unwrap().id.number, number);
        events.push(Arc::clone(&delivery.event.as_ref().unwrap().event));
    }
    events
}

#[tokio::test(start_paused = true)]
async fn run_receiver_slow_every_event_in_order_as_subscribers_see_them() {
    let (agent, mut receiver) =
        cramped([Step::new().then_text((0..500).map(|_| "x")).stop(), Step::text("More.")]).await;
    let mut events = agent.subscribe().await.unwrap();
    let seen = tokio::spawn(async move { run_events(&mut events).await });
    agent.prompt("Hi").await.unwrap();
    let mut delivered = Vec::new();
    while delivered.last().is_none_or(|event: &Arc<Event>| !ends_run(event)) {
        tokio::time::sleep(Duration::from_millis(7)).await;
        let delivery = answered(receiver.next()).await.unwrap();
        assert_eq!(delivery.event.as_ref().unwrap().id.number, delivered.len() as u64 + 1);
        delivered.push(Arc::clone(&delivery.event.as_ref().unwrap().event));
    }
    assert_eq!(seen.await.unwrap(), delivered);
}

#[tokio::test(start_paused = true)]
async fn run_no_room_agent_waits() {
    let (agent, mut receiver) = cramped([Step::new().then_text((0..50).map(|_| "x")).stop()]).await;
    agent.prompt("Hi").await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let snapshot = answered(agent.snapshot()).await.unwrap();
    // The prompt emits two events immediately. After these events, the agent waits for room.
    assert_eq!((snapshot.last.number, snapshot.status), (2, Status::Busy));
    unanswered(agent.wait_until_idle()).await;
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Arc<Event>| !ends_run(event)) {
        events.push(answered(receiver.next()).await.unwrap().event.unwrap().event);
    }
    answered(agent.wait_until_idle()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn set_state_and_prompt_no_room_done_and_delivered_in_order() {
    let (agent, mut receiver) = cramped([Step::text("Hello!")]).await;
    for n in 0..5 {
        let set = agent.set_state(move |draft| {
            draft.config.settings.system = Some(n.to_string().into());
            Ok(())
        });
        answered(set).await.unwrap();
    }
    answered(agent.prompt("Hi")).await.unwrap();
    let staged = answered(agent.prompt("staged")).await.unwrap();
    assert!(matches!(staged, crate::agent::Accepted::Staged { ahead: 0, .. }), "{staged:?}");
    assert_eq!(answered(agent.set_state(|_| Ok(()))).await.unwrap_err().kind(), ErrorKind::Busy);
    answered(agent.cancel()).await.unwrap();
    let mut systems = Vec::new();
    let mut rest = Vec::new();
    for _ in 0..11 {
        let delivery = answered(receiver.next()).await.unwrap();
        match &*delivery.event.as_ref().unwrap().event {
            Event::State(state) => {
                // The configuration in each delivery is the one that was in force at the delivery's event.
                assert_eq!(state.settings.system, delivery.config.settings.system);
                systems.push(state.settings.system.as_deref().unwrap().to_owned());
            }
            other => rest.push(name(other)),
        }
    }
    assert_eq!(systems, ["0", "1", "2", "3", "4"]);
    let run =
        ["status(busy)", "message(user)", "prompt(staged)", "status(idle)", "prompt(returned)", "cancelled"];
    assert_eq!(rest, run);
}

#[tokio::test(start_paused = true)]
async fn prompt_and_cancel_storm_no_room_bounded_and_lossless() {
    let (agent, mut receiver) = cramped([Step::text("Hello!")]).await;
    let mut runs = 0;
    let behind = loop {
        match answered(agent.prompt("Hi")).await {
            Ok(_) => runs += 1,
            Err(error) => break error,
        }
        answered(agent.prompt("staged")).await.unwrap();
        answered(agent.cancel()).await.unwrap();
        assert!(runs < 10_000, "the number of waiting events is not bounded");
    };
    assert_eq!(behind.kind(), ErrorKind::Backlog);
    let waiting = behind.member("queued").unwrap().as_u64().unwrap();
    assert!((1000..1100).contains(&waiting), "{waiting}");
    assert_eq!(answered(agent.set_state(|_| Ok(()))).await.unwrap_err().kind(), ErrorKind::Backlog);
    assert_eq!(answered(agent.ask("Hi")).await.unwrap_err().kind(), ErrorKind::Backlog);
    assert_eq!(answered(agent.cancel()).await.unwrap_err().kind(), ErrorKind::Idle);

    let last = agent.snapshot().await.unwrap().last.number;
    let events = receive(&mut receiver, 1, last).await;
    assert_eq!(events.iter().filter(|event| ends_run(event)).count(), runs);
    let whole =
        ["status(busy)", "message(user)", "prompt(staged)", "status(idle)", "prompt(returned)", "cancelled"];
    for run in names(&events).chunks(6) {
        assert_eq!(run, whole);
    }
    answered(agent.wait_until_idle()).await.unwrap();
    agent.prompt("Hi").await.unwrap();
    receive(&mut receiver, last + 1, last + 9).await;
}

#[tokio::test(start_paused = true)]
async fn run_receiver_dropped_agent_ends_and_sends_no_further_request() {
    for before in [true, false] {
        let (sender, receiver) = mpsc::channel(0);
        let (provider, builder) = scripted([Step::text("One"), Step::text("Two")]);
        let agent = builder.commit_channel(sender).start().await.unwrap();
        if before {
            drop(receiver);
            agent.prompt("Hi").await.unwrap();
        } else {
            agent.prompt("Hi").await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(receiver);
        }
        let end = answered(agent.ended()).await;
        assert_eq!(end.reason, EndReason::HandlesDropped);
        // The turn can't be committed, so it stays in flight.
        let last = end.snapshot.unwrap();
        assert_eq!((last.status, last.state.history.len()), (Status::Busy, 0));
        let error = agent.prompt("Hi").await.unwrap_err();
        assert_eq!(
            (error.kind(), error.member("reason")),
            (ErrorKind::Ended, Some(&"handles_dropped".into()))
        );
        assert!(provider.requests().is_empty());
    }
}

struct Editing;

#[async_trait]
impl AgentCallbacks for Editing {
    async fn handle_turn(&mut self, _: &Response, state: &mut State) -> TurnDecision {
        state.config_mut().settings.system = Some("edited".into());
        TurnDecision::Stop
    }
}

#[tokio::test(start_paused = true)]
async fn turn_callback_edited_delivery_has_the_configuration_with_the_edit() {
    let (sender, mut receiver) = mpsc::channel(64);
    let builder = echoing([Step::text("Hello!")]).callbacks(Editing).commit_channel(sender);
    let agent = builder.start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    loop {
        let delivery = answered(receiver.next()).await.unwrap();
        if let Event::Turn { continues: false, .. } = &*delivery.event.as_ref().unwrap().event {
            assert_eq!(delivery.config.settings.system.as_deref(), Some("edited"));
            break;
        }
        if !matches!(&*delivery.event.as_ref().unwrap().event, Event::Status { status: Status::Idle, .. }) {
            assert_eq!(delivery.config.settings.system, None);
        }
    }
}

/// Callbacks that count the calls of `terminate`.
#[derive(Clone, Default)]
struct Terminating(Arc<AtomicUsize>);

#[async_trait]
impl AgentCallbacks for Terminating {
    async fn terminate(&mut self, _: &EndReason, _: &State) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_outbox_never_drains_terminate_runs_and_deadline_reported() {
    let (sender, receiver) = mpsc::channel(0);
    let terminating = Terminating::default();
    let builder = echoing([Step::text("Hello!")]).callbacks(terminating.clone()).commit_channel(sender);
    let agent = builder.start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let limit = Duration::from_millis(500);
    let stopped = answered(agent.stop(limit)).await;
    let error = stopped.unwrap_err();
    let text = format!("the agent did not end within the deadline of {limit:?} and was cut off");
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Deadline, text));
    assert_eq!(terminating.0.load(Ordering::SeqCst), 1);
    drop(receiver);
}

#[tokio::test(start_paused = true)]
async fn stop_receiver_reads_late_gets_every_event_and_the_end() {
    let (agent, mut receiver) = cramped([Step::text("Hello!")]).await;
    agent.prompt("Hi").await.unwrap();
    let stopping = tokio::spawn(async move { agent.stop(Duration::from_mins(1)).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = receive(&mut receiver, 1, 4).await;
    assert_eq!(names(&events), ["status(busy)", "message(user)", "status(idle)", "cancelled"]);
    answered(stopping).await.unwrap().unwrap();
    assert!(answered(receiver.next()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn prompts_staged_and_withdrawn_without_end_are_refused_while_nothing_is_read() {
    let (agent, _receiver) = cramped([Step::new().hang()]).await;
    agent.prompt("Hi").await.unwrap();
    let behind = loop {
        match answered(agent.prompt(crate::agent::Prompt::new("staged").with_id("s"))).await {
            Ok(_) => drop(answered(agent.unstage("s")).await.unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!(behind.kind(), ErrorKind::Backlog);
    let waiting = behind.member("queued").unwrap().as_u64().unwrap();
    assert!(waiting < 2100, "{waiting}");
    answered(agent.cancel()).await.unwrap();
}
