//! Durable turns of an agent whose process dies: the editor starts the agent again, and loads the session.

use std::{
    fs,
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use omni_agent::{
    access::{Principal, StartRequest},
    agent::{Agent, Durable},
    manager::{Manager, OpenOptions, Sweep, Titles},
    serve::acp::AcpAgent,
    store::{MemoryStore, Owner},
    testing::{ScriptedProvider, Step},
    tool::{Tool, ToolContext, ToolError, tool_fn},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    host::{DURABLE, SCRIPT, SERVED},
    window::Window,
};
use crate::{
    agent::FOLDER,
    lives::in_a_life,
    support::{Place, soon, until},
};

/// An agent that lists or deletes a file, and then answers. Its model can hang in the middle of an answer.
#[derive(Clone, Default)]
pub struct Actor {
    hangs: bool,
    /// The number of calls of its tools.
    calls: Arc<AtomicUsize>,
}

impl Actor {
    fn hanging() -> Self {
        Self { hangs: true, ..Self::default() }
    }

    /// Returns the agent of a process. Its model hangs until the folder contains the file `go`.
    pub fn of(folder: &Path) -> Self {
        Self { hangs: !folder.join("go").exists(), ..Self::default() }
    }

    /// Returns this agent for editors, with durable turns.
    pub fn served(&self, manager: &Manager) -> AcpAgent {
        let actor = self.clone();
        AcpAgent::new(manager.clone(), move |_: &Principal, _: &StartRequest| {
            Ok::<_, omni_agent::Error>(actor.options())
        })
    }

    fn options(&self) -> OpenOptions {
        let hangs = self.hangs;
        let provider = ScriptedProvider::from_fn(move |request| {
            let last = request.history.last().unwrap();
            match (last.text().as_str(), last.tool_results().next()) {
                ("Look", _) => Step::tool_use("call-1", "list", json!({})),
                ("Delete", _) => Step::tool_use("call-1", "delete", json!({})),
                (_, Some(_)) if hangs => Step::new().then_text(["It says"]).hang(),
                (_, Some(result)) => Step::text(format!("It says: {}", result.text())),
                (other, None) => Step::text(format!("You said: {other}")),
            }
        });
        let tool = |name, answer: &'static str| {
            let calls = Arc::clone(&self.calls);
            tool_fn(name, "Does it.", move |_: Value, _: ToolContext| {
                calls.fetch_add(1, Ordering::SeqCst);
                async move { Ok::<_, ToolError>(answer) }
            })
        };
        let (list, delete) = (tool("list", "a b"), tool("delete", "gone").needs_approval());
        let agent = Agent::builder().model(provider.model()).tool(list).tool(delete);
        OpenOptions::new(agent).durable(Durable::InFlight)
    }
}

/// Returns a manager whose owner has the same name in each life, so that no lease has to expire.
fn manager(store: &MemoryStore) -> Manager {
    let manager = Manager::builder(store.clone()).owner(Owner::new("editor"));
    manager.sweep(Sweep::off()).titles(Titles::Off).build()
}

async fn load(window: &mut Window, session: &str) {
    let params = json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] });
    window.request("session/load", params).await.unwrap();
}

/// Creates a session and sends a prompt in a life that ends with an open question about the tool `delete`, or after the
/// beginning of an answer. Returns the session.
fn begun(store: &MemoryStore, actor: &Actor, prompt: &str) -> String {
    in_a_life(async {
        let manager = manager(store);
        let mut window = Window::of(actor.served(&manager)).await;
        let session = window.create().await;
        window.prompt(&session, prompt).await;
        match prompt {
            "Delete" => window.question().await,
            _ => window.update("agent_message_chunk").await,
        };
        // The process dies with its manager and its connection.
        std::mem::forget((manager, window));
        session
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn open_question_is_asked_again_after_the_session_was_loaded_or_resumed() {
    let refused = "The user did not allow it.";
    for (method, option, answer, calls) in [
        ("session/load", "allow", "gone", 1),
        ("session/load", "reject", refused, 0),
        ("session/resume", "allow", "gone", 1),
    ] {
        let (store, actor) = (MemoryStore::new(), Actor::default());
        let session = begun(&store, &actor, "Delete");
        let mut window = Window::of(actor.served(&manager(&store))).await;
        let params = json!({ "sessionId": session, "cwd": "/work", "mcpServers": [] });
        window.request(method, params).await.unwrap();
        let question = window.question().await;
        let call = window.update("tool_call").await;
        assert_eq!(question["params"]["toolCall"]["toolCallId"], call["toolCallId"]);
        assert_eq!(window.texts("user_message_chunk"), "Delete");
        window.decide(&question, option).await;
        assert_eq!(window.say(&session, "Hello").await, format!("It says: {answer}You said: Hello"));
        assert_eq!(actor.calls.load(Ordering::SeqCst), calls);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turn_continues_after_the_session_was_loaded() {
    let (store, actor) = (MemoryStore::new(), Actor::hanging());
    let session = begun(&store, &actor, "Look");
    let next = Actor { hangs: false, ..actor.clone() };
    let mut window = Window::of(next.served(&manager(&store))).await;
    load(&mut window, &session).await;
    // The prompt is answered after the recovered turn.
    assert_eq!(window.say(&session, "Hello").await, "It says: a bYou said: Hello");
    assert_eq!(window.texts("user_message_chunk"), "Look");
    let call = window.update("tool_call").await;
    // If the session was loaded before its turn has continued, the tool is still shown as running.
    let mut ended = window.update("tool_call_update").await;
    if ended["status"] == "in_progress" {
        ended = window.update("tool_call_update").await;
    }
    assert_eq!((&ended["toolCallId"], &ended["status"]), (&call["toolCallId"], &json!("completed")));
    assert_eq!(actor.calls.load(Ordering::SeqCst), 1, "the tool does not run again");
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_turn_is_cancelled_by_the_editor() {
    let (store, actor) = (MemoryStore::new(), Actor::hanging());
    let session = begun(&store, &actor, "Look");
    let mut window = Window::of(actor.served(&manager(&store))).await;
    load(&mut window, &session).await;
    assert_eq!(window.update("agent_message_chunk").await["content"]["text"], "It says");
    window.cancel(&session).await;
    assert_eq!(window.say(&session, "Hello").await, "You said: Hello");
}

/// Starts the agent as a process, and returns a window of it.
async fn process(place: &Place) -> Window {
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", SCRIPT]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "serving::host::manager_is_served", "--nocapture"]);
    command.env(SERVED, DURABLE).env(FOLDER, place.path()).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Window::of_process(command.spawn().unwrap()).await
}

/// Kills the process that was started last, and waits for its end.
async fn killed(place: &Place, window: Window) {
    let pid: Pid = *place.pids().last().unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    window.close().await.unwrap();
}

#[tokio::test]
async fn turn_of_a_killed_process_continues_in_the_next_one() {
    let place = Place::new();
    let mut window = process(&place).await;
    let session = window.create().await;
    window.prompt(&session, "Look").await;
    window.update("agent_message_chunk").await;
    killed(&place, window).await;

    fs::write(place.path().join("go"), "").unwrap();
    let mut window = process(&place).await;
    load(&mut window, &session).await;
    assert_eq!(window.update("agent_message_chunk").await["content"]["text"], "It says: a b");
    window.prompt(&session, "Delete").await;
    window.question().await;
    killed(&place, window).await;

    let mut window = process(&place).await;
    load(&mut window, &session).await;
    let question = window.question().await;
    assert_eq!(window.texts("user_message_chunk"), "LookDelete");
    assert_eq!(window.texts("agent_message_chunk"), "It says: a b");
    window.decide(&question, "allow").await;
    assert_eq!(window.update("agent_message_chunk").await["content"]["text"], "It says: gone");
    assert_eq!(window.say(&session, "Hello").await, "You said: Hello");
    window.close().await.unwrap();
    until("the last process has ended", || place.path().join("ended").exists()).await;
    assert_eq!(fs::read_to_string(place.path().join("ended")).unwrap(), "Ok(())");
    soon(place.is_left()).await;
}
