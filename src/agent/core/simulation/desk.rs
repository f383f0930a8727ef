//! The tool uses of a step: each decided once, run at most once, reviewed and told in order.

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;

use super::{Check, ensure};
use crate::{
    agent::{Event, Response, phase::ToolCall},
    message::{Role, ToolResult, ToolUse},
    provider::StopReason,
    tool::{Decision, ToolSet},
};

/// What is known of the tool uses of the last answer.
#[derive(Default)]
pub(super) struct Desk {
    uses: Vec<ToolUse>,
    decisions: Vec<Decision>,
    ran: bool,
    /// The results of the tools, by place.
    results: Vec<Option<ToolResult>>,
    /// What `handle_tool_result` made of them.
    reviewed: Vec<ToolResult>,
    told: usize,
    /// All keys that were ever given.
    keys: HashSet<Arc<str>>,
}

fn runs(decision: &Decision) -> bool {
    matches!(decision, Decision::Execute | Decision::ExecuteWith(_))
}

fn answer(tool_use: &ToolUse, result: &ToolResult) -> ToolResult {
    ToolResult { tool_use_id: tool_use.id.clone(), name: tool_use.name.clone(), ..result.clone() }
}

impl Desk {
    fn clear(&mut self, uses: Vec<ToolUse>) {
        let keys = std::mem::take(&mut self.keys);
        *self = Self { results: vec![None; uses.len()], uses, keys, ..Self::default() };
    }

    /// `handle_tool_use` is called.
    pub(super) fn asks(&self, tool_use: &ToolUse) -> Check {
        let next = self.uses.get(self.decisions.len());
        ensure!(next == Some(tool_use), "{tool_use:?} is to be decided before {next:?}");
        ensure!(!self.ran, "a decision after the tools ran");
        Ok(())
    }

    /// A decision was given, by `handle_tool_use` or by `resume`.
    pub(super) fn decided(&mut self, decision: Decision) -> Check {
        ensure!(self.decisions.len() < self.uses.len(), "a decision for nothing");
        self.decisions.push(decision);
        Ok(())
    }

    /// The tools are to be run.
    pub(super) fn run(&mut self, calls: &[ToolCall], tools: &ToolSet) -> Check {
        ensure!(!self.ran, "the tools of a step run twice");
        ensure!(self.decisions.len() == self.uses.len(), "tools run before all is decided");
        self.ran = true;
        let mut expected = Vec::new();
        for (slot, (tool_use, decision)) in self.uses.iter().zip(&self.decisions).enumerate() {
            let has_handler = tools.get(&tool_use.name).is_none_or(|tool| tool.has_handler());
            ensure!(has_handler || !runs(decision), "{tool_use:?} has no handler, and others run");
            match decision {
                Decision::Execute => expected.push((slot, tool_use.clone())),
                Decision::ExecuteWith(input) => {
                    let input = input.clone();
                    expected.push((slot, ToolUse { input, malformed: None, ..tool_use.clone() }));
                }
                _ => {}
            }
        }
        let given = calls.iter().map(|call| (call.slot, call.tool_use.clone()));
        ensure!(!calls.is_empty() && given.eq(expected), "the calls are {calls:?}");
        for call in calls {
            let fresh = self.keys.insert(Arc::clone(&call.idempotency_key));
            ensure!(fresh, "the key of {call:?} was given before");
        }
        Ok(())
    }

    /// A tool is done.
    pub(super) fn done(&mut self, slot: usize, result: &ToolResult) {
        self.results[slot] = Some(answer(&self.uses[slot], result));
    }

    /// `handle_tool_result` is called.
    pub(super) fn reviews(&mut self, result: &ToolResult) -> Check {
        let index = self.reviewed.len();
        let (Some(tool_use), Some(_)) = (self.uses.get(index), self.decisions.get(self.uses.len() - 1))
        else {
            return Err(format!("{result:?} is reviewed before all is decided"));
        };
        for (decision, result) in self.decisions.iter().zip(&self.results) {
            ensure!(!runs(decision) || result.is_some(), "a review before all tools are done");
        }
        let expected = self.unreviewed(index, tool_use).ok_or("a result from nowhere")?;
        ensure!(*result == expected, "{result:?} is reviewed, not {expected:?}");
        ensure!(self.told == index, "a review before the result before it was told");
        Ok(())
    }

    /// The result that a decision gave, or that a tool returned.
    fn unreviewed(&self, index: usize, tool_use: &ToolUse) -> Option<ToolResult> {
        match self.decisions.get(index)? {
            Decision::Reject(reason) => Some(ToolResult::error(tool_use, reason.as_str())),
            Decision::Provide(result) => Some(answer(tool_use, result)),
            _ => self.results[index].clone(),
        }
    }

    /// `handle_tool_result` returned this.
    pub(super) fn reviewed(&mut self, result: &ToolResult) {
        let index = self.reviewed.len();
        self.reviewed.push(answer(&self.uses[index], result));
    }

    /// `handle_turn` is called.
    pub(super) fn concludes(&self, response: &Response, tools: &ToolSet) -> Check {
        if self.uses.is_empty() || self.told == self.uses.len() {
            let none = response.open_tool_uses.is_empty() && response.decided.is_empty();
            ensure!(none, "tool uses are left to the application: {:?}", response.open_tool_uses);
            return Ok(());
        }
        ensure!(!self.ran && self.told == 0, "a step's tools ran, and are left to the application");
        ensure!(response.stop_reason == StopReason::ToolUse, "{} with open uses", response.stop_reason);
        let decided = self.uses.iter().zip(&self.decisions);
        let lacks_handler =
            |tool_use: &ToolUse| tools.get(&tool_use.name).is_some_and(|tool| !tool.has_handler());
        let reason = decided.clone().any(|(tool_use, decision)| runs(decision) && lacks_handler(tool_use));
        ensure!(reason, "all tools have handlers, and are left to the application");
        let open = decided.clone().filter(|(_, decision)| runs(decision)).map(|(tool_use, _)| tool_use);
        ensure!(response.open_tool_uses.iter().eq(open), "open are {:?}", response.open_tool_uses);
        let results = decided.filter_map(|(tool_use, decision)| match decision {
            Decision::Reject(reason) => Some(ToolResult::error(tool_use, reason.as_str())),
            Decision::Provide(result) => Some(answer(tool_use, result)),
            Decision::Execute | Decision::ExecuteWith(_) => None,
        });
        ensure!(response.decided.iter().cloned().eq(results), "decided are {:?}", response.decided);
        Ok(())
    }

    pub(super) fn event(&mut self, event: &Event, interrupting: bool) -> Check {
        match event {
            Event::Message { message, .. } if message.role == Role::Assistant => {
                self.clear(message.tool_uses().cloned().collect());
            }
            Event::Message { .. } | Event::Retry { .. } => self.clear(Vec::new()),
            Event::ToolResult { result, input } => return self.tells(result, input.as_ref(), interrupting),
            _ => {}
        }
        Ok(())
    }

    fn tells(&mut self, result: &ToolResult, input: Option<&Value>, interrupting: bool) -> Check {
        let index = self.told;
        self.told += 1;
        let tool_use = self.uses.get(index).ok_or_else(|| format!("{result:?} answers nothing"))?;
        let names = (&result.tool_use_id, &result.name) == (&tool_use.id, &tool_use.name);
        ensure!(names, "{result:?} is told for {tool_use:?}");
        if let Some(reviewed) = self.reviewed.get(index) {
            ensure!(result == reviewed, "{result:?} is told, {reviewed:?} was made of it");
            return self.ran_with(index, input);
        }
        if interrupting && let Some(kept) = self.unreviewed(index, tool_use) {
            ensure!(*result == kept, "{result:?} is told, and an interrupt keeps {kept:?}");
            return self.ran_with(index, input);
        }
        // Nobody saw it: an interrupt, the limit of steps, or a refusal.
        ensure!(result.is_error, "{result:?} was not reviewed");
        ensure!(interrupting || self.decisions.is_empty(), "{result:?} takes the place of a decision");
        Ok(())
    }

    /// The event of a result shows the input that the tool ran with, where it is not the model's.
    fn ran_with(&self, index: usize, input: Option<&Value>) -> Check {
        let ran_with = match &self.decisions[index] {
            Decision::ExecuteWith(input) => Some(input),
            _ => None,
        };
        ensure!(input == ran_with, "told to have run with {input:?}, not {ran_with:?}");
        Ok(())
    }
}
