//! A folder for agents, backends whose agents use this folder, and the state of their processes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use omni_agent::{
    Error,
    agent::{Agent, AgentBuilder},
    message::Message,
    provider::{
        BackendProvider, Model, ProviderError,
        acp::AcpBackend,
        custom::{BackendError, BackendEvent, BackendSession, EventStream, TurnPrompt, TurnResult},
    },
};
use rustix::process::{Pid, test_kill_process};
use tokio::time::timeout;

use crate::agent;

/// The time limit for everything that the tests wait for.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The folder in which an agent stores its sessions. The folder is removed when this value is dropped.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("omni-acp-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder.canonicalize().unwrap())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a backend whose agent is this binary.
    pub fn agent(&self, like: &str) -> AcpBackend {
        // The script discards the test harness's output. The agent writes to descriptor 3, the original standard
        // output.
        let script = "exec 3>&1 >/dev/null; exec \"$0\" \"$@\"";
        self.program(script, "agent::agent_serves").with_variable(agent::LIKE, like)
    }

    /// Returns a backend whose program is this test of this binary, started by a script.
    pub fn program(&self, script: &str, test: &str) -> AcpBackend {
        AcpBackend::new("acp", "sh")
            .with_arguments(["-c", script])
            .with_arguments([env::current_exe().unwrap().into_os_string()])
            .with_arguments(["--exact", test, "--nocapture"])
            .with_variable(agent::FOLDER, &self.0)
            .with_folder(&self.0)
    }

    /// Returns the ids of all started agent processes in starting order.
    pub fn pids(&self) -> Vec<Pid> {
        let pids = fs::read_to_string(self.0.join("pids")).unwrap_or_default();
        pids.lines().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
    }

    pub fn running(&self) -> usize {
        self.pids().into_iter().filter(|pid| test_kill_process(*pid).is_ok()).count()
    }

    /// Waits until no agent process runs.
    pub async fn is_left(&self) {
        until("no agent runs", || self.running() == 0).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits until another process has made the condition true.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("this did not happen in time: {what}"));
}

/// Waits for the future, at most until the time limit.
pub async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(LIMIT, work).await.expect("it ends within the time limit")
}

/// Returns a backend whose program is this shell script.
pub fn script(script: &str) -> AcpBackend {
    AcpBackend::new("acp", "sh").with_arguments(["-c", script])
}

/// Returns an agent on a backend.
pub fn on(backend: AcpBackend) -> AgentBuilder {
    Agent::builder().model(Model::new(Arc::new(BackendProvider::new(backend)), "default"))
}

/// Returns the provider's error with which a run failed.
pub fn provider_error(error: &Error) -> &ProviderError {
    error.provider_error().unwrap()
}

pub fn prompt(text: &str) -> TurnPrompt {
    TurnPrompt::new([Message::user(text)])
}

/// A finished turn.
pub struct Ended {
    /// A short description of each event.
    pub events: Vec<String>,
    pub text: String,
    pub result: Result<TurnResult, BackendError>,
}

pub async fn asked(session: &dyn BackendSession, text: &str) -> Ended {
    read(soon(session.prompt(prompt(text))).await.unwrap()).await
}

pub async fn read(mut stream: EventStream) -> Ended {
    let (mut events, mut text) = (Vec::new(), String::new());
    let result = loop {
        let event = soon(stream.next()).await.expect("a turn ends in a terminal event");
        events.push(match event {
            BackendEvent::Text(more) => {
                text.push_str(&more);
                format!("text {more}")
            }
            BackendEvent::Thinking(text) => format!("thinking {text}"),
            BackendEvent::ToolUse(tool_use) => format!("use {} {}", tool_use.name, tool_use.input),
            BackendEvent::ToolUpdate { data, .. } => format!("update {}", data["title"]),
            BackendEvent::ToolResult(result) => format!("result {} {}", result.is_error, result.text()),
            BackendEvent::Plan(plan) => format!("plan {}", plan[0]["content"]),
            BackendEvent::Status { name, data } => format!("status {name} {data}"),
            BackendEvent::Result(result) => break Ok(result),
            BackendEvent::Error(error) => break Err(error),
            other => format!("{other:?}"),
        });
    };
    assert!(soon(stream.next()).await.is_none(), "nothing follows the terminal event");
    Ended { events, text, result }
}
