//! Random commands, and their expected results.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{Check, budgets::random_budget, ensure, model::Input, world::World};
use crate::actor::random::Rng;
use crate::{
    agent::{
        Accepted, Compact, Event, Next, Prompt, PromptState,
        core::{AgentCore, AgentEffect, ResumeDecisions, pauses::stale},
        phase::{AgentPhase, AgentTurnStage},
    },
    message::{
        Blocks, Content, History, Message, Text, Timestamp, ToolResult, ToolUse, ToolUseId, TurnId,
        answer_open_tool_uses,
    },
    provider::Options,
    run::{Error, ErrorKind},
    tool::Decision,
};

/// Returns a random valid history.
pub(super) fn random_history(rng: &mut Rng) -> History {
    let uses: [ToolUse; 2] = ["a", "b"].map(|id| ToolUse::new(id, "ask_user", json!({})));
    let results = uses.each_ref().map(|tool_use| ToolResult::ok(tool_use, Text::new("done")));
    let messages = match rng.below(6) {
        0..3 => vec![],
        3 => vec![Message::user("hi"), Message::assistant("hello")],
        4 => vec![Message::user("hi"), Message::assistant(uses)],
        _ => vec![Message::user("hi"), Message::assistant(uses), Message::user(results)],
    };
    // The times are fixed, so that the same seed gives the same history.
    messages.into_iter().map(|message| Message { timestamp: Timestamp(0), ..message }).collect()
}

pub(super) fn random_decision(rng: &mut Rng) -> Decision {
    let other = ToolUse::new("other", "other", json!({}));
    match rng.below(20) {
        0..11 => Decision::Execute,
        11..14 => Decision::ExecuteWith(json!({ "changed": 1 })),
        14..17 => Decision::reject("no"),
        _ => Decision::Provide(ToolResult::ok(&other, Text::new("provided"))),
    }
}

impl World {
    pub(super) fn command(&mut self) -> Check {
        if !self.model.pauses.waiting.is_empty() && self.rng.percent(50) {
            return self.resume();
        }
        let compacts_alone = self.core.phase().turn().is_some_and(|turn| turn.compaction.is_some());
        // A prompt that is staged during a compaction alone, and the end of this compaction, would be rare.
        let kind = self.rng.below(if compacts_alone { 15 } else { 28 });
        if matches!(kind, 18..22 | 22 | 25) {
            self.follow(true)?;
        }
        match kind {
            0..8 => {
                let ask = self.rng.percent(30);
                self.prompt(ask)
            }
            8..10 => self.resume(),
            10..12 => self.cancel(),
            12..15 => self.interrupt(),
            15..18 => self.notify(),
            18..20 => self.set_history(),
            20..22 => self.prompt_on(),
            22 => self.answer_anew(),
            23 | 24 => self.unstage(),
            26 | 27 => self.compact(),
            _ => self.replace_history(),
        }
    }

    pub(super) fn random_prompt(&mut self) -> Prompt {
        let committed = self.model.committed.clone();
        self.random_prompt_on(&committed)
    }

    /// Returns a random prompt for a run on `history`.
    pub(super) fn random_prompt_on(&mut self, history: &History) -> Prompt {
        self.prompts += 1;
        let text: Content = Text::new(format!("prompt {}", self.prompts)).into();
        let open: Vec<ToolUse> = history.open_tool_uses().cloned().collect();
        let stray = ToolUse::new("stray", "search", json!({}));
        let content = match self.rng.below(40) {
            0 => Blocks::from(" "),
            1 => Blocks::from(vec![text, stray.into()]),
            2 => Blocks::from(vec![text, ToolResult::ok(&stray, Text::new("stray")).into()]),
            3..11 if !open.is_empty() => {
                let some = 1 + self.rng.below(open.len());
                let results = open.iter().take(some).map(|open| ToolResult::ok(open, Text::new("answered")));
                results.map(Content::from).chain([text]).collect()
            }
            _ => text.into(),
        };
        let max_steps = self.rng.pick(&[None, None, None, Some(1), Some(2), Some(3), Some(5)]);
        let mut prompt = Prompt { content, max_steps, ..Prompt::default() };
        if self.rng.percent(25) {
            prompt = prompt.with_id(format!("p{}", self.rng.below(6)));
        }
        if self.rng.percent(30) {
            // A prompt for the next step is rejected during a turn if it has settings. So most of these prompts have
            // none.
            prompt = Prompt { max_steps: None, ..prompt.at(Next::Step) };
            if self.rng.percent(80) {
                return prompt;
            }
        }
        if self.rng.percent(20) {
            prompt = prompt.with_turn_timeout(Duration::from_secs(1));
        }
        if self.rng.percent(20) {
            prompt = prompt.with_options(Options::default().with_max_tokens(self.prompts));
        }
        if self.rng.percent(20) {
            prompt = prompt.with_model(self.config.model.clone());
        }
        if self.budgets.are_on && self.rng.percent(30) {
            prompt = prompt.with_budget(random_budget(&mut self.rng));
        }
        match self.rng.below(60) {
            0 => prompt.with_max_steps(0),
            1 => prompt.with_turn_timeout(Duration::ZERO),
            _ => prompt,
        }
    }

    /// Returns the expected result of the prompt.
    pub(super) fn expect(&self, prompt: &Prompt, ask: bool, limit: usize) -> Result<Accepted, Error> {
        let content = &prompt.content;
        let tools =
            content.0.iter().any(|block| matches!(block, Content::ToolUse(_) | Content::ToolResult(_)));
        if let Some(state) = self.known(prompt) {
            return if ask { Err(Error::known_prompt(&state)) } else { Ok(Accepted::Known { state }) };
        }
        prompt.check()?;
        if content.is_blank() {
            return Err(Error::empty_prompt());
        }
        if !self.model.is_running() {
            let fits = answer_open_tool_uses(&self.model.committed, content.clone());
            let turn = TurnId::default();
            return fits.map(|_| Accepted::Started { turn }).map_err(Error::unfit_prompt);
        }
        if ask {
            return Err(Error::busy("agent", self.model.status));
        }
        if tools {
            return Err(Error::new(ErrorKind::Busy, "the prompt has results"));
        }
        if prompt.next == Next::Step && prompt.has_settings() {
            return Err(Error::new(ErrorKind::NotAtStep, "the prompt has settings"));
        }
        if self.model.queue.staged.len() >= limit {
            return Err(Error::new(ErrorKind::QueueFull, "the queue is full"));
        }
        Ok(Accepted::Staged { id: "chosen".into(), ahead: self.model.queue.staged.len() })
    }

    /// Returns the state of an earlier prompt with the same id.
    pub(super) fn known(&self, prompt: &Prompt) -> Option<PromptState> {
        let id = prompt.id.as_ref()?;
        let known = self.model.queue.known.iter().find(|known| known.id == *id)?;
        Some(known.state.clone()).filter(|state| *state != PromptState::Returned)
    }

    /// Records an accepted prompt in the reference model.
    pub(super) fn accepted(&mut self, prompt: Prompt, accepted: &Accepted) {
        self.follows.accepted(prompt.id.as_ref(), accepted);
        match accepted {
            Accepted::Started { .. } => self.model.starting = Some(Arc::new(prompt)),
            Accepted::Staged { .. } => self.model.queue.staging = Some(prompt),
            Accepted::Known { .. } => {}
        }
    }

    fn unstage(&mut self) -> Check {
        let staged: Vec<_> = self.model.queue.staged.iter().filter_map(|prompt| prompt.id.clone()).collect();
        let id = if staged.is_empty() || self.rng.percent(20) { "p0".into() } else { self.rng.pick(&staged) };
        self.note(|| format!("unstage {id}"));
        let expected = self.model.queue.staged.iter().find(|prompt| prompt.id.as_ref() == Some(&id)).cloned();
        self.model.queue.withdrawing = expected.is_some().then(|| id.clone());
        let (unstaged, effects) = self.feed(|core, cx| core.unstage(&id, cx));
        match (expected, unstaged) {
            (Some(expected), Ok(prompt)) => ensure!(expected == prompt, "{prompt:?} is returned"),
            (None, Err(error)) => same_error(ErrorKind::NotStaged, &error, effects.is_empty())?,
            (expected, unstaged) => return Err(format!("unstage gives {unstaged:?}, not {expected:?}")),
        }
        self.perform_all(effects)
    }

    fn prompt(&mut self, ask: bool) -> Check {
        let prompt = self.random_prompt();
        self.note(|| format!("prompt (ask: {ask}) {prompt:?}"));
        let expected = self.expect(&prompt, ask, 3);
        let given = prompt.clone();
        let (accepted, effects) = self.feed(|core, cx| core.prompt(given, ask, cx));
        match (expected, accepted) {
            (Ok(expected), Ok(accepted)) => {
                let chosen = prompt.id.is_none();
                let same = match (&expected, &accepted) {
                    (Accepted::Staged { ahead, .. }, Accepted::Staged { ahead: given, id }) => {
                        ahead == given && (chosen || prompt.id.as_ref() == Some(id))
                    }
                    (Accepted::Started { .. }, Accepted::Started { turn }) => {
                        self.core.phase().turn().is_some_and(|own| own.id == *turn)
                    }
                    (expected, accepted) => expected == accepted,
                };
                ensure!(same, "the prompt is {accepted:?}, not {expected:?}");
                self.accepted(prompt, &accepted);
                if ask {
                    self.asks.begin();
                }
            }
            (Err(expected), Err(error)) => same_error(expected.kind(), &error, effects.is_empty())?,
            (expected, accepted) => return Err(format!("the prompt is {accepted:?}, not {expected:?}")),
        }
        self.perform_all(effects)
    }

    pub(super) fn resume(&mut self) -> Check {
        let waiting = self.model.pauses.waiting.clone();
        let is_held = matches!(self.held, Some(AgentEffect::Return(_)));
        let unreported = if is_held { self.desk.undecided() } else { Vec::new() };
        let open = if unreported.is_empty() { &waiting } else { &unreported };
        let mut spent: Vec<_> = self.model.pauses.spent.iter().cloned().collect();
        spent.sort();
        spent.push("never".into());
        let valid = !open.is_empty() && (self.friendly || self.rng.percent(70));
        let id = self.rng.pick(if valid { open } else { &spent });
        let decision = random_decision(&mut self.rng);
        let by: Option<Arc<str>> = self.rng.percent(50).then(|| "somebody".into());
        self.note(|| format!("resume {id} {decision:?}"));
        let in_stream = matches!(self.core.phase().stage(), Some(AgentTurnStage::Streaming { .. }));
        let turn = self.core.phase().turn().map(|turn| turn.id).filter(|_| self.rng.percent(30));
        let mut decisions = vec![(id.clone(), decision.clone())];
        // A second decision in the same command. No decision of the command provides a result, because a result ends a
        // call with its other questions.
        let others: Vec<_> = waiting.iter().filter(|other| **other != id).cloned().collect();
        let is_plain = |decision: &Decision| !matches!(decision, Decision::Provide(_));
        let may_add = unreported.is_empty() && waiting.contains(&id) && is_plain(&decision);
        let second = (may_add && !others.is_empty() && self.rng.percent(50))
            .then(|| (self.rng.pick(&others), random_decision(&mut self.rng)))
            .filter(|(_, decision)| is_plain(decision));
        decisions.extend(second.clone());
        let spoiled = may_add && self.rng.percent(10);
        if spoiled {
            decisions.push(("never".into(), Decision::Execute));
        }
        let expected_forwards = decisions.clone();
        let resume = ResumeDecisions { decisions, turn, by: by.clone() };
        let (resumed, effects) = self.feed(|core, cx| core.resume(resume, cx));
        if spoiled {
            let error = resumed.err().ok_or("a command with a stale decision succeeds")?;
            same_error(ErrorKind::StaleDecision, &error, effects.is_empty())?;
            return self.perform_all(effects);
        }
        let waits = |(id, decision): &(ToolUseId, Decision)| self.questions.forward(id, decision);
        let forwards: Vec<_> = expected_forwards.iter().filter_map(waits).collect();
        if let Ok(given) = &resumed {
            ensure!(*given == forwards, "{given:?} is forwarded, not {forwards:?}");
            let is_all = forwards.len() == expected_forwards.len();
            ensure!(!is_all || effects.is_empty(), "a forwarded decision has the effects {effects:?}");
        }
        match resumed.map(drop) {
            Ok(()) if unreported.contains(&id) => {
                let only_records = matches!(effects[..], [AgentEffect::Record]);
                ensure!(only_records, "the decision about {id} has the effects {effects:?}");
                let by_person = decision != Decision::Execute;
                let decision = self.with_replaced(&id, decision);
                self.model.pauses.early.push((id.clone(), decision.clone(), by.clone(), false));
                self.desk.resumed(&id, decision, by, false, by_person)?;
            }
            Ok(()) => {
                ensure!(waiting.contains(&id), "a stale resume of {id} succeeds, but {waiting:?} wait");
                self.expect_decision(&id, decision, by.clone(), false, in_stream)?;
                if let Some((id, decision)) = second {
                    self.expect_decision(&id, decision, by, false, in_stream)?;
                }
            }
            Err(error) if unreported.contains(&id) => {
                return Err(format!("a resume of {id}, which is recorded, fails: {error:?}"));
            }
            Err(error) if open.is_empty() => {
                same_error(ErrorKind::NotPaused, &error, effects.is_empty())?;
            }
            Err(error) => {
                ensure!(!waiting.contains(&id), "a resume of {id}, which waits, fails: {error:?}");
                let expected = stale(open, &id);
                ensure!(format!("{expected:#?}") == format!("{error:#?}"), "{error:#?}, not {expected:#?}");
                same_error(ErrorKind::StaleDecision, &error, effects.is_empty())?;
            }
        }
        self.perform_all(effects)?;
        if !forwards.is_empty() && (self.friendly || self.rng.percent(50)) {
            return self.sub_agents_continue(&forwards);
        }
        Ok(())
    }

    /// Records that the core must emit and apply `decision` about the tool use `id`, which waits.
    pub(super) fn expect_decision(
        &mut self,
        id: &ToolUseId,
        decision: Decision,
        by: Option<Arc<str>>,
        expired: bool,
        in_stream: bool,
    ) -> Check {
        if self.questions.forward(id, &decision).is_some() {
            return Ok(());
        }
        if let Some(slot) = self.questions.slot_of(id) {
            self.model.pauses.decided.push_back((id.clone(), decision.clone(), by, expired));
            self.expect_answer(id, slot, decision);
            return Ok(());
        }
        let by_person = !expired && decision != Decision::Execute;
        let decision = self.with_replaced(id, decision);
        self.model.pauses.decided.push_back((id.clone(), decision.clone(), by.clone(), expired));
        if in_stream {
            self.answer = Some(decision);
            return Ok(());
        }
        self.desk.resumed(id, decision, by, expired, by_person)
    }

    /// Returns the decision that is applied: an approval runs the tool with the input that the approver saw.
    fn with_replaced(&self, id: &ToolUseId, decision: Decision) -> Decision {
        match (decision, self.model.pauses.replaced.get(id)) {
            (Decision::Execute, Some(input)) => Decision::ExecuteWith(input.clone()),
            (other, _) => other,
        }
    }

    fn cancel(&mut self) -> Check {
        self.note(|| "cancel".to_owned());
        let idle = self.has_nothing_to_stop();
        let running = self.model.is_running();
        let (cancelled, effects) = self.feed(AgentCore::cancel);
        self.check_stopped(idle, &cancelled, effects.is_empty())?;
        self.perform_all(effects)?;
        ensure!(!running || !self.model.is_running(), "the run continues after a cancel");
        Ok(())
    }

    fn interrupt(&mut self) -> Check {
        self.note(|| "interrupt".to_owned());
        let idle = self.has_nothing_to_stop();
        let running = self.model.is_running();
        self.model.input = Input::Interrupt;
        let (interrupted, effects) = self.feed(AgentCore::interrupt);
        self.check_stopped(idle, &interrupted, effects.is_empty())?;
        self.perform_all(effects)?;
        ensure!(!running || !self.model.is_running(), "the run continues after an interrupt");
        Ok(())
    }

    /// Returns whether no run is active and no `handle_event` has begun.
    fn has_nothing_to_stop(&self) -> bool {
        !self.model.is_running() && (self.call.is_none() || !self.begun)
    }

    fn check_stopped(&self, idle: bool, stopped: &Result<(), Error>, nothing: bool) -> Check {
        match stopped {
            Ok(()) => ensure!(!idle, "a stop succeeds although nothing is active"),
            Err(error) if error.kind() == ErrorKind::Idle => {
                ensure!(idle && nothing, "a stop fails at {:?}", self.core.phase());
            }
            Err(error) => return Err(format!("{error:?} on a cancel or an interrupt")),
        }
        Ok(())
    }

    fn compact(&mut self) -> Check {
        if self.is_uncompacted {
            return Ok(());
        }
        let compact = self.rng.pick(&[Compact::summary(), Compact::clear(), Compact::undo()]);
        self.note(|| format!("{compact:?}"));
        let is_idle = matches!(self.core.phase(), AgentPhase::Idle);
        let (begun, effects) = self.feed(|core, cx| core.compact_on_request(&compact, cx));
        match begun {
            Ok(()) => {
                ensure!(is_idle, "a compaction begins at {:?}", self.core.phase());
                self.model.requested = true;
                self.asks.begin_compaction();
            }
            Err(error) if is_idle => same_error(ErrorKind::NotCompactable, &error, effects.is_empty())?,
            Err(error) => same_error(ErrorKind::Busy, &error, effects.is_empty())?,
        }
        self.perform_all(effects)
    }

    fn notify(&mut self) -> Check {
        self.note(|| "notify".to_owned());
        self.notices += 1;
        let (noted, effects) = self.feed(AgentCore::notify);
        noted.map_err(|error| format!("an application event is refused: {error:?}"))?;
        self.perform_all(effects)
    }

    /// Replaces the history in the same way as `set_state`.
    fn set_history(&mut self) -> Check {
        let allowed = self.core.ensure_idle();
        ensure!(
            allowed.is_ok() != self.model.is_running(),
            "set_state returns {allowed:?} at {:?}",
            self.core.phase()
        );
        if allowed.is_err() {
            return Ok(());
        }
        let history = random_history(&mut self.rng);
        self.note(|| format!("set_state {history:?}"));
        self.core.set_history(history.clone());
        self.model.base = Some(history.clone());
        let event = Event::State(Arc::new(self.config.view(history)));
        self.model.event(&event)?;
        self.kept.apply(&event);
        self.follows.event(&event);
        self.perform_all(Vec::new())
    }
}

/// Checks that an operation fails with the expected error and has no effect.
pub(super) fn same_error(expected: ErrorKind, error: &Error, nothing: bool) -> Check {
    ensure!(error.kind() == expected, "{error:?}, not {expected:?}");
    ensure!(nothing, "the operation fails with {error:?} but has effects");
    Ok(())
}
