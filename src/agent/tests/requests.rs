//! The content of requests: `prepare_step`, the configuration, and the options of one prompt.

use std::sync::Arc;

use crate::{
    agent::{Event, Prompt, ToolDecision, TurnDecision},
    message::{History, Message, Role},
    provider::{Options, OutputSchema, ProviderErrorKind},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::Schema,
};
use serde_json::json;

use super::{
    hooks::{Hooks, Log, Watched, declared, noting, reached, sent, stopped},
    support::{names, scripted},
};

#[tokio::test(start_paused = true)]
async fn prepare_step_changes_the_request_and_nothing_else() {
    let (provider, builder) = scripted([Step::text("One"), Step::text("Two")]);
    let mut first = true;
    let hooks = Hooks::new().on_prepare(move |request, _| {
        if std::mem::take(&mut first) {
            let mut history = request.history.clone();
            history.push(Message::user("It is Tuesday."));
            request.history = history;
            request.system = Some("Be brief.".into());
            request.options = Options::default().with_max_tokens(5);
            request.tools.insert(Arc::new(declared("extra"))).unwrap();
        }
    });
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let events = agent.run("Hi").await;
    assert_eq!(stopped(&events).messages.len(), 2);
    agent.run("Again").await;
    let requests = provider.requests();
    assert_eq!(sent(&requests[0]), ["user: Hi", "user: It is Tuesday."]);
    assert_eq!(
        (requests[0].system.as_deref(), requests[0].options.max_tokens()),
        (Some("Be brief."), Some(5))
    );
    assert!(requests[0].tools.get("extra").is_some());
    assert_eq!(sent(&requests[1]), ["user: Hi", "assistant: One", "user: Again"]);
    assert_eq!((requests[1].system.as_deref(), requests[1].options.max_tokens()), (None, None));
    assert!(requests[1].tools.is_empty());
}

#[tokio::test(start_paused = true)]
async fn prepare_step_tools_of_the_request_are_the_tools_that_run() {
    let (_, builder) = scripted([Step::tool_use("a", "extra", json!({})), Step::text("Done")]);
    let log = Log::default();
    let tool = noting("extra", &log);
    let mut tools = crate::tool::ToolSet::new().with(tool).unwrap();
    let hooks = Hooks::new().on_prepare(move |request, _| request.tools = std::mem::take(&mut tools));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.run("Hi").await;
    assert_eq!(log.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn prepare_step_trimming_to_an_invalid_history_is_repaired() {
    let (provider, builder) = scripted([
        Step::new().then_tool_use("a", "look", json!({})).then_tool_use("b", "look", json!({})).stop(),
        Step::text("Done"),
    ]);
    // Keeps only the last message, so the request contains results without their tool uses.
    let hooks = Hooks::new().on_prepare(|request, _| {
        request.history = request.history.iter().rev().take(1).cloned().collect();
        request.history.push(Message::user("Go on."));
    });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.run("Hi").await;
    let request = &provider.requests()[1];
    request.history.check_sendable().unwrap();
    assert_eq!(sent(request), ["user: Go on."]);
    assert_eq!(agent.history().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn prepare_step_cutting_off_results_is_repaired() {
    let (provider, builder) = scripted([Step::tool_use("a", "look", json!({})), Step::text("Done")]);
    let hooks = Hooks::new().on_prepare(|request, _| {
        let keep = |message: &&Arc<Message>| message.tool_results().next().is_none();
        request.history = request.history.iter().filter(keep).cloned().collect::<History>();
    });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.run("Hi").await;
    let request = &provider.requests()[1];
    request.history.check_sendable().unwrap();
    assert_eq!(sent(request), ["user: Hi", "assistant: use a", "user: result a"]);
    assert!(request.history.last().unwrap().tool_results().next().unwrap().is_error);
}

#[tokio::test(start_paused = true)]
async fn prepare_step_runs_before_every_request_retries_included() {
    let broken = Step::new()
        .then_text(["x"])
        .fail(crate::provider::ProviderError::new(ProviderErrorKind::Service, "x"));
    let (_, builder) = scripted([Step::tool_use("a", "look", json!({})), broken, Step::text("Done")]);
    let seen = Log::<(u32, usize)>::default();
    let noted = seen.clone();
    let hooks = Hooks::new()
        .on_prepare(move |request, state| noted.push((state.step(), request.history.len())))
        .on_error(|_, _| crate::agent::ErrorDecision::Retry);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.run("Hi").await;
    assert_eq!(seen.all(), [(1, 1), (2, 3), (3, 3)]);
}

#[tokio::test(start_paused = true)]
async fn callback_edits_apply_from_the_next_request_on_and_emit_no_state_event() {
    let look = |id| Step::tool_use(id, "look", json!({}));
    let (provider, builder) = scripted([look("a"), Step::text("One"), Step::text("Two")]);
    let set = |state: &mut crate::agent::State, system: &str| {
        state.config_mut().settings.system = Some(system.into());
    };
    let hooks = Hooks::new()
        .on_prepare(move |request, state| {
            let before = request.system.clone();
            set(state, &format!("{} p{}", before.as_deref().unwrap_or("-"), state.step()));
        })
        .on_tool_use(move |_, state| {
            assert_eq!(
                state.config().settings.system.as_deref(),
                Some("- p1"),
                "the model that prepare_step set"
            );
            set(state, "tool_use");
            ToolDecision::Execute
        })
        .on_tool_result(move |result, state| {
            assert_eq!(state.config().settings.system.as_deref(), Some("tool_use"));
            set(state, "tool_result");
            result
        })
        .on_turn(move |_, state| {
            state.config_mut().settings.options = Options::default().with_temperature(0.5);
            state.config_mut().tools.remove("look");
            if state.step() < 3 { TurnDecision::continue_with("More") } else { TurnDecision::Stop }
        });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    let events = agent.run("Hi").await;
    assert!(!names(&events).contains(&"state".to_owned()));
    let requests = provider.requests();
    let systems: Vec<_> = requests.iter().map(|request| request.system.as_deref()).collect();
    assert_eq!(systems, [None, Some("tool_result"), Some("tool_result p2")]);
    let temperatures: Vec<_> = requests.iter().map(|request| request.options.temperature()).collect();
    assert_eq!(temperatures, [None, None, Some(0.5)]);
    assert_eq!(requests.iter().map(|request| request.tools.len()).collect::<Vec<_>>(), [1, 1, 0]);
    let config = agent.agent.state().await.unwrap().config().clone();
    assert_eq!(config.settings.system.as_deref(), Some("tool_result p2 p3"));
}

#[tokio::test(start_paused = true)]
async fn callback_edit_of_the_model_applies_from_the_next_request_on() {
    let other = ScriptedProvider::new([Step::text("From the other")]);
    let (provider, builder) = scripted([Step::tool_use("a", "look", json!({}))]);
    let model = other.model();
    let hooks = Hooks::new().on_tool_use(move |_, state| {
        state.config_mut().model = model.clone();
        ToolDecision::Execute
    });
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    assert_eq!(stopped(&agent.run("Hi").await).text(), "From the other");
    assert_eq!((provider.requests().len(), other.requests().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn prepare_step_edit_of_the_model_does_not_redirect_the_current_request() {
    let other = ScriptedProvider::new([Step::text("From the other")]);
    let (provider, builder) = scripted([Step::text("From the first")]);
    let model = crate::provider::Model::new(other.model().provider().clone(), "other-id");
    let hooks = Hooks::new().on_prepare(move |_, state| state.config_mut().model = model.clone());
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    let response = stopped(&agent.run("Hi").await);
    assert_eq!((response.text().as_str(), response.model.as_str()), ("From the first", "scripted"));
    let response = stopped(&agent.run("Again").await);
    assert_eq!((response.text().as_str(), response.model.as_str()), ("From the other", "other-id"));
    assert_eq!((&*provider.requests()[0].model, &*other.requests()[0].model), ("scripted", "other-id"));
}

#[tokio::test(start_paused = true)]
async fn set_state_idle_changes_all_and_emits_a_state_event() {
    let (provider, builder) = scripted([Step::text("One")]);
    let mut agent = Watched::start(builder).await;
    agent
        .agent
        .set_state(|draft| {
            draft.config.settings.system = Some("Be kind.".into());
            draft.config.settings.max_steps = Some(4);
            draft.history = [Message::user("Hi"), Message::assistant("Hello")].into_iter().collect();
            Ok(())
        })
        .await
        .unwrap();
    let event = agent.next().await;
    let Event::State(state) = &*event else { panic!("{event:?}") };
    assert_eq!(
        (state.settings.system.as_deref(), state.settings.max_steps, state.history.len()),
        (Some("Be kind."), Some(4), 2)
    );
    agent.check().await;
    agent.run("Again").await;
    assert_eq!(provider.requests()[0].system.as_deref(), Some("Be kind."));
}

#[tokio::test(start_paused = true)]
async fn set_state_refused_by_its_closure_changes_nothing() {
    let (_, builder) = scripted([Step::text("One")]);
    let mut agent = Watched::start(builder.system("Be brief.")).await;
    let error = agent
        .agent
        .set_state(|draft| {
            draft.config.settings.system = None;
            Err("not allowed".into())
        })
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("init or the closure of set_state failed"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Callback);
    let zero = agent
        .agent
        .set_state(|draft| {
            draft.config.settings.max_steps = Some(0);
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(zero.to_string().starts_with("max_steps is 0"), "{zero:?}");
    assert_eq!(zero.kind(), ErrorKind::InvalidSettings);
    assert_eq!(agent.agent.state().await.unwrap().config().settings.system.as_deref(), Some("Be brief."));
    assert_eq!(names(&agent.run("Hi").await)[0], "status(busy)");
}

#[tokio::test(start_paused = true)]
async fn set_state_busy_or_paused_is_an_error() {
    let gate = Gate::new();
    let asks = Step::new().gate(&gate).then_tool_use("a", "look", json!({})).stop();
    let (_, builder) = scripted([asks]);
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(json!(null)))]);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default())).callbacks(hooks)).await;
    agent.agent.prompt("Hi").await.unwrap();
    reached(&gate).await;
    let busy = agent.agent.set_state(|_| Ok(())).await.unwrap_err();
    assert_eq!((busy.kind(), busy.member("activity")), (ErrorKind::Busy, Some(&"busy".into())), "{busy:?}");
    gate.open();
    agent.until("pause").await;
    let paused = agent.agent.set_state(|_| Ok(())).await.unwrap_err();
    assert_eq!(
        (paused.kind(), paused.member("activity")),
        (ErrorKind::Busy, Some(&"paused".into())),
        "{paused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn prompt_options_override_those_of_the_agent_for_that_prompt_only() {
    let (provider, builder) = scripted([
        Step::tool_use("a", "look", json!({})),
        Step::text("One"),
        Step::text("Two"),
        Step::text("Three"),
    ]);
    let base = Options::default().with_temperature(0.1).with_max_tokens(100).with_stop_sequences(["END"]);
    let builder = builder.options(base).tool(noting("look", &Log::default()));
    let mut agent = Watched::start(builder.callbacks(Hooks::new().continuing(["More"]))).await;
    let own = Options::default().with_temperature(0.9).with_top_p(0.5);
    agent.run(Prompt::new("Hi").with_options(own)).await;
    agent.run("Again").await;
    let seen: Vec<_> = provider
        .requests()
        .into_iter()
        .map(|request| (request.options.temperature(), request.options.top_p(), request.options.max_tokens()))
        .collect();
    let laid_over = (Some(0.9), Some(0.5), Some(100));
    assert_eq!(
        seen,
        [laid_over, laid_over, laid_over, (Some(0.1), None, Some(100))],
        "continuations included"
    );
    let config = agent.agent.state().await.unwrap().config().clone();
    assert_eq!((config.settings.options.temperature(), config.settings.options.top_p()), (Some(0.1), None));
}

#[tokio::test(start_paused = true)]
async fn output_schema_of_the_agent_parses_every_final_answer() {
    let schema = Schema::new(json!({ "type": "object", "required": ["n"] })).unwrap();
    let (provider, builder) = scripted([
        Step::tool_use("a", "look", json!({})),
        Step::text(" {\"n\": 1}\n"),
        Step::text("{}"),
        Step::text("One."),
    ]);
    let options = Options::default().with_output(OutputSchema::new("number", schema)).with_output_retries(0);
    let mut agent = Watched::start(builder.options(options).tool(noting("look", &Log::default()))).await;
    let events = agent.run("Hi").await;
    let response = stopped(&events);
    assert_eq!((&response.output, &response.output_error), (&Some(json!({ "n": 1 })), &None));
    let steps = super::hooks::steps(&events);
    assert_eq!(
        (&steps[0].output, &steps[0].output_error),
        (&None, &None),
        "a step that uses tools has no answer"
    );
    assert_eq!(steps[1].output, Some(json!({ "n": 1 })));
    let response = stopped(&agent.run("Again").await);
    assert!(response.output.is_none() && response.output_error.as_ref().unwrap().contains("\"n\""));
    let response = stopped(&agent.run("Again").await);
    assert!(response.output.is_none() && response.output_error.as_ref().unwrap().contains("not JSON"));
    assert_eq!(provider.requests()[0].options.output().unwrap().name, "number");
}

#[tokio::test(start_paused = true)]
async fn response_message_roles_alternate_with_those_of_the_request() {
    let (provider, builder) = scripted([Step::from_fn(|request| {
        let last = request.history.last().unwrap();
        assert_eq!(last.role, Role::User);
        Step::text(format!("You said {}", last.text()))
    })]);
    let mut agent = Watched::start(builder).await;
    assert_eq!(stopped(&agent.run("boo").await).text(), "You said boo");
    assert_eq!(provider.steps_left(), 0);
}
