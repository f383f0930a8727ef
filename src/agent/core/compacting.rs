//! Compactions: when they are due, what they keep, and the request for a summary. The plan is a pure function of the
//! conversation, its size and the policy.

use std::{sync::Arc, time::Duration};

use super::{AgentCore, AgentEffect, CallbackCall, CoreInputContext, user_message};
use crate::{
    agent::{
        Compact, CompactHow, Config, Event, Failure,
        compaction::{CompactionPolicy, ResolvedCompactionPolicy, times},
        phase::{
            AgentTurnStage, CompactionAttemptState, CompactionPlan, OpNumber, Turn, UnfinishedStep, in_stage,
        },
    },
    message::{
        ClearingReason, Compaction, CompactionTrigger, Content, History, Message, MessageId, Purpose,
        RequestEnd, Role, Text, Timestamp, TurnId, Usage, UsageRow, cleared, text_tokens,
    },
    provider::{Delta, Model, ProviderError, ProviderErrorKind, StopReason, estimated_tokens, room},
    run::{Error, ErrorKind, Settings},
    tool::Replay,
};

/// The text of a compaction without a summary.
const NO_SUMMARY: &str = "Compaction without a summary.";
/// The greatest size of a summary, in bytes.
const LONGEST: usize = 32 * 1024;
/// The greatest share that the messages that are sent unchanged may have of the tokens between the system prompt with the
/// tools and the threshold. With more, the next steps would reach the threshold again.
const KEPT_SHARE: f64 = 0.5;
/// If this share of the room becomes free and less than the other share is used, a compaction only clears messages.
const FREED_SHARE: f64 = 0.25;
const CLEARED_SHARE: f64 = 0.6;
/// The share of the room for a request for a summary that has to be shortened, and for what is kept after an overflow.
const SUMMARY_SHARE: f64 = 0.9;
/// The number of times that a request for a summary is halved.
const MOST_SHORTENED: u8 = 3;
/// The least room for a requested compaction, in tokens, if the context window of the model is not known.
const UNKNOWN_ROOM: u64 = 32_000;
/// The share for kept prompts of the room that the system prompt and the tools leave.
const PROMPTS_SHARE: f64 = 0.1;

const INSTRUCTION: &str = "\
The conversation so far is about to be replaced by a summary, with which you will continue it. Write this summary now, \
in the language of the conversation and in at most 1,000 words. State the requests of the user and their constraints, \
the decisions, the results with their exact names, numbers and paths, what failed, and what is left to do. If the \
conversation begins with a summary, include what still matters of it. Use no tools, and answer with the summary alone.";

const CUT_OFF: &str = "[Messages are not shown here, because they do not fit.]";

impl AgentCore {
    /// Calls `prepare_step` for the turn's next request. If the conversation is too large, it is compacted before. The
    /// turn's number of requests already includes this request.
    pub(super) fn prepare(&mut self, mut turn: Box<Turn>, cx: &mut CoreInputContext<'_>) {
        turn.step_start = turn.working.pending_len();
        match plan(&turn, &AutomaticCompactionReason::NextRequest, cx) {
            Some(plan) => self.compact(turn, plan, cx),
            None => self.prepare_step(turn, cx),
        }
    }

    /// If a service has refused the turn's request because it was too long, starts a compaction and then repeats the
    /// step. Otherwise returns the turn. `void` reports the usage of the failed request.
    pub(super) fn compact_overflow(
        &mut self,
        mut turn: Box<Turn>,
        failure: &Failure,
        void: impl FnOnce(&mut Turn, &mut CoreInputContext<'_>),
        cx: &mut CoreInputContext<'_>,
    ) -> Option<Box<Turn>> {
        let found = if is_too_long(failure) && !turn.is_exhausted() {
            plan(&turn, &AutomaticCompactionReason::Refusal(failure), cx)
        } else {
            None
        };
        let Some(plan) = found else { return Some(turn) };
        void(&mut turn, cx);
        turn.step += 1;
        turn.answer = None;
        let (failure, pending, step) = (failure.clone(), turn.working.pending_len(), turn.step);
        let (delay, complete, model) = (Duration::ZERO, false, None);
        cx.emit(Event::Retry { failure, delay, pending, complete, step, model });
        self.compact(turn, plan, cx);
        None
    }

    pub(super) fn compact(
        &mut self,
        mut turn: Box<Turn>,
        plan: CompactionPlan,
        cx: &mut CoreInputContext<'_>,
    ) {
        turn.compacted = CompactionAttemptState::Once;
        let (trigger, tokens) = (plan.trigger, plan.size);
        cx.emit(Event::CompactionStart { trigger, tokens, turn: turn.id, run: turn.run });
        match plan.ready.clone() {
            Some(ready) => self.insert_compaction(turn, &plan, ready, None, &Usage::default(), cx),
            None => self.summarise(turn, Box::new(plan), cx),
        }
    }

    fn summarise(&mut self, turn: Box<Turn>, plan: Box<CompactionPlan>, cx: &mut CoreInputContext<'_>) {
        let op = self.enter(turn, AgentTurnStage::Compacting { fold: Box::default(), plan });
        cx.push(AgentEffect::Summarise(op));
    }

    /// Processes a delta of a summary, if one is being written.
    pub(super) fn summary_delta(&mut self, op: OpNumber, delta: &Delta, cx: &mut CoreInputContext<'_>) {
        let Some((turn, AgentTurnStage::Compacting { fold, .. })) = self.phase.awaited(op) else { return };
        if let Delta::Retry { .. } = delta {
            if fold.blocks().is_empty() {
                let model = fold.message().model.clone();
                spend(turn, fold.take_usage(), model, RequestEnd::Void, cx);
            }
            fold.restart();
        } else if let Err(error) = fold.apply(delta) {
            self.stream_failed(op, error.into(), cx);
        }
    }

    /// Processes the end of the stream of a summary, if one is being written.
    pub(super) fn summary_ended(&mut self, op: OpNumber, cx: &mut CoreInputContext<'_>) {
        let compacting = in_stage!(AgentTurnStage::Compacting { fold, plan } => (fold, plan));
        let Some((mut turn, (fold, mut plan))) = self.phase.take_awaited(op, compacting) else { return };
        let (usage, model) = (fold.usage(), fold.message().model.clone());
        let completion = match fold.message().stop_reason {
            Some(_) => fold.finish(cx.now()),
            None => Err(super::streaming::truncated()),
        };
        let end = if completion.is_ok() { RequestEnd::Answered } else { RequestEnd::Failed };
        spend(&mut turn, usage, model.clone(), end, cx);
        let completion = match completion {
            Ok(completion) => completion,
            Err(error) => return self.compaction_failed(turn, plan, error.into(), cx),
        };
        let text = cut(completion.message.text().trim()).to_owned();
        let uses_tools = completion.message.tool_uses().next().is_some();
        if uses_tools && !std::mem::replace(&mut plan.forbids_tools, true) {
            self.summarise(turn, plan, cx);
        } else if text.is_empty() || !is_complete(&completion.stop_reason) {
            let message = "the model wrote no summary of the conversation";
            let error = ProviderError::new(ProviderErrorKind::Service, message);
            self.compaction_failed(turn, plan, error.into(), cx);
        } else {
            let text = if plan.prompts.is_empty() { text } else { format!("{text}\n\n{}", plan.prompts) };
            let model = model.unwrap_or_else(|| turn.writer(&plan, cx.config).id().to_string());
            self.insert_compaction(turn, &plan, (true, text), Some(model), &usage, cx);
        }
    }

    /// Asks the next backup model for the summary. If there is none, and the writer has refused the request because of its
    /// size, sends half of the request. Otherwise, ends the compaction that failed: the step continues or, if its request
    /// was refused, fails.
    pub(super) fn compaction_failed(
        &mut self,
        mut turn: Box<Turn>,
        mut plan: Box<CompactionPlan>,
        failure: Failure,
        cx: &mut CoreInputContext<'_>,
    ) {
        let is_free = |(_, model): &(u8, &Model)| (cx.replay)(model) != Replay::Never;
        let next = turn.next_writers(&plan, &failure, cx.config).find(is_free).map(|(index, _)| index);
        if next.is_some() {
            (plan.backup, plan.shortened) = (next, 0);
            return self.summarise(turn, plan, cx);
        }
        if is_too_long(&failure) && plan.shortened < MOST_SHORTENED {
            let before = turn.to_summarise(&plan, cx.config);
            plan.shortened += 1;
            if turn.to_summarise(&plan, cx.config) != before {
                return self.summarise(turn, plan, cx);
            }
        }
        turn.end_failed_compaction(&plan, &failure, cx);
        if turn.compaction.is_some() {
            return self.end_compaction(turn, Some(failure), false, cx);
        }
        match plan.refused.clone() {
            Some(refused) => self.recover(turn, refused, UnfinishedStep::default(), cx),
            None => self.prepare_step(turn, cx),
        }
    }

    /// Adds a compaction with this text to the turn, and prepares the turn's request. The text is a summary if the first
    /// value is true.
    fn insert_compaction(
        &mut self,
        mut turn: Box<Turn>,
        plan: &CompactionPlan,
        (is_summary, text): (bool, String),
        model: Option<String>,
        usage: &Usage,
        cx: &mut CoreInputContext<'_>,
    ) {
        let mut own = Compaction::new(plan.trigger);
        (own.is_summary, own.kept, own.cleared) = (is_summary, plan.kept, plan.cleared);
        own.model = model;
        own.nano_usd = usage.cost.map(|cost| times(1_000_000_000, cost));
        let id = turn.message_id();
        let mut message = user_message(id, vec![Content::from(Text::new(text))], cx);
        message.compaction = Some(Box::new(own));
        let mut after = turn.clone();
        after.working.insert(&self.history, plan.at, Arc::new(message.clone()));
        if let Some(own) = &mut message.compaction {
            own.tokens = Some((plan.size, after.whole(cx.config)));
        }
        let message = Arc::new(message);
        turn.working.insert(&self.history, plan.at, Arc::clone(&message));
        cx.emit(Event::CompactionEnd { message: Some(message), at: plan.at, failure: None });
        match turn.compaction {
            Some(_) => self.end_compaction(turn, None, false, cx),
            None => self.prepare_step(turn, cx),
        }
    }

    /// Reports the usage of a request for a summary that is cut off, if there is one.
    pub(super) fn cut_summary(&mut self, end: RequestEnd, cx: &mut CoreInputContext<'_>) {
        if let Some((turn, AgentTurnStage::Compacting { fold, .. })) = self.phase.in_turn() {
            let model = fold.message().model.clone();
            spend(turn, fold.take_usage(), model, end, cx);
        }
    }

    pub(super) fn prepare_step(&mut self, mut turn: Box<Turn>, cx: &mut CoreInputContext<'_>) {
        turn.step_start = turn.working.pending_len();
        let op = self.enter(turn, AgentTurnStage::Preparing);
        cx.push(AgentEffect::Call(op, CallbackCall::PrepareStep));
    }
}

/// Returns whether a service has refused a request because of its size.
fn is_too_long(failure: &Failure) -> bool {
    matches!(failure, Failure::Provider { error } if error.kind == ProviderErrorKind::ContextTooLong)
}

/// Adds the usage of a request for a summary to the turn, and emits its row.
pub(super) fn spend(
    turn: &mut Turn,
    usage: Usage,
    model: Option<String>,
    end: RequestEnd,
    cx: &mut CoreInputContext<'_>,
) {
    turn.usage += usage;
    if !usage.is_zero() {
        let row =
            UsageRow::new(end, usage).with_purpose(Purpose::Summary).with_turn(turn.id).with_step(turn.step);
        let model = model.unwrap_or_else(|| turn.model_in(cx.config).id().to_string());
        cx.emit(Event::Usage(Box::new(row.with_at(cx.now()).with_model(model))));
    }
}

/// Returns whether an answer with this stop reason is a summary. At the limit of tokens, the beginning is kept: the
/// request asks for less, unless the context window is small.
fn is_complete(reason: &StopReason) -> bool {
    matches!(reason, StopReason::Stop | StopReason::StopSequence | StopReason::Length)
}

/// Returns the beginning of a summary that is too long, up to the end of a paragraph or of a line. If half of the text
/// would be lost, the text ends anywhere.
fn cut(text: &str) -> &str {
    if text.len() <= LONGEST {
        return text;
    }
    let whole = &text[..text.floor_char_boundary(LONGEST)];
    let mut ends = ["\n\n", "\n"].into_iter().filter_map(|end| Some(whole.rsplit_once(end)?.0.trim_end()));
    ends.find(|kept| kept.len() > LONGEST / 2).unwrap_or(whole)
}

impl Turn {
    /// Notes that a compaction has failed, and emits its end.
    pub(super) fn end_failed_compaction(
        &mut self,
        plan: &CompactionPlan,
        failure: &Failure,
        cx: &mut CoreInputContext<'_>,
    ) {
        self.compacted = CompactionAttemptState::Failed;
        if plan.refused.is_some() {
            // The announced repetition was not made, so it does not count towards the limit of requests.
            self.origin.max_steps = self.origin.max_steps.map(|max| max.saturating_add(1));
        }
        cx.emit(Event::CompactionEnd { message: None, at: plan.at, failure: Some(failure.clone()) });
    }

    /// Returns the number of tokens that a request to this model may have, if it is known.
    pub(in crate::agent) fn room(&self, model: &Model, config: &Config) -> Option<u64> {
        room(model.info()?, &config.settings.options.overlaid(&self.origin.prompt.options))
    }

    /// Returns the conversation that is sent for the planned summary. It is shortened if its writer has too little room.
    pub(in crate::agent) fn to_summarise(&self, plan: &CompactionPlan, config: &Config) -> History {
        let writer = self.writer(plan, config);
        let is_own = writer == self.model_in(config);
        let fixed = fixed(self, config);
        let size = fixed + plan.history.iter().map(|message| message.estimated_tokens()).sum::<u64>();
        // Besides the estimate, the plan has the size that the turn's own model counts. Both include the pending prompt.
        let instruction = plan.history.last().map_or(0, |message| message.estimated_tokens());
        let (own, of) = if is_own { (plan.size.max(1), self.whole(config).max(1)) } else { (1, 1) };
        let scaled = |tokens: u64, by: u64, of: u64| {
            let scaled = u128::from(tokens.saturating_sub(instruction)) * u128::from(by) / u128::from(of);
            u64::try_from(scaled).unwrap_or(u64::MAX).saturating_add(instruction)
        };
        let counted = scaled(size, own, of);
        let refused = plan.refused.as_ref().filter(|_| is_own).map(|_| plan.size);
        let room = self.room(writer, config).into_iter().chain(refused).min();
        let limit = room.map(|room| times(room, SUMMARY_SHARE));
        let fits = if is_own && refused.is_none() { room } else { limit };
        let limit = match limit {
            Some(limit) if fits.is_some_and(|fits| counted > fits) => scaled(limit, of, own),
            _ => size,
        };
        let limit = limit.saturating_sub(fixed) >> plan.shortened;
        if size.saturating_sub(fixed) > limit { fitting(plan, limit) } else { plan.history.clone() }
    }

    /// Returns the estimated size of the next request.
    fn whole(&self, config: &Config) -> u64 {
        let tools = self.origin.prompt.client_tools.after(&config.tools);
        estimated_tokens(
            config.settings.system.as_deref(),
            &tools,
            &config.settings.sent(&self.conversation()),
        )
    }

    /// Returns the size of a request to `model`: the size that a service has counted last, and an estimate of what came
    /// later. If another model has counted, or if it is not known which one, a larger estimate of the whole counts.
    pub(in crate::agent) fn size(&self, model: &Model, config: &Config) -> u64 {
        let all = self.working.all();
        let from = all.compaction().map_or(0, |(index, _)| index + 1);
        let mut later = self.corrections.messages().map(|message| message.estimated_tokens()).sum::<u64>();
        for message in (from..all.len()).rev().filter_map(|index| all.get(index)) {
            if let (Role::Assistant, Some(counted)) = (message.role, message.context_tokens) {
                let is_same = self.counted_by.as_ref().is_some_and(|id| id == model.id());
                let size = u64::from(counted) + later;
                return if is_same { size } else { size.max(self.whole(config)) };
            }
            later += config.settings.sent_message(message).estimated_tokens();
        }
        self.whole(config)
    }
}

/// A message that the next request contains if nothing is compacted.
struct MeasuredMessage<'a> {
    index: usize,
    message: &'a Arc<Message>,
    tokens: u64,
    /// The tokens of the message in its cleared form.
    bare: u64,
}

/// The reason to plan a compaction that nobody has requested.
pub(super) enum AutomaticCompactionReason<'a> {
    /// The next request may be too large.
    NextRequest,
    /// A service has refused the request because of its size, with this failure.
    Refusal(&'a Failure),
    /// The run ends, so that the next request is that of another prompt.
    EndOfRun,
}

/// Returns the plan of a compaction for this reason. Returns `None` if no compaction is due, or if it would change
/// nothing.
pub(super) fn plan(
    turn: &Turn,
    why: &AutomaticCompactionReason<'_>,
    cx: &CoreInputContext<'_>,
) -> Option<CompactionPlan> {
    let ResolvedCompactionPolicy { policy, .. } = cx.config.compactor()?;
    let refused = if let AutomaticCompactionReason::Refusal(failure) = why { Some(*failure) } else { None };
    let model = match why {
        AutomaticCompactionReason::EndOfRun => &cx.config.model,
        _ => turn.model_in(cx.config),
    };
    let room = turn.room(model, cx.config);
    let may_compact = match turn.compacted {
        CompactionAttemptState::No => refused.is_some() || room.is_some(),
        CompactionAttemptState::NotBySize => refused.is_some(),
        CompactionAttemptState::Once | CompactionAttemptState::Failed => false,
    };
    if !may_compact {
        return None;
    }
    let size = turn.size(model, cx.config);
    let all = turn.working.all();
    let last = all.compaction();
    let is_recent = |index: usize| all.iter().skip(index).all(|later| later.role != Role::Assistant);
    // There is one compaction until the next answer, also over restarts. If even the compacted conversation of an
    // earlier turn is refused, as by a smaller model, another compaction is made.
    let committed = all.len() - turn.working.pending_len();
    let counts = |index: usize| refused.is_none() || index >= committed;
    if last.is_some_and(|(index, own)| {
        own.trigger != CompactionTrigger::Request && is_recent(index) && counts(index)
    }) {
        return None;
    }
    // After an undo, everything is sent as long as it fits.
    let is_undone = last.is_some_and(|(_, own)| !own.is_summary && own.cleared == 0);
    let threshold = if is_undone { 1.0 } else { policy.threshold };
    let is_due = refused.is_some() || room.is_some_and(|room| size >= times(room, threshold));
    // A provider whose requests have effects keeps the conversation itself.
    if !is_due || keeps_conversation(turn, cx) {
        return None;
    }
    let (at, end) = insertion(turn);
    let sizes = (size, room, fixed(turn, cx.config));
    let trigger = if refused.is_some() { CompactionTrigger::Overflow } else { CompactionTrigger::Size };
    let plan = planned(turn, &cx.config.settings, end, policy, sizes, trigger, None)?;
    Some(CompactionPlan { at, refused: refused.cloned(), ..plan })
}

/// Returns the plan of a requested compaction of the committed history, which is the history of `turn`.
pub(super) fn requested(
    turn: &Turn,
    compact: &Compact,
    cx: &CoreInputContext<'_>,
) -> Result<CompactionPlan, Error> {
    let all = turn.working.all();
    let refuse = |reason: &str| {
        let text = format!("the conversation cannot be compacted: {reason}");
        Error::new(ErrorKind::NotCompactable, text)
    };
    if all.open_tool_uses().next().is_some() {
        return Err(refuse("tool uses have no results; answer them first"));
    }
    if keeps_conversation(turn, cx) {
        return Err(refuse("the provider keeps the conversation itself"));
    }
    let model = turn.model_in(cx.config);
    let (size, room) = (turn.size(model, cx.config), turn.room(model, cx.config));
    let unset = CompactionPolicy::default();
    let policy = cx.config.compactor().map_or(&unset, |compactor| &compactor.policy);
    let sizes = (size, room, fixed(turn, cx.config));
    match compact.how {
        CompactHow::Undo => {
            let is_in_force = |own: &Compaction| own.is_summary || own.cleared > 0;
            if !all.compaction().is_some_and(|(_, own)| is_in_force(own)) {
                return Err(refuse("no compaction is in force that could be undone"));
            }
            let kept = u32::try_from(all.len()).unwrap_or(u32::MAX);
            let ready = Some((false, NO_SUMMARY.to_owned()));
            Ok(CompactionPlan { kept, ready, ..CompactionPlan::new(CompactionTrigger::Request, size) })
        }
        how => planned(
            turn,
            &cx.config.settings,
            all.len(),
            policy,
            sizes,
            CompactionTrigger::Request,
            Some((how, compact.focus.as_deref())),
        )
        .ok_or_else(|| refuse("it has no old messages that could be replaced or cleared")),
    }
}

/// Returns whether the provider keeps the conversation itself, because its requests have effects.
fn keeps_conversation(turn: &Turn, cx: &CoreInputContext<'_>) -> bool {
    let summaries = cx.config.compactor().and_then(|compactor| compactor.model.as_ref());
    let mut models = summaries.into_iter().chain([turn.model_in(cx.config)]);
    models.any(|model| (cx.replay)(model) == Replay::Never)
}

/// Returns the size of the system prompt and the tools.
fn fixed(turn: &Turn, config: &Config) -> u64 {
    let tools = turn.origin.prompt.client_tools.after(&config.tools);
    estimated_tokens(config.settings.system.as_deref(), &tools, &History::new())
}

/// Returns where a compaction is inserted: the index among the pending messages, and among all messages. It stands before
/// a pending prompt that is new and answers no tool uses, and otherwise after all messages.
fn insertion(turn: &Turn) -> (usize, usize) {
    let all = turn.working.all();
    let pending = turn.working.pending_len();
    let given: Option<MessageId> = turn.origin.prompt.id.clone().map(MessageId::from);
    // A message that gets another answer has the id of an earlier turn, or none.
    let is_new = |prompt: &Message| {
        let is_given = given.is_some() && prompt.id == given;
        prompt.is_prompt() && (is_given || prompt.id == Some(MessageId::made(turn.id, 0)))
    };
    let prompt = turn.working.pending().next().filter(|prompt| pending == 1 && is_new(prompt));
    let at = if prompt.is_some() { 0 } else { pending };
    (at, all.len() - pending + at)
}

/// Plans a compaction at the index `end`. The sizes are those of the request, of the room, and of the system prompt and
/// the tools. `wanted` states how the compaction was requested, and the focus of its summary.
fn planned(
    turn: &Turn,
    settings: &Settings,
    end: usize,
    policy: &CompactionPolicy,
    (size, known_room, fixed): (u64, Option<u64>, u64),
    trigger: CompactionTrigger,
    wanted: Option<(CompactHow, Option<&str>)>,
) -> Option<CompactionPlan> {
    let all = turn.working.all();
    let is_overflow = trigger == CompactionTrigger::Overflow;
    // The service has refused what this room would hold, so the room is not the service's.
    let known_room = known_room.filter(|room| !is_overflow || size > *room);
    let room = known_room.unwrap_or(if is_overflow { size.max(1) } else { size.max(UNKNOWN_ROOM) });
    let share = |share: f64| times(room, share);
    let free = room.saturating_sub(fixed);
    let written: History = all.iter().take(end).cloned().collect();
    let before = settings.sent(&written);
    let old = before.compaction().map(|(index, own)| (index, own.is_summary, own.sent_from(index)));
    let (start, old_text) = match old {
        Some((index, true, (start, _))) => (start, Some(before.get(index)?.text())),
        _ => (0, None),
    };
    let whole_from = old.map_or(0, |(_, _, (_, whole))| whole);
    let sent: Vec<MeasuredMessage<'_>> = (start..end)
        .filter_map(|index| Some((index, before.get(index)?)))
        .filter(|(_, message)| message.compaction.is_none())
        .map(|(index, message)| {
            let bare = cleared(message, ClearingReason::Room).estimated_tokens();
            let tokens = if index < whole_from { bare } else { message.estimated_tokens() };
            MeasuredMessage { index, message, tokens, bare }
        })
        .collect();
    let tokens = |sent: &[MeasuredMessage<'_>]| sent.iter().map(|own| own.tokens).sum::<u64>();
    let index = |place: usize| sent.get(place).map_or(end, |own| own.index);
    let count = |from: usize, to: usize| u32::try_from(to - from).unwrap_or(u32::MAX);

    let in_flight = (end == all.len()).then_some(turn.id);
    let within = |limit: u64| tail(&sent, policy.kept_turns, in_flight, limit);
    let limit = times(share(policy.threshold).saturating_sub(fixed), KEPT_SHARE);
    let tail = match within(limit) {
        // The service has refused these messages, so the estimates are too small.
        0 if is_overflow => within(tokens(&sent) / 2),
        tail => tail,
    };
    let freed = |to: usize| sent[..to].iter().map(|own| own.tokens - own.bare.min(own.tokens)).sum::<u64>();
    let plan = CompactionPlan::new(trigger, size);
    // What an earlier compaction has cleared stays so.
    let whole = |from: usize| index(from).max(whole_from).min(end);
    let clearing = |to: usize| {
        let ready = old_text.clone().map_or((false, NO_SUMMARY.to_owned()), |text| (true, text));
        let (kept, cleared) = (count(whole(to), end), count(start, whole(to)));
        CompactionPlan { kept, cleared, ready: Some(ready), ..plan.clone() }
    };
    let saved = freed(tail);
    let is_enough = saved >= share(FREED_SHARE) && size.saturating_sub(saved) < share(CLEARED_SHARE);
    match wanted {
        Some((CompactHow::Clear, _)) => return (saved > 0).then(|| clearing(tail)),
        None if policy.clearing && saved > 0 && is_enough => return Some(clearing(tail)),
        _ => {}
    }
    // If the messages to keep are too large alone, only the last prompt and what follows it are sent unchanged.
    let last_prompt = sent.iter().rposition(|own| own.message.is_prompt());
    let last_prompt = if end < all.len() { sent.len() } else { last_prompt.unwrap_or(sent.len()) };
    let most = share(SUMMARY_SHARE).saturating_sub(fixed);
    let tail_tokens = tokens(&sent[tail..]);
    let is_too_large = is_overflow && (tail_tokens > most || tail == 0);
    if tail == 0 {
        return (is_too_large && freed(last_prompt) > 0).then(|| clearing(last_prompt));
    }
    // If the last answer alone is above the limit, a summary of the little before it costs more than it frees.
    let is_futile = tail_tokens > limit && tokens(&sent[..tail]) < times(free, FREED_SHARE);
    if trigger == CompactionTrigger::Size && is_futile {
        return None;
    }
    let from = whole(if is_too_large { last_prompt.max(tail) } else { tail });
    let (kept, cleared) = (count(from, end), count(index(tail), from));
    let mut history = before.sent();
    let mut instruction = INSTRUCTION.to_owned();
    if let Some(more) = &policy.instructions {
        instruction.extend(["\n\n", &**more]);
    }
    if let Some((_, Some(focus))) = wanted {
        instruction.extend(["\n\nThe summary must state in detail: ", focus]);
    }
    let asked = history.last().map(|message| message.timestamp).unwrap_or_default();
    history.push(Message::user(instruction).with_timestamp(asked));
    // The notes in place of files are not words of the user. A file can be restored after the summary is stored.
    let prompts = if policy.kept_prompts {
        prompts(&written, index(tail), times(free, PROMPTS_SHARE))
    } else {
        String::new()
    };
    let has_summary = old_text.is_some();
    let replaced = tail + usize::from(has_summary);
    Some(CompactionPlan { kept, cleared, history, has_summary, replaced, prompts, ..plan })
}

/// Returns the place of the first message that is sent unchanged. This is the prompt of the oldest turn to keep, or a
/// later answer if the messages from this prompt on have more than `limit` tokens. `in_flight` is the turn of the last
/// messages, unless the prompt of the turn in flight follows the messages.
fn tail(sent: &[MeasuredMessage<'_>], kept_turns: u32, in_flight: Option<TurnId>, limit: u64) -> usize {
    // The prompt of the turn in flight is always kept.
    let turns = if in_flight.is_none() { kept_turns.saturating_sub(1) } else { kept_turns.max(1) };
    let mut prompts = (0..sent.len()).rev().filter(|place| begins_turn(sent, *place, in_flight));
    let oldest = match turns.checked_sub(1) {
        Some(earlier) => prompts.nth(earlier as usize).unwrap_or(0),
        None => sent.len(),
    };
    let is_answer = |own: &MeasuredMessage<'_>| own.message.role == Role::Assistant;
    let Some(last) = sent.iter().rposition(is_answer) else { return oldest };
    let oldest = oldest.min(last);
    let mut tokens = 0;
    let mut fitting = last;
    for (place, own) in sent.iter().enumerate().skip(oldest).rev() {
        tokens += own.tokens;
        if tokens > limit {
            return fitting;
        }
        if is_answer(own) && place < fitting {
            fitting = place;
        }
    }
    oldest
}

/// Returns whether the message is a prompt that begins a turn. A prompt that has joined a turn stands between two messages
/// of this turn, or at the end of the turn in flight. The ids of prompts can be those of the application, and name no turn.
fn begins_turn(sent: &[MeasuredMessage<'_>], place: usize, in_flight: Option<TurnId>) -> bool {
    let other = |own: &&MeasuredMessage<'_>| !own.message.is_prompt();
    let turn = |own: &MeasuredMessage<'_>| own.message.id.as_ref()?.turn();
    let (earlier, later) = sent.split_at(place);
    let before = earlier.iter().rev().find(other).and_then(turn);
    let after = later.iter().find(other).map_or(in_flight, turn);
    later.first().is_some_and(|own| own.message.is_prompt()) && (before.is_none() || before != after)
}

/// Returns the conversation of a plan with at most `limit` tokens, as far as this is possible. First, the messages are
/// omitted that the summary does not replace. If this is not enough, the others are cleared, except for the last answer.
/// Then those that do not fit beside newer ones are omitted. An earlier summary and the instruction always stay, and the
/// first message unless it is large.
fn fitting(plan: &CompactionPlan, limit: u64) -> History {
    let tokens = |messages: &[Arc<Message>]| messages.iter().map(|own| own.estimated_tokens()).sum::<u64>();
    let mut all: Vec<_> = plan.history.iter().cloned().collect();
    let Some(instruction) = all.pop() else { return History::new() };
    let limit = limit.saturating_sub(instruction.estimated_tokens());
    all.truncate(plan.replaced);
    if tokens(&all) <= limit {
        return all.into_iter().chain([instruction]).collect();
    }
    // A service can require the thinking of the answer whose tools have just run.
    let last = all.iter().rposition(|message| message.role == Role::Assistant);
    for (_, message) in all.iter_mut().enumerate().filter(|(index, _)| Some(*index) != last) {
        *message = Arc::new(cleared(message, ClearingReason::Room));
    }
    // The first message is an earlier summary, or the prompt that states the task.
    let stays = |own: &Arc<Message>| {
        plan.has_summary || own.tool_uses().next().is_none() && own.estimated_tokens() <= limit / 2
    };
    let head: Vec<_> = all.drain(..usize::from(all.first().is_some_and(stays))).collect();
    let mut room = limit.saturating_sub(tokens(&head));
    // Results can't be sent without their tool uses, nor tool uses without their results.
    let (mut kept, mut end) = (Vec::new(), all.len());
    while let Some(begin) = all[..end].iter().rposition(|own| own.tool_results().next().is_none()) {
        let size = tokens(&all[begin..end]);
        if size <= room || kept.is_empty() && head.is_empty() && begin == 0 {
            room = room.saturating_sub(size);
            kept.push(begin..end);
        }
        end = begin;
    }
    let count: usize = kept.iter().map(ExactSizeIterator::len).sum();
    let note = (count < all.len()).then(|| Arc::new(Message::user(CUT_OFF).with_timestamp(Timestamp(0))));
    let kept = kept.into_iter().rev().flat_map(|range| all[range].iter().cloned());
    head.into_iter().chain(note).chain(kept).chain([instruction]).collect()
}

/// Returns the texts of the prompts before `end`, the newest first, as far as they have at most `limit` tokens. A text that
/// does not fit is omitted. The oldest text is often the task, so it has room before the others.
fn prompts(history: &History, end: usize, mut limit: u64) -> String {
    let prompts = (0..end).rev().filter_map(|index| history.get(index)).filter(|message| message.is_prompt());
    let texts = prompts.map(|message| message.text()).filter(|text| !text.trim().is_empty());
    let mut texts: Vec<String> = texts.collect();
    let mut fits = |text: &String| {
        let rest = limit.checked_sub(text_tokens(text));
        limit = rest.unwrap_or(limit);
        rest.is_some()
    };
    let oldest = texts.pop().filter(&mut fits);
    let fitting = texts.into_iter().filter(fits).chain(oldest);
    let head = "Earlier messages of the user, the newest first:".to_owned();
    let all = fitting.fold(head.clone(), |kept, text| format!("{kept}\n\n{text}"));
    if all == head { String::new() } else { all }
}
