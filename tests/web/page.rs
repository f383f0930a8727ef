//! The JavaScript client of the chat page. Its function `fold` applies updates to a snapshot. In Node, its results are
//! compared with those of the crate for recorded updates.

use std::{fs, path::Path, process::Command, time::Duration};

use omni_agent::{
    agent::{Agent, AgentBuilder, Status},
    budget::Budget,
    message::Usage,
    provider::{Options, ProviderError, ProviderErrorKind},
    run::{Next, Prompt},
    session::{Mode, Session, SessionSnapshot, SessionSubscription},
    store::{Labels, MemoryStore},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, ToolError, tool_fn},
    tree::NodeId,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::js::{SCRIPTS, node};

#[derive(Deserialize, JsonSchema)]
struct City {
    city: String,
}

async fn measure(input: City, context: ToolContext) -> Result<String, ToolError> {
    context.progress(json!({ "done": 1, "total": 2 })).await;
    match input.city.as_str() {
        "Atlantis" => Err(ToolError::new("not on the map")),
        city => Ok(format!("9 degrees in {city}")),
    }
}

fn agent(provider: &ScriptedProvider) -> AgentBuilder {
    let send = tool_fn("send", "Sends.", async |input: City, _: ToolContext| -> Result<String, ToolError> {
        Ok(format!("sent to {}", input.city))
    });
    Agent::builder()
        .model(provider.model())
        .options(Options::default().with_max_retries(1))
        .tool(tool_fn("measure", "Measures.", measure))
        .tool(send.needs_approval())
}

async fn session(provider: &ScriptedProvider) -> Session {
    Session::builder(MemoryStore::new()).agent(agent(provider)).create().await.unwrap()
}

/// A subscription whose updates are recorded, each with the snapshot that includes it.
struct Recorder {
    name: &'static str,
    updates: SessionSubscription,
    snapshot: SessionSnapshot,
    first: Value,
    steps: Vec<Value>,
}

impl Recorder {
    async fn new(name: &'static str, session: &Session) -> Self {
        let updates = session.subscribe(Mode::Observer).await.unwrap();
        let snapshot = SessionSnapshot::clone(updates.snapshot().unwrap());
        let first = serde_json::to_value(&snapshot).unwrap();
        Self { name, updates, snapshot, first, steps: Vec::new() }
    }

    /// Reads updates until the snapshot fulfils a condition.
    async fn until(&mut self, condition: impl Fn(&SessionSnapshot) -> bool) {
        while !condition(&self.snapshot) {
            let update = self.updates.next().await.unwrap();
            self.snapshot.take(&update).unwrap();
            self.steps.push(json!({ "update": update, "after": self.snapshot }));
        }
    }

    async fn until_idle(&mut self, run: u32) {
        self.until(|snapshot| {
            let is_idle = snapshot.agent.status == Status::Idle && snapshot.agent.pending.is_empty();
            is_idle
                && snapshot.agent.run >= run
                && snapshot.agent.last_run.is_some()
                && snapshot.unsaved.is_empty()
        })
        .await;
    }

    /// Reads the updates that were emitted so far, and returns the recording.
    async fn end(mut self, session: &Session) -> Value {
        let last = session.snapshot().await.unwrap().last;
        self.until(|snapshot| snapshot.last == last).await;
        json!({ "name": self.name, "before": self.first, "steps": self.steps })
    }
}

async fn record_tools() -> Value {
    let city = |name: &str| json!({ "city": name });
    let usage = Usage::default().with_input(7).with_output(3).with_cost(0.25);
    let uses = Step::new()
        .then_thinking("Which city?", "signed")
        .then_text(["I ", "look."])
        .then_raw_tool_use("a", "measure", &["{\"city\":", "\"Oslo\"}"])
        .then_tool_use("b", "measure", city("Atlantis"))
        .then_tool_use("c", "send", city("Rome"))
        .then_tool_use("d", "send", city("Bern"))
        .usage(usage)
        .stop();
    let provider = ScriptedProvider::new([uses, Step::text("Done.")]);
    let session = session(&provider).await;
    let mut recorder = Recorder::new("tools and decisions", &session).await;
    let prompt = Prompt::new("Go").with_id("p1").with_budget(Budget::requests(2));
    session.prompt(prompt).await.unwrap();
    recorder.until(|snapshot| snapshot.agent.pauses.len() == 2).await;
    let ids: Vec<_> = recorder.snapshot.agent.pauses.iter().map(|pause| pause.tool_use.id.clone()).collect();
    session.prompt(Prompt::new("And then?").with_id("p2")).await.unwrap();
    session.prompt(Prompt::new("Now").with_id("p3").at(Next::Step)).await.unwrap();
    session.unstage("p2").await.unwrap();
    session.resume_as(ids[0].clone(), Decision::ExecuteWith(city("Paris")), "ann").await.unwrap();
    session.resume_as(ids[1].clone(), Decision::reject("no"), "ann").await.unwrap();
    recorder.until_idle(1).await;
    recorder.end(&session).await
}

async fn record_branches() -> Value {
    let provider =
        ScriptedProvider::from_fn(|request| Step::text(format!("Answer to {}", request.history.len())));
    let session = session(&provider).await;
    let mut recorder = Recorder::new("branches", &session).await;
    let node = |number| NodeId::new(number).unwrap();
    session.prompt("One").await.unwrap();
    recorder.until_idle(1).await;
    session.prompt("Two").await.unwrap();
    recorder.until_idle(2).await;
    session.again(node(1)).start().await.unwrap();
    recorder.until_idle(3).await;
    session.run("Three").instead_of(node(3)).start().await.unwrap();
    recorder.until_idle(4).await;
    session.navigate(node(2)).await.unwrap();
    session.navigate(node(5)).await.unwrap();
    session.navigate(node(3)).await.unwrap();
    session.set_title(Some("A title")).await.unwrap();
    session.set_labels(Labels::new([("user", "ann")]).unwrap()).await.unwrap();
    session.set_labels(Labels::default()).await.unwrap();
    session.navigate(None).await.unwrap();
    session.run("Elsewhere").below(None).start().await.unwrap();
    recorder.until_idle(5).await;
    session.flush(Duration::from_secs(5)).await.unwrap();
    let last = recorder.snapshot.tree.nodes().last().unwrap().id();
    session.erase(last).await.unwrap();
    session.erase(node(3)).await.unwrap();
    session.prompt("After the gap").await.unwrap();
    recorder.until_idle(6).await;
    recorder.end(&session).await
}

async fn record_ends() -> Value {
    let gate = Gate::new();
    let waits = || Step::new().then_text(["Well"]).gate(&gate).then_text(["never"]).stop();
    let fails = |kind| Step::error(ProviderError::new(kind, "out of order"));
    let provider = ScriptedProvider::new([
        waits(),
        waits(),
        fails(ProviderErrorKind::Service),
        Step::text("Again."),
        fails(ProviderErrorKind::InvalidRequest),
        Step::new().then_text(["Half"]).fail(ProviderError::new(ProviderErrorKind::Auth, "out of order")),
        waits(),
    ]);
    let session = session(&provider).await;
    let mut recorder = Recorder::new("ends of runs", &session).await;
    session.prompt("Stop me").await.unwrap();
    gate.reached().await;
    session.prompt("Behind").await.unwrap();
    session.interrupt().await.unwrap();
    recorder.until_idle(1).await;
    session.prompt("Cancel me").await.unwrap();
    gate.reached().await;
    session.cancel().await.unwrap();
    recorder.until_idle(2).await;
    session.prompt("Retry").await.unwrap();
    recorder.until_idle(3).await;
    session.prompt("Fail").await.unwrap();
    recorder.until_idle(4).await;
    session.prompt("Fail later").await.unwrap();
    recorder.until_idle(5).await;
    recorder.until(|snapshot| snapshot.tree.history().last().is_some_and(|last| last.text() == "Half")).await;
    session.again(NodeId::new(1).unwrap()).start().await.unwrap();
    gate.reached().await;
    session.cancel().await.unwrap();
    recorder.until_idle(6).await;
    recorder.end(&session).await
}

#[tokio::test(start_paused = true)]
async fn fold_of_the_client_with_recorded_updates_equals_the_snapshot_of_the_crate() {
    let Some(node) = node() else { return };
    // Time is paused, so a recording that waits for an event which never comes fails at once.
    let recordings = async { json!([record_tools().await, record_branches().await, record_ends().await]) };
    let recordings = tokio::time::timeout(Duration::from_mins(10), recordings).await.unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web-recordings.json");
    fs::write(&file, recordings.to_string()).unwrap();
    let mut command = Command::new(node);
    command.arg("--test").arg(Path::new(SCRIPTS).join("client.test.mjs")).env("OMNI_RECORDINGS", &file);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
