//! Recorded turns of every released format, one for each stage. The files in `tests/store/golden/turns-FORMAT` never
//! change and must remain readable. For each new format, a folder is added.
//!
//! `OMNI_WRITE_GOLDEN_TURNS=1 cargo test --lib golden` writes those files of the current format that do not exist. To
//! renew a file while its format is not released, delete it first.

use std::{fs, path::PathBuf, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::*;
use crate::{
    agent::{
        ErrorDecision, Failure, Prompt, Response, State, ToolDecision, TurnDecision, UnreadableTurnReason,
        durable::FORMAT,
    },
    message::{ToolResult, ToolUse},
    provider::{ProviderError, ProviderErrorKind},
    tool::Decision,
};

/// The conversation of a file.
#[derive(Serialize, Deserialize)]
struct Golden {
    history: Vec<Arc<Message>>,
    turn: TurnRecord,
}

/// The stages in which a turn is recorded: the name of the file, and the stage in the record.
const STAGES: [(&str, &str); 10] = [
    ("preparing", "preparing"),
    ("streaming", "streaming"),
    ("deciding", "deciding"),
    ("paused", "deciding"),
    ("executing", "executing"),
    ("reviewing", "reviewing"),
    ("concluding", "concluding"),
    ("failing", "failing"),
    ("delaying", "delaying"),
    ("between", "between"),
];

fn folder(format: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/store/golden/turns-{format}"))
}

/// Callbacks that keep the run in this stage until the gate opens.
struct Staying {
    stage: &'static str,
    gate: Gate,
}

impl Staying {
    async fn at(&self, stage: &str) {
        if stage == self.stage {
            self.gate.pass().await;
        }
    }
}

#[async_trait]
impl AgentCallbacks for Staying {
    async fn prepare_step(&mut self, _: &mut crate::provider::Request, _: &mut State) {
        self.at("preparing").await;
    }

    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        self.at("deciding").await;
        if self.stage == "paused" {
            ToolDecision::Pause(json!({ "why": "money" }))
        } else {
            ToolDecision::Execute
        }
    }

    async fn handle_tool_result(&mut self, result: ToolResult, _: &mut State) -> ToolResult {
        self.at("reviewing").await;
        result
    }

    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.at("concluding").await;
        match self.stage {
            "between" => TurnDecision::continue_with("More"),
            _ => TurnDecision::Stop,
        }
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        self.at("failing").await;
        match self.stage {
            "delaying" => ErrorDecision::RetryAfter(Duration::from_secs(1)),
            _ => ErrorDecision::Retry,
        }
    }

    async fn handle_event(&mut self, _: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        self.at("between").await;
        None
    }
}

/// Runs a conversation until it is recorded in this stage, and kills the process.
async fn killed_in(stage: &'static str) -> Shelf {
    let calls = Calls::new();
    let steps = match stage {
        "streaming" => vec![Step::new().then_text(["Hel"]).hang()],
        "failing" | "delaying" => {
            vec![Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"))]
        }
        _ => vec![act(), Step::text("Done.")],
    };
    let callbacks = Staying { stage, gate: Gate::new() };
    let builder = acting(steps, calls.tool(Replay::Keyed)).1.callbacks(callbacks);
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt(Prompt::new("Hi").with_id("first")).await.unwrap();
    settle().await;
    match stage {
        // The staged prompt is recorded together with the stage.
        "streaming" => drop(life.agent.prompt("And then?").await.unwrap()),
        "between" => life.agent.notify(1_u32).await.unwrap(),
        _ => {}
    }
    if stage != "executing" {
        calls.gate.open();
    }
    settle().await;
    // A change for which nothing waits is recorded a moment later.
    tokio::time::advance(Duration::from_millis(60)).await;
    settle().await;
    life.kill().await
}

/// Returns the stage that the record contains.
fn stage(turn: &TurnRecord) -> String {
    let core: Value = serde_json::from_str(&turn.core).unwrap();
    core.pointer("/stage/stage").and_then(Value::as_str).unwrap_or("between").to_owned()
}

/// Returns the steps that end the run which was recorded in this stage, and the texts of the history afterwards.
fn ending(stage: &str) -> (Vec<Step>, Vec<&'static str>) {
    let done = || Step::text("Done.");
    let whole = vec!["Hi", "", "", "Done."];
    match stage {
        "streaming" => (vec![act(), done(), Step::text("Bye.")], [whole, vec!["And then?", "Bye."]].concat()),
        "between" => (vec![Step::text("Bye.")], [whole, vec!["More", "Bye."]].concat()),
        "preparing" | "failing" | "delaying" => (vec![act(), done()], whole),
        "concluding" => (vec![], whole),
        _ => (vec![done()], whole),
    }
}

#[tokio::test(start_paused = true)]
async fn turn_recorded_in_any_stage_continues_to_its_end() {
    if std::env::var_os("OMNI_WRITE_GOLDEN_TURNS").is_some() {
        write().await;
    }
    for format in 1..=FORMAT {
        for (name, expected) in STAGES {
            let text = fs::read(folder(format).join(format!("{name}.json"))).unwrap();
            let Golden { history, turn } = serde_json::from_slice(&text).unwrap();
            assert_eq!((turn.format, stage(&turn).as_str()), (format, expected), "{name}");
            assert_eq!(turn.waiting.len(), usize::from(name == "paused"), "{name}");
            let shelf =
                Shelf(Arc::new(Mutex::new(Contents { history, turn: Some(turn), ..Contents::default() })));
            let (steps, texts) = ending(name);
            let calls = Calls::open();
            let callbacks = Staying { stage: "", gate: Gate::new() };
            let builder = acting(steps, calls.tool(Replay::Keyed)).1.callbacks(callbacks);
            let life = Life::begin(builder, Durable::InFlight, &shelf).await;
            if name == "paused" {
                settle().await;
                life.agent.resume("t1", Decision::Execute).await.unwrap();
            }
            life.idle().await;
            assert_eq!(life.texts(), texts, "{name}");
            assert!(life.shelf.contents().turn.is_none(), "{name}");
            let is_done = ["reviewing", "concluding", "between"].contains(&name);
            assert_eq!(calls.made().len(), usize::from(!is_done), "{name}");
            let again = life.agent.prompt(Prompt::new("Hi").with_id("first")).await.unwrap();
            assert!(matches!(again, crate::agent::Accepted::Known { .. }), "{name}: {again:?}");
        }
    }
}

#[test]
fn record_with_an_impossible_prompt_or_continuation_is_refused() {
    let result = json!([{ "type": "tool_result", "tool_use_id": "x", "name": "act", "content": [] }]);
    let joining = json!([{ "id": "first", "content": result, "next": "step" }]);
    for (name, path, wrong) in [
        ("streaming", "/staged/0/content", &result),
        ("streaming", "/staged/0/content", &json!([])),
        ("streaming", "/staged/0/app_data", &(0..70).fold(json!(1), |inner, _| json!([inner]))),
        ("streaming", "/turn/joined", &joining),
        ("between", "/between/content", &result),
        ("between", "/between/content", &json!([])),
        ("between", "/between/origin/max_steps", &json!(2)),
    ] {
        let text = fs::read(folder(FORMAT).join(format!("{name}.json"))).unwrap();
        let Golden { history, turn } = serde_json::from_slice(&text).unwrap();
        let read =
            |turn: TurnRecord| TurnInFlight::read(turn, &history.iter().cloned().collect(), None).map(|_| ());
        assert_eq!(read(turn.clone()), Ok(()), "{name}");
        let mut core: Value = serde_json::from_str(&turn.core).unwrap();
        let (parent, member) = path.rsplit_once('/').unwrap();
        core.pointer_mut(parent).unwrap()[member] = wrong.clone();
        let damaged = TurnRecord { core: core.to_string().into(), ..turn };
        assert!(matches!(read(damaged), Err(UnreadableTurnReason::Damaged(_))), "{path}");
    }
}

#[test]
fn record_with_as_many_levels_as_stores_accept_is_read() {
    let text = fs::read(folder(FORMAT).join("paused.json")).unwrap();
    let Golden { history, turn } = serde_json::from_slice(&text).unwrap();
    let mut core: Value = serde_json::from_str(&turn.core).unwrap();
    let reason = (0..240).fold(json!(1), |inner, _| json!([inner]));
    core["stage"]["tools"]["answers"][0]["waits"][0]["reason"] = reason;
    let turn = TurnRecord { core: core.to_string().into(), ..turn };
    let read = TurnInFlight::read(turn, &history.into_iter().collect(), None);
    assert_eq!(read.map(|_| ()), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn record_with_tools_of_a_client_offers_the_usable_ones() {
    let text = fs::read(folder(FORMAT).join("paused.json")).unwrap();
    let Golden { history, turn } = serde_json::from_slice(&text).unwrap();
    let mut core: Value = serde_json::from_str(&turn.core).unwrap();
    let tool = |name: &str, schema: Value| json!({ "name": name, "description": "Shows.", "schema": schema, "has_handler": false });
    let object = || json!({ "type": "object" });
    core["client_tools"] =
        json!([tool("show", object()), tool("broken", json!({ "type": 1 })), "none", tool("act", object())]);
    let turn = TurnRecord { core: core.to_string().into(), ..turn };
    let shelf = Shelf(Arc::new(Mutex::new(Contents { history, turn: Some(turn), ..Contents::default() })));
    let (provider, builder) = acting(vec![Step::text("Done.")], Calls::open().tool(Replay::Keyed));
    let life = Life::begin(builder, Durable::InFlight, &shelf).await;
    settle().await;
    life.agent.resume("t1", Decision::Execute).await.unwrap();
    life.idle().await;
    let tools = provider.last_request().unwrap().tools;
    let tools: Vec<_> = tools.iter().map(|tool| (tool.name(), tool.has_handler())).collect();
    assert_eq!(tools, [("act", true), ("show", false)]);
}

/// Writes the files of the current format that do not exist.
async fn write() {
    let folder = folder(FORMAT);
    fs::create_dir_all(&folder).unwrap();
    for (name, expected) in STAGES {
        let file = folder.join(format!("{name}.json"));
        if file.exists() {
            continue;
        }
        let Contents { history, turn, .. } = killed_in(name).await.contents();
        let golden = Golden { history, turn: turn.unwrap() };
        assert_eq!(stage(&golden.turn), expected, "{name}");
        fs::write(file, serde_json::to_string_pretty(&golden).unwrap()).unwrap();
    }
}
