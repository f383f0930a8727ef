//! The tool uses that wait for a decision, and the decisions about them.

use std::{collections::HashSet, sync::Arc};

use super::{AgentCore, AgentEffect, CoreInputContext};
use crate::{
    agent::{
        Decided, Event, PendingUse, ToolDecision,
        decision::add_named,
        phase::{
            AgentPhase, AgentTurnStage, DecisionOrPause, RunningToolQuestion, ToolUseDecisionDetails, Turn,
        },
    },
    json::is_shallow,
    message::{ToolUse, ToolUseId, TurnId},
    provider::Fold,
    run::{Error, ErrorKind, SubAgentUse},
    tool::Decision,
};

/// The maximum length in bytes of the name that states who decided.
const MAX_NAME: usize = 256;

/// The reason for a pause of a tool that needs an approval.
pub(super) const NEEDS_APPROVAL: &str = "needs approval";

/// Fails if there is no decision, if a tool use has two, if one is nested too deeply, or if the name of the decider is
/// too long.
pub(crate) fn check_decisions(decisions: &[(ToolUseId, Decision)], by: Option<&str>) -> Result<(), Error> {
    match by {
        Some(name) if name.len() > MAX_NAME => {
            let length = name.len();
            let text = format!(
                "the decider's name has {length} bytes, but at most {MAX_NAME} are allowed; pass a shorter name"
            );
            let error = Error::new(ErrorKind::InvalidDecision, text);
            Err(error.with_member("length", length).with_member("limit", MAX_NAME))
        }
        _ if decisions.is_empty() => Err(Error::new(
            ErrorKind::InvalidDecision,
            "there is no decision; add one for a tool use that waits",
        )),
        _ if repeated(decisions).is_none() && !decisions.iter().all(|(_, own)| is_shallow_decision(own)) => {
            let limit = Fold::MAX_DEPTH;
            let text = format!(
                "the decision is nested too deeply; at most {limit} levels of arrays and objects are allowed"
            );
            Err(Error::new(ErrorKind::InvalidDecision, text).with_member("limit", limit))
        }
        _ => repeated(decisions).map_or(Ok(()), |tool_use| {
            let text = format!("tool use {tool_use} has two decisions; send one");
            Err(Error::new(ErrorKind::InvalidDecision, text))
        }),
    }
}

/// Returns a tool use that has two decisions.
fn repeated(decisions: &[(ToolUseId, Decision)]) -> Option<&ToolUseId> {
    let mut seen = HashSet::new();
    decisions.iter().map(|(tool_use, _)| tool_use).find(|tool_use| !seen.insert(*tool_use))
}

fn is_shallow_decision(decision: &Decision) -> bool {
    match decision {
        Decision::Execute | Decision::Reject(_) => true,
        Decision::ExecuteWith(input) => is_shallow(input),
        Decision::Provide(result) => result.is_shallow(),
    }
}

/// Returns the problem with a decision of `handle_tool_use`, if the decision can't be used.
pub(super) fn problem_of(decision: &ToolDecision) -> Option<String> {
    let is_shallow = match decision {
        ToolDecision::Execute | ToolDecision::Approve | ToolDecision::Reject(_) => true,
        ToolDecision::ExecuteWith(value) | ToolDecision::Pause(value) => is_shallow(value),
        ToolDecision::Provide(result) => result.is_shallow(),
        ToolDecision::PauseFor { reason, on_expiry, .. } => {
            is_shallow(reason) && is_shallow_decision(on_expiry)
        }
    };
    (!is_shallow)
        .then(|| format!("the decision has more than {} levels of arrays and objects", Fold::MAX_DEPTH))
}

/// Decisions about tool uses that wait. If one does not apply, none applies.
#[derive(Clone, Debug)]
pub(crate) struct ResumeDecisions {
    pub(crate) decisions: Vec<(ToolUseId, Decision)>,
    /// The turn to which the tool uses must belong.
    pub(crate) turn: Option<TurnId>,
    /// The name of the person or system that decided.
    pub(crate) by: Option<Arc<str>>,
}

/// A decision about the pause of a sub-agent, which runs in this slot. The tool use is that of the sub-agent, in this
/// turn.
#[derive(Debug, PartialEq)]
pub(crate) struct SubAgentDecision {
    pub(crate) slot: usize,
    pub(crate) turn: TurnId,
    pub(crate) tool_use: ToolUseId,
    pub(crate) decision: Decision,
}

impl AgentCore {
    /// Called when pauses begin to wait for decisions. Emits them, and starts their time limits.
    pub(super) fn pause(&mut self, cx: &mut CoreInputContext<'_>) {
        let mut limits = Vec::new();
        for pause in self.phase.pauses_mut() {
            let pause = Arc::make_mut(pause);
            if pause.since.is_none() {
                pause.begin(cx.now());
            }
            if let (Some(limit), Some(expires)) = (pause.limit, pause.expires) {
                let left = expires.since(cx.now()).min(limit);
                limits.push(AgentEffect::Expire(pause.tool_use.id.clone(), left));
            }
        }
        self.emit_pauses(cx);
        cx.effects.extend(limits);
        if let AgentPhase::InTurn { turn, stage, .. } = &mut self.phase {
            match stage {
                AgentTurnStage::Paused { tools } => self.waited.add_all(tools.pauses(), turn),
                AgentTurnStage::Streaming { question: Some(question), .. } => {
                    self.waited.add_all(question.paused.as_ref(), turn);
                }
                _ => {}
            }
        }
    }

    /// Called when the time limit of a pause is over.
    pub(in crate::agent) fn pause_expired(&mut self, tool_use: &ToolUseId, cx: &mut CoreInputContext<'_>) {
        let mut pauses = self.phase.pauses();
        let is_over = |pause: &&Arc<PendingUse>| pause.tool_use.id == *tool_use && pause.limit.is_some();
        let Some(pause) = pauses.find(is_over) else { return };
        let decision = pause.expiry_decision();
        drop(pauses);
        let all = self.decided(vec![(tool_use.clone(), decision)], None, true, cx);
        self.decide_waiting(all, cx);
    }

    /// Applies the decisions about tool uses that wait. The turn continues after the last decision. Returns the
    /// decisions that sub-agents carry out.
    pub(in crate::agent) fn resume(
        &mut self,
        resume: ResumeDecisions,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<Vec<SubAgentDecision>, Error> {
        let ResumeDecisions { decisions, turn, by } = resume;
        check_decisions(&decisions, by.as_deref())?;
        let unreported = self.phase.stage().and_then(AgentTurnStage::unreported);
        let waiting: Vec<_> = match unreported {
            Some(tools) => tools.undecided().collect(),
            None => self.phase.pauses().collect(),
        };
        if waiting.is_empty() {
            let status = self.emitted_status;
            let text = format!("the agent is {status:?}; no tool use waits for a decision");
            return Err(Error::new(ErrorKind::NotPaused, text).with_member("activity", status));
        }
        let mut meant = Vec::new();
        for (tool_use, decision) in &decisions {
            let is_meant = |pause: &&Arc<PendingUse>| {
                pause.tool_use.id == *tool_use && turn.is_none_or(|turn| turn == pause.turn)
            };
            let Some(pause) = waiting.iter().copied().find(is_meant) else {
                return Err(stale(&ids(waiting), tool_use));
            };
            meant.push((pause, decision));
        }
        check_questions(&meant)?;
        check_inputs(&meant, cx)?;
        if unreported.is_none() {
            let (mut forwards, mut own) = (Vec::new(), Vec::new());
            for (id, decision) in decisions {
                match self.delegated_pause(&id) {
                    Some((slot, pause)) => {
                        let SubAgentUse { turn, tool_use, .. } = pause.clone();
                        forwards.push(SubAgentDecision { slot, turn, tool_use, decision });
                    }
                    None => own.push((id, decision)),
                }
            }
            let all = self.decided(own, by.as_ref(), false, cx);
            self.decide_waiting(all, cx);
            return Ok(forwards);
        }
        // The pauses are recorded, so somebody who reads the store may decide. They are not reported yet. The decisions
        // are applied when the pauses are reported. After a restart, the time limit of a pause may be over already. Then
        // only the decision for this case applies.
        let over = meant.iter().filter(|(pause, _)| pause.has_expired(cx.now()));
        let over: Vec<_> =
            over.map(|(pause, _)| (pause.tool_use.id.clone(), pause.expiry_decision())).collect();
        let error = over.first().map(|(tool_use, _)| stale(&ids(waiting), tool_use));
        if let Some(error) = error {
            let over = self.decided(over, None, true, cx);
            self.decide_early(over, cx);
            return Err(error);
        }
        let all = self.decided(decisions, by.as_ref(), false, cx);
        self.decide_early(all, cx);
        Ok(Vec::new())
    }

    /// If this is the question of a running tool for a sub-agent, returns the tool's slot and the sub-agent's pause.
    fn delegated_pause(&self, id: &ToolUseId) -> Option<(usize, &SubAgentUse)> {
        let Some(AgentTurnStage::Executing { questions, .. }) = self.phase.stage() else { return None };
        let question = questions.iter().find(|question| question.pause.tool_use.id == *id)?;
        Some((question.slot, question.pause.sub_agent.as_deref()?))
    }

    /// Returns these decisions as events state them.
    fn decided(
        &self,
        decisions: Vec<(ToolUseId, Decision)>,
        by: Option<&Arc<str>>,
        expired: bool,
        cx: &CoreInputContext<'_>,
    ) -> Vec<Decided> {
        let Some(turn) = self.phase.turn() else { return Vec::new() };
        let made = |(tool_use, decision)| decided(turn, tool_use, decision, cx);
        let all = decisions.into_iter().map(made);
        all.map(|decided| Decided { by: by.cloned(), expired, ..decided }).collect()
    }

    /// Keeps decisions about pauses that are not reported yet.
    fn decide_early(&mut self, all: Vec<Decided>, cx: &mut CoreInputContext<'_>) {
        let AgentPhase::InTurn { stage, .. } = &mut self.phase else { return };
        let Some(tools) = stage.unreported_mut() else { return };
        tools.early.extend(all);
        cx.push(AgentEffect::Record);
    }

    /// Returns the decision for an approved tool use: to run the tool with the input that the approver saw.
    fn approved(&self, id: &ToolUseId) -> Decision {
        let mut pauses = self.phase.pauses();
        match pauses
            .find(|pause| pause.tool_use.id == *id && pause.input_replaced && !pause.is_of_running_tool())
        {
            Some(pause) => Decision::ExecuteWith(pause.tool_use.input.clone()),
            None => Decision::Execute,
        }
    }

    /// Applies the decisions about tool uses that wait. Emits one status with the pauses that remain and then all
    /// decisions, before they have an effect. So a reader of the status knows which pauses the command has left.
    /// A decision about a tool use that does not wait any more has no effect.
    pub(super) fn decide_waiting(&mut self, mut all: Vec<Decided>, cx: &mut CoreInputContext<'_>) {
        let is_waiting = |decided: &Decided, pause: &PendingUse| {
            pause.tool_use.id == decided.tool_use_id && pause.turn == decided.turn
        };
        all.retain(|decided| self.phase.pauses().any(|pause| is_waiting(decided, pause)));
        if all.is_empty() {
            return;
        }
        if self.phase.is_recorded() && matches!(self.phase.stage(), Some(AgentTurnStage::Paused { .. })) {
            cx.push(AgentEffect::Record);
        }
        let (mut to_provider, mut to_tools) = (None, Vec::new());
        for decided in &mut all {
            let by_person = !decided.expired && decided.decision != Decision::Execute;
            if decided.decision == Decision::Execute {
                decided.decision = self.approved(&decided.tool_use_id);
            }
            let AgentPhase::InTurn { turn, stage, .. } = &mut self.phase else { return };
            let mut own = Box::new(ToolUseDecisionDetails::new(decided, by_person));
            let (tool_use, decision) = (decided.tool_use_id.clone(), decided.decision.clone());
            match stage {
                AgentTurnStage::Streaming { question, .. } => {
                    (*question, to_provider) = (None, Some(decision));
                }
                AgentTurnStage::Paused { tools } => tools.decide(&tool_use, decision, own),
                AgentTurnStage::Executing { slots, questions } => {
                    let is_own = |question: &RunningToolQuestion| question.pause.tool_use.id == tool_use;
                    let Some(place) = questions.iter().position(is_own) else { continue };
                    let slot = questions.remove(place).slot;
                    if let (Some(call), Decision::Provide(_)) = (slots.get_mut(slot), &decision) {
                        // The tool is ended by this decision. Its input was set by an earlier one. No other question of
                        // the tool waits any more.
                        own.by_person = call.decided.as_ref().is_some_and(|earlier| earlier.by_person);
                        call.decided = Some(own);
                        questions.retain(|question| question.slot != slot);
                    }
                    to_tools.push((slot, tool_use, decision));
                }
                _ => {}
            }
            add_named(&mut turn.decisions, decided);
        }
        self.emit_pauses(cx);
        for decided in all {
            cx.emit(Event::Decided(Box::new(decided)));
        }
        for (slot, tool_use, decision) in to_tools {
            self.answer_tool(slot, tool_use, decision, cx);
        }
        match &mut self.phase {
            AgentPhase::InTurn { turn, stage: AgentTurnStage::Streaming { .. }, .. } => {
                if let Some(decision) = to_provider {
                    answer_provider(turn, decision, cx);
                }
            }
            AgentPhase::InTurn { stage: AgentTurnStage::Paused { tools }, .. }
                if tools.pauses().next().is_none() =>
            {
                if let Some((turn, AgentTurnStage::Paused { tools })) = self.phase.take_turn() {
                    self.answered_all(turn, tools, cx);
                }
            }
            _ => {}
        }
    }
}

/// Fails if a decision provides the result of a running tool, and another one answers a question of the same tool. The
/// result ends the call, so the other question would no longer wait.
fn check_questions(decisions: &[(&Arc<PendingUse>, &Decision)]) -> Result<(), Error> {
    let own = decisions.iter().filter(|(pause, _)| pause.sub_agent.is_none());
    let asked: Vec<_> = own.clone().filter_map(|(pause, _)| pause.asked_by.as_ref()).collect();
    let ends = |(pause, decision): &&(&Arc<PendingUse>, &Decision)| {
        let is_of_call = |call: &&&ToolUseId| Some(**call) == pause.asked_by.as_ref();
        matches!(decision, Decision::Provide(_)) && asked.iter().filter(is_of_call).count() > 1
    };
    let Some((pause, _)) = own.clone().find(ends) else { return Ok(()) };
    let text = format!(
        "the decision about {} provides the result of its call, so no other question of the call can be answered; \
         leave the other decisions out",
        pause.tool_use.id
    );
    Err(Error::new(ErrorKind::InvalidDecision, text))
}

/// Fails if a decision runs a tool with an input that the tool does not accept. The tool use still waits.
fn check_inputs(decisions: &[(&Arc<PendingUse>, &Decision)], cx: &CoreInputContext<'_>) -> Result<(), Error> {
    let own = decisions.iter().filter(|(pause, _)| pause.sub_agent.is_none() && !pause.is_of_running_tool());
    let refused = |(pause, decision): &(&Arc<PendingUse>, &Decision)| {
        let Decision::ExecuteWith(input) = decision else { return None };
        cx.tools.refused_input(&ToolUse { input: input.clone(), malformed: None, ..pause.tool_use.clone() })
    };
    let Some(refused) = own.clone().find_map(refused) else { return Ok(()) };
    Err(Error::new(
        ErrorKind::InvalidDecision,
        format!("the decision cannot be carried out: {}", refused.text()),
    ))
}

fn ids(waiting: Vec<&Arc<PendingUse>>) -> Vec<ToolUseId> {
    waiting.into_iter().map(|pause| pause.tool_use.id.clone()).collect()
}

/// Returns the error for a decision about a tool use that does not wait.
pub(super) fn stale(waiting: &[ToolUseId], given: &ToolUseId) -> Error {
    let list = waiting.iter().map(ToolUseId::as_str).collect::<Vec<_>>().join(", ");
    let text =
        format!("the decision is for tool use {given}, but the agent waits for decisions about {list}");
    let error = Error::new(ErrorKind::StaleDecision, text);
    error.with_member("waiting", waiting).with_member("given", given)
}

/// Answers the provider's question. After an answer that allows a tool to run, the request must not be repeated. If the
/// turn is recorded, such an answer is sent only when the state with the answer is stored.
pub(super) fn answer_provider(turn: &mut Turn, decision: Decision, cx: &mut CoreInputContext<'_>) {
    let runs = matches!(decision, Decision::Execute | Decision::ExecuteWith(_));
    turn.request.ran_tool |= runs;
    cx.gate(turn.recorded && runs, AgentEffect::Answer(decision));
}

/// Converts the decision of `handle_tool_use` into the answer about the tool use: decided, or waiting. Emits the
/// decision, if there is one, unless it runs the tool as the model requested and no approval was needed.
pub(super) fn answer(
    decision: ToolDecision,
    tool_use: &ToolUse,
    turn: &Turn,
    cx: &mut CoreInputContext<'_>,
) -> DecisionOrPause {
    let (mut limit, mut replaced) = (None, None);
    let reason = match decision {
        ToolDecision::Execute if !cx.requires_approval(&tool_use.name) => {
            return DecisionOrPause::Decided(Decision::Execute, None);
        }
        ToolDecision::Approve => return decide(Decision::Execute, tool_use, turn, cx),
        ToolDecision::ExecuteWith(input) if !cx.requires_approval(&tool_use.name) => {
            return decide(Decision::ExecuteWith(input), tool_use, turn, cx);
        }
        ToolDecision::Reject(reason) => return decide(Decision::Reject(reason), tool_use, turn, cx),
        ToolDecision::Provide(result) => return decide(Decision::Provide(result), tool_use, turn, cx),
        ToolDecision::Execute => NEEDS_APPROVAL.into(),
        ToolDecision::ExecuteWith(input) => {
            replaced = Some(input);
            NEEDS_APPROVAL.into()
        }
        ToolDecision::Pause(reason) => reason,
        ToolDecision::PauseFor { reason, expires_in, on_expiry } => {
            limit = Some((expires_in, on_expiry)).filter(|(limit, _)| *limit <= PendingUse::LONGEST);
            reason
        }
    };
    let input_replaced = replaced.is_some();
    let tool_use = match replaced {
        Some(input) => ToolUse { input, malformed: None, ..tool_use.clone() },
        None => tool_use.clone(),
    };
    let pause = PendingUse::new(turn.id, tool_use).with_input_replaced(input_replaced).with_reason(reason);
    let (limit, on_expiry) = limit.unzip();
    DecisionOrPause::Waits(Arc::new(PendingUse { limit, on_expiry, ..pause }), None)
}

fn decide(
    decision: Decision,
    tool_use: &ToolUse,
    turn: &Turn,
    cx: &mut CoreInputContext<'_>,
) -> DecisionOrPause {
    let decided = decided(turn, tool_use.id.clone(), decision.clone(), cx);
    let own = Box::new(ToolUseDecisionDetails::new(&decided, false));
    cx.emit(Event::Decided(Box::new(decided)));
    DecisionOrPause::Decided(decision, Some(own))
}

fn decided(
    turn: &Turn,
    tool_use_id: ToolUseId,
    mut decision: Decision,
    cx: &CoreInputContext<'_>,
) -> Decided {
    if let Decision::Provide(result) = &mut decision {
        // The decider may have set one.
        result.decision = None;
    }
    Decided { turn: turn.id, tool_use_id, decision, by: None, expired: false, at: cx.now() }
}
