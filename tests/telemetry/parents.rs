//! Code of the application runs inside the span of its operation, also after a spawn.

use std::sync::Arc;

use futures_util::StreamExt;
use omni_agent::{
    Agent, AgentCallbacks, Manager, Response,
    agent::{State, StateEdit, TurnDecision},
    async_trait,
    manager::OpenOptions,
    provider::{Delta, DeltaStream, Model, Provider, ProviderError, Request, RequestContext},
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};
use tracing::Instrument;

use super::{
    alone::{alone, paused, threaded},
    collector::Collector,
};

/// Opens and closes a span of the application.
fn visit(name: &'static str) {
    drop(tracing::info_span!(target: "test", "visit", otel.name = name));
}

struct Callbacks;

#[async_trait]
impl AgentCallbacks for Callbacks {
    async fn init(
        &mut self,
        _: &mut StateEdit,
        _: &State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        visit("init");
        Ok(())
    }

    async fn prepare_step(&mut self, _: &mut Request, _: &mut State) {
        tokio::task::yield_now().await;
        visit("prepare_step");
    }

    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        visit("handle_turn");
        TurnDecision::Stop
    }
}

struct Visited(ScriptedProvider);

#[async_trait]
impl Provider for Visited {
    fn name(&self) -> &str {
        "visited"
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        visit("open");
        Ok(None)
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        visit("stream");
        let deltas = self.0.stream(request, context).await?;
        Ok(Box::pin(deltas.inspect(|delta| {
            if matches!(delta, Ok(Delta::Message(_))) {
                visit("delta");
            }
        })))
    }
}

async fn run(collector: Collector) {
    let script = ScriptedProvider::new([Step::tool_use("call-1", "look", json!({})), Step::text("Done.")]);
    let look = tool_fn("look", "Looks.", |_: Value, _| async {
        let spawned = async { visit("spawned by a tool") };
        tokio::spawn(spawned.in_current_span()).await.unwrap();
        visit("tool");
        Ok("done")
    });
    let model = Model::new(Arc::new(Visited(script)), "scripted");
    let start = OpenOptions::new(Agent::builder().model(model).tool(look).callbacks(Callbacks));
    let manager = Manager::builder(MemoryStore::new()).build();
    let caller = || tracing::info_span!(target: "test", "caller");
    let opened = manager.create(start).instrument(caller()).await.unwrap();
    opened.session.ask("Look.").instrument(caller()).await.unwrap();

    let spans = collector.spans();
    let parents = |name: &str| -> Vec<String> {
        let named = spans.iter().filter(|span| span.name == name);
        named
            .map(|span| {
                let parent = span.parent.as_ref().and_then(|id| spans.iter().find(|span| span.id == *id));
                parent.map_or_else(|| "none".to_owned(), |parent| parent.name.clone())
            })
            .collect()
    };
    assert_eq!(parents("init"), ["caller"]);
    assert_eq!(parents("invoke_agent"), ["caller"]);
    assert_eq!(parents("open"), ["invoke_agent"]);
    assert_eq!(parents("prepare_step"), ["invoke_agent"; 2]);
    assert_eq!(parents("stream"), ["attempt"; 2]);
    assert_eq!(parents("delta"), ["attempt"; 2]);
    assert_eq!(parents("tool"), ["execute_tool look"]);
    assert_eq!(parents("spawned by a tool"), ["execute_tool look"]);
    assert_eq!(parents("handle_turn"), ["invoke_agent"]);
}

#[test]
fn code_of_the_application_on_one_thread_runs_inside_the_span_of_its_operation() {
    const TEST: &str = "parents::code_of_the_application_on_one_thread_runs_inside_the_span_of_its_operation";
    alone(TEST, &[], || paused(run(Collector::install())));
}

#[test]
fn code_of_the_application_on_several_threads_runs_inside_the_span_of_its_operation() {
    const TEST: &str =
        "parents::code_of_the_application_on_several_threads_runs_inside_the_span_of_its_operation";
    alone(TEST, &[], || threaded(run(Collector::install())));
}

#[test]
fn branch_of_a_session_is_a_child_of_its_callers_span() {
    const TEST: &str = "parents::branch_of_a_session_is_a_child_of_its_callers_span";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let provider = ScriptedProvider::new([Step::text("One."), Step::text("Two.")]);
            let agent = Agent::builder().model(provider.model());
            let session =
                omni_agent::Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
            session.ask("Count.").await.unwrap();
            let caller = tracing::info_span!(target: "test", "caller");
            session.ask_branch(None, "Count.").instrument(caller).await.unwrap();
            let spans = collector.spans();
            let runs: Vec<_> = spans.iter().filter(|span| span.name == "invoke_agent").collect();
            assert_eq!(runs.iter().map(|run| run.parent.is_some()).collect::<Vec<_>>(), [false, true]);
        });
    });
}
