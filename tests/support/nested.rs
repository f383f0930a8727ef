//! An agent whose sub-agent `team` has a sub-agent `files`, whose tool needs an approval.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use omni_agent::{
    agent::{Agent, AgentBuilder, AgentCallbacks, State, SubAgent, ToolDecision},
    async_trait,
    message::{ToolResult, ToolUse},
    testing::{Gate, ScriptedProvider, Step},
    tool::tool_fn,
};
use serde_json::{Value, json};

/// The reason for which the tool waits for an approval.
pub(crate) const REASON: &str = "It is gone for ever.";

/// The agents, and how often their tool was run for each file.
#[derive(Clone, Default)]
pub(crate) struct Nested {
    pub(crate) deleted: Arc<Mutex<HashMap<String, u32>>>,
    /// If a task begins with `later`, the agent that works on files waits here.
    pub(crate) later: Gate,
}

impl Nested {
    /// Returns an agent that passes each prompt on to `team`. Then it answers with the result.
    pub(crate) fn root(&self) -> AgentBuilder {
        passing("c", "team").tool(self.team())
    }

    /// Returns the sub-agent, which passes its task on to `files`. That one deletes each file that the task names.
    pub(crate) fn team(&self) -> SubAgent {
        let nested = self.clone();
        SubAgent::new("team", "Leads.", move |_| {
            let nested = nested.clone();
            let files = SubAgent::new("files", "Works on files.", move |_| nested.files());
            passing("d", "files").tool(files)
        })
    }

    fn files(&self) -> AgentBuilder {
        let later = self.later.clone();
        let provider = ScriptedProvider::from_fn(move |request| {
            let last = request.history.last().unwrap();
            let results: Vec<_> = last.tool_results().map(ToolResult::text).collect();
            if !results.is_empty() {
                return Step::text(results.join(", "));
            }
            let task = last.text();
            let names = task.split(' ').filter(|name| *name != "later").enumerate();
            let step = if task.starts_with("later") { Step::new().gate(&later) } else { Step::new() };
            let delete = |step: Step, (number, name): (usize, &str)| {
                step.then_tool_use(&format!("x{number}"), "delete", json!({ "file": name }))
            };
            names.fold(step, delete).stop()
        });
        let deleted = Arc::clone(&self.deleted);
        let delete = tool_fn("delete", "Deletes a file.", move |input: Value, _| {
            let name = input["file"].as_str().unwrap_or_default().to_owned();
            let mut deleted = deleted.lock().unwrap();
            let count = deleted.entry(name.clone()).or_default();
            *count += 1;
            let result = format!("{name} deleted {count} times");
            async move { Ok(result) }
        });
        Agent::builder().model(provider.model()).tool(delete).callbacks(Asking)
    }
}

/// Returns a step that calls `team` once for each of these tasks, which `and` separates.
#[allow(dead_code, reason = "not all front ends need several calls")]
pub(crate) fn calls(tasks: &str) -> Step {
    let call = |step: Step, (number, task): (usize, &str)| {
        step.then_tool_use(&format!("n{number}"), "team", json!({ "task": task }))
    };
    tasks.split(" and ").enumerate().fold(Step::new(), call).stop()
}

/// An agent that passes each prompt on to a tool, in a call with this id. Then it answers with the result.
fn passing(id: &'static str, tool: &'static str) -> AgentBuilder {
    let provider = ScriptedProvider::from_fn(move |request| {
        let last = request.history.last().unwrap();
        match last.tool_results().next() {
            Some(result) => Step::text(format!("{tool}: {}", result.text())),
            None => Step::tool_use(id, tool, json!({ "task": last.text() })),
        }
    });
    Agent::builder().model(provider.model())
}

struct Asking;

#[async_trait]
impl AgentCallbacks for Asking {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Pause(REASON.into())
    }
}
