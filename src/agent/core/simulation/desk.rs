//! Checks the tool uses of a step: each is decided once, run at most once, and reviewed and emitted in order.

use std::{collections::HashSet, sync::Arc};

use serde_json::Value;

use super::{Check, ensure};
use crate::{
    agent::{Decided, Event, Response, phase::DispatchedToolCall},
    message::{DecisionKind, ResultBlock, Role, Timestamp, ToolResult, ToolUse, ToolUseId, UseDecision},
    provider::StopReason,
    tool::{Decision, ToolSet},
};

/// The state of the tool uses in the last response.
#[derive(Default)]
pub(super) struct Desk {
    uses: Vec<ToolUse>,
    /// The decisions, by index. `None` for a tool use that waits.
    decisions: Vec<Option<Decision>>,
    /// How the tool uses were decided, by index. `None` if nobody decided.
    how: Vec<Option<How>>,
    /// The tools whose start was emitted, each with its input if the input was changed.
    started: Vec<(ToolUseId, Option<Value>)>,
    /// A tool that has just ended, and whether its result is an error.
    ended: Option<(ToolUseId, bool)>,
    ran: bool,
    /// The results of the tools, by index.
    results: Vec<Option<ToolResult>>,
    /// The results that `handle_tool_result` returned.
    reviewed: Vec<ToolResult>,
    told: usize,
    /// All idempotency keys that were used so far.
    keys: HashSet<Arc<str>>,
}

/// How a tool use was decided.
#[derive(Clone)]
struct How {
    kind: DecisionKind,
    by: Option<Arc<str>>,
    /// The time of the decision, if it was emitted.
    at: Option<Timestamp>,
    /// Whether the decision of a person has set the input.
    by_person: bool,
}

fn runs(decision: &Decision) -> bool {
    matches!(decision, Decision::Execute | Decision::ExecuteWith(_))
}

fn text(block: &ResultBlock) -> &str {
    match block {
        ResultBlock::Text(text) => &text.text,
        ResultBlock::Attachment(_) => "",
    }
}

fn answer(tool_use: &ToolUse, result: &ToolResult) -> ToolResult {
    let (tool_use_id, name) = (tool_use.id.clone(), tool_use.name.clone());
    ToolResult { tool_use_id, name, decision: None, ..result.clone() }
}

impl Desk {
    fn clear(&mut self, uses: Vec<ToolUse>) {
        let keys = std::mem::take(&mut self.keys);
        let (results, how) = (vec![None; uses.len()], vec![None; uses.len()]);
        *self = Self { uses, how, results, keys, ..Self::default() };
    }

    /// Checks a call of `handle_tool_use`.
    pub(super) fn asks(&self, tool_use: &ToolUse) -> Check {
        let next = self.uses.get(self.decisions.len());
        ensure!(next == Some(tool_use), "{tool_use:?} is decided before {next:?}");
        ensure!(!self.ran, "a decision after the tools ran");
        Ok(())
    }

    /// Records a decision of `resume`, or of a time limit. `by_person` states whether a person has set the input.
    pub(super) fn resumed(
        &mut self,
        id: &ToolUseId,
        decision: Decision,
        by: Option<Arc<str>>,
        expired: bool,
        by_person: bool,
    ) -> Check {
        if let Some(place) = self.uses.iter().position(|tool_use| tool_use.id == *id) {
            let kind = if expired { DecisionKind::Expired } else { (&decision).into() };
            self.how[place] = Some(How { kind, by, at: None, by_person });
        }
        ensure!(self.decisions.len() == self.uses.len(), "a resume before all tool uses have answers");
        let mut places = self.uses.iter().zip(&mut self.decisions);
        let (_, place) =
            places.find(|(tool_use, _)| tool_use.id == *id).ok_or("a resume of a foreign use")?;
        let before = place.replace(decision);
        ensure!(before.is_none(), "{id} was already decided: {before:?}");
        Ok(())
    }

    /// Returns the tool uses that were left to a person and are not decided.
    pub(super) fn undecided(&self) -> Vec<ToolUseId> {
        let undecided = self.uses.iter().zip(&self.decisions).filter(|(_, decision)| decision.is_none());
        undecided.map(|(tool_use, _)| tool_use.id.clone()).collect()
    }

    /// Records the answer of `handle_tool_use`.
    pub(super) fn decided(&mut self, decision: Option<Decision>) -> Check {
        ensure!(self.decisions.len() < self.uses.len(), "a decision without a tool use");
        self.decisions.push(decision);
        Ok(())
    }

    /// Checks a request to run tools.
    pub(super) fn run(&mut self, calls: &[DispatchedToolCall], tools: &ToolSet) -> Check {
        let decided = self.decisions.iter().flatten().count();
        ensure!(decided == self.uses.len(), "tools run before all tool uses are decided");
        self.ran = true;
        let mut expected = Vec::new();
        for (slot, (tool_use, decision)) in self.uses.iter().zip(self.decisions.iter().flatten()).enumerate()
        {
            let has_handler = tools.get(&tool_use.name).is_none_or(|tool| tool.has_handler());
            ensure!(has_handler || !runs(decision), "tools run although {tool_use:?} has no handler");
            match decision {
                Decision::Execute => expected.push((slot, tool_use.clone())),
                Decision::ExecuteWith(input) => {
                    let input = input.clone();
                    expected.push((slot, ToolUse { input, malformed: None, ..tool_use.clone() }));
                }
                _ => {}
            }
        }
        let mut given = calls.iter().map(|call| (call.slot, call.tool_use.clone()));
        ensure!(!calls.is_empty() && given.all(|call| expected.contains(&call)), "the calls are {calls:?}");
        let in_order = expected.iter().map(|(_, tool_use)| &tool_use.id).take(self.started.len());
        let starts = self.started.iter().map(|(id, _)| id);
        ensure!(starts.clone().eq(in_order), "the starts are {:?}", self.started);
        for call in calls {
            let (_, input) = starts
                .clone()
                .zip(&self.started)
                .find_map(|(id, started)| (*id == call.tool_use.id).then_some(started))
                .ok_or_else(|| format!("{call:?} runs before its start was emitted"))?;
            self.ran_with(call.slot, input.as_ref())?;
            let fresh = self.keys.insert(Arc::clone(&call.idempotency_key));
            ensure!(fresh, "the idempotency key of {call:?} is not new");
        }
        Ok(())
    }

    /// Records the result of a tool.
    pub(super) fn done(&mut self, slot: usize, result: &ToolResult) {
        let result = answer(&self.uses[slot], result);
        self.ended = Some((result.tool_use_id.clone(), result.is_error));
        self.results[slot] = Some(result);
    }

    /// Returns whether a tool of the step was run and has ended.
    pub(super) fn has_run(&self) -> bool {
        let decided = self.decisions.iter().flatten().zip(&self.results);
        self.ran && decided.into_iter().any(|(decision, result)| runs(decision) && result.is_some())
    }

    /// Checks that the end of a tool was emitted.
    pub(super) fn check_ended(&self) -> Check {
        ensure!(self.ended.is_none(), "the end of {:?} was not emitted", self.ended);
        Ok(())
    }

    /// Checks a call of `handle_tool_result`.
    pub(super) fn reviews(&mut self, result: &ToolResult) -> Check {
        let index = self.reviewed.len();
        let (Some(tool_use), Some(_)) =
            (self.uses.get(index), self.decisions.get(self.uses.len() - 1).and_then(Option::as_ref))
        else {
            return Err(format!("{result:?} is reviewed before all tool uses are decided"));
        };
        for (decision, result) in self.decisions.iter().zip(&self.results) {
            let decision = decision.as_ref().ok_or("a review before all tool uses are decided")?;
            ensure!(!runs(decision) || result.is_some(), "a review before all tools have finished");
        }
        let expected = self.unreviewed(index, tool_use).ok_or("a review without a result")?;
        ensure!(*result == expected, "{result:?} is reviewed, not {expected:?}");
        ensure!(self.told == index, "a review before the previous result was emitted");
        Ok(())
    }

    /// Returns the result of a tool use before its review: the result from the decision, or the result that the tool
    /// returned.
    fn unreviewed(&self, index: usize, tool_use: &ToolUse) -> Option<ToolResult> {
        match self.decisions.get(index)?.as_ref()? {
            Decision::Reject(reason) => Some(ToolResult::error(tool_use, reason.as_str())),
            Decision::Provide(result) => Some(answer(tool_use, result)),
            _ => self.results[index].clone(),
        }
    }

    /// Returns the result as it must be emitted: with the decision about its tool use and, if the tool ran with another
    /// input, with the note of this input. `given` is the emitted result.
    fn stated(&self, index: usize, result: &ToolResult, given: &ToolResult) -> ToolResult {
        let tool_use = &self.uses[index];
        let has_started = self.started.iter().any(|(id, _)| *id == tool_use.id);
        let is_cut = self.reviewed.get(index).is_none() && self.unreviewed(index, tool_use).is_none();
        let (how, told) = (self.how.get(index).and_then(Option::as_ref), given.decision.as_deref());
        let told_at = told.map(|told| told.at).unwrap_or_default();
        let kind = if is_cut { Some(DecisionKind::Interrupted) } else { how.map(|how| how.kind) };
        let Some(kind) = kind else { return result.clone() };
        let at = how.and_then(|how| how.at).filter(|_| !is_cut).unwrap_or(told_at);
        let input = match self.decisions.get(index) {
            Some(Some(Decision::ExecuteWith(input)))
                if *input != tool_use.input || tool_use.malformed.is_some() =>
            {
                Some(input.clone())
            }
            _ => None,
        };
        let (mut content, noted) = (result.content.clone(), has_started && input.is_some());
        if let Some(input) = input.as_ref().filter(|_| noted) {
            let who = if how.is_some_and(|how| how.by_person) { "A person" } else { "The application" };
            let note = format!("{who} changed the input of this call. It ran with: {input}");
            content.insert(0, note.into());
        }
        let by = how.and_then(|how| how.by.clone());
        let decision = UseDecision { by, input, noted, ..UseDecision::new(kind, at) };
        ToolResult { content, decision: Some(Box::new(decision)), ..result.clone() }
    }

    /// Records how a tool use was decided. A decision about a question of a tool counts if it has ended the tool.
    fn notes(&mut self, decided: &Decided) {
        let id = &decided.tool_use_id;
        let own = |id: &str| self.uses.iter().position(|tool_use| tool_use.id.as_str() == id);
        let ends_call = matches!(decided.decision, Decision::Provide(_));
        let asked_by = id.as_str().rsplit_once('?').filter(|_| ends_call).and_then(|(call, _)| own(call));
        let Some(place) = own(id.as_str()).or(asked_by) else { return };
        let kind = if decided.expired { DecisionKind::Expired } else { (&decided.decision).into() };
        let by_person = self.how[place].as_ref().is_some_and(|how| how.by_person);
        self.how[place] = Some(How { kind, by: decided.by.clone(), at: Some(decided.at), by_person });
    }

    /// Records a result that `handle_tool_result` returned.
    pub(super) fn reviewed(&mut self, result: &ToolResult) {
        let index = self.reviewed.len();
        self.reviewed.push(answer(&self.uses[index], result));
    }

    /// Checks a call of `handle_turn`.
    pub(super) fn concludes(&mut self, response: &Response, tools: &ToolSet) -> Check {
        if self.uses.is_empty() || self.told == self.uses.len() {
            let none = response.open_tool_uses.is_empty() && response.decided.is_empty();
            ensure!(none, "tool uses are left to the application: {:?}", response.open_tool_uses);
            return Ok(());
        }
        ensure!(!self.ran && self.told == 0, "tool uses are left to the application after their tools ran");
        ensure!(response.stop_reason == StopReason::ToolUse, "{} with open uses", response.stop_reason);
        let decided = self.uses.iter().zip(self.decisions.iter().flatten());
        let lacks_handler =
            |tool_use: &ToolUse| tools.get(&tool_use.name).is_some_and(|tool| !tool.has_handler());
        let reason = decided.clone().any(|(tool_use, decision)| runs(decision) && lacks_handler(tool_use));
        ensure!(reason, "tool uses are left to the application although all tools have handlers");
        let open = decided.clone().filter_map(|(tool_use, decision)| match decision {
            Decision::Execute => Some(tool_use.clone()),
            Decision::ExecuteWith(input) => {
                Some(ToolUse { input: input.clone(), malformed: None, ..tool_use.clone() })
            }
            Decision::Reject(_) | Decision::Provide(_) => None,
        });
        ensure!(
            response.open_tool_uses.iter().cloned().eq(open),
            "the open tool uses are {:?}",
            response.open_tool_uses
        );
        let given =
            |tool_use: &ToolUse| response.decided.iter().find(|result| result.tool_use_id == tool_use.id);
        let results = decided.enumerate().filter_map(|(index, (tool_use, decision))| {
            let result = self.unreviewed(index, tool_use).filter(|_| !runs(decision))?;
            Some(given(tool_use).map_or(result.clone(), |given| self.stated(index, &result, given)))
        });
        ensure!(
            response.decided.iter().cloned().eq(results),
            "the decided results are {:?}",
            response.decided
        );
        // The application runs the other tools with the inputs in the response. If the turn is cut off now, the history
        // states for them that they were cut off, and no decision.
        for (index, decision) in self.decisions.iter_mut().enumerate() {
            if decision.as_ref().is_some_and(runs) {
                (*decision, self.how[index]) = (Some(Decision::Execute), None);
            }
        }
        Ok(())
    }

    pub(super) fn event(&mut self, event: &Event, is_cut_short: bool) -> Check {
        match event {
            Event::Message { message, .. } if message.role == Role::Assistant => {
                self.clear(message.tool_uses().cloned().collect());
            }
            Event::Message { .. } | Event::Retry { .. } => self.clear(Vec::new()),
            Event::ToolStart { tool_use_id, input } => {
                self.started.push((tool_use_id.clone(), input.clone()));
            }
            Event::ToolEnd { tool_use_id, is_error } => {
                let ended = self.ended.take();
                let given = Some((tool_use_id.clone(), *is_error));
                ensure!(ended == given, "the end {given:?} is emitted, not {ended:?}");
            }
            Event::Decided(decided) => self.notes(decided),
            Event::ToolResult { result, input } => return self.tells(result, input.as_ref(), is_cut_short),
            _ => {}
        }
        Ok(())
    }

    fn tells(&mut self, result: &ToolResult, input: Option<&Value>, is_cut_short: bool) -> Check {
        let index = self.told;
        self.told += 1;
        let tool_use = self.uses.get(index).ok_or_else(|| format!("{result:?} has no tool use"))?;
        let names = (&result.tool_use_id, &result.name) == (&tool_use.id, &tool_use.name);
        ensure!(names, "{result:?} is emitted for {tool_use:?}");
        if let Some(reviewed) = self.reviewed.get(index) {
            let stated = self.stated(index, reviewed, result);
            ensure!(*result == stated, "{result:?} is emitted, but the reviewed result is {stated:?}");
            return self.ran_with(index, input);
        }
        if is_cut_short && let Some(kept) = self.unreviewed(index, tool_use) {
            let kept = self.stated(index, &kept, result);
            ensure!(*result == kept, "{result:?} is emitted, but {kept:?} is kept");
            return self.ran_with(index, input);
        }
        // If an interrupt, a failure, the limit of requests or a refusal prevents the review of a result, the result must be an
        // error.
        ensure!(result.is_error, "{result:?} was not reviewed");
        ensure!(is_cut_short || self.decisions.is_empty(), "{result:?} replaces a decision");
        if is_cut_short {
            let error = ToolResult::error(tool_use, result.output().iter().map(text).collect::<String>());
            let stated = self.stated(index, &error, result);
            ensure!(*result == stated, "{result:?} is emitted, not {stated:?}");
        } else {
            ensure!(result.decision.is_none(), "{result:?} has a decision, but nobody decided");
        }
        Ok(())
    }

    /// Checks that a result's event contains the input with which the tool ran, if this input differs from the model's
    /// input.
    fn ran_with(&self, index: usize, input: Option<&Value>) -> Check {
        let ran_with = match &self.decisions[index] {
            Some(Decision::ExecuteWith(input)) => Some(input),
            _ => None,
        };
        ensure!(input == ran_with, "the event's input is {input:?}, not {ran_with:?}");
        Ok(())
    }
}
