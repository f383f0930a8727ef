//! Starting an agent: `init`, the initial history, and refused configurations.

use std::error::Error;

use crate::{
    agent::{Agent, AgentBuilder, WeakAgent},
    message::{Blocks, Content, History, HistoryError, Message, ToolResult, ToolUse},
    provider::{Registry, RegistryError},
    run::ErrorKind,
    testing::{ScriptedProvider, Step},
    tool::{Schema, ToolSet, ToolSetError, tool_fn, tool_fn_with_schema},
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, declared, sent, stopped},
    support::scripted,
};

fn tool_use(id: &str) -> ToolUse {
    ToolUse::new(id, "look", json!({}))
}

fn user(content: impl Into<Blocks>) -> Message {
    Message::user(content)
}

fn assistant(content: impl Into<Blocks>) -> Message {
    Message::assistant(content)
}

/// Valid histories, each with a different kind of last message.
fn lawful() -> Vec<History> {
    let closed = ToolResult::ok(&tool_use("a"), "seen");
    vec![
        History::new(),
        [user("Hi"), assistant("Hello")].into_iter().collect(),
        [user("Look"), assistant(tool_use("a")), user(closed)].into_iter().collect(),
        [user("Look"), assistant(tool_use("a"))].into_iter().collect(),
    ]
}

/// Invalid histories. Some are invalid at the end, others before the end.
fn unlawful() -> Vec<(History, HistoryError)> {
    let orphan = ToolResult::ok(&tool_use("b"), "seen");
    vec![
        (History::from_iter([user("Hi")]), HistoryError::EndsInPrompt { index: 0 }),
        (
            [user("Look"), assistant(tool_use("a")), user("Well?"), assistant("No")].into_iter().collect(),
            HistoryError::Unanswered { index: 1, id: "a".into() },
        ),
        (
            [user("Hi"), assistant("Hello"), user(orphan), assistant("What?")].into_iter().collect(),
            HistoryError::OrphanResult { index: 2, id: "b".into() },
        ),
        (
            History::from_iter([user("Hi"), assistant([Content::from(tool_use("a")), tool_use("a").into()])]),
            HistoryError::DuplicateToolUse { index: 1, id: "a".into() },
        ),
    ]
}

fn with_init_history(builder: AgentBuilder, history: History) -> AgentBuilder {
    builder.callbacks(Hooks::new().on_init(move |draft, _| {
        draft.history = history.clone();
        Ok(())
    }))
}

/// Checks that the agent answers a prompt, and that the agent sends a valid history.
async fn assert_goes_on(agent: Agent, provider: &ScriptedProvider, history: &History) {
    let mut agent = Watched::of(agent).await;
    assert_eq!(agent.view.state.history, *history);
    agent.run("Go on").await;
    let request = provider.requests().pop().unwrap();
    request.history.check_sendable().unwrap();
    assert_eq!(request.history.len(), history.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn start_valid_history_accepts_every_last_message() {
    for history in lawful() {
        let (provider, builder) = scripted([Step::text("Fine.")]);
        let agent = builder.history(history.clone()).start().await.unwrap();
        assert_goes_on(agent, &provider, &history).await;
    }
}

#[tokio::test(start_paused = true)]
async fn init_valid_history_accepts_every_last_message() {
    for history in lawful() {
        let (provider, builder) = scripted([Step::text("Fine.")]);
        let agent = with_init_history(builder, history.clone()).start().await.unwrap();
        assert_goes_on(agent, &provider, &history).await;
    }
}

#[tokio::test(start_paused = true)]
async fn set_state_valid_history_accepts_every_last_message() {
    for history in lawful() {
        let (provider, builder) = scripted([Step::text("Fine.")]);
        let agent = builder.start().await.unwrap();
        let new = history.clone();
        agent
            .set_state(move |draft| {
                draft.history = new;
                Ok(())
            })
            .await
            .unwrap();
        assert_goes_on(agent, &provider, &history).await;
    }
}

fn breach(error: &crate::Error) -> HistoryError {
    assert_eq!(error.kind(), ErrorKind::Config);
    error.cause().unwrap().downcast_ref::<HistoryError>().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn start_invalid_history_is_refused_with_the_position() {
    for (history, expected) in unlawful() {
        let (_, builder) = scripted([]);
        assert_eq!(breach(&builder.history(history.clone()).start().await.unwrap_err()), expected);
        let (_, builder) = scripted([]);
        assert_eq!(breach(&with_init_history(builder, history).start().await.unwrap_err()), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn set_state_invalid_history_changes_nothing() {
    for (history, expected) in unlawful() {
        let (provider, builder) = scripted([Step::text("Fine.")]);
        let before = lawful().swap_remove(1);
        let agent = builder.system("Be brief.").history(before.clone()).start().await.unwrap();
        let error = agent
            .set_state(move |draft| {
                draft.config.settings.system = Some("Be long.".into());
                draft.history = history;
                Ok(())
            })
            .await
            .unwrap_err();
        assert_eq!(breach(&error), expected);
        assert_eq!(agent.state().await.unwrap().config().settings.system.as_deref(), Some("Be brief."));
        assert_goes_on(agent, &provider, &before).await;
    }
}

#[tokio::test(start_paused = true)]
async fn init_edits_configuration_and_history() {
    let (provider, builder) = scripted([Step::text("Fine.")]);
    let hooks = Hooks::new().on_init(|draft, _| {
        assert_eq!(draft.config.settings.system.as_deref(), Some("Be brief."));
        draft.config.settings.system = Some("Be kind.".into());
        draft.config.settings.options = draft.config.settings.options.clone().with_max_tokens(7);
        draft.config.tools.insert(std::sync::Arc::new(declared("ask_user")))?;
        draft.history = [user("Hi"), assistant("Hello")].into_iter().collect();
        Ok(())
    });
    let mut agent = Watched::start(builder.system("Be brief.").callbacks(hooks)).await;
    agent.run("Go on").await;
    let request = &provider.requests()[0];
    assert_eq!(request.system.as_deref(), Some("Be kind."));
    assert_eq!(request.options.max_tokens(), Some(7));
    assert!(request.tools.get("ask_user").is_some());
    assert_eq!(sent(request), ["user: Hi", "assistant: Hello", "user: Go on"]);
}

#[tokio::test(start_paused = true)]
async fn init_error_refuses_the_start_with_its_message() {
    let (_, builder) = scripted([]);
    let hooks = Hooks::new().on_init(|_, _| Err("no licence".into()));
    let error = builder.callbacks(hooks).start().await.unwrap_err();
    assert!(error.to_string().starts_with("init or the closure of set_state failed"));
    assert_eq!(error.kind(), ErrorKind::Callback);
    assert_eq!(error.to_string(), "init or the closure of set_state failed: no licence");
    assert!(error.source().is_none());
}

#[tokio::test(start_paused = true)]
async fn init_sees_extensions_and_no_agent_yet() {
    struct Tenant(u32);
    let (_, builder) = scripted([]);
    let seen = Log::<u32>::default();
    let noted = seen.clone();
    let hooks = Hooks::new().on_init(move |_, state| {
        noted.push(state.extensions().get::<Tenant>().unwrap().0);
        assert!(state.extensions().get::<WeakAgent>().unwrap().upgrade().is_none());
        assert!(state.agent().upgrade().is_none());
        Ok(())
    });
    let agent = builder.extension(Tenant(7)).callbacks(hooks).start().await.unwrap();
    assert_eq!(seen.all(), [7]);
    assert!(agent.state().await.unwrap().agent().upgrade().is_some());
}

#[tokio::test(start_paused = true)]
async fn start_without_a_model_is_an_error() {
    let error = Agent::builder().start().await.unwrap_err();
    assert!(error.to_string().starts_with("no model is set"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
}

#[tokio::test(start_paused = true)]
async fn start_with_a_model_name_uses_the_registry() {
    let provider = ScriptedProvider::new([Step::text("Hello")]);
    let mut registry = Registry::empty();
    registry.register(provider.model().provider().clone());
    let builder = || Agent::builder().registry(registry.clone());
    let unknown = builder().model("nobody:gpt").start().await.unwrap_err();
    let Some(RegistryError::UnknownProvider { provider: named, known }) =
        unknown.cause().and_then(|cause| cause.downcast_ref())
    else {
        panic!("{unknown:?}");
    };
    assert_eq!((&**named, &known[..]), ("nobody", &["test".to_owned()][..]));
    let bad = builder().model("gpt").start().await.unwrap_err();
    let cause = bad.cause().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(RegistryError::BadName { .. })), "{bad:?}");
    assert_eq!((unknown.kind(), bad.kind()), (ErrorKind::UnknownModel, ErrorKind::UnknownModel));

    let mut agent = Watched::start(builder().model("test:brand-new")).await;
    let events = agent.run("Hi").await;
    assert_eq!(&*provider.requests()[0].model, "brand-new");
    assert_eq!(stopped(&events).model, "brand-new");
}

#[tokio::test(start_paused = true)]
async fn start_with_zero_limits_is_an_error() {
    let (_, builder) = scripted([]);
    let error = builder.max_steps(0).start().await.unwrap_err();
    assert!(error.to_string().starts_with("max_steps is 0"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    let (_, builder) = scripted([]);
    let error = builder.turn_timeout(std::time::Duration::ZERO).start().await.unwrap_err();
    assert!(error.to_string().starts_with("turn_timeout is zero"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    let (_, builder) = scripted([]);
    let hooks = Hooks::new().on_init(|draft, _| {
        draft.config.settings.max_steps = Some(0);
        Ok(())
    });
    let error = builder.callbacks(hooks).start().await.unwrap_err();
    assert!(error.to_string().starts_with("max_steps is 0"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
}

#[tokio::test(start_paused = true)]
async fn start_with_duplicate_tool_names_is_an_error() {
    let (_, builder) = scripted([]);
    let error = builder.tool(declared("look")).tool(declared("look")).start().await.unwrap_err();
    let cause = error.cause().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(ToolSetError::Duplicate(name)) if name == "look"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    // If a valid tool is added later, the error remains. If the whole tool set is replaced, the error is cleared.
    let (_, builder) = scripted([]);
    let builder = builder.tool(declared("look")).tool(declared("look")).tool(declared("listen"));
    assert!(builder.start().await.is_err());
    let (_, builder) = scripted([]);
    let builder = builder.tool(declared("look")).tool(declared("look")).tools(ToolSet::new());
    assert!(builder.start().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn start_with_an_invalid_tool_schema_is_an_error() {
    assert!(Schema::new(json!({ "type": 12 })).is_err());
    let schema = Schema::new(json!({ "type": "string" })).unwrap();
    let tool = tool_fn_with_schema("shout", "Shouts.", schema, |text: Value, _| async move { Ok(text) });
    let (_, builder) = scripted([]);
    let error = builder.tool(tool).start().await.unwrap_err();
    let cause = error.cause().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(ToolSetError::BadSchema { name, .. }) if name == "shout"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
    let (_, builder) = scripted([]);
    let unnamed = tool_fn("no spaces", "Has a bad name.", |_: Value, _| async move { Ok("") });
    let error = builder.tool(unnamed).start().await.unwrap_err();
    let cause = error.cause().and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(ToolSetError::BadName(_))), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Config);
}

/// A type whose schema is invalid.
#[derive(Debug, serde::Deserialize)]
struct Odd;

impl schemars::JsonSchema for Odd {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Odd".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": 12 })
    }
}

#[tokio::test(start_paused = true)]
async fn output_schema_invalid_is_refused_before_a_request_is_sent() {
    use crate::provider::{Options, OutputSchema};

    let odd = || Options::default().with_output(OutputSchema::of::<Odd>());
    let (_, builder) = scripted([]);
    let error = builder.options(odd()).start().await.unwrap_err();
    assert!(error.to_string().starts_with("the output schema is invalid"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);

    let (provider, builder) = scripted([Step::text("Fine.")]);
    let mut agent = Watched::start(builder).await;
    let error = agent.agent.ask_as::<Odd>("Be odd").await.unwrap_err();
    assert!(
        error.to_string().starts_with("the output schema is invalid: unusable JSON Schema: "),
        "{error:?}"
    );
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    let edit = agent
        .agent
        .set_state(move |draft| {
            draft.config.settings.options = odd();
            Ok(())
        })
        .await;
    let error = edit.unwrap_err();
    assert!(error.to_string().starts_with("the output schema is invalid"), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::InvalidSettings);
    assert!(provider.requests().is_empty());
    agent.run("Hi").await;
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Fine."]);
}
