//! A snapshot to which all later events are applied equals the agent's state, no matter when the reader joins.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{
        Agent, AgentCallbacks, AgentSubscription, ErrorDecision, Event, Failure, Prompt, Response, Snapshot,
        State, Status, ToolDecision, TurnDecision,
    },
    message::{Attachment, ProviderItem, Role, ToolUse},
    provider::{BlockStart, Delta, Part, ProviderError, ProviderErrorKind, Request, StopReason},
    subscription::{EventId, Update},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, ToolContext, tool_fn},
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    rig::{answered, echo, ready_events, tokens},
    support::{apply, ends_run, run_events, scripted},
};

/// Callbacks that pause the tools `ask` and `shell`, reject the tool `refused`, retry after a failure, and continue
/// once. Each of these methods takes some time.
struct Rich {
    continued: bool,
}

async fn dawdle() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

#[async_trait]
impl AgentCallbacks for Rich {
    async fn prepare_step(&mut self, _: &mut Request, _: &mut State) {
        dawdle().await;
    }

    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        dawdle().await;
        match tool_use.name.as_str() {
            "ask" | "shell" => ToolDecision::Pause(json!({ "why": tool_use.name })),
            "refused" => ToolDecision::Reject("no".into()),
            _ => ToolDecision::Execute,
        }
    }

    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        dawdle().await;
        if std::mem::replace(&mut self.continued, true) {
            TurnDecision::Stop
        } else {
            TurnDecision::continue_with("go on")
        }
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        dawdle().await;
        ErrorDecision::RetryAfter(Duration::from_millis(30))
    }
}

/// A script with all kinds of blocks, streamed slowly, and with everything that can happen to a step.
fn rich_script() -> Vec<Step> {
    let slow = Duration::from_millis(5);
    let item = |n: u32| ProviderItem::new("scripted", json!({ "n": n }));
    let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "broken off");
    vec![
        Step::new()
            .then_thinking("Let me", "sig")
            .then_text(["Hel", "lo"])
            .wait(slow)
            .more(Part::Signature("half a signature".into()))
            .wait(slow)
            .more(Part::Text(" there".into()))
            .then_tool_use("t1", "echo", json!({ "a": [1, 2] }))
            .wait(slow)
            .then_raw_tool_use("t2", "refused", &["{\"b\"", ": ", "2"])
            .wait(slow)
            .more(Part::Input("}".into()))
            .delta(Delta::End { index: 3 })
            .wait(slow)
            .then_tool_use("t3", "ask", json!({}))
            .then_tool_use("t4", "progress", json!({}))
            .stop(),
        Step::new().then_text(["void"]).wait(slow).fail(error),
        Step::new()
            .delta(Delta::Start { index: 0, block: BlockStart::ProviderItem(item(1)) })
            .wait(slow)
            .delta(Delta::Extend { index: 0, part: Part::Item(json!({ "n": 2 })) })
            .wait(slow)
            .delta(Delta::End { index: 0 })
            .wait(slow)
            .delta(Delta::Start {
                index: 1,
                block: BlockStart::Attachment(Attachment::url("image/png", "https://example.com/a.png")),
            })
            .wait(slow)
            .delta(Delta::Start { index: 2, block: BlockStart::Thinking })
            .delta(Delta::Extend { index: 2, part: Part::Redacted("secret".into()) })
            .wait(slow)
            .delta(Delta::End { index: 2 })
            .delta(Delta::Start { index: 3, block: BlockStart::Text })
            .delta(Delta::Extend { index: 3, part: Part::Text("On it.".into()) })
            .usage(tokens(9))
            .wait(slow)
            .stop_with(StopReason::Pause),
        Step::new()
            .wait(slow)
            .then_text(["Served."])
            .decide(ToolUse::new("q1", "shell", json!({})))
            .wait(slow)
            .stop(),
        Step::new().wait(slow).then_text(["Continued."]).wait(slow).stop(),
        Step::new().wait(slow).then_text(["Staged."]).wait(slow).stop(),
    ]
}

async fn rich_agent() -> (Agent, ScriptedProvider) {
    let (provider, builder) = scripted(rich_script());
    let progress = tool_fn("progress", "Tells.", |_: Value, context: ToolContext| async move {
        for n in 0..3 {
            context.progress(json!(n)).await;
            dawdle().await;
        }
        Ok("done")
    });
    let agent = builder
        .system("Be rich.")
        .tool(echo())
        .tool(progress)
        .callbacks(Rich { continued: false })
        .start()
        .await
        .unwrap();
    (agent, provider)
}

/// Acts as a user until the run ends: resumes paused tool uses, and stages a prompt during the second turn.
async fn play(agent: Agent) {
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let mut turns = 0;
    loop {
        let Some(Update::Event(numbered)) = answered(events.next()).await else { panic!() };
        match &*numbered.event {
            Event::Status { status: Status::Paused, pauses } => {
                dawdle().await;
                agent.resume(pauses[0].tool_use.id.clone(), Decision::Execute).await.unwrap();
            }
            Event::Turn { .. } if ends_run(&numbered.event) => return,
            Event::Turn { .. } => turns += 1,
            Event::TextStart { .. } if turns == 1 => {
                agent.prompt("staged").await.unwrap();
            }
            _ => {}
        }
    }
}

/// Returns the snapshot without the staged prompts, which the comparison leaves out.
fn comparable(snapshot: &Snapshot) -> Snapshot {
    let mut snapshot = snapshot.clone();
    snapshot.staged.clear();
    snapshot
}

/// Applies all events up to `until`.
async fn catch_up(truth: &mut Snapshot, events: &mut AgentSubscription, until: EventId) {
    while truth.last < until {
        let Some(Update::Event(numbered)) = answered(events.next()).await else { panic!("no event") };
        assert_eq!(numbered.id.number, truth.last.number + 1, "no gap, no overlap");
        truth.apply(&numbered);
    }
}

#[tokio::test(start_paused = true)]
async fn apply_every_event_of_a_rich_run_equals_later_snapshots() {
    let (agent, provider) = rich_agent().await;
    let playing = tokio::spawn(play(agent.clone()));
    let mut joined: Vec<(Snapshot, AgentSubscription)> = Vec::new();
    let mut last = None;
    let mut moments = 0;
    while !playing.is_finished() {
        let snapshot = agent.snapshot().await.unwrap();
        if last != Some(snapshot.last) {
            last = Some(snapshot.last);
            moments += 1;
            for (truth, events) in &mut joined {
                catch_up(truth, events, snapshot.last).await;
                assert_eq!(comparable(truth), comparable(&snapshot));
            }
            let events = agent.subscribe().await.unwrap();
            joined.push(((**events.snapshot().unwrap()).clone(), events));
        }
        // The sleep is shorter than any delay in the script, so every state that lasts is seen.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    playing.await.unwrap();
    let end = agent.snapshot().await.unwrap();
    for (truth, events) in &mut joined {
        catch_up(truth, events, end.last).await;
        assert_eq!(*truth, end);
    }
    assert_eq!(provider.steps_left(), 0);
    assert!(moments > 25, "only {moments} moments were seen");
    assert_eq!(end.step, 1, "the staged prompt's turn");
    assert_eq!(end.state.history.len(), 9);
}

#[tokio::test(start_paused = true)]
async fn apply_staged_prompt_taken_snapshot_has_no_staged_prompt() {
    let gate = Gate::new();
    let script = [Step::text("One.").gate(&gate), Step::text("Two.")];
    let agent = scripted(script).1.start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    agent.prompt("next").await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    let mut truth = (**events.snapshot().unwrap()).clone();
    assert_eq!(truth.staged[0].content, "next".into());
    gate.open();
    agent.wait_until_idle().await.unwrap();
    let end = agent.snapshot().await.unwrap();
    catch_up(&mut truth, &mut events, end.last).await;
    assert_eq!(truth, end);
}

#[tokio::test(start_paused = true)]
async fn subscribe_in_mid_stream_message_is_rebuilt_exactly() {
    let gate = Gate::new();
    let step = Step::new()
        .then_thinking("Hm.", "sig")
        .then_text(["The ans"])
        .gate(&gate)
        .more(Part::Text("wer".into()))
        .then_raw_tool_use("t1", "echo", &["{\"x\"", ":"])
        .gate(&gate)
        .more(Part::Input("[1]}".into()))
        .gate(&gate)
        .stop();
    let agent = scripted([step, Step::text("Done.")]).1.tool(echo()).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let mut joined = Vec::new();
    for _ in 0..3 {
        answered(gate.reached()).await;
        let events = agent.subscribe().await.unwrap();
        joined.push(((**events.snapshot().unwrap()).clone(), events));
        gate.open();
    }
    agent.wait_until_idle().await.unwrap();
    let history = agent.state().await.unwrap().history().clone();
    for (mut truth, mut events) in joined {
        let mut rebuilt = None;
        for event in ready_events(&mut events).await {
            if let Event::Message { message, .. } = &*event
                && message.role == Role::Assistant
                && rebuilt.is_none()
            {
                // The partial answer, built from the events before the message event.
                let blocks: Vec<_> = truth.partial.iter().map(|block| block.content.clone()).collect();
                assert_eq!(blocks, message.content);
                rebuilt = Some(Arc::clone(message));
            }
            apply(&mut truth, &event);
        }
        assert_eq!(rebuilt.unwrap(), *history.get(1).unwrap());
        assert_eq!(truth.state.history, history);
    }
}

#[tokio::test(start_paused = true)]
async fn status_events_in_any_run_are_emitted_only_on_change() {
    let (agent, _) = rich_agent().await;
    let mut events = agent.subscribe().await.unwrap();
    let playing = tokio::spawn(play(agent.clone()));
    let mut status = crate::agent::Status::Idle;
    let mut changes = 0;
    loop {
        let Some(Update::Event(numbered)) = answered(events.next()).await else { panic!() };
        if let Event::Status { status: news, .. } = &*numbered.event {
            assert_ne!(*news, status);
            status = *news;
            changes += 1;
        }
        if ends_run(&numbered.event) {
            break;
        }
    }
    playing.await.unwrap();
    // The status changes are: busy, two pauses and the end of each pause, and idle.
    assert_eq!((changes, status), (6, crate::agent::Status::Idle));
}

#[tokio::test(start_paused = true)]
async fn pause_at_the_limit_step_reports_max_steps() {
    let script = [Step::new().then_text(["Long"]).stop_with(StopReason::Pause)];
    let agent = scripted(script).1.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt(Prompt::new("Hi").with_max_steps(1)).await.unwrap();
    let reasons: Vec<_> = run_events(&mut events)
        .await
        .iter()
        .filter_map(|event| match &**event {
            Event::Step(response) | Event::Turn { response, .. } => Some(response.stop_reason.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [StopReason::MaxSteps, StopReason::MaxSteps]);
    let snapshot = agent.snapshot().await.unwrap();
    assert_eq!(snapshot.step, 1);
}
