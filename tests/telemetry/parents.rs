//! Code of the application runs inside the span of its operation, also after a spawn.

use std::{any::Any, sync::Arc, time::Duration};

use futures_util::StreamExt;
use omni_agent::{
    Agent, AgentCallbacks, Manager, Response, Session,
    agent::{ErrorDecision, State, StateEdit, ToolDecision, TurnDecision},
    async_trait,
    manager::{OpenOptions, Titles},
    message::{ToolResult, ToolUse},
    provider::{
        BackendProvider, DeltaStream, Model, Provider, ProviderError, ProviderErrorKind, Request,
        custom::{
            Backend, BackendError, BackendEvent, BackendSession, Delta, EventStream, RequestContext,
            SessionId, SessionOptions, TurnPrompt,
        },
    },
    run::{Failure, Prompt},
    store::MemoryStore,
    testing::{Gate, ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};
use tracing::Instrument;

use super::{
    alone::{alone, paused, threaded},
    collector::Collector,
    exporter::Exporter,
    tree::Node,
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

    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        tokio::task::yield_now().await;
        visit("handle_tool_use");
        ToolDecision::Execute
    }

    async fn handle_tool_result(&mut self, result: ToolResult, _: &mut State) -> ToolResult {
        tokio::task::yield_now().await;
        visit("handle_tool_result");
        result
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        tokio::task::yield_now().await;
        visit("handle_error");
        ErrorDecision::Stop
    }

    async fn handle_event(&mut self, _: Box<dyn Any + Send>, _: &mut State) -> Option<Prompt> {
        tokio::task::yield_now().await;
        visit("handle_event");
        None
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
        Ok(Some(Arc::new(Self(self.0.clone()))))
    }

    async fn close(&self) {
        tokio::task::yield_now().await;
        visit("close");
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
    let script = ScriptedProvider::new([
        Step::tool_use("call-1", "look", json!({})),
        Step::text("Done."),
        Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no")),
    ]);
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
    opened.session.ask("Fail.").instrument(caller()).await.unwrap_err();
    opened.session.notify(()).instrument(caller()).await.unwrap();
    // Wait until the agent has handled the event.
    opened.session.wait_until_idle().await.unwrap();
    manager.close(opened.session.id()).instrument(caller()).await.unwrap();

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
    assert_eq!(parents("invoke_agent"), ["caller"; 2]);
    assert_eq!(parents("open"), ["invoke_agent"]);
    assert_eq!(parents("prepare_step"), ["invoke_agent"; 3]);
    assert_eq!(parents("stream"), ["attempt"; 3]);
    assert_eq!(parents("handle_tool_use"), ["invoke_agent"]);
    assert_eq!(parents("handle_tool_result"), ["invoke_agent"]);
    assert_eq!(parents("handle_error"), ["invoke_agent"]);
    // Between two runs, no operation of a caller is in progress.
    assert_eq!(parents("handle_event"), ["none"]);
    assert_eq!(parents("close"), ["none"]);
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

/// Returns the span that is this span's parent.
fn parent_of<'a>(spans: &'a [Node], span: &Node) -> Option<&'a Node> {
    spans.iter().find(|other| Some(&other.id) == span.parent.as_ref())
}

/// Returns the names of the spans to which this span has links.
fn links_of<'a>(spans: &'a [Node], span: &Node) -> Vec<&'a str> {
    let linked = span.links.iter().map(|link| spans.iter().find(|other| other.id == *link).unwrap());
    linked.map(|other| &*other.name).collect()
}

#[test]
fn branch_and_regeneration_of_a_session_are_children_of_their_callers_spans() {
    const TEST: &str = "parents::branch_and_regeneration_of_a_session_are_children_of_their_callers_spans";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let provider = ScriptedProvider::new([Step::text("1."), Step::text("2."), Step::text("3.")]);
            let agent = Agent::builder().model(provider.model());
            let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
            session.ask("Count.").await.unwrap();
            let caller = |name| tracing::info_span!(target: "test", "caller", otel.name = name);
            session.run("Count.").below(None).response().instrument(caller("branch")).await.unwrap();
            let question = session.tree().await.unwrap().nodes().next().unwrap().id();
            session.again(question).start().instrument(caller("again")).await.unwrap();
            session.wait_until_idle().await.unwrap();
            let spans = collector.spans();
            let runs = spans.iter().filter(|span| span.name == "invoke_agent");
            let parents: Vec<_> =
                runs.map(|run| parent_of(&spans, run).map(|parent| &*parent.name)).collect();
            assert_eq!(parents, [None, Some("branch"), Some("again")]);
        });
    });
}

/// A backend whose turns never end. Each turn opens the gate `begun`, and each cancellation the gate `cancelled`.
#[derive(Clone)]
struct Endless {
    /// Whether a turn sends a text first.
    has_text: bool,
    begun: Gate,
    cancelled: Gate,
}

#[async_trait]
impl Backend for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    async fn start(&self, _: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
        Ok(Arc::new(self.clone()))
    }
}

#[async_trait]
impl BackendSession for Endless {
    fn id(&self) -> Option<SessionId> {
        None
    }

    async fn prompt(&self, _: TurnPrompt) -> Result<EventStream, BackendError> {
        let text = self.has_text.then(|| BackendEvent::Text("So".to_owned()));
        let begun = self.begun.clone();
        let rest = futures_util::stream::once(async move {
            begun.pass().await;
            std::future::pending().await
        });
        Ok(Box::pin(futures_util::stream::iter(text).chain(rest)))
    }

    async fn cancel(&self) -> Result<(), BackendError> {
        tokio::task::yield_now().await;
        visit("cancel");
        self.cancelled.pass().await;
        Ok(())
    }

    async fn terminate(&self) {
        tokio::task::yield_now().await;
        visit("terminate");
    }
}

/// Cancels a run before and after the first text of its backend. Ends when the backend has cancelled both turns.
async fn cancelled_at_the_backend() {
    for has_text in [false, true] {
        let backend = Endless { has_text, begun: Gate::new(), cancelled: Gate::new() };
        let model = Model::new(Arc::new(BackendProvider::new(backend.clone())), "endless");
        let agent = Agent::builder().model(model).start().await.unwrap();
        let caller = tracing::info_span!(target: "test", "caller");
        agent.prompt("Go.").instrument(caller).await.unwrap();
        backend.begun.reached().await;
        agent.cancel().await.unwrap();
        backend.cancelled.reached().await;
        backend.cancelled.open();
        // The agent closes its provider, which waits until the cancellation has ended.
        agent.stop(Duration::from_secs(10)).await.unwrap();
    }
}

/// Checks that both cancellations of a backend have the span of their attempt as parent.
fn assert_cancelled_inside_attempts(spans: &[Node]) {
    let cancels: Vec<_> = spans.iter().filter(|span| span.name == "cancel").collect();
    assert_eq!(cancels.len(), 2);
    for cancel in cancels {
        let parents = std::iter::successors(parent_of(spans, cancel), |span| parent_of(spans, span));
        let parents: Vec<_> = parents.map(|span| &*span.name).collect();
        assert_eq!(parents, ["attempt", "chat endless", "invoke_agent", "caller"]);
    }
}

#[test]
fn cancel_of_a_backend_runs_inside_the_span_of_its_attempt() {
    const TEST: &str = "parents::cancel_of_a_backend_runs_inside_the_span_of_its_attempt";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(cancelled_at_the_backend());
        assert_cancelled_inside_attempts(&collector.spans());
        assert_eq!(collector.open(), [""; 0]);
    });
}

#[test]
fn cancel_of_a_backend_through_opentelemetry_has_the_context_of_its_attempt_as_parent() {
    const TEST: &str =
        "parents::cancel_of_a_backend_through_opentelemetry_has_the_context_of_its_attempt_as_parent";
    alone(TEST, &[], || {
        let exporter = Exporter::install();
        paused(cancelled_at_the_backend());
        assert_cancelled_inside_attempts(&exporter.spans());
    });
}

#[test]
fn prompt_from_inside_a_tool_is_a_child_of_the_tool_calls_span() {
    const TEST: &str = "parents::prompt_from_inside_a_tool_is_a_child_of_the_tool_calls_span";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let inner = ScriptedProvider::new([Step::text("Noon.")]);
            let inner = Agent::builder().model(inner.model()).name("clock").start().await.unwrap();
            let tool = tool_fn("ask", "Asks.", move |_: Value, _| {
                let inner = inner.clone();
                async move { Ok(inner.ask("When?").await.unwrap().text()) }
            });
            let script = ScriptedProvider::new([
                Step::tool_use("call-1", "ask", json!({})),
                Step::text("It is noon."),
            ]);
            let outer = Agent::builder().model(script.model()).tool(tool).start().await.unwrap();
            outer.ask("When?").await.unwrap();
            let spans = collector.spans();
            let run = spans.iter().find(|span| span.name == "invoke_agent clock").unwrap();
            assert_eq!(parent_of(&spans, run).unwrap().name, "execute_tool ask");
        });
    });
}

#[test]
fn write_and_title_of_a_session_have_no_parents_and_links_to_the_run() {
    const TEST: &str = "parents::write_and_title_of_a_session_have_no_parents_and_links_to_the_run";
    alone(TEST, &[], || {
        let collector = Collector::install();
        paused(async {
            let titles = ScriptedProvider::new([Step::text("Noon")]);
            let manager = Manager::builder(MemoryStore::new()).titles(Titles::Model(titles.model())).build();
            let provider =
                ScriptedProvider::new([Step::tool_use("call-1", "time", json!({})), Step::text("Noon.")]);
            let time = tool_fn("time", "Returns the time.", |_: Value, _| async { Ok("12:00") });
            let agent = Agent::builder().model(provider.model()).name("clock").tool(time);
            let session = manager.create(OpenOptions::new(agent)).await.unwrap().session;
            let caller = tracing::info_span!(target: "test", "caller");
            session.ask("When?").instrument(caller).await.unwrap();
            session.wait_until_idle().await.unwrap();
            session.flush(Duration::from_secs(10)).await.unwrap();
            manager.close(session.id()).await.unwrap();
            let spans = collector.spans();
            let saves: Vec<_> = spans.iter().filter(|span| span.name == "save").collect();
            let titles: Vec<_> = spans.iter().filter(|span| span.name == "title").collect();
            assert!((1..=2).contains(&saves.len()), "one write for both turns, or one for each");
            assert_eq!(titles.len(), 1);
            for span in saves.into_iter().chain(titles.iter().copied()) {
                assert_eq!(span.parent, None, "{}", span.name);
                assert_eq!(links_of(&spans, span), ["invoke_agent clock"], "{}", span.name);
                assert_eq!(span.attributes["gen_ai.conversation.id"], session.id().as_str());
            }
            let chats = spans.iter().filter(|span| span.name.starts_with("chat "));
            let parents: Vec<_> = chats.map(|chat| &*parent_of(&spans, chat).unwrap().name).collect();
            assert_eq!(parents.iter().filter(|name| **name == "title").count(), 1, "{parents:?}");
            assert_eq!(collector.open(), [""; 0]);
        });
    });
}
