//! The tool uses that wait for a decision, and the decisions about them.

use std::sync::Arc;

use super::{Context, Core, Effect};
use crate::{
    agent::{
        AgentError, Decided, Event, Expiry, Pause, Status, ToolDecision,
        phase::{Answer, Phase, Stage, Turn},
    },
    message::{Timestamp, ToolUse, ToolUseId, TurnId},
    tool::Decision,
};

/// The maximum length in bytes of the name that states who decided.
const MAX_NAME: usize = 256;

/// The reason for a pause of a tool that needs an approval.
const NEEDS_APPROVAL: &str = "needs approval";

/// A decision about a tool use that waits.
pub(crate) struct Resume {
    pub(crate) tool_use: ToolUseId,
    /// The turn to which the tool use must belong.
    pub(crate) turn: Option<TurnId>,
    pub(crate) decision: Decision,
    /// The name of the person or system that decided.
    pub(crate) by: Option<Arc<str>>,
}

impl Core {
    /// Emits the pauses that now wait for decisions.
    pub(super) fn pause(&mut self, cx: &mut Context<'_>) {
        cx.push(Effect::FreezeWatch(true));
        self.emit_status(Status::Paused, cx);
        for pause in self.phase.pauses_mut() {
            let id = &pause.tool_use.id;
            self.waited.add(id.clone());
            if let Some(expiry) = &mut pause.expiry {
                expiry.at = cx.now().after(expiry.after);
                cx.push(Effect::Expire(id.clone(), expiry.after));
            }
            cx.emit(Event::Pause(Box::new(pause.clone())));
        }
    }

    /// Called when the time limit of a pause is over.
    pub(in crate::agent) fn pause_expired(&mut self, tool_use: &ToolUseId, cx: &mut Context<'_>) {
        let mut pauses = self.phase.pauses();
        let Some(pause) = pauses.find(|pause| pause.tool_use.id == *tool_use) else { return };
        let Some(expiry) = &pause.expiry else { return };
        let decision = expiry.decision.clone();
        drop(pauses);
        let tool_use = tool_use.clone();
        self.decide_waiting(Resume { tool_use, turn: None, decision, by: None }, true, cx);
    }

    /// Applies the decision about a tool use that waits. The turn continues after the last decision.
    pub(in crate::agent) fn resume(
        &mut self,
        resume: Resume,
        cx: &mut Context<'_>,
    ) -> Result<(), AgentError> {
        if let Some(name) = resume.by.as_ref().filter(|name| name.len() > MAX_NAME) {
            return Err(AgentError::LongName { length: name.len(), limit: MAX_NAME });
        }
        if self.phase.pauses().next().is_none() {
            return Err(AgentError::NotPaused(self.emitted_status));
        }
        let is_meant = |pause: &Pause| {
            pause.tool_use.id == resume.tool_use && resume.turn.is_none_or(|turn| turn == pause.turn)
        };
        if !self.phase.pauses().any(is_meant) {
            let waiting = self.phase.pauses().map(|pause| pause.tool_use.id.clone()).collect();
            return Err(AgentError::StaleResume { waiting, given: resume.tool_use });
        }
        self.decide_waiting(resume, false, cx);
        Ok(())
    }

    /// Returns the decision for an approved tool use: to run the tool with the input that the approver saw.
    fn approved(&self, id: &ToolUseId) -> Decision {
        let mut pauses = self.phase.pauses();
        match pauses
            .find(|pause| pause.tool_use.id == *id && pause.input_replaced && pause.asked_by.is_none())
        {
            Some(pause) => Decision::ExecuteWith(pause.tool_use.input.clone()),
            None => Decision::Execute,
        }
    }

    /// Applies a decision about a tool use that waits.
    fn decide_waiting(&mut self, resume: Resume, expired: bool, cx: &mut Context<'_>) {
        let Resume { tool_use, decision, by, .. } = resume;
        let decision = match decision {
            Decision::Execute => self.approved(&tool_use),
            other => other,
        };
        let is_last = self.phase.pauses().nth(1).is_none();
        if is_last {
            self.emit_status(Status::Busy, cx);
        }
        if let Some(turn) = self.phase.turn() {
            let decided = decided(turn, tool_use.clone(), decision.clone(), cx);
            cx.emit(Event::Decided(Box::new(Decided { by, expired, ..decided })));
        }
        if is_last {
            cx.push(Effect::FreezeWatch(false));
        }
        match &mut self.phase {
            Phase::InTurn { stage: Stage::Streaming { question, .. }, .. } => {
                *question = None;
                cx.push(Effect::Answer(decision));
            }
            Phase::InTurn { stage: Stage::Paused { tools }, .. } => {
                let waits =
                    |answer: &&mut Answer| answer.pause().is_some_and(|pause| pause.tool_use.id == tool_use);
                if let Some(answer) = tools.answers.iter_mut().find(waits) {
                    *answer = Answer::Decided(decision);
                }
                if is_last && let Some((turn, Stage::Paused { tools })) = self.phase.take_turn() {
                    self.answered_all(turn, tools, cx);
                }
            }
            Phase::InTurn { stage: Stage::Executing { .. }, .. } => self.answer_tool(tool_use, decision, cx),
            _ => {}
        }
    }
}

/// Converts the decision of `handle_tool_use` into the answer about the tool use: decided, or waiting. Emits the
/// decision, unless the tool is simply run.
pub(super) fn answer(
    decision: ToolDecision,
    tool_use: &ToolUse,
    turn: &Turn,
    cx: &mut Context<'_>,
) -> Answer {
    let mut expiry = None;
    let mut replaced = None;
    let reason = match decision {
        ToolDecision::Execute if !cx.requires_approval(&tool_use.name) => {
            return Answer::Decided(Decision::Execute);
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
            expiry =
                Some(Box::new(Expiry { after: expires_in, at: Timestamp::default(), decision: on_expiry }));
            reason
        }
    };
    let input_replaced = replaced.is_some();
    let tool_use = match replaced {
        Some(input) => ToolUse { input, malformed: None, ..tool_use.clone() },
        None => tool_use.clone(),
    };
    Answer::Waits(Box::new(Pause { turn: turn.id, tool_use, input_replaced, reason, expiry, asked_by: None }))
}

fn decide(decision: Decision, tool_use: &ToolUse, turn: &Turn, cx: &mut Context<'_>) -> Answer {
    let decided = decided(turn, tool_use.id.clone(), decision.clone(), cx);
    cx.emit(Event::Decided(Box::new(decided)));
    Answer::Decided(decision)
}

fn decided(turn: &Turn, tool_use_id: ToolUseId, decision: Decision, cx: &Context<'_>) -> Decided {
    Decided { turn: turn.id, tool_use_id, decision, by: None, expired: false, at: cx.now() }
}
