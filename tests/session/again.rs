//! The settings (model, options and limits) of runs at other places than the head, and the responses that they return.

use std::time::Duration;

use omni_agent::{
    Error, ErrorKind,
    agent::{Agent, AgentBuilder},
    provider::{Options, OutputSchema, StopReason},
    run::{Prompt, Response, RunAt, RunOutcome, RunSpec},
    session::{Session, SessionCommand},
    store::{MemoryStore, Store},
    testing::{Gate, ScriptedProvider, Step},
    tree::NodeId,
};
use serde_json::json;

use crate::{
    support::{failing, node, secs},
    watch::{Watched, answered, echo, held, in_time, on, reached},
};

fn agent(provider: &ScriptedProvider) -> AgentBuilder {
    Agent::builder().model(provider.model()).tool(echo())
}

/// Returns a session with one turn, which consists of nodes 1 and 2.
async fn asked(provider: &ScriptedProvider, prompt: impl Into<Prompt>) -> Watched {
    let mut session = Watched::start(on(agent(provider))).await;
    in_time(session.session.ask(prompt)).await.unwrap();
    session.check().await;
    session
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Regenerate,
    Edit,
    Branch,
}

const KINDS: [Kind; 3] = [Kind::Regenerate, Kind::Edit, Kind::Branch];

impl Kind {
    async fn ask(self, session: &Session) -> Result<std::sync::Arc<Response>, Error> {
        in_time(async {
            match self {
                Self::Regenerate => session.again(node(1)).response().await,
                Self::Edit => session.run("Other").instead_of(node(1)).response().await,
                Self::Branch => session.run("Other").below(None).response().await,
            }
        })
        .await
    }

    async fn begin(self, session: &Session) {
        answered(async {
            match self {
                Self::Regenerate => session.again(node(1)).start().await,
                Self::Edit => session.run("Other").instead_of(node(1)).start().await,
                Self::Branch => session.run("Other").below(None).start().await,
            }
        })
        .await
        .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn ask_forms_completed_run_return_its_response() {
    for kind in KINDS {
        let provider = ScriptedProvider::new([Step::text("A1"), Step::text("B1")]);
        let mut session = asked(&provider, "Q1").await;
        let response = kind.ask(&session.session).await.unwrap();
        assert_eq!((response.text().as_str(), response.messages.len()), ("B1", 2), "{kind:?}");
        session.check().await;
        assert_eq!(session.path().last().unwrap(), "assistant: B1");
    }
}

#[tokio::test(start_paused = true)]
async fn ask_forms_failed_run_return_its_error() {
    for kind in KINDS {
        let provider = ScriptedProvider::new([Step::text("A1"), failing()]);
        let mut session = asked(&provider, "Q1").await;
        let before = session.view.tree.clone();
        let error = kind.ask(&session.session).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failed, "{kind:?}: {error:?}");
        session.rest().await;
        let tree = &session.view.tree;
        assert_eq!((tree.head(), tree.history()), (before.head(), before.history()), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn ask_forms_cancelled_or_ended_return_that_error() {
    for kind in KINDS {
        for ends in [false, true] {
            let gate = Gate::new();
            let provider = ScriptedProvider::new([Step::text("A1"), Step::new().gate(&gate).hang()]);
            let session = asked(&provider, "Q1").await.session;
            let (outcome, ()) = tokio::join!(kind.ask(&session), async {
                reached(&gate).await;
                if ends {
                    answered(session.stop(secs(1))).await.unwrap();
                } else {
                    answered(session.cancel()).await.unwrap();
                }
            });
            let error = outcome.unwrap_err();
            let cancelled = error.kind() == ErrorKind::Cancelled;
            assert!(cancelled || ends && error.kind() == ErrorKind::Ended, "{kind:?}: {error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ask_forms_refused_return_the_error_and_start_no_run() {
    let gate = Gate::new();
    let provider = ScriptedProvider::new([Step::text("A1"), held(&gate)]);
    let session = asked(&provider, "Q1").await.session;
    let unknown = session.again(node(9)).response().await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::UnknownNode, "{unknown:?}");
    let zero = session.again(node(1)).with_max_steps(0).response().await.unwrap_err();
    assert!(zero.to_string().starts_with("max_steps is 0"), "{zero:?}");
    session.prompt("Q2").await.unwrap();
    reached(&gate).await;
    for kind in KINDS {
        let busy = kind.ask(&session).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{kind:?}: {busy:?}");
    }
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn response_dropped_run_continues() {
    let gate = Gate::new();
    let provider = ScriptedProvider::new([Step::text("A1"), held(&gate)]);
    let mut session = asked(&provider, "Q1").await;
    {
        let asking = session.session.run("Other").instead_of(node(1)).response();
        tokio::select! {
            _ = asking => panic!("the answer waits at the gate"),
            () = reached(&gate) => {}
        }
    }
    gate.open();
    session.rest().await;
    assert_eq!(session.path(), ["user: Other", "assistant: Half"]);
}

#[tokio::test(start_paused = true)]
async fn last_run_after_each_outcome_is_in_the_snapshot() {
    for kind in KINDS {
        let gate = Gate::new();
        let steps = [Step::text("A1"), failing(), Step::text("B1"), Step::new().gate(&gate).hang()];
        let provider = ScriptedProvider::new(steps);
        let mut session = Watched::start(on(agent(&provider))).await;
        assert_eq!(session.view.agent.last_run, None);
        session.ask("Q1").await;
        let last = |session: &Watched| session.view.agent.last_run.as_deref().map(|end| end.outcome.clone());
        let stopped = Some(RunOutcome::Stopped { stop_reason: StopReason::Stop });
        assert_eq!(last(&session), stopped);
        kind.begin(&session.session).await;
        session.rest().await;
        assert!(matches!(last(&session), Some(RunOutcome::Failed { .. })), "{kind:?}: {:?}", last(&session));
        kind.begin(&session.session).await;
        session.rest().await;
        assert_eq!(last(&session), stopped);
        kind.begin(&session.session).await;
        reached(&gate).await;
        session.check().await;
        assert_eq!(last(&session), stopped, "the last outcome stays while the next run is active");
        answered(session.session.cancel()).await.unwrap();
        session.rest().await;
        assert_eq!(last(&session), Some(RunOutcome::Cancelled));
    }
}

fn tuned() -> Prompt {
    let options = Options::default()
        .with_temperature(0.5)
        .with_max_tokens(100)
        .with_output(OutputSchema::of::<Vec<String>>())
        .with_api_key("secret")
        .with_header("X-Secret", "secret");
    Prompt::new("Q1").with_options(options).with_max_steps(2).with_turn_timeout(Duration::from_mins(1))
}

#[tokio::test(start_paused = true)]
async fn regenerate_repeats_the_settings_of_its_prompt() {
    let tools = || Step::tool_use("t", "echo", json!({}));
    let provider = ScriptedProvider::new([tools(), tools(), tools(), tools()]);
    let session = asked(&provider, tuned()).await.session;
    let response = in_time(session.again(node(1)).response()).await.unwrap();
    assert_eq!(response.stop_reason, StopReason::MaxSteps);
    assert_eq!(provider.requests().len(), 4);
    let (first, again) = (&provider.requests()[0].options, &provider.requests()[2].options);
    assert_eq!(
        (again.temperature(), again.max_tokens(), again.output()),
        (Some(0.5), Some(100), first.output())
    );
    assert!(again.output().is_some());
    assert_eq!((again.api_key(), again.headers()), (None, None), "secrets are not kept");
}

#[tokio::test(start_paused = true)]
async fn regenerate_repeats_the_time_limit_of_its_prompt() {
    let provider = ScriptedProvider::new([Step::text("[]"), Step::new().hang()]);
    let session = asked(&provider, tuned()).await.session;
    let error = in_time(session.again(node(1)).response()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed, "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn regenerate_with_settings_overrides_single_settings_of_its_prompt() {
    let provider = ScriptedProvider::new(["[]", "[]", "[]"].map(Step::text));
    let session = asked(&provider, tuned()).await.session;
    let options = Options::default().with_max_tokens(7);
    in_time(session.again(node(1)).with_options(options).response()).await.unwrap();
    let sent = provider.last_request().unwrap().options;
    assert_eq!((sent.temperature(), sent.max_tokens()), (Some(0.5), Some(7)));
    // The settings of one `regenerate` do not apply to the next one.
    in_time(session.again(node(1)).response()).await.unwrap();
    assert_eq!(provider.last_request().unwrap().options.max_tokens(), Some(100));
}

#[tokio::test(start_paused = true)]
async fn again_with_content_id_or_data_is_refused() {
    let provider = ScriptedProvider::new([Step::text("A1")]);
    let session = asked(&provider, "Q1").await.session;
    let refused = |error: Error| assert_eq!(error.kind(), ErrorKind::InvalidPrompt, "{error:?}");
    refused(session.again(node(1)).with_id("p1").start().await.unwrap_err());
    refused(session.again(node(1)).with_app_data(json!(1)).response().await.unwrap_err());
    let content = SessionCommand::Run(RunSpec::new(RunAt::Again(node(1)), "Other"));
    refused(session.perform(content, None).await.unwrap_err());
    assert_eq!(provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn regenerate_of_a_staged_prompt_repeats_its_settings() {
    let gate = Gate::new();
    let provider = ScriptedProvider::new([held(&gate), Step::text("[]"), Step::text("[]")]);
    let mut session = Watched::start(on(agent(&provider))).await;
    session.session.prompt("Q0").await.unwrap();
    reached(&gate).await;
    session.session.prompt(tuned()).await.unwrap();
    gate.open();
    session.rest().await;
    in_time(session.session.again(node(3)).response()).await.unwrap();
    assert_eq!(provider.last_request().unwrap().options.max_tokens(), Some(100));
    in_time(session.session.again(node(1)).response()).await.unwrap_err();
    assert_eq!(provider.last_request().unwrap().options.max_tokens(), None);
}

#[tokio::test(start_paused = true)]
async fn regenerate_with_a_model_uses_it_for_this_run_only() {
    let (provider, other) = (
        ScriptedProvider::new([Step::text("A1"), Step::text("A2")]),
        ScriptedProvider::new([Step::tool_use("t", "echo", json!({})), Step::text("B1")]).named("other"),
    );
    let mut session = asked(&provider, "Q1").await;
    let name = session.view.agent.state.model.clone();
    let again = session.session.again(node(1)).with_model(other.model());
    let response = in_time(again.response()).await.unwrap();
    assert_eq!((response.text().as_str(), other.requests().len()), ("B1", 2));
    session.check().await;
    assert_eq!(session.view.agent.state.model, name);
    session.ask("Q2").await;
    assert_eq!(session.path().last().unwrap(), "assistant: A2");
    assert_eq!(provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn regenerate_after_opening_uses_the_settings_of_the_agent() {
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(MemoryStore::new());
    let provider = ScriptedProvider::new([Step::text("[]"), Step::text("B1")]);
    let builder = || Session::builder(std::sync::Arc::clone(&store)).agent(agent(&provider));
    let session = builder().create().await.unwrap();
    in_time(session.ask(tuned())).await.unwrap();
    session.stop(secs(1)).await.unwrap();
    let session = builder().open(session.id().clone()).await.unwrap();
    let first: NodeId = session.tree().await.unwrap().roots().next().unwrap().id();
    in_time(session.again(first).response()).await.unwrap();
    let sent = provider.last_request().unwrap().options;
    assert_eq!((sent.max_tokens(), sent.output()), (None, None));
}
