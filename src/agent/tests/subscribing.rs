//! Subscriptions that are resumed, fall behind, are flooded, or close.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    agent::{Agent, AgentSubscription, Event, Snapshot},
    provider::Part,
    run::ErrorKind,
    subscription::{EndReason, EventId, FeedLimits, Numbered, Update},
    testing::{Gate, Step},
};
use futures_channel::mpsc;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;

use super::{
    predicament::Amid,
    rig::{answered, closed, echoing, ready_events},
    support::{ends_run, run_events, scripted},
};

/// The numbers of the events that are ready, and the number of resyncs.
async fn ready_numbers(events: &mut AgentSubscription) -> (Vec<u64>, usize) {
    let (mut numbers, mut resyncs) = (Vec::new(), 0);
    while let Ok(update) = tokio::time::timeout(Duration::from_millis(1), events.next()).await {
        match update.unwrap() {
            Update::Event(numbered) => numbers.push(numbered.id.number),
            Update::Resync(snapshot) => {
                resyncs += 1;
                assert_eq!(events.last_id(), snapshot.last);
            }
            other => panic!("{other:?}"),
        }
    }
    (numbers, resyncs)
}

fn deltas(count: usize) -> Step {
    Step::new().then_text((0..count).map(|_| "x")).stop()
}

#[tokio::test(start_paused = true)]
async fn resume_from_every_number_gets_exactly_the_missed_events() {
    let agent = echoing([deltas(20)]).start().await.unwrap();
    let first = agent.subscribe().await.unwrap().last_id();
    agent.ask("Hi").await.unwrap();
    let last = agent.snapshot().await.unwrap().last;
    assert_eq!(first.number, 0);
    for number in 0..=last.number {
        let id = EventId { number, ..first };
        let mut resumed = agent.resume_from(id).await.unwrap();
        assert!(resumed.snapshot().is_none());
        assert_eq!(resumed.last_id(), id);
        let (numbers, resyncs) = ready_numbers(&mut resumed).await;
        assert_eq!((numbers, resyncs), ((number + 1..=last.number).collect(), 0));
        assert_eq!(resumed.last_id(), last);
    }
}

#[tokio::test(start_paused = true)]
async fn resume_mid_run_backlog_then_live_without_gap() {
    let gate = Gate::new();
    let agent = echoing([Step::new().then_text(["a", "b"]).gate(&gate).stop()]).start().await.unwrap();
    let id = agent.subscribe().await.unwrap().last_id();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    let mut resumed = agent.resume_from(id).await.unwrap();
    gate.open();
    let run = run_events(&mut resumed).await;
    assert_eq!(run.len() as u64, resumed.last_id().number);
}

#[tokio::test(start_paused = true)]
async fn resume_from_an_evicted_or_foreign_id_one_resync_then_events() {
    let limits = FeedLimits::default().with_replay(300);
    let agent = echoing([deltas(400), deltas(1)]).feed_limits(limits).start().await.unwrap();
    let first = agent.subscribe().await.unwrap().last_id();
    agent.ask("Hi").await.unwrap();
    let last = agent.snapshot().await.unwrap().last;
    let foreign = EventId { life: first.life.wrapping_add(1), ..last };
    let future = EventId { number: last.number + 1, ..last };
    let mut all = Vec::new();
    for id in [first, foreign, future] {
        let mut resumed = agent.resume_from(id).await.unwrap();
        assert_eq!(resumed.last_id(), id, "the reader has not seen the snapshot yet");
        let Some(Update::Resync(snapshot)) = answered(resumed.next()).await else { panic!("no resync") };
        assert_eq!((snapshot.last, resumed.last_id()), (last, last));
        all.push(resumed);
    }
    agent.prompt("More").await.unwrap();
    for mut resumed in all {
        run_events(&mut resumed).await;
        assert_eq!(resumed.last_id(), EventId { number: last.number + 10, ..last });
    }
}

#[tokio::test(start_paused = true)]
async fn events_without_a_subscriber_still_advance_the_numbers() {
    let count = {
        let agent = echoing([deltas(3)]).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        run_events(&mut events).await.len() as u64
    };
    let agent = echoing([deltas(3), deltas(3)]).start().await.unwrap();
    let before = agent.snapshot().await.unwrap().last;
    assert_eq!(before.number, 0);
    agent.ask("Hi").await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    assert_eq!(events.last_id(), EventId { number: count, ..before });
    agent.ask("Hi").await.unwrap();
    let (numbers, resyncs) = ready_numbers(&mut events).await;
    assert_eq!((numbers, resyncs), ((count + 1..=2 * count).collect(), 0));
    // The agent had no subscriber during the first run, so the run's events were never built.
    let mut resumed = agent.resume_from(before).await.unwrap();
    assert!(matches!(answered(resumed.next()).await, Some(Update::Resync(_))));
    // The events that follow the last event seen by the reader are still buffered, so no resync is needed.
    let id = EventId { number: count, ..before };
    let mut resumed = agent.resume_from(id).await.unwrap();
    assert_eq!(ready_numbers(&mut resumed).await.0.len() as u64, count);
}

#[tokio::test(start_paused = true)]
async fn subscriber_stalled_exactly_one_resync_then_events() {
    let agent = echoing([deltas(5000), deltas(3)]).start().await.unwrap();
    let mut stalled = agent.subscribe().await.unwrap();
    let mut prompt = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    // A stalled subscriber does not slow down other subscribers. The subscriber that keeps up sees every event.
    assert_eq!(run_events(&mut prompt).await.len() as u64, prompt.last_id().number);
    let Some(Update::Resync(snapshot)) = answered(stalled.next()).await else { panic!("no resync") };
    assert_eq!(*snapshot, agent.snapshot().await.unwrap());
    agent.prompt("More").await.unwrap();
    let run = run_events(&mut stalled).await;
    assert_eq!(stalled.last_id().number, snapshot.last.number + run.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn subscriber_behind_within_the_limit_no_resync() {
    let agent = echoing([deltas(200)]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.ask("Hi").await.unwrap();
    let (numbers, resyncs) = ready_numbers(&mut events).await;
    assert_eq!(resyncs, 0);
    assert_eq!(numbers, (1..=events.last_id().number).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn next_dropped_while_resyncing_nothing_lost() {
    let agent = echoing([deltas(2000)]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.ask("Hi").await.unwrap();
    for _ in 0..5 {
        assert!(events.next().now_or_never().is_none());
    }
    assert!(matches!(answered(events.next()).await, Some(Update::Resync(_))));
    assert_eq!(ready_events(&mut events).await, []);
}

async fn read_flood(events: &mut AgentSubscription) {
    let mut last = events.last_id().number;
    loop {
        let Some(Update::Event(numbered)) = events.next().await else {
            panic!("an event was lost after {last}")
        };
        assert_eq!(numbered.id.number, last + 1);
        last += 1;
        if ends_run(&numbered.event) {
            break;
        }
    }
    assert!(last > 10_000);
}

#[tokio::test]
async fn flood_of_ready_deltas_prompt_reader_sees_every_event() {
    let agent = scripted([deltas(10_000)]).1.start().await.unwrap();
    // One reader runs in the runtime's `block_on`. The other readers run in tasks.
    let mut events = agent.subscribe().await.unwrap();
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let mut events = agent.subscribe().await.unwrap();
        tasks.push(tokio::spawn(async move { read_flood(&mut events).await }));
    }
    agent.prompt("Hi").await.unwrap();
    read_flood(&mut events).await;
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn flood_of_large_deltas_prompt_reader_sees_every_event() {
    let limits = FeedLimits::default().with_bytes(64 * 1024);
    let piece = "x".repeat(1000);
    let step = Step::new().then_text((0..10_000).map(|_| piece.as_str())).stop();
    let agent = scripted([step]).1.feed_limits(limits).start().await.unwrap();
    let mut stalled = agent.subscribe().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    read_flood(&mut events).await;
    // The stalled subscriber reads a resync, or the updates that were sent before its channel was replaced. It never
    // sees a gap.
    let mut last = 0;
    while let Ok(update) = tokio::time::timeout(Duration::from_millis(20), stalled.next()).await {
        match update.unwrap() {
            Update::Event(numbered) => {
                assert_eq!(numbered.id.number, last + 1);
                last += 1;
            }
            Update::Resync(snapshot) => last = snapshot.last.number,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(last, events.last_id().number);
}

/// The number of bytes in text deltas that have not been dropped.
fn held(events: &[(Weak<Event>, usize)]) -> usize {
    events.iter().filter(|(event, _)| event.strong_count() > 0).map(|(_, bytes)| bytes).sum()
}

#[tokio::test(start_paused = true)]
async fn subscriber_stalled_bytes_held_are_bounded() {
    const LIMIT: usize = 256 * 1024;
    for replay in [1, 1024] {
        let limits = FeedLimits::default().with_bytes(LIMIT).with_replay(replay);
        let piece = "x".repeat(10_000);
        let step = Step::new().then_text((0..500).map(|_| piece.as_str())).stop();
        let (sender, mut receiver) = mpsc::channel(7);
        let builder = scripted([step]).1.feed_limits(limits).commit_channel(sender);
        let agent = builder.start().await.unwrap();
        let mut stalled = agent.subscribe().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        // The receiver of the commit channel sees every event and drops it immediately.
        let mut events = Vec::new();
        let mut most = 0;
        loop {
            let delivery = answered(receiver.next()).await.unwrap();
            if let Event::TextDelta { delta, .. } = &*delivery.event.as_ref().unwrap().event {
                events.push((Arc::downgrade(&delivery.event.as_ref().unwrap().event), delta.len()));
            }
            let last = ends_run(&delivery.event.as_ref().unwrap().event);
            drop(delivery);
            most = most.max(held(&events));
            if last {
                break;
            }
        }
        assert_eq!(events.len(), 500);
        // The limit covers the bytes held by the feed, the bytes queued for the stalled subscriber, and a few events in
        // flight.
        assert!(most <= 2 * LIMIT + 12 * 10_000, "{most} bytes were held at most");
        assert!(held(&events) > 0, "the replay ring holds some bytes");
        let mut resyncs = 0;
        while let Ok(update) = tokio::time::timeout(Duration::from_millis(1), stalled.next()).await {
            resyncs += usize::from(matches!(update, Some(Update::Resync(_))));
        }
        assert_eq!(resyncs, 1);
        drop((agent, stalled));
    }
}

#[tokio::test(start_paused = true)]
async fn subscriber_stalled_number_of_events_held_is_bounded() {
    let limits = FeedLimits::default().with_replay(512);
    let (sender, mut receiver) = mpsc::channel(7);
    let builder = scripted([deltas(5000)]).1.feed_limits(limits).commit_channel(sender);
    let agent = builder.start().await.unwrap();
    let _stalled = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let mut events = Vec::new();
    loop {
        let delivery = answered(receiver.next()).await.unwrap();
        events.push((Arc::downgrade(&delivery.event.as_ref().unwrap().event), 1));
        if ends_run(&delivery.event.as_ref().unwrap().event) {
            break;
        }
    }
    assert_eq!(held(&events), 512);
}

#[tokio::test(start_paused = true)]
async fn set_state_large_histories_often_bytes_held_are_bounded() {
    let limits = FeedLimits::default().with_bytes(256 * 1024);
    let agent = echoing([]).feed_limits(limits).start().await.unwrap();
    let _stalled = agent.subscribe().await.unwrap();
    let mut messages = Vec::new();
    for _ in 0..100 {
        let user = Arc::new(crate::message::Message::user("x".repeat(10_000)));
        messages.push((Arc::downgrade(&user), 10_000));
        let answer = crate::message::Message::assistant("y");
        agent
            .set_state(move |draft| {
                draft.history = [user, Arc::new(answer)].into_iter().collect();
                Ok(())
            })
            .await
            .unwrap();
    }
    let held: usize =
        messages.iter().filter(|(message, _)| message.strong_count() > 0).map(|(_, bytes)| bytes).sum();
    assert!(held <= 2 * 256 * 1024 + 20_000, "{held} bytes are held");
}

#[tokio::test(start_paused = true)]
async fn stop_prompt_and_lagging_subscribers_closed_with_final_snapshot() {
    let agent = echoing([deltas(1000)]).start().await.unwrap();
    let mut lagging = agent.subscribe().await.unwrap();
    agent.ask("Hi").await.unwrap();
    let mut prompt = agent.subscribe().await.unwrap();
    let before = agent.snapshot().await.unwrap();
    agent.stop(Duration::from_secs(1)).await.unwrap();
    for events in [&mut lagging, &mut prompt] {
        let (reason, snapshot) = closed(events).await;
        assert_eq!((reason, snapshot.as_deref()), (EndReason::Stopped, Some(&before)));
        assert!(events.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_lagging_subscriber_receives_the_true_reason() {
    let agent = echoing([deltas(1000)]).start().await.unwrap();
    let mut lagging = agent.subscribe().await.unwrap();
    agent.ask("Hi").await.unwrap();
    drop(agent);
    // The subscription closes before the agent itself has noticed that the last handle was dropped.
    let (reason, snapshot) = closed(&mut lagging).await;
    assert_eq!(reason, EndReason::HandlesDropped);
    assert_eq!(snapshot.unwrap().state.history.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_subscriptions_do_not_keep_the_agent_alive() {
    let scene = Amid::Stream.agent().await;
    let (agent, mut events) = (scene.agent, scene.events);
    let mut other = agent.subscribe().await.unwrap();
    let weak = agent.downgrade();
    drop(agent);
    assert!(weak.upgrade().is_none());
    assert!(matches!(&**run_events(&mut events).await.last().unwrap(), Event::Turn { .. }));
    for events in [&mut events, &mut other] {
        assert_eq!(closed(events).await.0, EndReason::HandlesDropped);
    }
}

#[test]
fn runtime_shut_down_subscribers_and_handles_report_killed() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (agent, mut events): (Agent, AgentSubscription) = runtime.block_on(async {
        let scene = Amid::Stream.agent().await;
        (scene.agent, scene.events)
    });
    drop(runtime);
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(async {
        let (reason, snapshot) = closed(&mut events).await;
        assert_eq!((reason, snapshot.is_none()), (EndReason::Killed, true));
        let status = agent.status().await;
        let error = status.unwrap_err();
        assert_eq!((error.kind(), error.member("reason")), (ErrorKind::Ended, Some(&"killed".into())));
        assert_eq!(agent.end().unwrap().reason, EndReason::Killed);
    });
}

#[tokio::test(start_paused = true)]
async fn subscription_is_a_stream_of_the_same_updates() {
    let agent = echoing([deltas(2)]).start().await.unwrap();
    let stream = agent.subscribe().await.unwrap();
    agent.ask("Hi").await.unwrap();
    agent.stop(Duration::from_secs(1)).await.unwrap();
    let updates: Vec<_> = answered(stream.collect()).await;
    let [events @ .., Update::Closed(_)] = &*updates else { panic!("{updates:?}") };
    let numbers: Vec<_> = events
        .iter()
        .map(|update| match update {
            Update::Event(numbered) => numbered.id.number,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(numbers, (1..=11).collect::<Vec<_>>());
}

#[test]
fn event_id_text_form_round_trips() {
    for id in [
        EventId { life: 0, number: 0 },
        EventId { life: 0x1f0a, number: 42 },
        EventId { life: u64::MAX, number: u64::MAX },
    ] {
        assert_eq!(id.to_string().parse::<EventId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<EventId>(&json).unwrap(), id);
    }
    assert_eq!(EventId { life: 0x1f0a, number: 42 }.to_string(), "1f0a-42");
    for text in ["", "-", "1f0a", "1f0a-", "-42", "xyz-1", "1-1-1", "1f0a-0x2", "1 -2", "10000000000000000-1"]
    {
        assert!(text.parse::<EventId>().is_err(), "{text:?}");
    }
}

#[test]
fn numbered_event_with_its_id_is_serialized_without_loss() {
    let event = Event::ToolUseStart { index: 0, id: "t1".into(), name: "echo".into() };
    let numbered = Numbered { id: EventId { life: 1, number: 2 }, event: Arc::new(event) };
    let json = serde_json::to_string(&numbered).unwrap();
    assert_eq!(serde_json::from_str::<Numbered<Event>>(&json).unwrap(), numbered);
}

#[tokio::test(start_paused = true)]
async fn text_deltas_arrive_one_by_one() {
    let gate = Gate::new();
    let step = Step::new().then_text(["a"]).gate(&gate).more(Part::Text("b".into())).stop();
    let agent = echoing([step]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    let ready = ready_events(&mut events).await;
    assert!(matches!(&**ready.last().unwrap(), Event::TextDelta { delta, .. } if delta == "a"));
    gate.open();
    run_events(&mut events).await;
}

#[tokio::test(start_paused = true)]
async fn updates_serialise_with_a_type() {
    let agent = echoing([deltas(400)]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.set_state(|_| Ok(())).await.unwrap();
    let Some(Update::Event(numbered)) = answered(events.next()).await else {
        panic!("an event was expected")
    };
    let json = serde_json::to_value(Update::<Snapshot, _>::Event(numbered.clone())).unwrap();
    let event = serde_json::to_value(&*numbered.event).unwrap();
    assert_eq!(json, json!({ "type": "event", "id": numbered.id.to_string(), "event": event }));

    agent.ask("Hi").await.unwrap();
    let resync = answered(events.next()).await.unwrap();
    let snapshot = serde_json::to_value(agent.snapshot().await.unwrap()).unwrap();
    assert_eq!(serde_json::to_value(&resync).unwrap(), json!({ "type": "resync", "snapshot": snapshot }));

    agent.stop(Duration::from_secs(1)).await.unwrap();
    let closed = answered(events.next()).await.unwrap();
    let json = serde_json::to_value(&closed).unwrap();
    assert_eq!(json, json!({ "type": "closed", "reason": "stopped", "snapshot": snapshot }));
}

#[tokio::test(start_paused = true)]
async fn subscription_read_as_a_stream_and_by_next_in_turn_loses_nothing() {
    let gate = Gate::new();
    let step = Step::new().then_text(["a"]).gate(&gate).then_text(["b"]).stop();
    let agent = echoing([step]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    let mut numbers = Vec::new();
    while let Some(update) = StreamExt::next(&mut events).now_or_never() {
        let Some(Update::Event(numbered)) = update else { panic!("{update:?}") };
        numbers.push(numbered.id.number);
        assert_eq!(events.last_id(), numbered.id);
    }
    // The last poll of the stream started a wait for the next event. `next` continues this wait.
    gate.open();
    let last = loop {
        let Some(Update::Event(numbered)) = answered(events.next()).await else {
            panic!("an event was expected")
        };
        numbers.push(numbered.id.number);
        if ends_run(&numbered.event) {
            break numbered.id;
        }
    };
    assert_eq!(numbers, (1..=last.number).collect::<Vec<_>>());
    assert_eq!(events.last_id(), last);
}
