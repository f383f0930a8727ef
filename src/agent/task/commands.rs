//! Serves the commands that handles send.

use std::sync::Arc;

use super::{
    AgentTask, MAX_OUTBOX,
    calls::{drop_contained, guard},
};
use crate::{
    agent::{
        AskResponseTx, Event, FirstMessageOfRun, LatestEventAndStatus, StateEdit,
        command::{AgentCommand, StateEditFn},
        core::AgentCore,
        state::{panicked, refused},
    },
    message::{History, TurnId},
    run::{Error, ErrorKind},
    subscription::EventId,
    telemetry::CallerSpan,
};

impl AgentTask {
    pub(super) fn serve(&mut self, command: AgentCommand) {
        self.take_delegated();
        // A failed reply is ignored, because it only means that the caller no longer waits.
        match command {
            AgentCommand::Prompt(prompt, caller, reply) => {
                let accepted = self
                    .ensure_open()
                    .and_then(|()| self.step_for(caller, |core, cx| core.prompt(prompt, false, cx)));
                self.reply(reply, accepted);
            }
            AgentCommand::Ask(prompt, caller, reply) => {
                let accepted = self
                    .ensure_open()
                    .and_then(|()| self.step_for(caller, |core, cx| core.prompt(prompt, true, cx)));
                match accepted {
                    Ok(_) => self.asker = Some(reply),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            AgentCommand::Compact(compact, caller, reply) => {
                if let Err(error) = self.core.ensure_idle().and_then(|()| self.ensure_open()) {
                    return drop(reply.send(Err(error)));
                }
                // A compaction without a request ends at once, so its caller must be known before.
                self.asker = Some(reply);
                let begun = self.step_for(caller, |core, cx| core.compact_on_request(&compact, cx));
                if let Err(error) = begun
                    && let Some(reply) = self.asker.take()
                {
                    drop(reply.send(Err(error)));
                }
            }
            AgentCommand::Unstage(id, reply) => {
                let unstaged = self.step(|core, cx| core.unstage(&id, cx));
                self.reply(reply, unstaged);
            }
            AgentCommand::Resume(resume, reply) => {
                let by = resume.by.clone();
                match self.step(|core, cx| core.resume(resume, cx)) {
                    Ok(forwards) if !forwards.is_empty() => self.forward(forwards, by.as_ref(), reply),
                    resumed => self.reply(reply, resumed.map(drop)),
                }
            }
            AgentCommand::Cancel(only, reply) => {
                let cancelled =
                    if self.is_meant(only) { self.step(AgentCore::cancel) } else { Err(Error::idle()) };
                self.reply(reply, cancelled);
            }
            AgentCommand::Interrupt(only, reply) => {
                let interrupted = if self.is_meant(only) { self.interrupt() } else { Err(Error::idle()) };
                self.reply(reply, interrupted);
            }
            AgentCommand::Notify(event, reply) => {
                self.notices.push_back(event);
                let noted = self.step(AgentCore::notify);
                if noted.is_err() {
                    drop_contained(self.notices.pop_back());
                }
                let _ = reply.send(noted);
            }
            AgentCommand::SetState(edit, reply) => {
                let _ = reply.send(self.set_state(edit));
            }
            AgentCommand::State(reply) => drop(reply.send(self.state())),
            AgentCommand::Status(reply) => drop(reply.send(self.core.status())),
            AgentCommand::Snapshot(reply) => drop(reply.send(self.snapshot())),
            AgentCommand::Subscribe(after, reply) => {
                if !reply.is_closed() {
                    let _ = reply.send(self.attach(after));
                }
            }
            AgentCommand::WaitIdle(reply) => {
                if self.idle_waiters.len() == self.idle_waiters.capacity() {
                    // Before another caller is added, remove the callers that stopped waiting. Otherwise the list could
                    // grow without limit.
                    self.idle_waiters.retain(|waiter| !waiter.is_closed());
                }
                self.idle_waiters.push(reply);
            }
            AgentCommand::Position(reply) => drop(reply.send(self.position())),
            AgentCommand::Change(at, history, erases, reply) => {
                drop(reply.send(self.change(at, history, erases)));
            }
            AgentCommand::Begin(at, base, opening, asker, caller, reply) => {
                let _ = reply.send(self.begin(at, base, opening, asker, caller));
            }
            AgentCommand::TakeUp(reply) => {
                self.take_up();
                let _ = reply.send(());
            }
            AgentCommand::Leave(reply) => {
                self.leave();
                let _ = reply.send(());
            }
            AgentCommand::Stop(_) | AgentCommand::Retire(..) => {
                unreachable!("the loop that serves commands handles this command")
            }
        }
    }

    /// Returns whether a command that is meant for this turn has an effect now.
    fn is_meant(&self, only: Option<TurnId>) -> bool {
        only.is_none_or(|only| self.core.phase().turn().is_some_and(|turn| turn.id == only))
    }

    pub(super) fn interrupt(&mut self) -> Result<(), Error> {
        // Read the results of finished tools first, so that the interrupt keeps them.
        self.take_finished_tools();
        self.step(AgentCore::interrupt)
    }

    /// Returns an error if too many events wait for the commit channel. The operation that checks this is then refused,
    /// because it would emit further events. A run in progress continues, because it waits for room itself. While a run
    /// is in progress, the limit is twice as high. Without this limit, a client could stage and withdraw prompts
    /// without end.
    fn ensure_room(&self) -> Result<(), Error> {
        let Some(commit) = &self.commit else { return Ok(()) };
        let limit = if self.core.is_at_rest() { MAX_OUTBOX } else { 2 * MAX_OUTBOX };
        let waiting = commit.outbox.len();
        if waiting < limit {
            return Ok(());
        }
        let text = format!(
            "{waiting} events wait for the commit channel; no run can start until its receiver has read some"
        );
        Err(Error::new(ErrorKind::Backlog, text).with_member("queued", waiting))
    }

    /// Returns an error if no prompt may be accepted now.
    fn ensure_open(&self) -> Result<(), Error> {
        match self.setup.hold.as_ref().and_then(|hold| hold.reason()) {
            Some(cause) => {
                let text = format!("the prompt was refused: {cause}");
                Err(cause.clone().worded(text).with_source(cause))
            }
            None => self.ensure_room(),
        }
    }

    fn set_state(&mut self, edit: StateEditFn) -> Result<(), Error> {
        if let Err(error) = self.core.ensure_idle().and_then(|()| self.ensure_room()) {
            drop_contained(edit);
            return Err(error);
        }
        let before = self.core.history().clone();
        let mut draft = StateEdit { config: (*self.config).clone(), history: before.clone() };
        let edited = guard("set_state", || edit(&mut draft))
            .map_err(|words| panicked("the closure of set_state", &words))
            .and_then(|edited| edited.map_err(refused))
            .and_then(|()| draft.check(&before))
            .and_then(|()| if self.setup.owned { draft.keep_history(&before) } else { Ok(()) });
        if let Err(error) = edited {
            drop_contained(draft);
            return Err(error);
        }
        self.configure(Arc::new(draft.config));
        self.core.set_history(draft.history.clone());
        self.emit(Event::State(Arc::new(self.config.view(draft.history))));
        Ok(())
    }

    // ---- commands of the history's owner ----

    /// Continues the turn in flight with which the agent has started.
    fn take_up(&mut self) {
        if let Some(facts) = self.durability.as_mut().and_then(|durability| durability.facts.take()) {
            // `prepare_step` may have changed the tools of the interrupted request, so they are not known.
            let (own, origin) = (&self.config.tools, self.core.phase().origin());
            let tools = origin.map_or_else(|| own.clone(), |origin| origin.prompt.client_tools.after(own));
            self.work().tools = tools;
            self.step(|core, cx| core.take_up(&facts, cx));
        }
    }

    fn position(&self) -> LatestEventAndStatus {
        let record = self.durability.as_ref().map_or(0, |durability| durability.last());
        LatestEventAndStatus { last: self.feed.last(), record, status: self.core.status() }
    }

    /// Replaces the history for its owner, and returns the id of the resulting `state` event.
    fn change(&mut self, at: Option<EventId>, history: History, erases: bool) -> Result<EventId, Error> {
        let with = self.next_state(at)?;
        if erases {
            self.feed.forget();
        }
        let change = if erases { AgentCore::replace_erased } else { AgentCore::replace_history };
        self.step(|core, cx| change(core, history, cx))?;
        Ok(with)
    }

    /// Starts a run for the history's owner. Returns the id of the `state` event, and the run's first turn.
    fn begin(
        &mut self,
        at: Option<EventId>,
        base: History,
        opening: FirstMessageOfRun,
        asker: Option<AskResponseTx>,
        caller: CallerSpan,
    ) -> Result<(EventId, TurnId), Error> {
        let (with, ask) = (self.next_state(at)?, asker.is_some());
        let turn = self.step_for(caller, |core, cx| match opening {
            FirstMessageOfRun::Prompt(prompt) => core.prompt_on(base, prompt, ask, cx),
            FirstMessageOfRun::Message(message, settings) => core.answer(base, message, settings, ask, cx),
        })?;
        self.asker = asker.or(self.asker.take());
        Ok((with, turn))
    }

    /// Checks that the history's owner may act now. Returns the id of the next event, which is the `state` event that
    /// the operation emits first.
    fn next_state(&self, at: Option<EventId>) -> Result<EventId, Error> {
        self.core.ensure_idle()?;
        if !self.is_at(at) {
            let text = "the agent has emitted newer events; read them, then try again";
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        self.ensure_room()?;
        let last = self.feed.last();
        Ok(EventId { number: last.number + 1, ..last })
    }

    /// Returns whether `at` is `None` or the last emitted event.
    pub(super) fn is_at(&self, at: Option<EventId>) -> bool {
        at.is_none_or(|at| at == self.feed.last())
    }

    /// Returns whether nothing is in progress or queued. The agent may then end.
    pub(super) fn is_settled(&self) -> bool {
        self.core.is_settled() && !self.is_blocked()
    }
}
