//! Backup models: after which failures they repeat a step, and for how long they stay in use.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{
        Agent, AgentBuilder, BackupCause, BackupModel, ErrorDecision, Event, Failure, FollowTarget, RunStep,
        ToolDecision,
    },
    message::RequestEnd,
    provider::{
        Credentials, DeltaStream, Model, ModelInfo, Options, Provider, ProviderError, ProviderErrorKind,
        Registry, Request, RequestContext, RetryPolicy, Secret, StopReason,
    },
    run::{ErrorKind, Prompt},
    testing::{ScriptedProvider, Step},
    tool::Replay,
};
use async_trait::async_trait;
use serde_json::json;
use tokio::time::Instant;

use super::{
    hooks::{Hooks, Log, Watched, failed, noting, steps, stopped, tokens},
    rig::echo,
};

const CAUSES: [BackupCause; 4] =
    [BackupCause::Overload, BackupCause::Outage, BackupCause::ContextTooLong, BackupCause::Refusal];

fn error(kind: ProviderErrorKind) -> ProviderError {
    ProviderError::new(kind, "no")
}

fn down(kind: ProviderErrorKind) -> Step {
    Step::error(error(kind))
}

fn quota() -> Step {
    down(ProviderErrorKind::Quota)
}

fn refuses() -> Step {
    Step::new().usage(tokens(3)).then_text(["I won't."]).stop_with(StopReason::Refusal)
}

/// Returns a provider with this name, whose model has the same name.
fn named(name: &str, steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, Model) {
    let provider = ScriptedProvider::new(steps).named(name.to_owned());
    let model = Model::new(Arc::new(provider.clone()), name);
    (provider, model)
}

/// Returns a builder without retries by policy.
fn builder(model: &Model) -> AgentBuilder {
    Agent::builder().model(model.clone()).retry_policy(RetryPolicy::default().with_max_retries(0))
}

fn room(model: &Model, room: u64) -> Model {
    model.with_info(ModelInfo::new(&**model.id()).with_context_window(room))
}

/// The failures and the models of the repetitions.
fn retries(events: &[Arc<Event>]) -> Vec<(Failure, Option<&str>)> {
    let retries = events.iter().filter_map(|event| match &**event {
        Event::Retry { failure, model, .. } => Some((failure.clone(), model.as_deref())),
        _ => None,
    });
    retries.collect()
}

fn key(request: &Request) -> Option<&str> {
    request.options.api_key().map(Secret::reveal)
}

#[tokio::test(start_paused = true)]
async fn failure_is_repeated_by_a_backup_model_for_its_cause_only() {
    use ProviderErrorKind::{
        Auth, ContextTooLong, Contract, Decoding, InvalidRequest, Output, Overloaded, Quota, RateLimit,
        Service, Timeout, Transport, Truncated, Unsupported,
    };
    let table = [
        (Some(BackupCause::Overload), vec![RateLimit, Overloaded, Quota]),
        (Some(BackupCause::Outage), vec![Timeout, Transport, Truncated, Decoding, Service, Unsupported]),
        (Some(BackupCause::ContextTooLong), vec![ContextTooLong]),
        (None, vec![Auth, InvalidRequest, Contract, Output]),
    ];
    for (of, kinds) in table {
        for (kind, cause) in kinds.into_iter().flat_map(|kind| CAUSES.map(|cause| (kind, cause))) {
            let (_, first) = named("first", [down(kind)]);
            let (second, backup) = named("second", [Step::text("Here.")]);
            let backup = BackupModel::new(backup).with_causes([cause]);
            let mut agent = Watched::start(builder(&first).backup_model(backup)).await;
            let events = agent.run("Hi").await;
            if of == Some(cause) {
                assert_eq!(stopped(&events).text(), "Here.", "{kind:?}, {cause:?}");
                assert_eq!(retries(&events), [(error(kind).into(), Some("second:second"))]);
            } else {
                assert_eq!(failed(&events).0, error(kind).into(), "{kind:?}, {cause:?}");
                assert!(second.requests().is_empty());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_provider_is_an_outage() {
    for (cause, is_used) in [(BackupCause::Outage, true), (BackupCause::Overload, false)] {
        let (_, first) = named("first", [Step::new().then_text(["H"]).panic("broken")]);
        let (second, backup) = named("second", [Step::text("Here.")]);
        let backup = BackupModel::new(backup).with_causes([cause]);
        let agent = builder(&first).backup_model(backup).start().await.unwrap();
        assert_eq!(agent.ask("Hi").await.is_ok(), is_used);
        assert_eq!(second.requests().len(), usize::from(is_used));
    }
}

#[tokio::test(start_paused = true)]
async fn models_are_used_in_order_and_each_repetition_is_a_step() {
    let (_, first) = named(
        "first",
        [Step::new().usage(tokens(2)).then_text(["H"]).fail(error(ProviderErrorKind::Service))],
    );
    let (_, second) = named("second", [quota()]);
    let (third, last) = named("third", [Step::new().usage(tokens(5)).then_text(["Here."]).stop()]);
    let mut agent = Watched::start(builder(&first).backup_model(second).backup_model(last)).await;
    let events = agent.run("Hi").await;
    let names: Vec<_> = retries(&events).into_iter().map(|(_, model)| model).collect();
    assert_eq!(names, [Some("second:second"), Some("third:third")]);
    let response = stopped(&events);
    assert_eq!((response.step, &*response.model, response.usage), (3, "third", tokens(7)));
    assert_eq!(steps(&events)[0].model, "third");
    let rows = events.iter().filter_map(|event| match &**event {
        Event::Usage(row) => Some((row.model.as_deref(), row.end, row.usage)),
        _ => None,
    });
    assert_eq!(rows.collect::<Vec<_>>(), [(Some("first"), RequestEnd::Void, tokens(2))]);
    assert_eq!(agent.history().await, ["user: Hi", "assistant: Here."]);
    assert_eq!(third.requests()[0].history.len(), 1, "the void response is not sent");
}

#[tokio::test(start_paused = true)]
async fn limit_of_requests_is_reached_before_a_backup_model() {
    let (_, first) = named("first", [quota()]);
    let (second, backup) = named("second", []);
    let log = Log::<Failure>::default();
    let noted = log.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        noted.push(failure.clone());
        ErrorDecision::Retry
    });
    let builder = builder(&first).backup_model(backup).callbacks(hooks).max_steps(1);
    let mut agent = Watched::start(builder).await;
    assert_eq!(failed(&agent.run("Hi").await).0, error(ProviderErrorKind::Quota).into());
    assert_eq!((log.all().len(), second.requests().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn handle_error_is_called_when_no_backup_model_is_left_and_repeats_with_the_last_one() {
    let (first, model) = named("first", [quota()]);
    let (second, backup) = named("second", [quota(), Step::text("Here.")]);
    let log = Log::<Failure>::default();
    let noted = log.clone();
    let hooks = Hooks::new().on_error(move |failure, _| {
        noted.push(failure.clone());
        ErrorDecision::Retry
    });
    let mut agent = Watched::start(builder(&model).backup_model(backup).callbacks(hooks)).await;
    let events = agent.run("Hi").await;
    assert_eq!((stopped(&events).text(), stopped(&events).step), ("Here.".to_owned(), 3));
    let quota = || Failure::from(error(ProviderErrorKind::Quota));
    assert_eq!(retries(&events), [(quota(), Some("second:second")), (quota(), None)]);
    assert_eq!(log.all(), [quota()]);
    assert_eq!((first.requests().len(), second.requests().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn refused_response_is_void_and_a_backup_model_answers() {
    let uses = Step::new().usage(tokens(3)).then_tool_use("a", "echo", json!({}));
    for refused in [refuses(), uses.stop_with(StopReason::Refusal)] {
        let (_, first) = named("first", [refused]);
        let (second, backup) = named("second", [Step::new().usage(tokens(5)).then_text(["Yes."]).stop()]);
        let mut agent = Watched::start(builder(&first).backup_model(backup).tool(echo())).await;
        let events = agent.run("May I?").await;
        assert_eq!(retries(&events), [(Failure::Refused, Some("second:second"))]);
        let response = stopped(&events);
        assert_eq!((response.step, response.stop_reason.clone()), (2, StopReason::Stop));
        assert_eq!(response.usage, tokens(8), "the void response costs too");
        assert_eq!(agent.history().await, ["user: May I?", "assistant: Yes."]);
        assert_eq!(second.requests()[0].history.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_response_stays_if_no_backup_model_is_left() {
    let (_, first) = named("first", [refuses()]);
    let (_, second) = named("second", [refuses()]);
    let (third, last) = named("third", []);
    let last = BackupModel::new(last).with_causes([BackupCause::Overload]);
    let mut agent = Watched::start(builder(&first).backup_model(second).backup_model(last)).await;
    let events = agent.run("May I?").await;
    let response = stopped(&events);
    assert_eq!((response.stop_reason.clone(), response.text()), (StopReason::Refusal, "I won't.".to_owned()));
    assert_eq!((response.step, response.usage, third.requests().len()), (2, tokens(6), 0));
}

#[tokio::test(start_paused = true)]
async fn conversation_that_is_too_long_goes_only_to_a_larger_window() {
    let too_long = || down(ProviderErrorKind::ContextTooLong);
    for (of_first, of_second, of_third, expected) in [
        (Some(100), Some(50), Some(101), ["", "Third."]),
        (Some(100), Some(100), Some(101), ["", "Third."]),
        (Some(100), Some(101), None, ["Second.", ""]),
        (Some(100), None, None, ["Second.", ""]),
        (None, Some(50), None, ["Second.", ""]),
        // The request is larger than the window of the second model.
        (None, Some(4), None, ["", "Third."]),
        (Some(100), Some(50), Some(100), ["", ""]),
    ] {
        let (_, first) = named("first", [too_long()]);
        let others = [("second", of_second, "Second."), ("third", of_third, "Third.")];
        let others = others.map(|(name, size, text)| {
            let model = named(name, [Step::text(text)]).1;
            size.map_or(model.clone(), |size| room(&model, size))
        });
        let first = of_first.map_or(first.clone(), |size| room(&first, size));
        let agent = others.into_iter().fold(builder(&first), AgentBuilder::backup_model);
        let answer = agent.start().await.unwrap().ask("Hi").await.map_or(String::new(), |own| own.text());
        assert_eq!(answer, expected.concat(), "{of_first:?}, {of_second:?}, {of_third:?}");
    }
    // The limit of a prompt counts before the window.
    let limited = |name, limit, steps| {
        let mut info = ModelInfo::new(name).with_context_window(1000);
        info.input_limit = Some(limit);
        named(name, steps).1.with_info(info)
    };
    let (first, second) = (limited("first", 500, vec![too_long()]), limited("second", 400, vec![]));
    let agent = builder(&first).backup_model(second).start().await.unwrap();
    assert!(agent.ask("Hi").await.is_err(), "the second model was not asked");
    // An overload says nothing about the size.
    let (_, first) = named("first", [quota()]);
    let (_, second) = named("second", [Step::text("Second.")]);
    let agent = builder(&room(&first, 100)).backup_model(room(&second, 50)).start().await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Second.");
}

#[tokio::test(start_paused = true)]
async fn backup_model_stays_until_the_end_of_the_run_and_the_next_prompt_begins_with_the_first() {
    let (first, model) = named("first", [quota(), Step::text("First again.")]);
    let uses = Step::tool_use("t", "echo", json!({}));
    let (second, backup) = named("second", [uses, Step::text("Second."), Step::text("More.")]);
    let hooks = Hooks::new().continuing(["And?"]);
    let mut agent = Watched::start(builder(&model).backup_model(backup).tool(echo()).callbacks(hooks)).await;
    let events = agent.run("Hi").await;
    assert_eq!(stopped(&events).text(), "More.", "a continuation belongs to its prompt");
    assert_eq!((first.requests().len(), second.requests().len()), (1, 3));
    assert_eq!(agent.agent.state().await.unwrap().config().model.name(), "first:first");
    assert_eq!(stopped(&agent.run("Again").await).text(), "First again.");
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_begins_with_the_first_model() {
    let (first, model) = named("first", [quota(), Step::text("First.")]);
    let gate = crate::testing::Gate::new();
    let (second, backup) = named("second", [Step::new().gate(&gate).then_text(["Second."]).stop()]);
    let mut agent = Watched::start(builder(&model).backup_model(backup)).await;
    agent.agent.prompt("Hi").await.unwrap();
    super::hooks::reached(&gate).await;
    agent.agent.prompt("And?").await.unwrap();
    gate.open();
    assert_eq!(stopped(&agent.end().await).text(), "First.");
    assert_eq!((first.requests().len(), second.requests().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn model_set_by_a_callback_replaces_the_backup_model_and_the_list_begins_anew() {
    let (_, first) = named("first", [quota()]);
    let uses = Step::tool_use("t", "look", json!({}));
    let (second, backup) = named("second", [uses, Step::text("Second again.")]);
    let (third, chosen) = named("third", [quota()]);
    let hooks = Hooks::new().on_tool_use(move |_, state| {
        state.config_mut().set_model(chosen.clone()).unwrap();
        ToolDecision::Execute
    });
    let builder = builder(&first).backup_model(backup).callbacks(hooks);
    let mut agent = Watched::start(builder.tool(noting("look", &Log::default()))).await;
    let events = agent.run("Hi").await;
    assert_eq!(stopped(&events).text(), "Second again.");
    assert_eq!((second.requests().len(), third.requests().len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn model_that_has_failed_is_not_its_own_backup_model() {
    let (first, model) = named("first", [quota(), Step::text("Second.")]);
    let agent = builder(&model).backup_model(model.clone()).start().await.unwrap();
    assert!(agent.ask("Hi").await.is_err());
    assert_eq!(first.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn long_delay_of_a_service_is_not_waited_for_while_a_backup_model_is_left() {
    let busy = |seconds| {
        let wait = Some(Duration::from_secs(seconds));
        Step::error(error(ProviderErrorKind::Overloaded).with_retry_after(wait))
    };
    let second = Duration::from_secs(1);
    for (delay, causes, requests, at_least) in [
        (6, vec![BackupCause::Overload], (1, 1), Duration::ZERO),
        (5, vec![BackupCause::Overload], (2, 0), second * 5),
        (6, vec![BackupCause::Outage], (2, 0), second * 6),
    ] {
        let (first, model) = named("first", [busy(delay), Step::text("First.")]);
        let (other, backup) = named("second", [Step::text("Second.")]);
        let backup = BackupModel::new(backup).with_causes(causes);
        let builder = Agent::builder().model(model).backup_model(backup);
        let start = Instant::now();
        builder.start().await.unwrap().ask("Hi").await.unwrap();
        assert_eq!((first.requests().len(), other.requests().len()), requests, "{delay}");
        assert!((at_least..at_least + second * 2).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}

/// A provider whose requests have effects.
struct Effective(ScriptedProvider);

#[async_trait]
impl Provider for Effective {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn replay(&self) -> Replay {
        Replay::Never
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.0.stream(request, context).await
    }
}

#[tokio::test(start_paused = true)]
async fn provider_whose_requests_have_effects_uses_no_backup_model() {
    for step in [quota(), refuses()] {
        let first = Model::new(Arc::new(Effective(named("first", [step]).0)), "first");
        let (second, backup) = named("second", []);
        let agent = builder(&first).backup_model(backup).start().await.unwrap();
        let answer = agent.ask("Hi").await;
        assert!(answer.is_err() || answer.unwrap().stop_reason == StopReason::Refusal);
        assert!(second.requests().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn backup_model_gets_only_the_key_of_its_provider() {
    let (first, model) = named("first", [quota()]);
    let (second, other) = named("second", [quota()]);
    let (third, last) = named("third", [Step::text("Here.")]);
    let builder = builder(&model).options(Options::default().with_api_key("of-first"));
    let builder = builder.credentials(Credentials::new("second").with_api_key("of-second"));
    let agent = builder.backup_model(other).backup_model(last).start().await.unwrap();
    agent.ask("Hi").await.unwrap();
    let keys = [first, second, third].map(|own| key(&own.requests()[0]).map(str::to_owned));
    assert_eq!(keys, [Some("of-first".into()), Some("of-second".into()), None]);
}

/// `prepare_step` changes the model for later requests only. This one goes to the model whose key it has.
#[tokio::test(start_paused = true)]
async fn request_goes_to_the_model_for_which_it_was_made_although_prepare_step_changes_the_model() {
    let (_, first) = named("first", [quota()]);
    let (second, backup) = named("second", [Step::text("Second.")]);
    let (third, chosen) = named("third", []);
    let mut requests = 0;
    let hooks = Hooks::new().on_prepare(move |_, state| {
        requests += 1;
        if requests == 2 {
            state.config_mut().set_model(chosen.clone()).unwrap();
        }
    });
    let builder = builder(&first).credentials(Credentials::new("second").with_api_key("of-second"));
    let agent = builder.backup_model(backup).callbacks(hooks).start().await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Second.");
    assert_eq!(key(&second.requests()[0]), Some("of-second"));
    assert!(third.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn name_of_a_backup_model_is_resolved_at_start() {
    let (_, model) = named("first", [quota()]);
    let other = ScriptedProvider::new([Step::text("Here.")]).named("other");
    let registry = || Registry::empty().with(other.clone());
    let refused = builder(&model).registry(registry()).backup_model("nobody:small").start().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::UnknownModel);
    let agent = builder(&model).backup_model("other:small").registry(registry()).start().await.unwrap();
    assert_eq!(agent.ask("Hi").await.unwrap().text(), "Here.");
    assert_eq!(&*other.requests()[0].model, "small");
}

#[tokio::test(start_paused = true)]
async fn follower_reads_which_model_repeats_the_request() {
    let (_, first) = named("first", [quota()]);
    let (_, backup) = named("second", [Step::text("Here.")]);
    let agent = builder(&first).backup_model(backup).start().await.unwrap();
    let mut running = agent.follow(FollowTarget::Prompt("own".into())).await.unwrap();
    agent.prompt(Prompt::new("Hi").with_id("own")).await.unwrap();
    let mut models = Vec::new();
    while let Some(step) = running.next().await.unwrap() {
        if let RunStep::Void { failure, model } = step {
            models.push((failure, model));
        }
    }
    assert_eq!(models, [(Some(error(ProviderErrorKind::Quota).into()), Some("second:second".into()))]);
}
