//! Questions that a provider asks while it streams a response.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{Agent, Event, Failure, ToolDecision},
    message::{ToolResult, ToolUse},
    provider::{
        BlockStart, Delta, DeltaStream, Model, Part, Provider, ProviderError, Request, RequestContext,
        StopReason,
    },
    run::ErrorKind,
    testing::{ScriptedProvider, Step},
    tool::Decision,
};
use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, failed, stopped},
    support::{names, returned, scripted},
};

fn question(id: &str) -> ToolUse {
    ToolUse::new(id, "shell", json!({ "cmd": "ls" }))
}

fn asking(ids: &[&str]) -> Step {
    let step = Step::new().then_text(["Let me "]);
    let step = ids.iter().fold(step, |step, id| step.decide(question(id)));
    step.more(Part::Text("see.".into())).stop()
}

async fn agent_with(ids: &[&str], hooks: Hooks) -> (Watched, ScriptedProvider) {
    let (provider, builder) = scripted([asking(ids)]);
    (Watched::start(builder.callbacks(hooks)).await, provider)
}

#[tokio::test(start_paused = true)]
async fn question_is_answered_by_handle_tool_use() {
    let seen = Log::<String>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_tool_use(move |tool_use, _| {
        noted.push(format!("{} {} {}", tool_use.id, tool_use.name, tool_use.input));
        ToolDecision::ExecuteWith(json!({ "cmd": "pwd" }))
    });
    let (mut agent, provider) = agent_with(&["q"], hooks).await;
    let events = agent.run("Go").await;
    assert_eq!(seen.all(), [r#"q shell {"cmd":"ls"}"#]);
    assert_eq!(provider.decisions(), [Decision::ExecuteWith(json!({ "cmd": "pwd" }))]);
    assert_eq!(stopped(&events).text(), "Let me see.");
    assert_eq!(provider.requests().len(), 1, "the stream stays open");
    let names = names(&events);
    assert!(!names.iter().any(|name| name.starts_with("tool_result")), "the service ran it");
}

#[tokio::test(start_paused = true)]
async fn question_receives_every_decision() {
    let ready = ToolResult::ok(&question("q"), "From the cache");
    let cases = [
        (ToolDecision::Execute, Decision::Execute),
        (ToolDecision::Reject("No.".into()), Decision::reject("No.")),
        (ToolDecision::Provide(ready.clone()), Decision::Provide(ready)),
    ];
    for (decision, given) in cases {
        let hooks = Hooks::new().on_tool_use(move |_, _| decision.clone());
        let (mut agent, provider) = agent_with(&["q"], hooks).await;
        agent.run("Go").await;
        assert_eq!(provider.decisions(), [given]);
    }
}

#[tokio::test(start_paused = true)]
async fn question_paused_waits_for_resume_while_the_stream_stays_open() {
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(json!("sure?")));
    let (mut agent, provider) = agent_with(&["q1", "q2"], hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    let events = agent.until("pause").await;
    let order = names(&events);
    assert_eq!(order[order.len() - 2..], ["text_delta", "status(paused q1)"]);
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { unreachable!() };
    assert_eq!((&pauses[0].tool_use, &pauses[0].reason), (&question("q1"), &json!("sure?")));
    agent.check().await;

    let stale = agent.agent.resume("q2", Decision::Execute).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleDecision, "{stale:?}");
    agent.agent.resume("q1", Decision::Execute).await.unwrap();
    let order = names(&agent.until("pause").await);
    assert_eq!(order, ["status(busy)", "decided(q1)", "status(paused q2)"]);
    let stale = agent.agent.resume("q1", Decision::Execute).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::StaleDecision, "{stale:?}");
    agent.agent.resume("q2", Decision::reject("No.")).await.unwrap();
    let events = agent.end().await;
    assert_eq!(names(&events)[..3], ["status(busy)", "decided(q2)", "text_delta"]);
    assert_eq!(stopped(&events).text(), "Let me see.");
    assert_eq!(provider.decisions(), [Decision::Execute, Decision::reject("No.")]);
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn question_paused_accepts_a_staged_prompt_and_a_cancel() {
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(Value::Null));
    let (mut agent, provider) = agent_with(&["q"], hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    agent.agent.prompt("Later").await.unwrap();
    agent.agent.cancel().await.unwrap();
    let events = agent.end().await;
    let Some(Event::Cancelled { response }) = events.last().map(|event| &**event) else { panic!() };
    assert_eq!((response.text().as_str(), returned(&events).len()), ("Let me ", 1));
    assert!(provider.decisions().is_empty());
    let late = agent.agent.resume("q", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (late.kind(), late.member("activity")),
        (ErrorKind::NotPaused, Some(&"idle".into())),
        "{late:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn question_paused_stops_the_turns_clock() {
    let (_, builder) = scripted([asking(&["q"])]);
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(Value::Null));
    let limit = Duration::from_secs(10);
    let mut agent = Watched::start(builder.turn_timeout(limit).callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    tokio::time::sleep(limit * 6).await;
    agent.agent.resume("q", Decision::Execute).await.unwrap();
    stopped(&agent.end().await);
}

/// A provider that asks a question and withdraws it after a while.
struct Impatient;

#[async_trait]
impl Provider for Impatient {
    fn name(&self) -> &'static str {
        "impatient"
    }

    async fn stream(&self, _: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        let start = Delta::Start { index: 0, block: BlockStart::Text };
        let answer = stream::once(async move {
            let asked = tokio::time::timeout(Duration::from_secs(30), context.decide(question("q"))).await;
            let text = if asked.is_ok() { "Decided." } else { "Never mind." };
            Ok(Delta::Extend { index: 0, part: Part::Text(text.into()) })
        });
        let end = stream::iter([Ok(Delta::stop(StopReason::Stop))]);
        Ok(Box::pin(stream::iter([Ok(start)]).chain(answer).chain(end)))
    }
}

#[tokio::test(start_paused = true)]
async fn question_withdrawn_while_paused_continues_without_a_decision() {
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(Value::Null));
    let builder = Agent::builder().model(Model::new(Arc::new(Impatient), "i")).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    let events = agent.end().await;
    assert!(names(&events).contains(&"status(busy)".to_owned()));
    assert_eq!(stopped(&events).text(), "Never mind.");
    let late = agent.agent.resume("q", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (late.kind(), late.member("activity")),
        (ErrorKind::NotPaused, Some(&"idle".into())),
        "{late:?}"
    );
}

/// Callbacks that log each tool use and never decide about it.
struct Undecided(Log<String>);

#[async_trait]
impl crate::agent::AgentCallbacks for Undecided {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut crate::agent::State) -> ToolDecision {
        self.0.push(tool_use.id.as_str());
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn question_withdrawn_while_handle_tool_use_runs_drops_the_callback() {
    let log = Log::default();
    let model = Model::new(Arc::new(Impatient), "i");
    let mut agent = Watched::start(Agent::builder().model(model).callbacks(Undecided(log.clone()))).await;
    let events = agent.run("Go").await;
    assert_eq!((stopped(&events).text().as_str(), log.all()), ("Never mind.", vec!["q".to_owned()]));
    assert!(!names(&events).contains(&"status(paused)".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn question_does_not_block_the_stream() {
    // The provider continues streaming while it waits for the decision.
    struct Talkative;
    #[async_trait]
    impl Provider for Talkative {
        fn name(&self) -> &'static str {
            "talkative"
        }

        async fn stream(&self, _: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
            let ask = stream::once(async move {
                let decision = context.decide(question("q")).await;
                Ok(Delta::Extend { index: 0, part: Part::Text(format!("{decision:?}")) })
            });
            let talk = stream::unfold(0, |n| async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                (n < 3).then(|| (Ok(Delta::Extend { index: 0, part: Part::Text(format!("{n} ")) }), n + 1))
            });
            let start = stream::iter([Ok(Delta::Start { index: 0, block: BlockStart::Text })]);
            let end = stream::iter([Ok(Delta::stop(StopReason::Stop))]);
            Ok(Box::pin(start.chain(stream::select(ask, talk)).chain(end)))
        }
    }
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(Value::Null));
    let builder = Agent::builder().model(Model::new(Arc::new(Talkative), "t")).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    for _ in 0..3 {
        assert_eq!(names(&agent.until("text_delta").await), ["text_delta"]);
    }
    agent.agent.resume("q", Decision::Execute).await.unwrap();
    assert_eq!(stopped(&agent.end().await).text(), "0 1 2 Execute");
}

#[tokio::test(start_paused = true)]
async fn question_open_while_the_stream_fails_handle_error_runs_busy() {
    struct Falls;
    #[async_trait]
    impl Provider for Falls {
        fn name(&self) -> &'static str {
            "falls"
        }

        async fn stream(&self, _: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
            let fall = stream::once(async move {
                let asked = tokio::time::timeout(Duration::from_secs(5), context.decide(question("q"))).await;
                assert!(asked.is_err());
                Err(ProviderError::new(crate::provider::ProviderErrorKind::Transport, "fell"))
            });
            let start = Delta::Start { index: 0, block: BlockStart::Text };
            Ok(Box::pin(stream::iter([Ok(start)]).chain(fall)))
        }
    }
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(Value::Null));
    let builder = Agent::builder().model(Model::new(Arc::new(Falls), "f")).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    let events = agent.end().await;
    assert_eq!(names(&events), ["status(busy)", "status(idle)", "error"]);
    assert!(matches!(failed(&events).0, Failure::Provider { .. }));
}

#[tokio::test(start_paused = true)]
async fn question_outside_an_agent_is_rejected() {
    let provider = ScriptedProvider::new([asking(&["q"])]);
    let answer = provider.model().generate(Request::prompt("Go")).await.unwrap();
    assert_eq!(answer.message.text(), "Let me see.");
    assert!(matches!(&provider.decisions()[..], [Decision::Reject(_)]));
}
