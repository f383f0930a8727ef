//! The core in the form in which it is recorded, and the checks of a record that serde can't make. Everything that is
//! stored elsewhere is left out: the committed history, the pending messages with their tool uses, and the ids of prompts.

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{AgentCore, fresh::PastPauseIds, known, tools::idempotency_key};
use crate::{
    agent::{
        Decided, PendingUse, Prompt, Status, TurnRecord, UnreadableTurnReason,
        decision::MAX_NAMED,
        durable::FORMAT,
        phase::{
            AfterEventCallback, AgentPhase, AgentTurnStage, DecisionOrPause, HistoryWithPendingMessages,
            NextTurnOfRun, OpNumber, ToolUseSlot, Turn, TurnRecoveryStage,
        },
    },
    json,
    message::{History, ToolResult, ToolUse, ToolUseId, TurnId, answer_open_tool_uses},
    run::ClientTools,
};

/// The recorded form of the core, as JSON: a turn and its stage, or the time between two turns of a run.
#[derive(Serialize, Deserialize)]
struct RecordedAgentCore<'a> {
    op: OpNumber,
    run: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_turn: Option<TurnId>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    waited: Cow<'a, [ToolUseId]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    staged: Cow<'a, [Arc<Prompt>]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<Cow<'a, Turn>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage: Option<Cow<'a, AgentTurnStage>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    between: Option<Cow<'a, NextTurnOfRun>>,
    /// The name of the model that the turn's prompt selects, if it selects one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    /// The tools that the client behind the turn's prompt runs.
    #[serde(default, skip_serializing_if = "ClientTools::is_empty")]
    client_tools: Cow<'a, ClientTools>,
    /// The decisions that were made before their pauses were reported, most of them while no process had the
    /// conversation open.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    decided: Cow<'a, [Decided]>,
}

// ---- writing ----

impl AgentCore {
    /// Returns the record of the turn in flight. It contains the messages that no earlier record contains. Returns `None`
    /// if no recorded turn is in flight.
    pub(in crate::agent) fn record(&mut self) -> Option<TurnRecord> {
        let origin = self.phase.origin().filter(|_| self.phase.is_recorded())?;
        let turn = self.phase.turn();
        let between = match &self.phase {
            AgentPhase::Noticing { then: AfterEventCallback::Continue(between), .. } => Some(&**between),
            _ => None,
        };
        let id = turn.map(|turn| turn.id).or(between.map(|between| between.turn))?;
        let withdrawn = self.withdrawn().map(|tools| AgentTurnStage::Deciding { tools: Box::new(tools) });
        let withdrawn = withdrawn.or_else(|| self.without_withheld());
        let (stage, spent) = match self.phase.stage() {
            Some(AgentTurnStage::Recovering(recovering)) => (Some(&recovering.stage), recovering.spent),
            stage => (stage, Duration::ZERO),
        };
        let stage = withdrawn.as_ref().or(stage);
        let early = stage.and_then(AgentTurnStage::unreported).map(|tools| &tools.early[..]);
        let bare = RecordedAgentCore {
            op: self.last_op,
            run: self.runs,
            first_turn: self.first_turn,
            waited: self.waited.last(turn.map_or(0, |turn| turn.waits)).into(),
            staged: self.staged[..].into(),
            turn: turn.map(Cow::Borrowed),
            stage: stage.map(Cow::Borrowed),
            between: between.map(Cow::Borrowed),
            model: origin.prompt.model.as_ref().map(|model| model.saved_name().into()),
            client_tools: Cow::Borrowed(&origin.prompt.client_tools),
            decided: early.unwrap_or_default().into(),
        };
        let core = serde_json::to_string(&bare).expect("the core has a JSON form");
        let results = stage.map_or(0, AgentTurnStage::results);
        let mut record = TurnRecord::new(FORMAT, id, core)
            .with_waiting(waiting(&self.phase))
            .with_prompts(self.known.clone())
            .with_spent(spent);
        if let AgentPhase::InTurn { turn, .. } = &mut self.phase {
            let (keep, append, has_progressed) = turn.working.record(results);
            (record.keep, record.append) = (u32::try_from(keep).unwrap_or(u32::MAX), append);
            self.lives = if has_progressed { 0 } else { self.lives };
        }
        Some(record.with_lives(self.lives))
    }
}

/// Returns the tool uses that wait for decisions. A pause that is about to be reported counts too. A pause of a sub-agent
/// that is a session is stored by this session.
fn waiting(phase: &AgentPhase) -> Vec<PendingUse> {
    let pauses: Vec<_> = match phase.stage().and_then(AgentTurnStage::unreported) {
        Some(tools) => tools.undecided().collect(),
        None => phase.pauses().collect(),
    };
    let untimed =
        |pause: &Arc<PendingUse>| PendingUse { since: None, expires: None, ..PendingUse::clone(pause) };
    let is_stored_below =
        |pause: &PendingUse| pause.sub_agent.as_ref().is_some_and(|own| own.conversation.is_some());
    pauses.into_iter().filter(|pause| !is_stored_below(pause)).map(untimed).collect()
}

// ---- reading ----

/// A description of the problem that makes a record unreadable.
type RecordDamage = String;

/// The highest number of an operation in a record. The numbers grow one by one, so only damage makes a higher one, and
/// counting on from it could overflow.
const MAX_OP: u64 = 1 << 53;
/// The highest other number in a record that grows one by one.
const MAX_COUNT: u64 = 1 << 31;

fn in_range(number: u64, max: u64) -> Result<(), RecordDamage> {
    if number <= max { Ok(()) } else { Err(format!("the number {number} is higher than {max}")) }
}

/// Checks a prompt that waits for a turn or a step.
fn check_staged(prompt: &Prompt) -> Result<(), RecordDamage> {
    if prompt.content.is_blank() {
        return Err("a staged prompt has no content".to_owned());
    }
    prompt.check().and_then(|()| prompt.check_staged()).map_err(|error| error.to_string())
}

/// Checks that the continuation can start the next turn.
fn check_continuation(between: &NextTurnOfRun, history: &History) -> Result<(), RecordDamage> {
    let NextTurnOfRun { content, origin, step, .. } = between;
    if origin.max_steps.is_some_and(|max| *step >= max) {
        return Err(format!("another turn after {step} requests, {:?} allowed", origin.max_steps));
    }
    if content.is_blank() {
        return Err("the continuation has no content".to_owned());
    }
    answer_open_tool_uses(history, content.clone()).map(drop).map_err(|error| error.to_string())
}

impl AgentCore {
    /// Reads the sum of a turn's records. Returns the core and the name of the model of the turn's prompt, if the prompt
    /// has one. The restored core does nothing before [`take_up`](Core::take_up) is called.
    /// `history` is the history to which the turn's messages are added. `fallback` is the history that is restored if
    /// the run commits no turn.
    pub(in crate::agent) fn restore(
        record: TurnRecord,
        history: History,
        fallback: Option<History>,
    ) -> Result<(Self, Option<String>), UnreadableTurnReason> {
        if let Some(problem) = record.damage() {
            return Err(UnreadableTurnReason::Damaged(problem.to_owned()));
        }
        if record.format > FORMAT {
            return Err(UnreadableTurnReason::Newer { format: record.format });
        }
        let restored = restore(record, history, fallback).map_err(UnreadableTurnReason::Damaged)?;
        restored.0.check().map_err(UnreadableTurnReason::Damaged)?;
        Ok(restored)
    }
}

impl TurnRecord {
    /// If the turn waits for nothing but decisions about tools of sub-agents that are sessions, returns the idempotency
    /// keys of the calls of these sub-agents.
    pub(crate) fn delegated_calls(&self) -> Option<Vec<String>> {
        let bare: RecordedAgentCore<'_> = json::parse(&self.core).ok()?;
        let (turn, stage) = (bare.turn?, bare.stage.filter(|stage| stage.only_delegates())?);
        let AgentTurnStage::Executing { slots, .. } = &*stage else { return None };
        let open = slots.iter().enumerate().filter(|(_, slot)| slot.result.is_none());
        Some(open.map(|(slot, _)| idempotency_key(self.turn, turn.step, slot)).collect())
    }
}

fn restore(
    record: TurnRecord,
    history: History,
    fallback: Option<History>,
) -> Result<(AgentCore, Option<String>), RecordDamage> {
    let bare: RecordedAgentCore<'_> = json::parse(&record.core)?;
    in_range(bare.op, MAX_OP)?;
    let waited = bare.waited.len();
    bare.staged.iter().try_for_each(|prompt| check_staged(prompt))?;
    let mut core = AgentCore {
        fallback,
        staged: bare.staged.into_owned(),
        known: known::restored(&record.prompts),
        emitted_status: Status::Busy,
        last_op: bare.op,
        runs: bare.run,
        first_turn: bare.first_turn,
        waited: PastPauseIds::restored(bare.waited.into_owned()),
        ..AgentCore::new(history)
    };
    // No operation has the number 0. The real number is set when `handle_recovery` is called.
    core.phase = match (bare.turn, bare.stage, bare.between) {
        (None, None, Some(between)) => {
            let mut between = Box::new(between.into_owned());
            in_range(between.step.into(), MAX_COUNT)?;
            check_continuation(&between, &core.history)?;
            (between.turn, between.recorded) = (record.turn, true);
            AgentPhase::Noticing { op: 0, begun: true, then: AfterEventCallback::Continue(between) }
        }
        (Some(turn), Some(stage), None) => {
            let (mut turn, mut stage) = (Box::new(turn.into_owned()), stage.into_owned());
            in_range(turn.step.max(turn.next_id).into(), MAX_COUNT)?;
            turn.joined.iter().try_for_each(|prompt| check_staged(prompt))?;
            if turn.compaction.is_some() != record.append.is_empty() {
                return Err("a turn without messages can only be a compaction".to_owned());
            }
            if turn.compaction.is_none() && turn.joined.len() >= turn.step_start {
                return Err(format!("{} prompts joined {} messages", turn.joined.len(), turn.step_start));
            }
            (turn.id, turn.recorded) = (record.turn, true);
            turn.waits = waited;
            turn.decisions.drain(..turn.decisions.len().saturating_sub(MAX_NAMED));
            turn.working =
                HistoryWithPendingMessages::restored(&core.history, record.append, stage.results());
            turn.refused = matches!(&stage, AgentTurnStage::Failing { failure, .. } if failure.is_refusal());
            stage.fill_in(&turn, bare.decided.into_owned())?;
            let recovering = TurnRecoveryStage { stage, spent: record.spent };
            AgentPhase::InTurn { op: 0, turn, stage: AgentTurnStage::Recovering(Box::new(recovering)) }
        }
        _ => return Err("the turn and its stage do not fit together".to_owned()),
    };
    if let Some((origin, _)) = core.phase.origin_mut() {
        Arc::make_mut(&mut origin.prompt).client_tools = bare.client_tools.into_owned();
    }
    Ok((core, bare.model.map(Cow::into_owned)))
}

impl AgentTurnStage {
    /// Fills in the tool uses and the early decisions of a stage that was read.
    fn fill_in(&mut self, turn: &Turn, early: Vec<Decided>) -> Result<(), RecordDamage> {
        let uses: Vec<_> = turn.working.all().open_tool_uses().cloned().collect();
        match self {
            Self::Deciding { tools } => {
                fill_answers(&mut tools.answers, &uses, turn.id)?;
                (tools.uses, tools.early) = (uses, early);
            }
            Self::Executing { slots, .. } => fill_slots(slots, &mut [], &uses)?,
            Self::Reviewing { slots, reviewed } => fill_slots(slots, reviewed, &uses)?,
            Self::Failing { remains, .. } => {
                fill_answers(&mut remains.answers, &uses, turn.id)?;
                if !remains.slots.is_empty() || !remains.reviewed.is_empty() {
                    fill_slots(&mut remains.slots, &mut remains.reviewed, &uses)?;
                }
            }
            Self::Concluding { end } => {
                let open = end.open.iter().map(|tool_use| &tool_use.id);
                let mut ids = open.chain(end.decided.iter().map(|result| &result.tool_use_id));
                if let Some(id) = ids.find(|id| uses.iter().all(|tool_use| tool_use.id != **id)) {
                    return Err(format!("the end of the turn names {id:?}, which is no open tool use"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn fill_answers(answers: &mut [DecisionOrPause], uses: &[ToolUse], turn: TurnId) -> Result<(), RecordDamage> {
    if answers.len() > uses.len() {
        return Err(format!("{} answers for {} tool uses", answers.len(), uses.len()));
    }
    for (answer, tool_use) in answers.iter_mut().zip(uses) {
        let DecisionOrPause::Waits(pause, _) = answer else { continue };
        let pause = Arc::make_mut(pause);
        let mut own = tool_use.clone();
        if pause.input_replaced {
            (own.input, own.malformed) = (pause.tool_use.input.take(), None);
        }
        if let Some(call) = &pause.asked_by {
            let id = &pause.tool_use.id;
            if *call != own.id
                || !id.as_str().strip_prefix(call.as_str()).is_some_and(|rest| rest.starts_with('?'))
            {
                return Err(format!("the pause {id:?} asks about {call:?} in the place of {:?}", own.id));
            }
            own.id = std::mem::replace(&mut pause.tool_use.id, own.id);
        }
        (pause.turn, pause.tool_use) = (turn, own);
    }
    Ok(())
}

fn fill_slots(
    slots: &mut [ToolUseSlot],
    reviewed: &mut [ToolResult],
    uses: &[ToolUse],
) -> Result<(), RecordDamage> {
    if slots.len() != uses.len() || reviewed.len() > uses.len() {
        return Err(format!("{} slots for {} tool uses", slots.len(), uses.len()));
    }
    for (slot, tool_use) in slots.iter_mut().zip(uses) {
        in_range(slot.asked.into(), MAX_COUNT)?;
        if slot.queued && (!slot.runs || slot.result.is_some()) {
            return Err("a tool is about to start, but it is not run or has a result".to_owned());
        }
        slot.tool_use = tool_use.clone();
    }
    let settled =
        slots.iter_mut().zip(uses).filter_map(|(slot, tool_use)| Some((slot.result.as_mut()?, tool_use)));
    for (result, tool_use) in reviewed.iter_mut().zip(uses).chain(settled) {
        (result.tool_use_id, result.name) = (tool_use.id.clone(), tool_use.name.clone());
    }
    Ok(())
}
