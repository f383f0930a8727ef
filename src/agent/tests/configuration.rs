//! Callbacks edit the configuration. The edits take effect when the callback returns and apply from the next request
//! on.

use std::sync::Arc;

use crate::{
    agent::{Agent, AgentCallbacks, Event, Prompt, Response, State, ToolDecision, TurnDecision},
    message::{ToolResult, ToolUse},
    provider::Request,
    run::ErrorKind,
    testing::{ScriptedProvider, Step},
};
use async_trait::async_trait;
use serde_json::json;

use super::{
    rig::{At, answered, echo, echoing, stuck_in},
    support::{names, run_events, scripted},
};

/// Callbacks whose methods append their names to the system prompt.
struct Tracing;

fn append(state: &mut State, name: &str) {
    let system = state.config().settings.system.as_deref().unwrap_or_default();
    state.config_mut().settings.system = Some(format!("{system}{name} ").into());
}

#[async_trait]
impl AgentCallbacks for Tracing {
    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        append(state, "prepare");
    }

    async fn handle_tool_use(&mut self, _: &ToolUse, state: &mut State) -> ToolDecision {
        append(state, "use");
        ToolDecision::Execute
    }

    async fn handle_tool_result(&mut self, result: ToolResult, state: &mut State) -> ToolResult {
        append(state, "result");
        result
    }

    async fn handle_turn(&mut self, _: &Response, state: &mut State) -> TurnDecision {
        append(state, "turn");
        TurnDecision::Stop
    }

    async fn handle_event(&mut self, _: Box<dyn std::any::Any + Send>, state: &mut State) -> Option<Prompt> {
        append(state, "event");
        Some("Hi".into())
    }
}

#[tokio::test(start_paused = true)]
async fn callbacks_edit_configuration_next_request_has_it_and_no_state_event() {
    let (provider, builder) =
        scripted([Step::tool_use("t1", "echo", json!({})), Step::text("Done."), Step::text("Again.")]);
    let agent = builder.tool(echo()).callbacks(Tracing).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.notify(()).await.unwrap();
    let run = run_events(&mut events).await;
    assert!(!names(&run).contains(&"state".to_owned()));
    agent.ask("More").await.unwrap();
    let systems: Vec<_> = provider
        .requests()
        .iter()
        .map(|request| request.system.as_deref().unwrap_or("").to_owned())
        .collect();
    assert_eq!(
        systems,
        ["event ", "event prepare use result ", "event prepare use result prepare turn "],
        "a request is built before prepare_step sees it"
    );
}

/// Callbacks whose `prepare_step` switches to another model, once.
struct Turncoat(Option<crate::provider::Model>);

#[async_trait]
impl AgentCallbacks for Turncoat {
    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        if let Some(model) = self.0.take() {
            state.config_mut().model = model;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn prepare_step_changes_model_request_goes_to_the_model_it_was_built_for() {
    let old = ScriptedProvider::new([Step::text("Old.")]);
    let new = ScriptedProvider::new([Step::text("New.")]);
    let model =
        |provider: &ScriptedProvider, id: &str| crate::provider::Model::new(Arc::new(provider.clone()), id);
    let agent = Agent::builder()
        .model(model(&old, "old"))
        .callbacks(Turncoat(Some(model(&new, "new"))))
        .start()
        .await
        .unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Old.");
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "New.");
    assert_eq!(&*old.requests()[0].model, "old");
    assert_eq!(&*new.requests()[0].model, "new");
}

#[tokio::test(start_paused = true)]
async fn set_state_while_handle_event_runs_wins_over_its_edits() {
    let gate = crate::testing::Gate::new();
    let callbacks = super::rig::Misbehaving {
        at: At::HandleEvent,
        act: super::rig::Act::Hang,
        gate: gate.clone(),
        done: false,
    };
    let agent = echoing([]).callbacks(callbacks).start().await.unwrap();
    agent.notify(()).await.unwrap();
    gate.reached().await;
    let set = agent.set_state(|draft| {
        draft.config.settings.system = Some("set".into());
        Ok(())
    });
    answered(set).await.unwrap();
    gate.open();
    answered(agent.wait_until_idle()).await.unwrap();
    assert_eq!(agent.state().await.unwrap().config().settings.system.as_deref(), Some("set"));
}

#[tokio::test(start_paused = true)]
async fn cancel_callback_has_edited_edits_are_void() {
    for at in At::ALL {
        let (agent, _events) = stuck_in(at).await;
        answered(agent.cancel()).await.unwrap();
        assert_eq!(answered(agent.state()).await.unwrap().config().settings.system, None, "{at:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn set_state_any_state_event_carries_the_new_state() {
    let agent = echoing([]).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent
        .set_state(|draft| {
            draft.config.settings.system = Some("set".into());
            Ok(())
        })
        .await
        .unwrap();
    let refused = agent.set_state(|_| Err("no".into())).await;
    let error = refused.unwrap_err();
    assert!(error.to_string().starts_with("init or the closure of set_state failed"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Callback);
    let event = super::support::next(&mut events).await;
    let Event::State(state) = &*event else { panic!("{event:?}") };
    assert_eq!(state.settings.system.as_deref(), Some("set"));
    assert_eq!(super::rig::ready_events(&mut events).await, []);
}
