//! Edge cases of `max_steps`.

use crate::{
    agent::{Failure, Prompt, ToolDecision, TurnDecision},
    provider::{ProviderError, ProviderErrorKind, StopReason},
    run::ErrorKind,
    testing::{Gate, Step},
};
use serde_json::json;

use super::{
    hooks::{Hooks, Log, Watched, failed, noting, reached, results, sent, stopped, turns},
    support::{names, scripted},
};

fn look(id: &str) -> Step {
    Step::tool_use(id, "look", json!({}))
}

#[tokio::test(start_paused = true)]
async fn limit_on_a_tool_step_runs_no_tool_and_gives_the_reason() {
    let (provider, builder) = scripted([look("a"), look("b")]);
    let (log, asked, ended) = (Log::default(), Log::<String>::default(), Log::<StopReason>::default());
    let (noted, noted_end) = (asked.clone(), ended.clone());
    let hooks = Hooks::new()
        .on_tool_use(move |tool_use, _| {
            noted.push(tool_use.id.as_str());
            ToolDecision::Execute
        })
        .on_turn(move |response, _| {
            noted_end.push(response.stop_reason.clone());
            TurnDecision::continue_with("Go on regardless")
        });
    let builder = builder.max_steps(2).tool(noting("look", &log)).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    let events = agent.run("Go").await;
    assert_eq!((log.all().len(), asked.all()), (1, vec!["a".to_owned()]));
    let names = names(&events);
    assert_eq!(
        names[names.len() - 6..],
        ["message(assistant)", "step", "tool_result(b)", "message(user)", "status(idle)", "turn(stop)"]
    );
    let (result, _) = results(&events).pop().unwrap();
    assert!(result.is_error && result.text().contains("limit of 2 steps"), "{}", result.text());
    let response = stopped(&events);
    assert_eq!((&response.stop_reason, response.step), (&StopReason::MaxSteps, 2));
    assert_eq!(ended.all(), [StopReason::MaxSteps], "handle_turn runs, and its continue is ignored");
    assert_eq!(provider.requests().len(), 2);
    let history = agent.history().await;
    assert_eq!(history[3..], ["assistant: use b", "user: result b"]);

    provider.push(Step::text("Fresh."));
    agent
        .agent
        .set_state(|draft| {
            draft.config.settings.max_steps = None;
            Ok(())
        })
        .await
        .unwrap();
    agent.until("state").await;
    agent.agent.prompt("Again").await.unwrap();
    agent.until("step").await;
    assert_eq!(sent(&provider.requests()[2]).last().unwrap(), "user: Again");
}

#[tokio::test(start_paused = true)]
async fn limit_and_continue_ends_the_run() {
    let (provider, builder) = scripted([Step::text("One"), Step::text("Two"), Step::text("Three")]);
    let hooks = Hooks::new().on_turn(|_, _| TurnDecision::continue_with("More"));
    let mut agent = Watched::start(builder.max_steps(2).callbacks(hooks)).await;
    let events = agent.run("Go").await;
    assert_eq!(provider.requests().len(), 2);
    assert_eq!(turns(&events).len(), 2);
    let response = stopped(&events);
    assert_eq!((&response.stop_reason, response.text().as_str()), (&StopReason::MaxSteps, "Two"));
}

#[tokio::test(start_paused = true)]
async fn limit_and_stop_keeps_the_stop_reason() {
    let (_, builder) = scripted([Step::text("One")]);
    let mut agent = Watched::start(builder.max_steps(1)).await;
    assert_eq!(stopped(&agent.run("Go").await).stop_reason, StopReason::Stop);
}

#[tokio::test(start_paused = true)]
async fn limit_does_not_delay_a_staged_prompt() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_tool_use("a", "look", json!({})).stop();
    let (provider, builder) = scripted([first, Step::text("Steered.")]);
    let hooks = Hooks::new().continuing(["Go on regardless"]);
    let builder = builder.max_steps(1).tool(noting("look", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt("Rather this").await.unwrap();
    gate.open();
    let events = agent.end().await;
    let turns = turns(&events);
    assert_eq!(turns[0].stop_reason, StopReason::MaxSteps);
    assert_eq!(
        (turns[1].step, turns[1].text().as_str()),
        (1, "Steered."),
        "the staged prompt has a fresh step count"
    );
    assert_eq!(
        sent(&provider.requests()[1]),
        ["user: Go", "assistant: use a", "user: result a", "user: Rather this"]
    );
}

#[tokio::test(start_paused = true)]
async fn limit_counts_retries() {
    let broken =
        || Step::new().then_text(["Ha"]).fail(ProviderError::new(ProviderErrorKind::Service, "down"));
    let (provider, builder) = scripted([broken(), broken(), Step::text("Late")]);
    let hooks = Hooks::new().on_error(|_, _| crate::agent::ErrorDecision::Retry);
    let mut agent = Watched::start(builder.max_steps(2).callbacks(hooks)).await;
    let events = agent.run("Go").await;
    let (failure, response) = failed(&events);
    assert!(matches!(failure, Failure::Provider { .. }), "{failure:?}");
    assert_eq!((provider.requests().len(), response.step), (2, 2));
    assert_eq!(names(&events).iter().filter(|name| *name == "retry").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn limit_does_not_count_retries_of_the_provider() {
    let busy = || Step::error(ProviderError::new(ProviderErrorKind::Overloaded, "busy"));
    let (provider, builder) = scripted([busy(), busy(), Step::text("Finally")]);
    let mut agent = Watched::start(builder.max_steps(1)).await;
    let events = agent.run("Go").await;
    assert_eq!(stopped(&events).step, 1);
    assert_eq!(provider.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn limit_counts_the_continuations_of_a_paused_answer() {
    let half = || Step::new().then_text(["Half"]).stop_with(StopReason::Pause);
    let (provider, builder) = scripted([half(), half(), half()]);
    let mut agent = Watched::start(builder.max_steps(2)).await;
    let events = agent.run("Go").await;
    assert_eq!((provider.requests().len(), &stopped(&events).stop_reason), (2, &StopReason::MaxSteps));
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_prompt_applies_to_it_alone() {
    let (provider, builder) = scripted([look("a"), look("b"), Step::text("Done"), look("c")]);
    let mut agent = Watched::start(builder.max_steps(1).tool(noting("look", &Log::default()))).await;
    let events = agent.run(Prompt::new("Go").with_max_steps(5)).await;
    assert_eq!((&stopped(&events).stop_reason, stopped(&events).step), (&StopReason::Stop, 3));
    let events = agent.run("Go").await;
    assert_eq!((&stopped(&events).stop_reason, stopped(&events).step), (&StopReason::MaxSteps, 1));
    assert_eq!(provider.steps_left(), 0);
}

#[tokio::test(start_paused = true)]
async fn limit_of_zero_is_refused_by_prompt_and_ask_and_nothing_is_lost() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::new().gate(&gate).then_text(["Hello"]).stop(), Step::text("Next")]);
    let mut agent = Watched::start(builder).await;
    let zero = || Prompt::new("Go").with_max_steps(0);
    let error = agent.agent.prompt(zero()).await.unwrap_err();
    assert!(error.to_string().starts_with("max_steps is 0"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    let error = agent.agent.ask(zero()).await.unwrap_err();
    assert!(error.to_string().starts_with("max_steps is 0"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    agent.agent.prompt("Hi").await.unwrap();
    agent.agent.prompt("Staged").await.unwrap();
    let error = agent.agent.prompt(zero()).await.unwrap_err();
    assert!(error.to_string().starts_with("max_steps is 0"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    gate.open();
    agent.end().await;
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Hello", "user: Staged", "assistant: Next"]);
}

#[tokio::test(start_paused = true)]
async fn limit_of_zero_set_by_a_callback_fails_the_run() {
    let (_, builder) = scripted([Step::text("Hello"), Step::text("Hello")]);
    let mut once = true;
    let hooks = Hooks::new().on_turn(move |_, state| {
        if std::mem::take(&mut once) {
            state.config_mut().settings.max_steps = Some(0);
        }
        TurnDecision::Stop
    });
    let mut agent = Watched::start(builder.max_steps(7).callbacks(hooks)).await;
    let (failure, _) = failed(&agent.run("Hi").await);
    let Failure::Callback { callback, message } = failure else { panic!("{failure:?}") };
    assert_eq!(callback, "handle_turn");
    assert!(message.contains("max_steps is 0"), "{message}");
    assert_eq!(agent.agent.state().await.unwrap().config().settings.max_steps, Some(7));
    agent.run("Hi").await;
}

#[tokio::test(start_paused = true)]
async fn limit_lowered_by_a_callback_applies_from_the_next_request_on() {
    let (provider, builder) = scripted([look("a"), look("b"), look("c")]);
    let log = Log::default();
    let hooks = Hooks::new().on_tool_use(|tool_use, state| {
        state.config_mut().settings.max_steps = (tool_use.id.as_str() == "b").then_some(1);
        ToolDecision::Execute
    });
    let mut agent = Watched::start(builder.tool(noting("look", &log)).callbacks(hooks)).await;
    let response = stopped(&agent.run("Go").await);
    assert_eq!((&response.stop_reason, response.step), (&StopReason::MaxSteps, 2));
    assert_eq!(log.all().len(), 2, "a decided use is run in spite of the lower limit");
    assert_eq!((agent.history().await.pop().unwrap().as_str(), provider.steps_left()), ("user: result b", 1));
}

#[tokio::test(start_paused = true)]
async fn limit_raised_by_handle_turn_allows_its_continuation() {
    let (_, builder) = scripted([Step::text("One"), Step::text("Two"), Step::text("Three")]);
    let hooks = Hooks::new().on_turn(|_, state| {
        state.config_mut().settings.max_steps = Some(2);
        TurnDecision::continue_with("More")
    });
    let mut agent = Watched::start(builder.max_steps(1).callbacks(hooks)).await;
    let events = agent.run("Go").await;
    assert_eq!((turns(&events).len(), &stopped(&events).stop_reason), (2, &StopReason::MaxSteps));
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_prompt_is_not_changed_by_callbacks() {
    let (_, builder) = scripted([look("a"), Step::text("Done")]);
    let hooks = Hooks::new().on_tool_use(|_, state| {
        state.config_mut().settings.max_steps = Some(1);
        ToolDecision::Execute
    });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let response = stopped(&agent.run(Prompt::new("Go").with_max_steps(2)).await);
    assert_eq!((response.text().as_str(), response.step), ("Done", 2));
}

#[tokio::test(start_paused = true)]
async fn limit_lowered_between_two_turns_does_not_stop_the_announced_turn() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["One"]).stop();
    let (provider, builder) = scripted([first, Step::text("Two"), Step::text("Three")]);
    let hooks = Hooks::new().on_turn(|_, _| TurnDecision::continue_with("More")).on_event(|_, state| {
        state.config_mut().settings.max_steps = Some(1);
        None
    });
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.notify(()).await.unwrap();
    gate.open();
    let response = stopped(&agent.end().await);
    assert_eq!((&response.stop_reason, response.step), (&StopReason::MaxSteps, 2));
    assert_eq!((response.text().as_str(), provider.steps_left()), ("Two", 1));
}
