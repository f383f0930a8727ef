//! The errors of all layers as a program prints them: `Display`, the chain of sources, and the `Debug` output, which
//! Rust prints when `main` returns an error.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

use std::{env, error::Error, fmt, fs, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind, Failure, ProviderError, ProviderErrorKind, StoreError, ToolError,
    agent::{Agent, AgentBuilder, AgentCallbacks, State, StateEdit},
    error_chain,
    manager::Manager,
    message::{History, HistoryError, Message, ToolResult, ToolUse},
    provider::{
        Catalogue, Registry,
        custom::{BackendError, Breach},
    },
    session::Session,
    store::{ConversationId, FileSystemStore, MemoryStore, Owner, Store},
    subscription::EndReason,
    telemetry::{self, TelemetrySettings},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Schema, ToolSet, declared_tool_with_schema},
    tree::{NodeId, TreeError},
};
use serde_json::json;

/// An error with a cause, like the errors of applications and drivers.
#[derive(Debug)]
struct Outer;

#[derive(Debug)]
struct Inner;

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the licence check failed")
    }
}

impl Error for Outer {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&Inner)
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("disk on fire")
    }
}

impl Error for Inner {}

/// An error that repeats the text of its cause. The errors of some drivers do this.
#[derive(Debug)]
struct Repeating;

impl fmt::Display for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the licence check failed: disk on fire")
    }
}

impl Error for Repeating {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&Inner)
    }
}

struct Refusing;

#[async_trait]
impl AgentCallbacks for Refusing {
    async fn init(&mut self, _: &mut StateEdit, _: &State) -> Result<(), Box<dyn Error + Send + Sync>> {
        Err(Box::new(Outer))
    }
}

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(env::temp_dir().join(format!("omni-agent-{}", ConversationId::generate())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        let _ = fs::remove_file(&self.0);
    }
}

fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
}

fn boxed(error: impl Error + 'static) -> Box<dyn Error> {
    Box::new(error)
}

async fn no_start(builder: AgentBuilder) -> Box<dyn Error> {
    boxed(builder.start().await.err().unwrap())
}

fn failing(error: ProviderError) -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::from_fn(move |_| Step::error(error.clone())).model())
}

fn spent() -> ProviderError {
    ProviderError::new(ProviderErrorKind::Quota, "the account is empty").with_source(Outer)
}

/// Returns the texts of the chain: the text of the error, and then those of its sources.
fn sentences(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut sentences = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        sentences.push(cause.to_string());
        next = cause.source();
    }
    sentences
}

/// Checks the text and the sources of an error. Its `Display` text contains the cause exactly once, at the end. The
/// texts of its sources are exactly `deeper`, and no text of the chain repeats an earlier one. If `main` returns the
/// error, its output is the chain.
fn check(name: &str, error: &(dyn Error + 'static), cause: &str, deeper: &[&str]) {
    let shown = error.to_string();
    assert_eq!(shown.matches(cause).count(), 1, "{name}: {shown}");
    assert!(shown.ends_with(cause), "{name}: {shown}");
    let chain = sentences(error);
    assert_eq!(chain[1..], *deeper, "{name}: {chain:?}");
    assert_eq!(error_chain(error), chain.join(": "), "{name}");
    for (at, sentence) in chain.iter().enumerate() {
        assert!(!chain[..at].iter().any(|earlier| earlier.contains(sentence)), "{name}: {chain:?}");
    }
    assert_eq!(format!("{error:?}"), error_chain(error), "{name}");
}

#[tokio::test]
async fn display_of_an_agents_first_failures_names_the_cause_once() {
    let scripted = || Agent::builder().model(ScriptedProvider::new([Step::text("Hi")]).model());
    let open = ToolResult::ok(&ToolUse::new("a", "add", json!({})), "3");
    let orphan = "message 0: the tool result for \"a\" answers no open tool use of the message before it; remove it, or use History::repair";
    let history: History = [Message::user("Hi")].into_iter().collect();
    let tool = |name: &str, schema| declared_tool_with_schema(name, "", schema);
    let no_schema = Schema::new(json!({"type": "array"})).unwrap();

    let error = no_start(Agent::builder()).await;
    check("no model", &*error, "no model is set; give the builder a Model or a `provider:model`", &[]);
    let error = no_start(Agent::builder().model("nobody:model")).await;
    assert!(
        error.to_string().starts_with("the model can't be resolved: unknown provider \"nobody\""),
        "{error}"
    );
    check("unknown provider", &*error, "add others with Registry::register", &[]);
    let error = no_start(Agent::builder().model("model")).await;
    assert!(error.to_string().starts_with("the model can't be resolved: \"model\""), "{error}");
    assert_eq!(sentences(&*error).len(), 1);
    let error = no_start(scripted().callbacks(Refusing)).await;
    check("refused start", &*error, "the licence check failed", &["disk on fire"]);
    let error = no_start(scripted().history(history)).await;
    check("history", &*error, "or send the prompt with `prompt`", &[]);
    let error = ToolSet::new().with(tool("", no_schema.clone())).err().unwrap();
    check("tool's name", &omni_agent::Error::from(error), "letters, digits, `_`, `-` and `.`", &[]);
    let error = omni_agent::Error::from(ToolSet::new().with(tool("add", no_schema)).err().unwrap());
    assert!(
        error.to_string().starts_with("the tools are invalid: the input schema of tool \"add\""),
        "{error}"
    );
    assert_eq!(sentences(&error).len(), 1);

    let agent = scripted().start().await.unwrap();
    check("prompt", &agent.ask(open).await.unwrap_err(), orphan, &[]);
    let agent =
        failing(ProviderError::new(ProviderErrorKind::Quota, "the account is empty")).start().await.unwrap();
    check("run", &agent.ask("Hi").await.unwrap_err(), "quota spent: the account is empty", &[]);
    let agent = failing(spent()).start().await.unwrap();
    let error = agent.ask("Hi").await.unwrap_err();
    check("run", &error, "the licence check failed", &["disk on fire"]);
    assert_eq!(error.provider_error().map(|error| error.kind), Some(ProviderErrorKind::Quota));
    let text = serde_json::to_string(&error).unwrap();
    let read: omni_agent::Error = serde_json::from_str(&text).unwrap();
    assert_eq!((read.kind(), read.to_string()), (error.kind(), error.to_string()));
    assert_eq!(read.failure(), error.failure());
}

#[cfg(feature = "http")]
#[tokio::test]
async fn display_of_a_request_without_a_key_or_a_server_names_the_cause_once() {
    use omni_agent::provider::{Model, Options, Request, http::Endpoint};

    let model = |endpoint: Endpoint| Model::new(Arc::new(endpoint.with_key_variable("NO_SUCH_KEY")), "m");
    let anthropic = Endpoint::all()
        .into_iter()
        .find(|endpoint| omni_agent::provider::Provider::name(endpoint) == "anthropic")
        .unwrap();
    let agent = Agent::builder().model(model(anthropic.clone())).start().await.unwrap();
    let error = agent.ask("Hi").await.unwrap_err();
    assert!(error.to_string().starts_with("the run failed: not authorised: no API key"), "{error}");
    check("missing key", &error, "or set the environment variable NO_SUCH_KEY", &[]);
    let unreachable = anthropic.with_key("k").with_base_url("http://127.0.0.1:1");
    let agent = Agent::builder().model(model(unreachable.clone())).start().await.unwrap();
    let options = Options::default().with_max_retries(0);
    let error = agent.ask(omni_agent::run::Prompt::new("Hi").with_options(options)).await.unwrap_err();
    assert!(
        error.to_string().starts_with("the run failed: transport failed: no connection to 127.0.0.1: "),
        "{error}"
    );
    assert_eq!(sentences(&error).len(), 1);
    let invalid = model(unreachable.with_base_url("nowhere"));
    let error = invalid.generate(Request::prompt("Hi")).await.unwrap_err();
    check("base URL", &error, "is invalid: relative URL without a base", &[]);
}

#[tokio::test]
async fn display_of_a_sessions_and_a_managers_first_failures_names_the_cause_once() {
    let parrot = || Agent::builder().model(ScriptedProvider::from_fn(|_| Step::text("Hi")).model());
    let folder = Folder::new();
    let store: Arc<dyn Store> = Arc::new(FileSystemStore::open(&folder.0).await.unwrap());
    let manager = Manager::builder(Arc::clone(&store)).build();

    let loaded = Session::builder(Arc::clone(&store)).agent(parrot()).open(id("a")).await;
    check("load", &loaded.err().unwrap(), "the store has no conversation a", &[]);
    let opened = manager.open(&id("a"), parrot()).await;
    check("open", &opened.err().unwrap(), "the store has no conversation a", &[]);
    let created = manager.create_with_id(&id("b"), parrot().callbacks(Refusing)).await;
    check("refused", &created.err().unwrap(), "the licence check failed", &["disk on fire"]);
    let created = manager.create_with_id(&id("b"), Agent::builder().model("nobody:model")).await;
    check("model", &created.err().unwrap(), "add others with Registry::register", &[]);

    // Replace the folder with a file.
    fs::remove_dir_all(&folder.0).unwrap();
    fs::write(&folder.0, "").unwrap();
    let created = Session::builder(Arc::clone(&store)).agent(parrot()).create_with_id(id("c")).await;
    let error = created.err().unwrap();
    check("create", &error, "Not a directory (os error 20)", &[]);
    let created = manager.create_with_id(&id("c"), parrot()).await;
    check("create", &created.err().unwrap(), "Not a directory (os error 20)", &[]);
    let opened = FileSystemStore::open(&folder.0).await;
    assert_eq!(sentences(&opened.err().unwrap()).len(), 1);

    let node = NodeId::new(7).unwrap();
    let error = omni_agent::Error::from(TreeError::UnknownHead { id: node });
    check("tree", &error, "the head is node 7, which does not exist", &[]);
    let error = omni_agent::Error::from(HistoryError::EndsInPrompt { index: 0 });
    check("history", &error, "or send the prompt with `prompt`", &[]);
    let full = || StoreError::Full { place: "a".into(), source: Arc::new(Outer) };
    check("full", &full(), "the licence check failed", &["disk on fire"]);
    check("full", &omni_agent::Error::from(full()), "the licence check failed", &["disk on fire"]);
}

#[test]
fn source_of_repeated_causes_is_only_the_part_not_printed_yet() {
    let error = StoreError::failed("reading the log", Repeating);
    check("repeating", &error, "the licence check failed: disk on fire", &[]);
    let error = ProviderError::new(ProviderErrorKind::Service, "down").with_source(Repeating);
    check("repeating", &error, "the licence check failed: disk on fire", &[]);
    let error =
        ProviderError::new(ProviderErrorKind::Service, "disk on fire, says the service").with_source(Outer);
    assert_eq!(error_chain(&error), "service error: disk on fire, says the service");
    assert!(error.source().is_none() && error.cause().unwrap().is::<Outer>());
    let error = ProviderError::new(ProviderErrorKind::Contract, "")
        .with_source(BackendError::from(Breach::NoTerminalEvent));
    check("backend", &error, "the event stream ended without a result or an error", &[]);
    let error = Catalogue::from_models_dev("{").unwrap_err();
    check("catalogue", &error, "EOF while parsing an object at line 1 column 1", &[]);
    assert_eq!(ToolError::caused_by(&Outer).to_string(), "the licence check failed: disk on fire");
    assert_eq!(error_chain(&Repeating), "the licence check failed: disk on fire");
}

#[test]
fn debug_of_every_error_is_its_chain_of_sentences() {
    let configure =
        || telemetry::configure(TelemetrySettings::new()).and(telemetry::configure(TelemetrySettings::new()));
    let node = NodeId::new(7).unwrap();
    let no_schema = Schema::new(json!({ "type": "nothing" })).unwrap_err();
    #[allow(unused_mut, reason = "a feature adds an error")]
    let mut errors = vec![
        boxed(omni_agent::Error::new(ErrorKind::Busy, "the agent is Busy").with_source(Outer)),
        boxed(spent()),
        boxed(Failure::from(spent())),
        boxed(StoreError::failed("reading", Outer)),
        boxed(BackendError::from(Breach::NoTerminalEvent)),
        boxed(Breach::NoTerminalEvent),
        boxed(Registry::default().model("nobody:model").err().unwrap()),
        boxed(Catalogue::from_models_dev("{").unwrap_err()),
        boxed(configure().unwrap_err()),
        boxed(EndReason::HandlesDropped),
        boxed(
            ToolSet::new()
                .with(declared_tool_with_schema("", "", Schema::new(json!({})).unwrap()))
                .err()
                .unwrap(),
        ),
        boxed(no_schema),
        boxed(HistoryError::EndsInPrompt { index: 0 }),
        boxed(TreeError::UnknownHead { id: node }),
        boxed(ConversationId::new("").unwrap_err()),
    ];
    #[cfg(feature = "mcp")]
    errors.push(boxed(omni_agent::mcp::McpError::Down { server: "files".into() }));
    for error in errors {
        assert_eq!(format!("{error:?}"), error_chain(&*error));
        assert!(error.to_string().contains(' '), "{error} is not a sentence");
    }
}

#[tokio::test]
async fn debug_of_a_response_and_an_error_stays_short() {
    let long = "word ".repeat(10_000);
    let body = format!("{{\"error\":\"{long}\"}}");
    let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "no such model")
        .with_status(404)
        .with_body(&body);
    let provider = ScriptedProvider::new([Step::text(&*long), Step::new().then_text([&*long]).fail(error)]);
    let agent = Agent::builder().model(provider.model()).start().await.unwrap();
    let response = agent.ask(&*long).await.unwrap();
    let shown = format!("{response:?}");
    assert!(shown.len() < 500 && shown.contains("text: \"word word "), "{shown}");
    let error = agent.ask("Again").await.unwrap_err();
    let shown = format!("{error:?}");
    assert!(shown.len() < 900 && shown.contains("no such model") && shown.contains("404"), "{shown}");
    assert_eq!(error.to_string(), "the run failed: invalid request (status 404): no such model");
    let gate = Gate::new();
    let provider = ScriptedProvider::new([Step::new().then_text([&*long]).gate(&gate)]);
    let agent = Agent::builder().model(provider.model()).start().await.unwrap();
    let asked = tokio::spawn({
        let agent = agent.clone();
        async move { agent.ask("Hi").await }
    });
    gate.reached().await;
    agent.cancel().await.unwrap();
    let error = asked.await.unwrap().unwrap_err();
    assert!(format!("{error:?}").len() < 500, "{error:?}");
    let busy = omni_agent::Error::new(ErrorKind::Busy, "the agent is Busy").with_member("activity", "busy");
    assert_eq!(format!("{busy:?}"), "the agent is Busy");
    let shown = "Error {\n    kind: Busy,\n    message: \"the agent is Busy\",\n    activity: \"busy\",\n}";
    assert_eq!(format!("{busy:#?}"), shown);
    let shown = format!("{:#?}", spent().with_status(402).with_body(&body));
    assert!(shown.len() < 500 && shown.contains("status: 402") && shown.contains("word"), "{shown}");
}

/// Returns the HTTP status for an error. The predicates of the error determine the status.
macro_rules! status {
    ($error:expr) => {
        match &$error {
            error if error.is_not_found() => 404,
            error if error.is_conflict() => 409,
            error if error.is_unavailable() => 503,
            _ => 500,
        }
    };
}

#[tokio::test(start_paused = true)]
async fn predicates_map_errors_to_statuses() {
    let gate = Gate::new();
    let provider = ScriptedProvider::new([Step::new().gate(&gate).then_text(["Hi"]).stop()]);
    let manager = Manager::builder(MemoryStore::new()).build();
    let agent = || Agent::builder().model(provider.model());
    let missing = manager.open(&id("a"), agent()).await.unwrap_err();
    assert_eq!(status!(missing), 404);
    assert!(!missing.is_conflict() && !missing.is_unavailable());

    let session = manager.create_with_id(&id("a"), agent()).await.unwrap().session;
    assert_eq!(status!(manager.create_with_id(&id("a"), agent()).await.unwrap_err()), 409);
    let no_node = session.navigate(Some(serde_json::from_value::<NodeId>(json!(9)).unwrap())).await;
    assert_eq!(status!(no_node.unwrap_err()), 404);
    assert_eq!(status!(session.cancel().await.unwrap_err()), 409);
    session.prompt("Hi").await.unwrap();
    let busy = session.navigate(None).await.unwrap_err();
    assert!(busy.kind() == ErrorKind::Busy && !busy.is_unavailable());
    assert_eq!(status!(busy), 409);
    assert_eq!(status!(session.prompt("").await.unwrap_err()), 500);
    manager.close_discarding(&id("a")).await.unwrap();
    assert_eq!(status!(session.prompt("Hi").await.unwrap_err()), 503);
    manager.shutdown(Duration::ZERO).await.unwrap();
    assert_eq!(status!(manager.open(&id("a"), agent()).await.unwrap_err()), 503);

    let agent = agent().start().await.unwrap();
    assert!(agent.cancel().await.unwrap_err().is_conflict());
    agent.stop(Duration::from_secs(1)).await.unwrap();
    assert!(agent.cancel().await.unwrap_err().is_unavailable());

    let id = id("a");
    assert_eq!(status!(StoreError::NotFound { id: id.clone() }), 404);
    assert_eq!(status!(StoreError::AlreadyExists { id }), 409);
    assert_eq!(status!(StoreError::failed("reading", Inner)), 503);
    assert_eq!(status!(StoreError::damaged("a file", "a hole")), 500);
}

#[test]
fn each_kind_has_a_row_in_the_document_and_survives_its_json() {
    let document = include_str!("../docs/web.md");
    for kind in ErrorKind::ALL {
        let name = serde_json::to_value(kind).unwrap();
        let (status, code, title) = (kind.status(), kind.code(), kind.title());
        let row = format!("| `{}` | {status} `{code}` | {title} |\n", name.as_str().unwrap());
        assert!(document.contains(&row), "docs/web.md lacks this row: {row}");
        let error = omni_agent::Error::new(*kind, "it failed; try again").with_member("waiting", ["t1"]);
        let json = serde_json::to_value(&error).unwrap();
        assert_eq!(
            json,
            json!({ "kind": name, "status": status, "message": "it failed; try again", "waiting": ["t1"] })
        );
        let read: omni_agent::Error = serde_json::from_value(json).unwrap();
        assert_eq!((read.kind(), read.status(), read.waiting()), (*kind, status, vec!["t1".into()]));
        assert_eq!(read.to_string(), "it failed; try again");
    }
    let owned = StoreError::Owned { id: id("a"), owner: Owner::new("two").at("http://two") };
    let error = omni_agent::Error::from(owned).with_member("retry_after", Duration::from_secs(3));
    let read: omni_agent::Error = serde_json::from_value(serde_json::to_value(&error).unwrap()).unwrap();
    assert_eq!((read.owner(), read.retry_after()), (error.owner(), Some(Duration::from_secs(3))));
    assert!(error.store_error().is_some() && read.store_error().is_none());
}

#[test]
fn error_of_an_unknown_kind_is_foreign_and_keeps_its_status() {
    let classes = [(404, "found"), (409, "conflict"), (503, "unavailable"), (500, "none"), (7, "none")];
    for (status, class) in classes {
        let json = json!({ "kind": "invented_later", "status": status, "message": "it is new", "more": 1 });
        let error: omni_agent::Error = serde_json::from_value(json).unwrap();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Foreign, "it is new"));
        assert_eq!(error.member("more"), Some(&1.into()));
        assert_eq!(error.is_not_found(), class == "found");
        assert_eq!(error.is_conflict(), class == "conflict");
        assert_eq!(error.is_unavailable(), class == "unavailable");
        let again: omni_agent::Error = serde_json::from_str(&serde_json::to_string(&error).unwrap()).unwrap();
        assert_eq!((again.kind(), again.status()), (ErrorKind::Foreign, error.status()));
    }
    assert!(serde_json::from_str::<omni_agent::Error>(r#"{"kind":"busy"}"#).is_err(), "the text is missing");
}
