//! The core in the form in which it is recorded. Everything that is stored elsewhere is left out: the committed
//! history, the pending messages with their tool uses, the results of tools, and the ids of prompts.

use std::{borrow::Cow, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Core, fresh::Waited, known};
use crate::{
    agent::{
        Decided, Failure, PendingUse, Prompt, Response, Settled, Status, TurnRecord, UnreadableTurn,
        decision::MAX_NAMED,
        durable::FORMAT,
        phase::{
            AfterEvent, Answer, Between, DecidedUse, Op, Phase, RecordedSlot, Recovering, Remains, Slot,
            Stage, Tools, Turn, Working,
        },
    },
    json,
    message::{
        History, Timestamp, ToolResult, ToolUse, ToolUseId, TurnId, UseDecision, answer_open_tool_uses,
    },
    provider::StopReason,
    tool::{Decision, Replay},
};

/// The recorded form of the core, as JSON.
#[derive(Serialize, Deserialize)]
struct BareCore<'a> {
    op: Op,
    run: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_turn: Option<TurnId>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    waited: Cow<'a, [ToolUseId]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    staged: Cow<'a, [Arc<Prompt>]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<Cow<'a, Turn>>,
    /// The name of the model that the turn's prompt selects, if it selects one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<Cow<'a, str>>,
    stage: BareStage,
    /// The decisions that were made before their pauses were reported, most of them while no process had the
    /// conversation open.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    decided: Cow<'a, [Decided]>,
    /// The applied decisions of the turn that were made under a name.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    named: Cow<'a, [(ToolUseId, UseDecision)]>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
enum BareStage {
    /// Between two turns of a run: one turn has ended, and the next one has not begun.
    Between(Box<Between>),
    Preparing,
    Streaming,
    Deciding {
        answers: Vec<BareAnswer>,
    },
    Executing {
        slots: Vec<BareSlot>,
    },
    Reviewing {
        slots: Vec<BareSlot>,
    },
    Concluding {
        stop_reason: StopReason,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output_error: Option<String>,
        /// The positions of the tool uses that are left to the application. All other tool uses of the step are
        /// decided.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open: Vec<u32>,
        /// The inputs of these tool uses, if they are not the model's.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        inputs: Vec<(u32, Value)>,
    },
    Failing {
        failure: Failure,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        answers: Vec<BareAnswer>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        slots: Vec<BareSlot>,
    },
    Delaying {
        delay: Duration,
        until: Timestamp,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BareAnswer {
    Decided(Decision),
    /// A decision that the result of the tool use states.
    Stated(Decision, Box<DecidedUse>),
    Waits {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
        #[serde(default, skip_serializing_if = "Value::is_null")]
        reason: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<Duration>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_expiry: Option<Decision>,
        /// The time since which the tool use waits, and the end of its time limit, by the system clock.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<(Timestamp, Option<Timestamp>)>,
        /// The decision that was made before the tool use waited again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        earlier: Option<Box<DecidedUse>>,
    },
}

#[derive(Serialize, Deserialize)]
struct BareSlot {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decided: Option<Box<DecidedUse>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    runs: bool,
    #[serde(default)]
    asked: u32,
    replay: Replay,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    settled: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reviewed: bool,
}

/// A core that was read from a record.
#[derive(Debug)]
pub(in crate::agent) struct Restored {
    pub(in crate::agent) core: Core,
    /// The name of the model of the turn's prompt, if the prompt has one.
    pub(in crate::agent) model: Option<String>,
}

// ---- writing ----

impl Core {
    /// Returns the record of the turn in flight. It contains the messages and the results that no earlier record
    /// contains. Returns `None` if no recorded turn is in flight.
    pub(in crate::agent) fn record(&mut self) -> Option<TurnRecord> {
        if !self.phase.is_recorded() {
            return None;
        }
        let (stage, origin, id) = match &self.phase {
            Phase::InTurn { turn, stage, .. } => (BareStage::of(stage, turn), &turn.origin, turn.id),
            Phase::Noticing { then: AfterEvent::Continue(between), .. } => {
                (BareStage::Between(between.clone()), &between.origin, between.turn)
            }
            Phase::Idle | Phase::Noticing { .. } => return None,
        };
        let model = origin.prompt.model.as_ref();
        let turn = self.phase.turn();
        let withdrawn = self.withdrawn();
        let stage = withdrawn.as_ref().map_or(stage, |tools| {
            let answers = answers(&tools.answers);
            BareStage::Deciding { answers }
        });
        let undecided = self.phase.stage().and_then(Stage::unreported);
        let early = withdrawn.as_ref().or(undecided).map(|tools| &tools.early[..]);
        let spent = match self.phase.stage() {
            Some(Stage::Recovering(recovering)) => recovering.spent,
            _ => Duration::ZERO,
        };
        let bare = BareCore {
            op: self.last_op,
            run: self.runs,
            first_turn: self.first_turn,
            waited: self.waited.last(turn.map_or(0, |turn| turn.waits)).into(),
            staged: self.staged[..].into(),
            turn: turn.map(Cow::Borrowed),
            model: model.map(|model| model.saved_name().into()),
            stage,
            decided: early.unwrap_or_default().into(),
            named: turn.map_or(&[][..], |turn| &turn.decisions).into(),
        };
        let core = serde_json::to_string(&bare).expect("the core has a JSON form");
        let mut record = TurnRecord::new(FORMAT, id, core)
            .with_waiting(waiting(&self.phase))
            .with_prompts(self.known.clone())
            .with_spent(spent);
        if let Phase::InTurn { turn, stage, .. } = &mut self.phase {
            let (keep, append) = turn.working.record();
            record.keep = u32::try_from(keep).unwrap_or(u32::MAX);
            record.append = append;
            record.results = settled(stage, turn);
        }
        Some(record)
    }
}

impl BareStage {
    fn of(stage: &Stage, turn: &Turn) -> Self {
        match stage {
            Stage::Noticing { .. } | Stage::Preparing => Self::Preparing,
            Stage::Streaming { .. } => Self::Streaming,
            Stage::Deciding { tools } | Stage::Paused { tools } => {
                Self::Deciding { answers: answers(&tools.answers) }
            }
            Stage::Executing { slots, .. } => Self::Executing { slots: bare_slots(slots, 0) },
            Stage::Reviewing { slots, reviewed } => {
                Self::Reviewing { slots: bare_slots(slots, reviewed.len()) }
            }
            Stage::Concluding { response, .. } => {
                let (mut open, mut inputs) = (Vec::new(), Vec::new());
                for (place, tool_use) in (0..).zip(turn.working.all().open_tool_uses()) {
                    let mut left = response.open_tool_uses.iter();
                    let Some(own) = left.find(|own| own.id == tool_use.id) else { continue };
                    open.push(place);
                    if own != tool_use {
                        inputs.push((place, own.input.clone()));
                    }
                }
                Self::Concluding {
                    stop_reason: response.stop_reason.clone(),
                    output: response.output.clone(),
                    output_error: response.output_error.clone(),
                    open,
                    inputs,
                }
            }
            Stage::Failing { failure, remains } => Self::Failing {
                failure: failure.clone(),
                answers: answers(&remains.answers),
                slots: bare_slots(&remains.slots, remains.reviewed.len()),
            },
            Stage::Delaying { delay, until } => Self::Delaying { delay: *delay, until: *until },
            Stage::Recovering(recovering) => Self::of(&recovering.stage, turn),
        }
    }
}

fn answers(answers: &[Answer]) -> Vec<BareAnswer> {
    let bare = |answer: &Answer| match answer {
        Answer::Decided(decision, None) => BareAnswer::Decided(decision.clone()),
        Answer::Decided(decision, Some(decided)) => BareAnswer::Stated(decision.clone(), decided.clone()),
        Answer::Waits(pause, earlier) => BareAnswer::Waits {
            input: pause.input_replaced.then(|| pause.tool_use.input.clone()),
            reason: pause.reason.clone(),
            limit: pause.limit,
            on_expiry: pause.on_expiry.clone(),
            times: pause.since.map(|since| (since, pause.expires)),
            earlier: earlier.clone(),
        },
    };
    answers.iter().map(bare).collect()
}

fn bare_slots(slots: &[Slot], reviewed: usize) -> Vec<BareSlot> {
    let bare = |(place, slot): (usize, &Slot)| BareSlot {
        input: slot.input.clone(),
        decided: slot.decided.clone(),
        runs: slot.runs,
        asked: slot.asked,
        replay: slot.replay,
        settled: slot.result.is_some(),
        reviewed: place < reviewed,
    };
    slots.iter().enumerate().map(bare).collect()
}

/// Returns the results that no earlier record contains, and marks them as recorded.
fn settled(stage: &mut Stage, turn: &Turn) -> Vec<Settled> {
    let (slots, reviewed): (_, &[ToolResult]) = match stage {
        Stage::Executing { slots, .. } => (slots, &[]),
        Stage::Reviewing { slots, reviewed } => (slots, reviewed),
        Stage::Failing { remains, .. } => (&mut remains.slots, &remains.reviewed),
        Stage::Concluding { recorded: true, .. } => return Vec::new(),
        Stage::Concluding { response, recorded } => {
            *recorded = true;
            let places = (0..).zip(turn.working.all().open_tool_uses());
            let decided = places.filter_map(|(place, tool_use)| {
                let result = response.decided.iter().find(|result| result.tool_use_id == tool_use.id)?;
                Some(Settled::new(place, result.clone()))
            });
            return decided.collect();
        }
        Stage::Recovering(recovering) => return settled(&mut recovering.stage, turn),
        _ => return Vec::new(),
    };
    let mut results = Vec::new();
    for (place, slot) in slots.iter_mut().enumerate() {
        let (progress, result) = match (reviewed.get(place), &slot.result) {
            (Some(result), _) => (RecordedSlot::Reviewed, result),
            (None, Some(result)) => (RecordedSlot::Settled, result),
            (None, None) => continue,
        };
        if slot.recorded < progress {
            slot.recorded = progress;
            let result = Settled::new(u32::try_from(place).unwrap_or(u32::MAX), result.clone());
            results.push(result.with_reviewed(progress == RecordedSlot::Reviewed));
        }
    }
    results
}

/// Returns the tool uses that wait for decisions. A pause that is about to be reported counts too.
fn waiting(phase: &Phase) -> Vec<PendingUse> {
    let pauses: Vec<_> = match phase.stage().and_then(Stage::unreported) {
        Some(tools) => tools.undecided().collect(),
        None => phase.pauses().collect(),
    };
    let untimed =
        |pause: &Arc<PendingUse>| PendingUse { since: None, expires: None, ..PendingUse::clone(pause) };
    pauses.into_iter().map(untimed).collect()
}

// ---- reading ----

/// A description of the problem that makes a record unreadable.
type Damage = String;

/// The highest number of an operation in a record. The numbers grow one by one, so only damage makes a higher one, and
/// counting on from it could overflow.
const MAX_OP: u64 = 1 << 53;
/// The highest other number in a record that grows one by one.
const MAX_COUNT: u64 = 1 << 31;

fn in_range(number: u64, max: u64) -> Result<(), Damage> {
    if number <= max { Ok(()) } else { Err(format!("the number {number} is higher than {max}")) }
}

/// Checks a prompt that waits for a turn or a step.
fn check_staged(prompt: &Prompt) -> Result<(), Damage> {
    if prompt.content.is_blank() {
        return Err("a staged prompt has no content".to_owned());
    }
    prompt.check().and_then(|()| prompt.check_staged()).map_err(|error| error.to_string())
}

/// Checks that the continuation can start the next turn.
fn check_continuation(between: &Between, history: &History) -> Result<(), Damage> {
    let Between { content, origin, step, .. } = between;
    if origin.max_steps.is_some_and(|max| *step >= max) {
        return Err(format!("another turn after {step} requests, {:?} allowed", origin.max_steps));
    }
    if content.is_blank() {
        return Err("the continuation has no content".to_owned());
    }
    answer_open_tool_uses(history, content.clone()).map(drop).map_err(|error| error.to_string())
}

impl Core {
    /// Reads the sum of a turn's records. The restored core does nothing before [`take_up`](Core::take_up) is called.
    /// `history` is the history to which the turn's messages are added. `fallback` is the history that is restored if
    /// the run commits no turn.
    pub(in crate::agent) fn restore(
        record: TurnRecord,
        history: History,
        fallback: Option<History>,
    ) -> Result<Restored, UnreadableTurn> {
        if let Some(problem) = record.damage() {
            return Err(UnreadableTurn::Damaged(problem.to_owned()));
        }
        if record.format > FORMAT {
            return Err(UnreadableTurn::Newer { format: record.format });
        }
        let restored = restore(record, history, fallback).map_err(UnreadableTurn::Damaged)?;
        restored.core.check().map_err(UnreadableTurn::Damaged)?;
        Ok(restored)
    }
}

fn restore(record: TurnRecord, history: History, fallback: Option<History>) -> Result<Restored, Damage> {
    let bare: BareCore<'_> = json::parse(&record.core)?;
    in_range(bare.op, MAX_OP)?;
    let waited = bare.waited.len();
    bare.staged.iter().try_for_each(|prompt| check_staged(prompt))?;
    let mut core = Core {
        fallback,
        staged: bare.staged.into_owned(),
        known: known::restored(&record.prompts),
        emitted_status: Status::Busy,
        last_op: bare.op,
        runs: bare.run,
        first_turn: bare.first_turn,
        waited: Waited::restored(bare.waited.into_owned()),
        ..Core::new(history)
    };
    core.phase = match (bare.turn, bare.stage) {
        (None, BareStage::Between(mut between)) => {
            in_range(between.step.into(), MAX_COUNT)?;
            check_continuation(&between, &core.history)?;
            (between.turn, between.recorded) = (record.turn, true);
            // No operation has the number 0. The real number is set when `handle_recovery` is called.
            Phase::Noticing { op: 0, begun: true, then: AfterEvent::Continue(between) }
        }
        (None, _) | (Some(_), BareStage::Between(_)) => {
            return Err("the turn and its stage do not fit together".to_owned());
        }
        (Some(turn), stage) => {
            let mut turn = Box::new(turn.into_owned());
            in_range(turn.step.max(turn.next_id).into(), MAX_COUNT)?;
            turn.joined.iter().try_for_each(|prompt| check_staged(prompt))?;
            if turn.joined.len() >= turn.step_start {
                return Err(format!("{} prompts joined {} messages", turn.joined.len(), turn.step_start));
            }
            (turn.id, turn.recorded) = (record.turn, true);
            turn.waits = waited;
            turn.decisions = bare.named[bare.named.len().saturating_sub(MAX_NAMED)..].to_vec();
            turn.working = Working::restored(&core.history, record.append);
            turn.refused = matches!(&stage, BareStage::Failing { failure, .. } if failure.is_refusal());
            let stage = stage.restored(&turn, record.results, bare.decided.into_owned())?;
            let recovering = Recovering { stage, spent: record.spent };
            Phase::InTurn { op: 0, turn, stage: Stage::Recovering(Box::new(recovering)) }
        }
    };
    Ok(Restored { core, model: bare.model.map(Cow::into_owned) })
}

impl BareStage {
    fn restored(self, turn: &Turn, results: Vec<Settled>, early: Vec<Decided>) -> Result<Stage, Damage> {
        let uses = || turn.working.all().open_tool_uses().cloned();
        Ok(match self {
            Self::Between(_) | Self::Preparing => Stage::Preparing,
            Self::Streaming => Stage::Streaming { fold: Box::default(), question: None },
            Self::Deciding { answers } => {
                let uses: Vec<_> = uses().collect();
                let answers = restored_answers(answers, &uses, turn.id)?;
                Stage::Deciding { tools: Box::new(Tools { uses, answers, early }) }
            }
            Self::Executing { slots } => {
                Stage::Executing { slots: restored_slots(slots, uses(), results)?.0, questions: Vec::new() }
            }
            Self::Reviewing { slots } => {
                let (slots, reviewed) = restored_slots(slots, uses(), results)?;
                Stage::Reviewing { slots, reviewed }
            }
            Self::Concluding { stop_reason, output, output_error, open, inputs } => {
                let is_open = |place: u32| open.contains(&place);
                let open = (0..).zip(uses()).filter(|(place, _)| is_open(*place));
                let open = open.map(|(place, tool_use)| match inputs.iter().find(|(own, _)| *own == place) {
                    Some((_, input)) => ToolUse { input: input.clone(), malformed: None, ..tool_use },
                    None => tool_use,
                });
                let decided = results.into_iter().filter(|settled| !is_open(settled.slot));
                Stage::Concluding {
                    recorded: true,
                    response: Arc::new(Response {
                        output,
                        output_error,
                        open_tool_uses: open.collect(),
                        decided: decided.map(|settled| settled.result).collect(),
                        ..Response::empty("", stop_reason, turn.step, turn.run)
                    }),
                }
            }
            Self::Failing { failure, answers, slots } => {
                let answers = restored_answers(answers, &uses().collect::<Vec<_>>(), turn.id)?;
                let (slots, reviewed) = if slots.is_empty() {
                    Default::default()
                } else {
                    restored_slots(slots, uses(), results)?
                };
                let remains = Remains { partial: None, answers, slots, reviewed };
                Stage::Failing { failure, remains: Box::new(remains) }
            }
            Self::Delaying { delay, until } => Stage::Delaying { delay, until },
        })
    }
}

fn restored_answers(answers: Vec<BareAnswer>, uses: &[ToolUse], turn: TurnId) -> Result<Vec<Answer>, Damage> {
    if answers.len() > uses.len() {
        return Err(format!("{} answers for {} tool uses", answers.len(), uses.len()));
    }
    let restored = |(answer, tool_use): (BareAnswer, &ToolUse)| match answer {
        BareAnswer::Decided(decision) => Answer::Decided(decision, None),
        BareAnswer::Stated(decision, decided) => Answer::Decided(decision, Some(decided)),
        BareAnswer::Waits { input, reason, limit, on_expiry, times, earlier } => {
            let mut tool_use = tool_use.clone();
            let input_replaced = input.is_some();
            if let Some(input) = input {
                (tool_use.input, tool_use.malformed) = (input, None);
            }
            let pause =
                PendingUse::new(turn, tool_use).with_input_replaced(input_replaced).with_reason(reason);
            let (since, expires) = times.unzip();
            let expires = expires.flatten();
            Answer::Waits(Arc::new(PendingUse { since, limit, expires, on_expiry, ..pause }), earlier)
        }
    };
    Ok(answers.into_iter().zip(uses).map(restored).collect())
}

/// Returns all slots, and the results of the slots that are already reviewed.
fn restored_slots(
    slots: Vec<BareSlot>,
    uses: impl Iterator<Item = ToolUse>,
    results: Vec<Settled>,
) -> Result<(Vec<Slot>, Vec<ToolResult>), Damage> {
    let uses: Vec<_> = uses.collect();
    if slots.len() != uses.len() {
        return Err(format!("{} slots for {} tool uses", slots.len(), uses.len()));
    }
    let mut results: Vec<_> = results.into_iter().map(Some).collect();
    let mut reviewed = Vec::new();
    let mut restored = Vec::with_capacity(slots.len());
    for (place, (slot, tool_use)) in slots.into_iter().zip(uses).enumerate() {
        let own = results
            .iter_mut()
            .find(|result| result.as_ref().is_some_and(|result| usize::try_from(result.slot) == Ok(place)));
        let own = own.and_then(Option::take).filter(|_| slot.settled || slot.reviewed);
        if own.is_none() && (slot.settled || slot.reviewed) {
            return Err(format!("the result of tool use {place} is missing"));
        }
        let answering = |Settled { result, .. }: Settled| {
            let decision = result.decision.clone();
            ToolResult { decision, ..result.answering(&tool_use) }
        };
        let mut result = own.map(answering);
        let recorded = match (&result, slot.reviewed) {
            (None, _) => RecordedSlot::Open,
            (Some(_), false) => RecordedSlot::Settled,
            (Some(_), true) => RecordedSlot::Reviewed,
        };
        if slot.reviewed {
            if reviewed.len() != place {
                return Err(format!("the result of tool use {place} is reviewed before an earlier one"));
            }
            reviewed.extend(result.take());
        }
        let BareSlot { input, decided, runs, asked, replay, .. } = slot;
        in_range(asked.into(), MAX_COUNT)?;
        restored.push(Slot { tool_use, input, decided, runs, asked, replay, result, recorded });
    }
    Ok((restored, reviewed))
}
