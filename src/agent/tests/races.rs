//! Concurrent operations on one agent.

use std::time::Duration;

use crate::{
    agent::{
        Accepted, Agent, AgentCallbacks, AgentSubscription, Event, Prompt, PromptState, Snapshot, State,
        Status, ToolDecision,
    },
    message::{Message, Role, ToolUse},
    run::ErrorKind,
    subscription::{EventId, Update},
    testing::{ScriptedProvider, Step},
    tool::Decision,
};
use async_trait::async_trait;
use serde_json::json;
use tokio::sync::oneshot;

use super::{rig::echo, support::ends_run};

/// Callbacks that pause every tool use.
struct Pausing;

#[async_trait]
impl AgentCallbacks for Pausing {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Pause(json!(null))
    }
}

/// Applies an agent's events to a snapshot. Records each prompt that began a turn or was handed back in an event.
async fn follow(mut events: AgentSubscription, last: oneshot::Receiver<EventId>) -> (Snapshot, Vec<String>) {
    let mut truth = (**events.snapshot().unwrap()).clone();
    let mut places = Vec::new();
    let mut in_run = false;
    let mut last = std::pin::pin!(last);
    let mut end = None;
    while end.is_none_or(|end| truth.last < end) {
        let update = tokio::select! {
            update = events.next() => update.unwrap(),
            last = &mut last, if end.is_none() => {
                end = Some(last.unwrap());
                continue;
            }
        };
        let Update::Event(numbered) = update else { panic!("{update:?}") };
        assert_eq!(numbered.id.number, truth.last.number + 1);
        let event = &*numbered.event;
        match event {
            Event::Message { message, .. } => {
                in_run = true;
                let text = message.text();
                if message.role == Role::User && !text.is_empty() {
                    places.push(text);
                }
            }
            Event::Prompt { state: PromptState::Returned, prompt, .. } => {
                places.extend(prompt.as_deref().map(text_of));
            }
            _ => {}
        }
        if ends_run(event) {
            assert!(std::mem::take(&mut in_run), "a run ended twice");
        }
        truth.apply(&numbered);
    }
    (truth, places)
}

fn text_of(prompt: &Prompt) -> String {
    Message::user(prompt.content.clone()).text()
}

async fn race(round: u32) {
    let script = (0..6).map(|n| match n % 2 {
        0 => Step::new().then_text(["Well."]).then_tool_use("t1", "echo", json!({})).stop(),
        _ => Step::text("Done."),
    });
    let provider = ScriptedProvider::new(script);
    let agent =
        Agent::builder().model(provider.model()).tool(echo()).callbacks(Pausing).start().await.unwrap();
    let (tell_last, last) = oneshot::channel();
    let following = tokio::spawn(follow(agent.subscribe().await.unwrap(), last));

    let prompt = |text: &'static str| {
        let agent = agent.clone();
        tokio::spawn(async move { agent.prompt(text).await })
    };
    let spin = |turns: u32| async move {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    };
    let one = prompt("one");
    let two = prompt("two");
    let cancel = tokio::spawn({
        let agent = agent.clone();
        async move {
            spin(round % 7).await;
            if round.is_multiple_of(3) { agent.interrupt().await } else { agent.cancel().await }
        }
    });
    let resume = tokio::spawn({
        let agent = agent.clone();
        async move {
            spin(round % 5).await;
            agent.resume("t1", Decision::Execute).await
        }
    });
    for (prompted, text) in [(one, "one"), (two, "two")] {
        match prompted.await.unwrap().unwrap() {
            Accepted::Started { .. } | Accepted::Staged { .. } => {}
            other => panic!("{text}: {other:?}"),
        }
    }
    match cancel.await.unwrap() {
        Err(error) if error.kind() != ErrorKind::Idle => panic!("{error:?}"),
        _ => {}
    }
    match resume.await.unwrap() {
        Err(error) if error.kind() != ErrorKind::NotPaused => panic!("{error:?}"),
        _ => {}
    }

    // Rejects paused tool uses until the agent is idle.
    let finish = async {
        loop {
            match agent.status().await.unwrap() {
                Status::Idle => break,
                Status::Paused => {
                    for pause in agent.snapshot().await.unwrap().pauses {
                        let _ = agent.resume(pause.tool_use.id.clone(), Decision::reject("no")).await;
                    }
                }
                Status::Busy => tokio::task::yield_now().await,
            }
        }
        agent.wait_until_idle().await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(20), finish).await.expect("the agent is stuck");

    let end = agent.snapshot().await.unwrap();
    tell_last.send(end.last).unwrap();
    let (truth, mut places) = following.await.unwrap();
    assert_eq!(truth, end);
    truth.state.history.check().unwrap();
    places.sort();
    // Each prompt either began a turn or was handed back in an event. Neither happened twice.
    assert_eq!(places, ["one", "two"], "a prompt was lost or used twice");
    agent.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_prompts_a_cancel_and_a_resume_race_nothing_lost() {
    let rounds: Vec<u32> = (0..300).collect();
    for chunk in rounds.chunks(30) {
        let races: Vec<_> = chunk.iter().map(|round| tokio::spawn(race(*round))).collect();
        for race in races {
            race.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_dropped_and_stopped_while_in_use_every_operation_answered() {
    for round in 0..200_u32 {
        let agent = ScriptedProvider::new([Step::text("Hello!")]);
        let agent = Agent::builder().model(agent.model()).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        let users: Vec<_> = (0..4)
            .map(|user| {
                let agent = agent.clone();
                tokio::spawn(async move {
                    let answer = match user {
                        0 => agent.ask("Hi").await.map(|_| ()),
                        1 => agent.wait_until_idle().await,
                        2 => agent.snapshot().await.map(|_| ()),
                        _ => agent.subscribe().await.map(|_| ()),
                    };
                    match answer {
                        Ok(()) => {}
                        Err(error) => match error.kind() {
                            ErrorKind::Busy | ErrorKind::Cancelled => {}
                            // The reason of the end is never `EndReason::Killed`. If the reason is not known yet, the
                            // handle waits for it.
                            _ => assert_eq!(error.to_string(), "the agent has ended: stopped"),
                        },
                    }
                })
            })
            .collect();
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        if round.is_multiple_of(2) {
            agent.stop(Duration::from_secs(5)).await.unwrap();
        }
        drop(agent);
        for user in users {
            tokio::time::timeout(Duration::from_secs(20), user).await.expect("not answered").unwrap();
        }
        let end = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                if let Some(Update::Closed(end)) = events.next().await {
                    break end;
                }
            }
        });
        assert!(end.await.expect("not closed").snapshot.is_some());
    }
}

#[cfg(any(feature = "acp", feature = "mcp-server"))]
#[tokio::test(start_paused = true)]
async fn interrupt_turn_with_the_id_of_an_earlier_turn_leaves_the_run_of_the_next_one() {
    use super::{rig::answered, support::scripted};

    let gate = crate::testing::Gate::new();
    let steps =
        [Step::text("One."), Step::new().then_text(["Two"]).gate(&gate).then_text([", three."]).stop()];
    let agent = scripted(steps).1.start().await.unwrap();
    let earlier = agent.ask("Count.").await.unwrap().turn.unwrap();
    agent.prompt("Go on.").await.unwrap();
    answered(gate.reached()).await;
    assert!(!agent.interrupt_turn(earlier).await.unwrap());
    let snapshot = agent.snapshot().await.unwrap();
    assert_eq!((snapshot.status, snapshot.pending.len()), (Status::Busy, 1));
    assert!(agent.interrupt_turn(snapshot.turn.unwrap()).await.unwrap());
    assert!(!agent.interrupt_turn(snapshot.turn.unwrap()).await.unwrap(), "the turn is over");
    assert_eq!(agent.state().await.unwrap().history().last().unwrap().text(), "Two");
}
