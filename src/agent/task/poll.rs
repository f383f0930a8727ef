//! The agent's loop: commands first, then all other work.
//!
//! Commands are served even if a callback never returns, and after a number of them everything else is polled once.
//! While the commit channel is full, only commands are served. Their events wait in the order in which they were
//! emitted.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    task::{Context, Poll, Waker, ready},
};

use futures_channel::mpsc::SendError;
use tokio::{
    sync::mpsc,
    task::{Id, JoinError},
};
use tracing::Span;

use super::{
    AgentLoopExit, AgentTask, CommitChannel,
    calls::{CallbackReturnValue, CallbackReturnWithConfig, RunningCallback, drop_contained, guard},
    opening::replay_of,
    work::{OpenToolQuestion, RunningTool},
};
use crate::{
    actor::FairYield,
    agent::{Event, Failure, command::AgentCommand, core::AgentCore, phase::OpNumber},
    message::ToolResult,
    provider::{Delta, ProviderError},
    subscription::EndReason,
    tool::{Answer, ToolToAgentMessage},
};

/// The maximum number of commands that are served before other work is polled.
const COMMANDS_IN_A_ROW: usize = 32;
/// The number of inputs in a row before the agent yields to other tasks.
const INPUTS_IN_A_ROW: u32 = 256;

type CallbackInProgress<'a, 'b> = Option<(OpNumber, &'static str, &'a mut RunningCallback<'b>)>;

/// The result of serving commands.
enum CommandServingOutcome {
    /// No command is left. The next command wakes the task.
    All,
    /// More commands may wait. The task must poll for them again, because nothing wakes it for them.
    Some,
    /// The agent must end.
    End(AgentLoopExit),
}

impl CommitChannel {
    /// Sends the waiting events. Returns an error if the receiver was dropped.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        while !self.outbox.is_empty() {
            ready!(self.sender.poll_ready(cx))?;
            if let Some(delivery) = self.outbox.pop_front() {
                self.sender.start_send(delivery)?;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AgentTask {
    /// Serves commands and advances all work until a callback is requested, the callback in flight has returned, or the
    /// agent ends.
    pub(super) fn drive<'a, 'b>(
        &'a mut self,
        commands: &'a mut mpsc::Receiver<Box<AgentCommand>>,
        mut call: CallbackInProgress<'a, 'b>,
    ) -> impl Future<Output = AgentLoopExit> + use<'a, 'b> {
        self.drop_call = false;
        let mut begun = false;
        poll_fn(move |cx| {
            // The callback is polled before any command is served. A started callback is therefore polled at least once
            // before it can be dropped.
            if !std::mem::replace(&mut begun, true) && self.poll_call(cx, &mut call).is_ready() {
                return Poll::Ready(AgentLoopExit::Returned);
            }
            self.poll(cx, commands, &mut call)
        })
    }

    /// Polls the callback in flight. Ready when it has returned.
    fn poll_call(&mut self, cx: &mut Context<'_>, call: &mut CallbackInProgress<'_, '_>) -> Poll<()> {
        let Some((op, callback, running)) = call else {
            return Poll::Pending;
        };
        let returned = {
            let _in_run = self.work.as_ref().and_then(|work| work.span()).map(Span::enter);
            ready!(running.as_mut().poll(cx))
        };
        self.returned(*op, callback, returned);
        Poll::Ready(())
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        commands: &mut mpsc::Receiver<Box<AgentCommand>>,
        call: &mut CallbackInProgress<'_, '_>,
    ) -> Poll<AgentLoopExit> {
        let mut all_served = false;
        loop {
            // The number of inputs is not reset between callbacks. Otherwise a provider and callbacks that are always
            // ready would never yield to other tasks.
            if self.own_wake.is_none() && (self.inputs >= INPUTS_IN_A_ROW || self.feed.is_flooded()) {
                self.own_wake = Some(FairYield::begin());
                self.inputs = 0;
            }
            self.inputs += 1;
            // Once all commands were served, the command channel has registered the waker. From then on, checking the
            // channel's length is enough.
            if !all_served || !commands.is_empty() {
                match self.poll_commands(cx, commands) {
                    CommandServingOutcome::All => all_served = true,
                    CommandServingOutcome::Some => all_served = false,
                    CommandServingOutcome::End(exit) => return Poll::Ready(exit),
                }
            }
            if call.is_some() && self.drop_call {
                return Poll::Ready(AgentLoopExit::Dropped);
            }
            self.wake_idle_waiters();
            self.release_replies(cx);
            if let Some(own_wake) = &self.own_wake {
                if own_wake.poll(cx).is_pending() {
                    if !all_served {
                        continue;
                    }
                    return self.wait();
                }
                self.own_wake = None;
            }
            match self.poll_outbox(cx) {
                Poll::Ready(Ok(())) => {}
                // The session has dropped the channel to leave the turn, and stops the agent next.
                Poll::Ready(Err(_)) if self.is_leaving() => self.commit = None,
                Poll::Ready(Err(_)) => {
                    return Poll::Ready(AgentLoopExit::End(EndReason::HandlesDropped, None));
                }
                // The commit channel has no room, so only commands are served until it has room.
                Poll::Pending if !all_served => continue,
                Poll::Pending => return self.wait(),
            }
            self.wake_idle_waiters();
            if self.poll_records(cx).is_ready() {
                continue;
            }
            if call.is_none()
                && let Some(wanted) = self.wanted.take()
            {
                return Poll::Ready(AgentLoopExit::Call(wanted));
            }
            if self.poll_call(cx, call).is_ready() {
                return Poll::Ready(AgentLoopExit::Returned);
            }
            if self.poll_work(cx).is_pending() && all_served {
                return self.wait();
            }
        }
    }

    /// Resets the number of inputs, and returns `Pending`, so that the task sleeps until something wakes it. If another
    /// task and this one keep waking each other, the number never grows, although a reader of this agent's events may
    /// not have run. For this case, the loop also yields when the feed is flooded.
    fn wait<T>(&mut self) -> Poll<T> {
        self.inputs = 0;
        Poll::Pending
    }

    fn poll_commands(
        &mut self,
        cx: &mut Context<'_>,
        commands: &mut mpsc::Receiver<Box<AgentCommand>>,
    ) -> CommandServingOutcome {
        for _ in 0..COMMANDS_IN_A_ROW {
            let command = match commands.poll_recv(cx) {
                Poll::Ready(Some(command)) => *command,
                Poll::Ready(None) => {
                    return CommandServingOutcome::End(AgentLoopExit::End(EndReason::HandlesDropped, None));
                }
                Poll::Pending => return CommandServingOutcome::All,
            };
            match command {
                AgentCommand::Stop(stop) => {
                    return CommandServingOutcome::End(AgentLoopExit::End(EndReason::Stopped, Some(stop)));
                }
                AgentCommand::Retire(at, reply) => {
                    self.complete_records();
                    let settled = self.is_at(at) && (self.is_settled() || self.park());
                    let _ = reply.send(settled);
                    if settled {
                        return CommandServingOutcome::End(AgentLoopExit::End(EndReason::Idle, None));
                    }
                }
                command => self.serve(command),
            }
        }
        CommandServingOutcome::Some
    }

    /// Sends the events that wait for the commit channel. Ready when no event is left, or with an error if the receiver
    /// was dropped.
    pub(super) fn poll_outbox(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(commit) = self.commit.as_mut().filter(|commit| !commit.outbox.is_empty()) else {
            return Poll::Ready(Ok(()));
        };
        ready!(commit.poll(cx))?;
        if self.core.is_at_rest() {
            // An idle agent needs no memory for events that wait.
            commit.outbox = VecDeque::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Processes one input from the work in progress. Pending if no input is ready.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.take_delegated();
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        if let Some(watch) = &mut work.watch
            && watch.frozen.is_none()
            && watch.timer.as_mut().poll(cx).is_ready()
        {
            let limit = watch.limit;
            work.watch = None;
            self.take_finished_tools();
            self.step(|core, cx| core.time_over(limit, cx));
            return Poll::Ready(());
        }
        if let Some((op, timer)) = &mut work.delay
            && timer.as_mut().poll(cx).is_ready()
        {
            let op = *op;
            work.delay = None;
            self.step(|core, cx| core.delay_over(op, cx));
            return Poll::Ready(());
        }
        if let Some(expiries) = &mut work.expiries
            && let Poll::Ready(Some(expired)) = expiries.poll_expired(cx)
        {
            self.step(|core, cx| core.pause_expired(expired.get_ref(), cx));
            return Poll::Ready(());
        }
        if work.opening.is_some() {
            return self.poll_opening(cx);
        }
        if work.attempt.is_some() {
            // When the permit is granted, the turn's clock continues, so it is polled again before the stream.
            return self.poll_attempt(cx);
        }
        // Questions are polled before the stream, because the stream may always be ready. This first poll uses no
        // waker. The task registers for questions only after the stream was pending. Otherwise the task would be woken
        // needlessly when the stream drops the channel.
        if self.poll_question(&mut Context::from_waker(Waker::noop())).is_ready()
            || self.poll_stream(cx).is_ready()
            || self.poll_question(cx).is_ready()
        {
            return Poll::Ready(());
        }
        self.poll_tools(cx)
    }

    fn poll_question(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        if let Some(question) = &mut work.question
            && question.poll_closed(cx).is_ready()
        {
            (work.question, work.held) = (None, None);
            self.step(AgentCore::question_withdrawn);
            return Poll::Ready(());
        }
        let (Some((op, _)), Some(questions)) = (&work.stream, &work.questions) else {
            return Poll::Pending;
        };
        let op = *op;
        // If an effect is held back, it is the answer to the previous question, so the previous question is not
        // finished.
        if !self.core.can_be_asked() || work.held.is_some() {
            return Poll::Pending;
        }
        // Only one question is processed at a time. Further questions wait.
        let Poll::Ready(question) = questions.poll_next(cx) else {
            return Poll::Pending;
        };
        work.question = Some(question.answer);
        self.step(|core, cx| core.asked(op, question.tool_use, cx));
        Poll::Ready(())
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_cut_off = self.is_cut_off();
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let Some((op, stream)) = &mut work.stream else {
            return Poll::Pending;
        };
        let op = *op;
        if is_cut_off {
            // The retry policy must not send the request again.
            return Poll::Pending;
        }
        let polled = {
            let _in_run = work.trace.as_ref().map(|trace| trace.span().enter());
            guard("provider", || stream.as_mut().poll_next(cx))
        };
        match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Some(Ok(delta)))) => {
                // The retry policy repeats only requests without content.
                if let Delta::Retry { .. } = &delta
                    && let Some(spending) = &mut work.spending
                    && self.core.phase().received().is_some_and(|fold| fold.blocks().is_empty())
                {
                    spending.accounts.sent();
                }
                // Without a delay, the request may still be in flight, because a service can start its answer again.
                if let Delta::Retry { delay, .. } = &delta
                    && !delay.is_zero()
                {
                    self.await_attempt(*delay);
                }
                self.step(|core, cx| core.delta(op, delta, cx));
            }
            Ok(Poll::Ready(Some(Err(error)))) => self.stream_failed(op, error),
            Ok(Poll::Ready(None)) => {
                self.work().end_stream();
                self.step(|core, cx| core.stream_ended(op, cx));
            }
            Err(message) => {
                let failure = Failure::ProviderPanicked { message };
                self.step(|core, cx| core.stream_failed(op, failure, cx));
            }
        }
        Poll::Ready(())
    }

    fn stream_failed(&mut self, op: OpNumber, error: ProviderError) {
        self.step(|core, cx| core.stream_failed(op, error.into(), cx));
    }

    fn poll_tools(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(tasks) = self.work.as_mut().and_then(|work| work.tasks.as_mut()) else {
            return Poll::Pending;
        };
        let withdrawn =
            tasks.questions.iter_mut().position(|question| question.answer.poll_closed(cx).is_ready());
        if let Some(index) = withdrawn {
            let (op, id) = (tasks.op, tasks.questions.swap_remove(index).id);
            self.step(|core, cx| core.tool_question_withdrawn(op, &id, cx));
            return Poll::Ready(());
        }
        if let Poll::Ready(Some(report)) = tasks.reports.poll_recv(cx) {
            self.take_report(report);
            return Poll::Ready(());
        }
        match tasks.set.poll_join_next_with_id(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => {
                self.work().tasks = None;
                return Poll::Pending;
            }
            Poll::Ready(Some(joined)) => self.tool_joined(joined),
        }
        Poll::Ready(())
    }

    /// Processes the results of finished tools that were not read yet.
    pub(super) fn take_finished_tools(&mut self) {
        while let Some(tasks) = self.work.as_mut().and_then(|work| work.tasks.as_mut())
            && let Some(joined) = tasks.set.try_join_next_with_id()
        {
            self.tool_joined(joined);
        }
    }

    /// Processes the end of a tool's task.
    fn tool_joined(&mut self, joined: Result<(Id, (usize, ToolResult)), JoinError>) {
        let Some(tasks) = self.work.as_mut().and_then(|work| work.tasks.as_mut()) else {
            return;
        };
        let op = tasks.op;
        self.take_delegated();
        let Some(tasks) = self.work.as_mut().and_then(|work| work.tasks.as_mut()) else { return };
        let (slot, result) = match joined {
            Ok((_, done)) => done,
            Err(error) => {
                let mut calls = tasks.calls.iter();
                let Some(RunningTool { call, .. }) = calls.find(|call| call.task.id() == error.id()) else {
                    return;
                };
                let message = format!("The tool's task ended early: {error}");
                (call.slot, ToolResult::error(&call.tool_use, message))
            }
        };
        // Process the reports that the tools have sent so far, so that the tool's reports come before its end.
        let sent: Vec<_> = (0..tasks.reports.len()).map_while(|_| tasks.reports.try_recv().ok()).collect();
        for report in sent {
            self.take_report(report);
        }
        if let Some(tasks) = self.work().tasks.as_mut() {
            tasks.forget_questions(slot);
        }
        self.step(|core, cx| core.tool_done(op, slot, result, cx));
    }

    /// Processes a message of a running tool.
    fn take_report(&mut self, report: ToolToAgentMessage) {
        let (slot, question, answer) = match report {
            ToolToAgentMessage::Progress(tool_use_id, data) => {
                return self.emit(Event::ToolProgress { tool_use_id, data });
            }
            ToolToAgentMessage::Delegated => return self.take_delegated(),
            ToolToAgentMessage::Question { slot, question, answer } => (slot, question, answer),
        };
        let Some(op) = self.work().tasks.as_ref().map(|tasks| tasks.op) else { return };
        if answer.is_closed() {
            return;
        }
        match (self.step(|core, cx| core.tool_asked(op, slot, question, cx)), &mut self.work().tasks) {
            (Ok(id), Some(tasks)) => tasks.questions.push(OpenToolQuestion { id, slot, answer }),
            (Err(reason), _) => drop(answer.send(Answer::Declined(reason))),
            (Ok(_), None) => {}
        }
    }

    /// Processes the result of a callback.
    fn returned(
        &mut self,
        op: OpNumber,
        callback: &'static str,
        returned: Result<CallbackReturnWithConfig, String>,
    ) {
        let adopted = returned.and_then(|CallbackReturnWithConfig { outcome, before, after }| {
            // The model for which the request was prepared, even if the callback has changed the model.
            let turn = self.core.phase().turn();
            let model = turn.map_or(&before.model, |turn| turn.model_in(&before)).clone();
            let adopted = self.adopt(&before, after).map(|()| (outcome, model));
            drop_contained(before);
            adopted
        });
        let (outcome, model) = match adopted {
            Ok(adopted) => adopted,
            Err(message) => {
                return self.step(|core, cx| core.call_failed(op, callback, message, cx));
            }
        };
        match outcome {
            CallbackReturnValue::Prepared(request) => self.prepared(op, request, &model),
            CallbackReturnValue::Recovery(decision, recovery) => {
                let replay = replay_of(&model);
                self.step(|core, cx| core.recovered(op, decision, &recovery, replay, cx));
            }
            CallbackReturnValue::ToolUse(decision) => {
                self.step(|core, cx| core.tool_decided(op, decision, cx));
            }
            CallbackReturnValue::ToolResult(result) => {
                self.step(|core, cx| core.result_reviewed(op, result, cx));
            }
            CallbackReturnValue::Turn(decision) => {
                self.step(|core, cx| core.turn_decided(op, decision, cx));
            }
            CallbackReturnValue::Error(decision) => {
                self.step(|core, cx| core.error_decided(op, decision, cx));
            }
            CallbackReturnValue::Event(prompt) => {
                self.step(|core, cx| core.event_handled(op, prompt.map(|prompt| *prompt), cx));
            }
        }
    }
}
