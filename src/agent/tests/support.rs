//! Helpers for the agent's tests.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{Agent, AgentBuilder, AgentSubscription, Event, Prompt, PromptState, Snapshot},
    subscription::{EventId, Numbered, Update},
    testing::{ScriptedProvider, Step},
};

/// Returns a provider with a script, and a builder for an agent that uses this provider.
pub(crate) fn scripted(steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, AgentBuilder) {
    let provider = ScriptedProvider::new(steps);
    let builder = Agent::builder().model(provider.model());
    (provider, builder)
}

/// Returns the next event. If no event arrives within an hour of paused time, the test fails.
pub(crate) async fn next(events: &mut AgentSubscription) -> Arc<Event> {
    match tokio::time::timeout(Duration::from_hours(1), events.next()).await {
        Ok(Some(Update::Event(numbered))) => numbered.event,
        other => panic!("expected an event, got {other:?}"),
    }
}

/// Applies the event that follows the snapshot.
pub(crate) fn apply(view: &mut Snapshot, event: &Arc<Event>) {
    let id = EventId { number: view.last.number + 1, ..view.last };
    view.apply(&Numbered { id, event: Arc::clone(event) });
}

/// Returns the events up to and including the event that ends the run.
pub(crate) async fn run_events(events: &mut AgentSubscription) -> Vec<Arc<Event>> {
    let mut seen = Vec::new();
    loop {
        let event = next(events).await;
        let last = ends_run(&event);
        seen.push(event);
        if last {
            return seen;
        }
    }
}

/// Returns whether the event is the last event of a run.
pub(crate) fn ends_run(event: &Event) -> bool {
    matches!(event, Event::Turn { continues: false, .. } | Event::Cancelled { .. } | Event::Error { .. })
}

/// Events in short form, for checking their order. The short form is the event's type and a detail that distinguishes
/// it.
pub(crate) fn names(events: &[Arc<Event>]) -> Vec<String> {
    events.iter().map(|event| name(event)).collect()
}

/// Returns the prompts that the run has returned unused.
pub(crate) fn returned(events: &[Arc<Event>]) -> Vec<Arc<Prompt>> {
    let returned = |event: &Arc<Event>| match &**event {
        Event::Prompt { state: PromptState::Returned, prompt, .. } => prompt.clone(),
        _ => None,
    };
    events.iter().filter_map(returned).collect()
}

/// One event in short form.
pub(crate) fn name(event: &Event) -> String {
    use crate::message::Role;
    match event {
        Event::Message { message, .. } => match message.role {
            Role::User => "message(user)".into(),
            _ => "message(assistant)".into(),
        },
        Event::Turn { continues: false, .. } => "turn(stop)".into(),
        Event::Turn { .. } => "turn(continue)".into(),
        Event::Status { status, pauses } => {
            let status = format!("{status:?}").to_lowercase();
            let ids = pauses.iter().map(|pause| pause.tool_use.id.as_str());
            format!("status({})", std::iter::once(&*status).chain(ids).collect::<Vec<_>>().join(" "))
        }
        Event::ToolResult { result, .. } => format!("tool_result({})", result.tool_use_id),
        Event::ToolStart { tool_use_id, .. } => format!("tool_start({tool_use_id})"),
        Event::ToolEnd { tool_use_id, .. } => format!("tool_end({tool_use_id})"),
        Event::Prompt { state, .. } => {
            format!("prompt({})", serde_json::to_value(state).unwrap()["state"].as_str().unwrap())
        }
        Event::Decided(decided) => format!("decided({})", decided.tool_use_id),
        other => serde_json::to_value(other).unwrap()["type"].as_str().unwrap().to_owned(),
    }
}
