//! Runs whose readers leave: a stop button that only leaves the stream, and a lost connection.

use std::time::Duration;

use axum::{
    body::{Body, BodyDataStream, to_bytes},
    http::{Method, Request, StatusCode, request::Parts},
};
use futures_util::StreamExt;
use omni_agent::{
    access::{Action, Permissions, Principal},
    agent::Status,
    async_trait,
    manager::{Manager, Titles},
    message::Role,
    session::{Session, SessionSnapshot},
    store::{ConversationId, Labels, MemoryStore},
    testing::{Gate, Step},
    web::{Access, Challenge, WebBuilder, WebLimits},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{App, Users, labels, prompt, request, run_input, submit};

const GRACE: Duration = Duration::from_secs(5);
const ALMOST: Duration = Duration::from_millis(4999);

/// The protocol of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    AiSdk,
    AgUi,
}

const PROTOCOLS: [Protocol; 2] = [Protocol::AiSdk, Protocol::AgUi];

impl Protocol {
    /// Returns the request of a new message.
    fn ask(self, id: &str, message: &str) -> Request<Body> {
        self.ask_as("ann", id, message)
    }

    fn ask_as(self, user: &str, id: &str, message: &str) -> Request<Body> {
        let (path, body) = match self {
            Self::AiSdk => ("/api/chat", submit(id, message, message)),
            Self::AgUi => ("/ag-ui", run_input(id, message, message)),
        };
        request(Method::POST, user, path, Some(body))
    }

    /// Returns the request of a reloaded page.
    fn join(self, id: &str) -> Request<Body> {
        let path = match self {
            Self::AiSdk => format!("/api/chat/{id}/stream"),
            Self::AgUi => format!("/ag-ui/{id}?protocolVersion=1.0"),
        };
        request(Method::GET, "ann", &path, None)
    }
}

/// An open stream of a page. Dropping it leaves the stream.
struct Tab {
    body: BodyDataStream,
    shown: String,
}

impl Tab {
    async fn open(app: &App, request: Request<Body>) -> Self {
        let response = app.send(request).await;
        assert_eq!(response.status(), StatusCode::OK);
        Self { body: response.into_body().into_data_stream(), shown: String::new() }
    }

    /// Reads until the page shows this text.
    async fn until(mut self, text: &str) -> Self {
        while !self.shown.contains(text) {
            let bytes = self.body.next().await.unwrap_or_else(|| panic!("no {text} in {}", self.shown));
            self.shown.push_str(std::str::from_utf8(&bytes.unwrap()).unwrap());
        }
        self
    }

    /// Reads to the end.
    async fn end(mut self) -> String {
        while let Some(bytes) = self.body.next().await {
            self.shown.push_str(std::str::from_utf8(&bytes.unwrap()).unwrap());
        }
        self.shown
    }
}

/// Returns an answer of two halves with a gate between them.
fn halves(gate: &Gate) -> Step {
    Step::new().then_text(["Half"]).gate(gate).then_text([" done"]).stop()
}

fn leaving(web: WebBuilder) -> WebBuilder {
    web.interrupt_when_left(GRACE)
}

/// Returns an application, Ann's conversation, and her stream of the prompt `u1`, which shows the first half of its answer.
async fn open_run(protocol: Protocol, script: impl IntoIterator<Item = Step>) -> (App, String, Tab) {
    let app = App::with(script, leaving);
    let id = app.create("ann").await;
    let tab = Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await;
    (app, id, tab)
}

/// Returns an application and Ann's conversation after she has left her stream at the first half of its answer.
async fn left_run(protocol: Protocol, script: impl IntoIterator<Item = Step>) -> (App, String) {
    let (app, id, _) = open_run(protocol, script).await;
    (app, id)
}

fn session(app: &App, id: &str) -> Session {
    app.manager.get(&ConversationId::new(id).unwrap()).unwrap()
}

async fn snapshot(app: &App, id: &str) -> SessionSnapshot {
    session(app, id).snapshot().await.unwrap()
}

/// Returns the texts of the messages on the path.
async fn texts(app: &App, id: &str) -> Vec<String> {
    let snapshot = snapshot(app, id).await;
    snapshot.tree.history().iter().map(|message| message.text()).collect()
}

/// Waits for the end of the run.
async fn ends(app: &App, id: &str) {
    timeout(10 * GRACE, session(app, id).wait_until_idle()).await.expect("the run ends").unwrap();
}

/// Asserts that the run is still active after this time.
async fn assert_stays_active(app: &App, id: &str, time: Duration) {
    timeout(time, session(app, id).wait_until_idle()).await.expect_err("the run continues");
}

/// Asserts that the map of readers is empty.
fn assert_no_readers(app: &App) {
    let shown = format!("{:?}", app.web);
    assert!(shown.contains("open: Mutex { data: {}"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn stop_without_a_reload_interrupts_the_run_after_the_grace() {
    for protocol in PROTOCOLS {
        let (app, id, tab) = open_run(protocol, [halves(&Gate::new())]).await;
        let left = Instant::now();
        drop(tab);
        ends(&app, &id).await;
        assert_eq!(left.elapsed(), GRACE, "{protocol:?}");
        assert_eq!(texts(&app, &id).await, ["u1", "Half"], "{protocol:?}");
        assert_no_readers(&app);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_without_the_setting_leaves_the_run_running() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let app = App::new([halves(&gate)]);
        let id = app.create("ann").await;
        drop(Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await);
        assert_stays_active(&app, &id, 2 * GRACE).await;
        gate.open();
        ends(&app, &id).await;
        assert_eq!(texts(&app, &id).await, ["u1", "Half done"], "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reload_within_the_grace_keeps_the_run_which_can_be_left_again() {
    for protocol in PROTOCOLS {
        for leaves_again in [false, true] {
            let gate = Gate::new();
            let (app, id) = left_run(protocol, [halves(&gate)]).await;
            assert_stays_active(&app, &id, ALMOST).await;
            let tab = Tab::open(&app, protocol.join(&id)).await.until("Half").await;
            assert_stays_active(&app, &id, 2 * GRACE).await;
            if leaves_again {
                drop(tab);
                ends(&app, &id).await;
                assert_eq!(texts(&app, &id).await, ["u1", "Half"], "{protocol:?}");
                assert_no_readers(&app);
            } else {
                gate.open();
                assert!(tab.end().await.contains("done"));
                ends(&app, &id).await;
                assert_eq!(texts(&app, &id).await, ["u1", "Half done"], "{protocol:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_request_within_the_grace_joins_the_run() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let (app, id) = left_run(protocol, [halves(&gate)]).await;
        let tab = Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await;
        assert_stays_active(&app, &id, 2 * GRACE).await;
        gate.open();
        assert!(tab.end().await.contains("done"), "{protocol:?}");
        assert_eq!(app.provider.requests().len(), 1, "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_with_two_tabs_ends_when_both_have_left() {
    for protocol in PROTOCOLS {
        let (app, id, first) = open_run(protocol, [halves(&Gate::new())]).await;
        let second = Tab::open(&app, protocol.join(&id)).await.until("Half").await;
        drop(first);
        assert_stays_active(&app, &id, 2 * GRACE).await;
        drop(second);
        ends(&app, &id).await;
        assert_eq!(texts(&app, &id).await, ["u1", "Half"], "{protocol:?}");
        assert_no_readers(&app);
    }
}

/// A server can notice a closed connection after it has read the next request, which came over another connection.
#[tokio::test(start_paused = true)]
async fn stop_that_is_noticed_after_the_next_message_ends_the_run_at_once() {
    for protocol in PROTOCOLS {
        let (app, id, stopped) = open_run(protocol, [halves(&Gate::new()), Step::text("Next.")]).await;
        let sent = Instant::now();
        let (tab, ()) = tokio::join!(Tab::open(&app, protocol.ask(&id, "u2")), async {
            sleep(Duration::from_secs(1)).await;
            drop(stopped);
        });
        let shown = tab.end().await;
        assert!(shown.contains("Next."), "{protocol:?}: {shown}");
        assert_eq!(sent.elapsed(), Duration::from_secs(1), "{protocol:?}");
        assert_eq!(texts(&app, &id).await, ["u1", "Half", "u2", "Next."], "{protocol:?}");
        assert_no_readers(&app);
    }
}

/// A client that loses its connection before the answer sends its request again.
#[tokio::test(start_paused = true)]
async fn repeated_request_that_waits_with_the_first_one_shows_the_same_run() {
    for protocol in PROTOCOLS {
        let (app, id, stopped) = open_run(protocol, [halves(&Gate::new()), Step::text("Next.")]).await;
        let ask = || Tab::open(&app, protocol.ask(&id, "u2"));
        let (first, second, ()) = tokio::join!(ask(), ask(), async {
            sleep(Duration::from_secs(1)).await;
            drop(stopped);
        });
        let (first, second) = tokio::join!(first.end(), second.end());
        assert!(first.contains("Next.") && second.contains("Next."), "{protocol:?}: {first}\n{second}");
        assert_eq!(texts(&app, &id).await, ["u1", "Half", "u2", "Next."], "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn other_answer_that_is_asked_for_before_the_stop_is_noticed_is_given() {
    let (app, id, stopped) = open_run(Protocol::AiSdk, [halves(&Gate::new()), Step::text("Another.")]).await;
    let (tab, ()) = tokio::join!(Tab::open(&app, ask_again(&id, "u1")), async {
        sleep(Duration::from_secs(1)).await;
        drop(stopped);
    });
    assert!(tab.end().await.contains("Another."));
    assert_eq!(texts(&app, &id).await, ["u1", "Another."]);
}

#[tokio::test(start_paused = true)]
async fn message_of_another_tab_waits_and_keeps_the_run() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let (app, id, first) = open_run(protocol, [halves(&gate), Step::text("Next.")]).await;
        let sent = Instant::now();
        let second = Tab::open(&app, protocol.ask(&id, "u2")).await;
        assert_eq!(sent.elapsed(), Duration::from_secs(5), "{protocol:?}");
        assert_eq!(snapshot(&app, &id).await.agent.staged.len(), 1);
        gate.open();
        assert!(first.end().await.contains("done"), "{protocol:?}");
        assert!(second.end().await.contains("Next."), "{protocol:?}");
        assert_eq!(texts(&app, &id).await, ["u1", "Half done", "u2", "Next."], "{protocol:?}");
        assert_no_readers(&app);
    }
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_that_is_left_is_withdrawn_and_the_run_of_others_continues() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let app = App::with([halves(&gate)], leaving);
        let id = app.create("ann").await;
        app.post("ann", &format!("/agent/conversations/{id}/commands"), prompt("other")).await;
        gate.reached().await;
        let tab = Tab::open(&app, protocol.ask(&id, "u1")).await;
        assert_eq!(snapshot(&app, &id).await.agent.staged.len(), 1);
        drop(tab);
        assert_stays_active(&app, &id, ALMOST).await;
        assert_eq!(snapshot(&app, &id).await.agent.staged.len(), 1);
        assert_stays_active(&app, &id, GRACE).await;
        assert_eq!(snapshot(&app, &id).await.agent.staged.len(), 0, "{protocol:?}");
        gate.open();
        ends(&app, &id).await;
        assert_eq!(texts(&app, &id).await, ["other", "Half done"], "{protocol:?}");
        assert_no_readers(&app);
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_is_paused_after_the_grace_stays() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let step = Step::new().then_text(["Half"]).gate(&gate);
        let step = step.then_tool_use("t1", "lookup", json!({ "what": "it" })).stop();
        let (app, id) = left_run(protocol, [step]).await;
        gate.open();
        assert_stays_active(&app, &id, 3 * GRACE).await;
        let agent = snapshot(&app, &id).await.agent;
        assert_eq!((agent.status, agent.pauses.len()), (Status::Paused, 1), "{protocol:?}");
        assert_no_readers(&app);
    }
}

#[tokio::test(start_paused = true)]
async fn continued_run_that_is_left_is_interrupted() {
    // After a decision, and after the request for another answer, no prompt names the run.
    let pause = || Step::tool_use("t1", "lookup", json!({ "what": "it" }));
    let app = App::with([pause(), halves(&Gate::new())], leaving);
    let id = app.create("ann").await;
    Tab::open(&app, Protocol::AiSdk.ask(&id, "u1")).await.end().await;
    drop(Tab::open(&app, approve(&app, &id, "u1").await).await.until("Half").await);
    ends(&app, &id).await;
    assert_eq!(texts(&app, &id).await.last().unwrap(), "Half");

    let app = App::with([Step::text("First."), halves(&Gate::new())], leaving);
    let id = app.create("ann").await;
    Tab::open(&app, Protocol::AiSdk.ask(&id, "u1")).await.end().await;
    drop(Tab::open(&app, ask_again(&id, "u1")).await.until("Half").await);
    ends(&app, &id).await;
    assert_eq!(texts(&app, &id).await, ["u1", "Half"]);
    assert_no_readers(&app);
}

/// Returns the request of the AI SDK for another answer to this message.
fn ask_again(id: &str, message: &str) -> Request<Body> {
    let mut body = submit(id, message, message);
    body["trigger"] = "regenerate-message".into();
    request(Method::POST, "ann", "/api/chat", Some(body))
}

/// Returns the request of the AI SDK that approves the tool use `t1` after this message.
async fn approve(app: &App, id: &str, message: &str) -> Request<Body> {
    let answer = json!({ "type": "tool-lookup", "toolCallId": "t1", "state": "approval-responded",
                         "approval": { "id": app.pause(id, "t1").await, "approved": true } });
    let mut body = submit(id, message, message);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({ "id": "a-1", "role": "assistant", "parts": [answer] }));
    request(Method::POST, "ann", "/api/chat", Some(body))
}

#[tokio::test(start_paused = true)]
async fn staged_prompt_of_others_that_follows_a_left_run_without_a_prompt_continues() {
    for is_decided in [false, true] {
        for joins_again in [false, true] {
            let first = if is_decided {
                Step::tool_use("t1", "lookup", json!({ "what": "it" }))
            } else {
                Step::text("First.")
            };
            let (own, other) = (Gate::new(), Gate::new());
            let app = App::with([first, halves(&own), halves(&other)], leaving);
            let id = app.create("ann").await;
            Tab::open(&app, Protocol::AiSdk.ask(&id, "u1")).await.end().await;
            let again = if is_decided { approve(&app, &id, "u1").await } else { ask_again(&id, "u1") };
            let tab = Tab::open(&app, again).await.until("Half").await;
            app.post("boss", &format!("/agent/conversations/{id}/commands"), prompt("other")).await;
            drop(tab);
            if joins_again {
                let tab = Tab::open(&app, Protocol::AiSdk.join(&id)).await.until("Half").await;
                own.open();
                assert!(tab.end().await.contains("done"));
            } else {
                own.open();
            }
            other.reached().await;
            assert_stays_active(&app, &id, 2 * GRACE).await;
            other.open();
            ends(&app, &id).await;
            let texts = texts(&app, &id).await;
            let expected = ["Half done", "other", "Half done"];
            assert_eq!(texts[texts.len() - 3..], expected, "{is_decided} {joins_again}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn new_message_within_the_grace_ends_the_run_at_once_and_is_answered() {
    for protocol in PROTOCOLS {
        let (app, id) = left_run(protocol, [halves(&Gate::new()), Step::text("Second.")]).await;
        let left = Instant::now();
        let answer = Tab::open(&app, protocol.ask(&id, "u2")).await.end().await;
        assert_eq!(left.elapsed(), Duration::ZERO, "{protocol:?}");
        assert!(answer.contains("Second."), "{protocol:?} {answer}");
        assert_eq!(texts(&app, &id).await, ["u1", "Half", "u2", "Second."], "{protocol:?}");
        assert_no_readers(&app);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_or_regenerated_message_within_the_grace_replaces_the_run() {
    for (trigger, named, text) in
        [("regenerate-message", None, "u1"), ("submit-message", Some("u1"), "Better")]
    {
        let (app, id) = left_run(Protocol::AiSdk, [halves(&Gate::new()), Step::text("Second.")]).await;
        let mut body = submit(&id, "u1", text);
        body["trigger"] = trigger.into();
        body["messageId"] = named.map_or(Value::Null, Value::from);
        let answer = Tab::open(&app, request(Method::POST, "ann", "/api/chat", Some(body))).await.end().await;
        assert!(answer.contains("Second."), "{trigger} {answer}");
        assert_eq!(texts(&app, &id).await, [text, "Second."]);
    }
}

/// A request about this conversation that is refused, and the code of its problem.
type Refusal<'a> = (Protocol, &'a dyn Fn(&str) -> Request<Body>, &'static str);

#[tokio::test(start_paused = true)]
async fn refused_request_within_the_grace_keeps_the_run() {
    let ai_sdk = |id: &str, trigger: &str, message: Value| {
        let body = json!({ "id": id, "trigger": trigger, "messages": [message] });
        request(Method::POST, "ann", "/api/chat", Some(body))
    };
    let ag_ui = |id: &str, message: Value| {
        let mut body = run_input(id, "run-2", "");
        body["messages"] = json!([message]);
        request(Method::POST, "ann", "/ag-ui", Some(body))
    };
    let file = json!({ "type": "file", "url": "data:broken", "mediaType": "image/png" });
    let broken = json!({ "id": "u2", "role": "user", "parts": [file] });
    let decided = json!({ "type": "tool-lookup", "toolCallId": "t9", "state": "approval-responded",
                          "approval": { "id": "t9", "approved": true } });
    let decided = json!({ "id": "a9", "role": "assistant", "parts": [decided] });
    let refusals: [Refusal<'_>; 5] = [
        (Protocol::AiSdk, &|id| ai_sdk(id, "submit-message", broken.clone()), "invalid-body"),
        (Protocol::AiSdk, &|id| ai_sdk(id, "regenerate-message", broken.clone()), "invalid-body"),
        (Protocol::AiSdk, &|id| ai_sdk(id, "submit-message", decided.clone()), "stale-decision"),
        (Protocol::AgUi, &|id| ag_ui(id, json!({ "id": "a9", "role": "assistant" })), "nothing-new"),
        (
            Protocol::AgUi,
            &|id| ag_ui(id, json!({ "id": "u2", "role": "user", "content": 7 })),
            "invalid-prompt",
        ),
    ];
    for (protocol, refused, code) in refusals {
        let (app, id) = left_run(protocol, [halves(&Gate::new())]).await;
        let body = to_bytes(app.send(refused(&id)).await.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8_lossy(&body);
        assert!(body.contains(code), "{protocol:?} {code}: {body}");
        assert_stays_active(&app, &id, ALMOST).await;
        ends(&app, &id).await;
        assert_no_readers(&app);
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_is_lost_while_it_is_performed_joins_its_run_when_it_is_repeated() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let app = App::with([halves(&gate)], leaving);
        let id = app.create("ann").await;
        app.get("ann", &format!("/agent/conversations/{id}")).await;
        let mut sent = Box::pin(app.send(protocol.ask(&id, "u1")));
        while snapshot(&app, &id).await.agent.status != Status::Busy {
            assert!(futures_util::poll!(&mut sent).is_pending(), "{protocol:?}");
        }
        drop(sent);
        gate.reached().await;
        let tab = Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await;
        assert_stays_active(&app, &id, 2 * GRACE).await;
        gate.open();
        assert!(tab.end().await.contains("done"), "{protocol:?}");
        assert_eq!(app.provider.requests().len(), 1, "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_run_for_the_message_in_flight_within_the_grace_replaces_the_run() {
    let (app, id) = left_run(Protocol::AgUi, [halves(&Gate::new()), Step::text("Second.")]).await;
    let mut body = run_input(&id, "u1", "u1");
    body["runId"] = "run-2".into();
    let again = Tab::open(&app, request(Method::POST, "ann", "/ag-ui", Some(body))).await.end().await;
    assert!(again.contains("Second."), "{again}");
    assert_eq!(texts(&app, &id).await, ["u1", "Second."]);
}

#[tokio::test(start_paused = true)]
async fn message_of_another_principal_within_the_grace_keeps_the_run() {
    let gate = Gate::new();
    let (app, id) = left_run(Protocol::AiSdk, [halves(&gate), Step::text("Second.")]).await;
    let tab = Tab::open(&app, Protocol::AiSdk.ask_as("boss", &id, "u2")).await;
    assert_stays_active(&app, &id, 2 * GRACE).await;
    gate.open();
    assert!(tab.end().await.contains("Second."));
    assert_eq!(texts(&app, &id).await, ["u1", "Half done", "u2", "Second."]);
}

#[tokio::test(start_paused = true)]
async fn run_that_others_start_within_the_grace_continues() {
    for protocol in PROTOCOLS {
        let (first, second) = (Gate::new(), Gate::new());
        let (app, id) = left_run(protocol, [halves(&first), halves(&second)]).await;
        first.open();
        ends(&app, &id).await;
        app.post("ann", &format!("/agent/conversations/{id}/commands"), prompt("other")).await;
        assert_stays_active(&app, &id, 2 * GRACE).await;
        second.open();
        ends(&app, &id).await;
        assert_eq!(texts(&app, &id).await, ["u1", "Half done", "other", "Half done"], "{protocol:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_is_left_while_the_server_drains_continues() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let (app, id) = left_run(protocol, [halves(&gate)]).await;
        app.web.drain();
        assert_stays_active(&app, &id, 2 * GRACE).await;
        gate.open();
        ends(&app, &id).await;
        assert_eq!(texts(&app, &id).await, ["u1", "Half done"], "{protocol:?}");
    }
}

/// The users of the tests, who may do everything except stop a run.
struct Unstoppable;

impl Permissions for Unstoppable {
    fn permits(&self, principal: &Principal, action: Action, labels: &Labels) -> bool {
        action != Action::Stop && Users.permits(principal, action, labels)
    }
}

#[async_trait]
impl Access for Unstoppable {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        Users.principal(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn run_that_the_principal_may_not_stop_continues() {
    for protocol in PROTOCOLS {
        for given_away in [false, true] {
            let gate = Gate::new();
            let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
            let script = [halves(&gate), Step::text("Second.")];
            let app = if given_away {
                App::over(manager, script, leaving)
            } else {
                App::guarded(manager, Unstoppable, script, leaving)
            };
            let id = app.create("ann").await;
            drop(Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await);
            if given_away {
                session(&app, &id).set_labels(labels("ben")).await.unwrap();
            }
            assert_stays_active(&app, &id, 2 * GRACE).await;
            let second = if given_away {
                None
            } else {
                // A new message is staged, as without the setting.
                let left = Instant::now();
                drop(Tab::open(&app, protocol.join(&id)).await.until("Half").await);
                let tab = Tab::open(&app, protocol.ask(&id, "u2")).await;
                assert_eq!(
                    (left.elapsed(), snapshot(&app, &id).await.agent.staged.len()),
                    (Duration::ZERO, 1)
                );
                Some(tab)
            };
            gate.open();
            ends(&app, &id).await;
            let expected: &[_] =
                if given_away { &["u1", "Half done"] } else { &["u1", "Half done", "u2", "Second."] };
            assert_eq!(texts(&app, &id).await, expected, "{protocol:?}");
            drop(second);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stream_that_ends_at_its_lifetime_leaves_the_run_running() {
    for protocol in PROTOCOLS {
        let gate = Gate::new();
        let limits = WebLimits::default().with_stream_lifetime(Duration::from_mins(1));
        let app = App::with([halves(&gate)], |web| leaving(web).limits(limits));
        let id = app.create("ann").await;
        let mut tab = Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await;
        while let Some(Ok(_)) = tab.body.next().await {}
        drop(tab);
        // A page that joins again can still stop the run by leaving.
        let tab = Tab::open(&app, protocol.join(&id)).await.until("Half").await;
        assert_stays_active(&app, &id, 2 * GRACE).await;
        drop(tab);
        ends(&app, &id).await;
        assert_eq!(texts(&app, &id).await, ["u1", "Half"], "{protocol:?}");
    }
    let gate = Gate::new();
    let limits = WebLimits::default().with_stream_lifetime(Duration::from_mins(1));
    let app = App::with([halves(&gate)], |web| leaving(web).limits(limits));
    let id = app.create("ann").await;
    let mut tab = Tab::open(&app, Protocol::AiSdk.ask(&id, "u1")).await;
    while let Some(Ok(_)) = tab.body.next().await {}
    drop(tab);
    assert_stays_active(&app, &id, 2 * GRACE).await;
    assert_no_readers(&app);
}

#[tokio::test(start_paused = true)]
async fn stream_whose_client_has_stopped_reading_leaves_the_run_running() {
    for protocol in PROTOCOLS {
        let (gate, limits) = (Gate::new(), WebLimits::default().with_streams(1));
        let app = App::with([halves(&gate)], |web| leaving(web).limits(limits));
        let id = app.create("ann").await;
        let unread = Tab::open(&app, protocol.ask(&id, "u1")).await.until("Half").await;
        assert_stays_active(&app, &id, Duration::from_mins(5)).await;
        let tab = Tab::open(&app, protocol.join(&id)).await;
        gate.open();
        assert!(tab.end().await.contains("done"), "{protocol:?}");
        drop(unread);
    }
}

#[tokio::test(start_paused = true)]
async fn conversation_that_is_closed_within_the_grace_and_opened_again_has_no_wait() {
    let (app, id) = left_run(Protocol::AiSdk, [halves(&Gate::new()), halves(&Gate::new())]).await;
    app.manager.close(&ConversationId::new(&*id).unwrap()).await.unwrap();
    tokio::task::yield_now().await;
    assert_no_readers(&app);
    // The prompt of the other client has the same number of runs before it as the run that was left.
    app.post("ann", &format!("/agent/conversations/{id}/commands"), prompt("other")).await;
    assert_stays_active(&app, &id, 2 * GRACE).await;
}

#[tokio::test(start_paused = true)]
async fn run_with_many_withdrawn_prompts_that_were_left_is_interrupted_with_all_staged_ones() {
    // The paused clock runs ahead, and the first stream is not read.
    let limits = WebLimits::default().with_send_timeout(Duration::MAX);
    let app = App::with([halves(&Gate::new())], |web| leaving(web).limits(limits));
    let id = app.create("ann").await;
    let tab = Tab::open(&app, Protocol::AiSdk.ask(&id, "u0")).await.until("Half").await;
    for number in 1..=100 {
        drop(Tab::open(&app, Protocol::AiSdk.ask(&id, &format!("w{number}"))).await);
        session(&app, &id).unstage(format!("w{number}")).await.unwrap();
    }
    let mut staged = 0;
    while app.send(Protocol::AiSdk.ask(&id, &format!("s{staged}"))).await.status() == StatusCode::OK {
        staged += 1;
    }
    assert_eq!(snapshot(&app, &id).await.agent.staged.len(), staged);
    let shown = format!("{:?}", app.web);
    assert!(shown.matches("Prompt(").count() <= staged + 2, "{shown}");
    drop(tab);
    ends(&app, &id).await;
    assert_eq!(texts(&app, &id).await, ["u0", "Half"]);
    assert_no_readers(&app);
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_with_its_stream_leaves_no_wait() {
    for protocol in PROTOCOLS {
        let app = App::with([Step::text("First."), Step::error(failure())], leaving);
        let id = app.create("ann").await;
        Tab::open(&app, protocol.ask(&id, "u1")).await.end().await;
        assert_no_readers(&app);
        Tab::open(&app, protocol.ask(&id, "u2")).await.end().await;
        assert_no_readers(&app);
        // A refused request starts nothing.
        let mut refused = protocol.ask(&id, "u3");
        *refused.body_mut() = Body::from(submit(&id, "u3", " ").to_string());
        app.send(refused).await;
        assert_no_readers(&app);
        let roles: Vec<_> =
            snapshot(&app, &id).await.tree.history().iter().map(|message| message.role).collect();
        assert_eq!(roles.first(), Some(&Role::User));
    }
}

fn failure() -> omni_agent::provider::ProviderError {
    omni_agent::provider::ProviderError::new(omni_agent::provider::ProviderErrorKind::Auth, "no key")
}
