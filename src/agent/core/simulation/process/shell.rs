//! The shell around the core. The process may end between any two effects.

use std::{sync::Arc, time::Duration};

use super::{
    AgentCore, AgentEffect, Asking, Check, Condition, CoreInputContext, DispatchedToolCall, Fault, OpNumber,
    Outside, Process, RecordToStore, Reply, ensure,
};
use crate::{
    agent::{AgentCommitItem, Event, Response},
    message::{Timestamp, TurnId},
    run::Error,
    subscription::Numbered,
    telemetry::CallerSpan,
};

impl Process {
    pub(super) fn input<T>(
        &mut self,
        outside: &mut Outside,
        input: impl FnOnce(&mut AgentCore, &mut CoreInputContext<'_>) -> T,
    ) -> Check<T> {
        outside.clock += 1;
        outside.turns += 1;
        let (now, id) = (Timestamp(outside.clock), TurnId::new(outside.turns));
        let mut cx = CoreInputContext {
            now: &move || now,
            config: &outside.config,
            tools: &outside.tools,
            turn_id: &move || id,
            max_staged: 8,
            at_once: outside.at_once,
            records: self.level,
            replay: &|_| outside.script.provider,
            hold: &|| None,
            effects: Vec::new(),
        };
        let output = input(&mut self.core, &mut cx);
        let effects = cx.effects;
        outside.note(|| format!("{effects:?}"));
        self.perform_all(outside, effects)?;
        Ok(output)
    }

    pub(super) fn perform_all(&mut self, outside: &mut Outside, effects: Vec<AgentEffect>) -> Check {
        for effect in effects {
            self.crash_perhaps(outside);
            if self.is_dead() {
                return Ok(());
            }
            self.perform(outside, effect)?;
        }
        if self.is_dead() {
            return Ok(());
        }
        self.is_recorded = false;
        if let Some(record) = self.loose.take() {
            self.deliver(outside, None, Some(record));
        }
        self.core.check()?;
        let fresh = self.core.snapshot(self.view.last, outside.config.view(self.core.history().clone()));
        if self.condition != Condition::Former {
            self.view.pauses.iter().try_for_each(|pause| outside.oracle.decided_once(pause))?;
        }
        ensure!(self.view == fresh, "the events lead to {:?}, not {fresh:?}", self.view);
        Ok(())
    }

    /// Ends the process at random, if it may end.
    pub(crate) fn crash_perhaps(&mut self, outside: &mut Outside) {
        self.may_crash(outside, outside.crash_chance);
    }

    /// Ends the process at random, in this percentage of the cases, if it may end. Returns whether it has ended.
    pub(super) fn may_crash(&mut self, outside: &mut Outside, chance: usize) -> bool {
        let crashes = self.condition == Condition::MayCrash && outside.rng.percent(chance);
        if crashes {
            outside.note(|| "crash".to_owned());
            self.condition = Condition::Dead;
        }
        crashes
    }

    /// Returns the reply to the caller that waits for a response, if the response promises something.
    fn reply_to_caller(&mut self, response: &Result<Arc<Response>, Error>) -> Option<Reply> {
        let turn = response.as_ref().ok().and_then(|response| response.turn);
        if std::mem::take(&mut self.requests_compaction) {
            return turn.map(Reply::Compaction);
        }
        let is_asked = std::mem::take(&mut self.is_asked);
        turn.filter(|_| is_asked).map(Reply::Answer)
    }

    fn perform(&mut self, outside: &mut Outside, effect: AgentEffect) -> Check {
        match effect {
            AgentEffect::Emit(event) => self.emit(outside, event)?,
            AgentEffect::Call(op, call) => self.call = Some((op, call)),
            AgentEffect::Abort => {
                (self.call, self.permit, self.stream, self.tasks) = (None, None, None, None);
                (self.delay, self.held) = (None, None);
                self.question = Asking::No;
                self.timers.clear();
            }
            AgentEffect::DropCall => self.call = None,
            AgentEffect::Open(op) | AgentEffect::Summarise(op) => self.permit = Some(op),
            AgentEffect::Connect(op) => {
                let turn = self.core.phase().turn().ok_or("a request without a turn")?;
                if turn.recorded && !self.is_summarising() {
                    outside.oracle.requests(turn.id, turn.step, outside.script.provider)?;
                }
                self.stream = Some(op);
            }
            AgentEffect::RunTools(op, calls) => self.run_tools(outside, op, calls)?,
            AgentEffect::Delay(op, delay) => self.delay = Some((op, delay)),
            AgentEffect::Record => self.record(),
            AgentEffect::RecordSoon => self.soon = true,
            AgentEffect::Held(effect) => return self.hold_back(outside, *effect),
            AgentEffect::Return(op) => return self.input(outside, |core, cx| core.paused(op, cx)),
            AgentEffect::Expire(tool_use, _) => self.timers.push(tool_use),
            AgentEffect::Resolve(response) => {
                if let Some(reply) = self.reply_to_caller(&response) {
                    outside.oracle.acknowledge(reply);
                }
            }
            AgentEffect::Watch(_)
            | AgentEffect::WatchOn { .. }
            | AgentEffect::FreezeWatch(_)
            | AgentEffect::EndTool(_) => {}
            AgentEffect::Answer(_) | AgentEffect::AnswerTool(..) => self.question = Asking::Answered,
        }
        Ok(())
    }

    /// Performs an effect when the last record is stored.
    fn hold_back(&mut self, outside: &mut Outside, effect: AgentEffect) -> Check {
        let is_written = self.written >= self.last && self.core.leaving_since.is_none();
        if is_written || outside.fault == Some(Fault::GatesRemoved) {
            return self.perform(outside, effect);
        }
        if let AgentEffect::Resolve(response) = effect {
            // The caller does not know of a failure yet.
            let reply = if response.is_ok() { self.reply_to_caller(&response) } else { None };
            self.replies.extend(reply.map(|reply| (self.last, reply)));
            return Ok(());
        }
        let held = self.held.take().map(|(_, held)| held);
        let are_tools = matches!(effect, AgentEffect::RunTools(..));
        ensure!(held.is_none() || are_tools, "{effect:?} overlaps {held:?}");
        self.held = Some((self.last, effect.after(held)));
        Ok(())
    }

    fn run_tools(
        &mut self,
        outside: &mut Outside,
        op: OpNumber,
        mut calls: Vec<DispatchedToolCall>,
    ) -> Check {
        let turn = self.core.phase().turn().ok_or("tools without a turn")?;
        for call in &mut calls {
            if outside.fault == Some(Fault::KeyChanged) {
                call.idempotency_key = format!("{}", outside.clock).into();
            }
            let replay = outside.tools.replay(&call.tool_use.name);
            outside.oracle.starts(turn, call, replay)?;
        }
        let (own, mut running) = self.tasks.take().unwrap_or((op, Vec::new()));
        ensure!(own == op, "the tools of two steps run at once");
        running.extend(calls);
        self.tasks = Some((op, running));
        Ok(())
    }

    fn emit(&mut self, outside: &mut Outside, event: Event) -> Check {
        if let Event::Resumed { turn, .. } = &event {
            outside.oracle.over_stays_over(*turn)?;
        }
        if let Event::Message { message, step, turn, .. } = &event {
            outside.oracle.results(*turn, *step, message)?;
        }
        self.view.take_in(&event);
        self.last_event.number += 1;
        let record = self.loose.take();
        self.deliver(outside, Some(Numbered { id: self.last_event, event: Arc::new(event) }), record);
        Ok(())
    }

    fn deliver(
        &mut self,
        outside: &Outside,
        event: Option<Numbered<Event>>,
        record: Option<Arc<RecordToStore>>,
    ) {
        let (config, run) = (Arc::clone(&outside.config), CallerSpan::default());
        self.outbox.push_back(AgentCommitItem { event, config, run, settings: None, record });
    }

    fn record(&mut self) {
        if std::mem::replace(&mut self.is_recorded, true) {
            return;
        }
        let mut turn = self.core.record();
        if let Some(turn) = &mut turn {
            turn.spent = Duration::from_secs(1);
        }
        self.last += 1;
        self.soon = false;
        self.loose = Some(Arc::new(RecordToStore { number: self.last, turn }));
    }
}
