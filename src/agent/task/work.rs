//! The work in progress of a busy agent: the exchange with the provider, tools, timers.

use std::{pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::{AbortHandle, JoinSet},
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_util::{sync::CancellationToken, time::DelayQueue};
use tracing::Instrument;

use super::{
    AgentTask, ConversationProvider,
    calls::{drop_contained, guard},
    opening::{RequestOpening, RequestRetryWait},
    spending::RunBudgetTracker,
};
use crate::{
    agent::{
        Event, PendingUse, RequestPermit,
        command::{AgentCommandResult, AgentReplyTx},
        core::{AgentEffect, SubAgentDecision},
        delegation::{DelegatedCalls, DelegatedUsage, ParentCall},
        phase::{DispatchedToolCall, OpNumber},
    },
    message::{ToolResult, ToolUseId},
    provider::{DeltaStream, ProviderQuestionReceiver},
    telemetry::{CallerSpan, RunTrace},
    tool::{Answer, Decision, ToolCallAgentLink, ToolContext, ToolSet, ToolToAgentMessage},
};

/// The work in progress. Dropping a part of it ends that part.
#[derive(Default)]
pub(super) struct AgentWork {
    /// The tools that the current request offers.
    pub(super) tools: ToolSet,
    /// The permit of the request in flight, if the agent needs one. Callbacks, tools and delays run without a permit,
    /// because they may wait for another agent that needs one.
    pub(super) permit: Option<RequestPermit>,
    /// The request that is being opened, from the end of `prepare_step` until its stream starts.
    pub(super) opening: Option<RequestOpening>,
    pub(super) stream: Option<(OpNumber, DeltaStream)>,
    /// The next attempt of the request in flight, if the agent needs a permit for it. Until then, the stream is not
    /// polled.
    pub(super) attempt: Option<RequestRetryWait>,
    pub(super) questions: Option<ProviderQuestionReceiver>,
    /// The sender for the answer to the question that the provider is waiting on.
    pub(super) question: Option<oneshot::Sender<Decision>>,
    pub(super) tasks: Option<RunningTools>,
    /// What the tools of the run report about their sub-agents.
    pub(super) delegations: Option<Arc<DelegatedCalls>>,
    pub(super) delay: Option<(OpNumber, Pin<Box<Sleep>>)>,
    pub(super) watch: Option<TurnClock>,
    /// The effect that is held back until a record with this number is stored.
    pub(super) held: Option<(u64, AgentEffect)>,
    /// The tool uses whose pauses have time limits.
    pub(super) expiries: Option<Box<DelayQueue<ToolUseId>>>,
    /// The accounts of the run, if a budget applies.
    pub(super) spending: Option<Box<RunBudgetTracker>>,
    /// The trace of the run, if telemetry is on.
    pub(super) trace: Option<Box<RunTrace>>,
    /// The caller of the command that is being served.
    pub(super) caller: CallerSpan,
    /// An empty list that is reused for the effects of the next step.
    pub(super) effects: Vec<AgentEffect>,
}

/// The running tools.
pub(super) struct RunningTools {
    pub(super) op: OpNumber,
    pub(super) set: JoinSet<(usize, ToolResult)>,
    pub(super) calls: Vec<RunningTool>,
    pub(super) reports: mpsc::Receiver<ToolToAgentMessage>,
    /// The sender of reports, for tools that start later.
    sender: mpsc::Sender<ToolToAgentMessage>,
    /// The questions from running tools that have no answer yet.
    pub(super) questions: Vec<OpenToolQuestion>,
    delegations: Arc<DelegatedCalls>,
    cancellation: CancellationToken,
}

/// A tool call that runs or has ended.
pub(super) struct RunningTool {
    pub(super) task: AbortHandle,
    pub(super) call: Arc<DispatchedToolCall>,
    /// Whether a decision has given the result, so that the task was aborted.
    is_ended: bool,
}

/// A question that waits for its answer.
pub(super) struct OpenToolQuestion {
    pub(super) id: ToolUseId,
    pub(super) slot: usize,
    pub(super) answer: oneshot::Sender<Answer>,
}

impl RunningTools {
    fn new(op: OpNumber, delegations: Arc<DelegatedCalls>) -> Self {
        let (sender, reports) = mpsc::channel(16);
        let (set, calls, questions) = (JoinSet::new(), Vec::new(), Vec::new());
        let cancellation = CancellationToken::new();
        Self { op, set, calls, reports, sender, questions, delegations, cancellation }
    }

    pub(super) fn answer(&mut self, id: &ToolUseId, answer: Answer) {
        if let Some(index) = self.questions.iter().position(|question| question.id == *id) {
            // If the tool no longer waits, the answer is dropped.
            let _ = self.questions.swap_remove(index).answer.send(answer);
        }
    }

    /// Drops a running tool and its questions.
    pub(super) fn end(&mut self, slot: usize) {
        self.forget_questions(slot);
        self.delegations.end(self.op, Some(slot));
        if let Some(running) = self.calls.iter_mut().find(|running| running.call.slot == slot) {
            running.is_ended = true;
            running.task.abort();
        }
    }

    /// Drops the questions of a tool, so the tool gets the answer `Declined` to each.
    pub(super) fn forget_questions(&mut self, slot: usize) {
        self.questions.retain(|question| question.slot != slot);
    }
}

impl Drop for RunningTools {
    fn drop(&mut self) {
        self.delegations.end(self.op, None);
        // Cancel the context, because a tool that never awaits can notice the abort only there. If all tools have
        // finished, cancel nothing, so that work that the tools started elsewhere can continue.
        if self.calls.iter().any(|running| !running.is_ended && !running.task.is_finished()) {
            self.cancellation.cancel();
        }
    }
}

/// The time limit of the turn.
pub(super) struct TurnClock {
    pub(super) limit: Duration,
    pub(super) timer: Pin<Box<Sleep>>,
    /// The remaining time, if the clock is stopped.
    pub(super) frozen: Option<Duration>,
}

impl AgentWork {
    /// Ends all work except the turn's clock.
    pub(super) fn abort(&mut self) {
        drop_contained(self.opening.take());
        self.end_stream();
        self.tasks = None;
        self.held = None;
        self.delay = None;
        self.expiries = None;
    }

    /// Ends the request in flight and drops its permit.
    pub(super) fn end_stream(&mut self) {
        drop_contained(self.stream.take());
        drop_contained(self.attempt.take());
        // At the end of a stream, an effect that is still held back can only be an answer to a question of this stream.
        self.held = None;
        (self.questions, self.question) = (None, None);
        self.give_permit_back();
    }

    pub(super) fn give_permit_back(&mut self) {
        if self.permit.is_some() {
            drop_contained(self.permit.take());
        }
    }

    pub(super) fn delay(&mut self, op: OpNumber, delay: Duration) {
        self.delay = Some((op, Box::pin(sleep(delay))));
    }

    pub(super) fn watch(&mut self, limit: Option<Duration>) {
        self.watch = limit.map(|limit| TurnClock { limit, timer: Box::pin(sleep(limit)), frozen: None });
    }

    /// Watches the limit of a turn that has already taken this time.
    pub(super) fn watch_on(&mut self, limit: Duration, spent: Duration) {
        let timer = Box::pin(sleep(limit.saturating_sub(spent)));
        self.watch = Some(TurnClock { limit, timer, frozen: None });
    }

    /// Returns the time that the turn has taken so far, if the turn has a limit.
    pub(super) fn spent(&self) -> Option<Duration> {
        let watch = self.watch.as_ref()?;
        let running = || watch.timer.deadline().saturating_duration_since(Instant::now());
        Some(watch.limit.saturating_sub(watch.frozen.unwrap_or_else(running)))
    }

    /// Watches the time limit of a pause. A limit above [`PendingUse::LONGEST`] is ignored, so the pause has no limit.
    pub(super) fn expire(&mut self, tool_use: ToolUseId, after: Duration) {
        if after <= PendingUse::LONGEST {
            self.expiries.get_or_insert_default().insert(tool_use, after);
        }
    }

    /// Stops the turn's clock, or lets it continue. When it continues, nothing is paused any more, so the time limits
    /// of pauses are dropped.
    pub(super) fn freeze_watch(&mut self, freeze: bool) {
        if !freeze {
            self.expiries = None;
        }
        let Some(watch) = &mut self.watch else {
            return;
        };
        if freeze {
            let left = || watch.timer.deadline().saturating_duration_since(Instant::now());
            watch.frozen.get_or_insert_with(left);
        } else if let Some(left) = watch.frozen.take() {
            watch.timer = Box::pin(sleep_until(Instant::now() + left));
        }
    }
}

impl AgentTask {
    /// Returns whether this is a sub-agent whose call has ended, so that nothing may start any more.
    pub(super) fn is_cut_off(&self) -> bool {
        self.above().is_some_and(|call| call.has_ended())
    }

    /// Returns the call of this agent, if it is a sub-agent.
    pub(super) fn above(&self) -> Option<&Arc<ParentCall>> {
        self.setup.extensions.get()
    }

    /// Reports to the call of this agent what a request has cost, and whether the agent is at work.
    pub(super) fn report_above(&self, event: &Event) {
        match event {
            Event::Step(_) | Event::Usage(_) => {
                if let Some(above) = self.above() {
                    above.spent(event, self.setup.hold.as_ref().map(|hold| hold.conversation()));
                }
            }
            Event::Status { .. } | Event::ToolEnd { .. } => {
                if let Some(above) = self.above() {
                    above.set_at_work(!self.only_waits());
                }
            }
            _ => {}
        }
    }

    /// Cancels the run of a sub-agent whose call has ended.
    pub(super) fn cut_off(&mut self) {
        self.step(|core, cx| {
            // A request is about to be sent, so the agent is not idle.
            let _ = core.cancel(cx);
        });
    }

    /// Processes what running tools have reported about their sub-agents. Every input is preceded by this, so a run ends
    /// with the usage that was reported before.
    pub(super) fn take_delegated(&mut self) {
        let Some(delegations) = self.delegations() else { return };
        let (spent, changed, unrepeatable) = delegations.take();
        for (op, slot, reply) in unrepeatable {
            self.step(|core, cx| core.tool_unrepeatable(op, slot, cx));
            self.reply(reply, Ok(()));
        }
        for (key, spent) in spent {
            self.step(|core, cx| match spent {
                DelegatedUsage::Row(row) => core.delegated(&key, *row, cx),
                DelegatedUsage::Stored(sum) => core.delegated_before(&key, sum, cx),
            });
        }
        for (op, slot, pauses) in changed {
            self.step(|core, cx| core.tool_delegated(op, slot, pauses, cx));
        }
    }

    /// Passes decisions to the calls whose sub-agents wait for them, and then sends the reply.
    pub(super) fn forward(
        &mut self,
        forwards: Vec<SubAgentDecision>,
        by: Option<&Arc<str>>,
        reply: AgentReplyTx<AgentCommandResult<()>>,
    ) {
        let Some(delegations) = self.delegations().cloned() else { return };
        let reply = delegations.reply(reply);
        // The command may have other decisions, which are answered when their record is stored.
        self.reply_later(reply.clone());
        if let Some(op) = self.core.phase().op() {
            delegations.forward(op, forwards, by, &reply);
        }
    }

    pub(super) fn delegations(&self) -> Option<&Arc<DelegatedCalls>> {
        self.work.as_ref()?.delegations.as_ref()
    }

    /// Passes committed messages to the provider's instance.
    pub(super) fn report_committed(&self, event: &Event) {
        let (Some(response), Some(ConversationProvider { own: Some(own), .. })) =
            (event.committed(), &self.instance)
        else {
            return;
        };
        // `guard` has already logged a panic, so ignore the result.
        let _ = guard("committed", || own.committed(&response.messages));
    }

    /// Drops the provider's instance. A separate task closes the instance, so the agent does not wait.
    pub(super) fn close_instance(&mut self) {
        let Some(ConversationProvider { of, own }) = self.instance.take() else {
            return;
        };
        drop_contained(of);
        if let Some(own) = own {
            let limit = self.setup.terminate_timeout;
            let closing = async move {
                if tokio::time::timeout(limit, own.close()).await.is_err() {
                    tracing::warn!(
                        provider = own.name(),
                        ?limit,
                        "closing the provider was cut off at its time limit"
                    );
                }
            };
            tokio::spawn(closing.in_current_span());
        }
    }

    pub(super) fn run_tools(&mut self, op: OpNumber, calls: Vec<DispatchedToolCall>) {
        let setup = Arc::clone(&self.setup);
        let epoch = setup.hold.as_ref().and_then(|hold| hold.epoch());
        let work = self.work.get_or_insert_default();
        let span = work.span().cloned();
        let owner = || Arc::new(DelegatedCalls::of(setup.hold.clone(), setup.extensions.get()));
        let delegations = Arc::clone(work.delegations.get_or_insert_with(owner));
        // After a restart, no request of this process has opened the accounts.
        let account = self.core.phase().turn().and_then(|turn| {
            let own =
                RunBudgetTracker::open(&mut work.spending, turn, turn.step, &self.config, &setup.extensions)?;
            Some(Arc::clone(own.accounts.own()))
        });
        let recorded = self.core.phase().turn().map_or_else(Vec::new, |turn| turn.calls.clone());
        delegations.set_turn(op, account, self.core.phase().is_recorded(), recorded);
        let active = Arc::clone(&self.active_calls);
        let running = work.tasks.take().filter(|tasks| tasks.op == op);
        let mut tasks = running.unwrap_or_else(|| RunningTools::new(op, Arc::clone(&delegations)));
        for call in calls.into_iter().map(Arc::new) {
            let link =
                ToolCallAgentLink::new((op, call.slot), tasks.sender.clone(), Arc::clone(&delegations) as _);
            let context = ToolContext::detached(call.tool_use.id.clone())
                .with_idempotency_key(Arc::clone(&call.idempotency_key))
                .with_cancellation(tasks.cancellation.clone())
                .with_agent(link)
                .with_repeated(call.is_repeated)
                .with_extensions(setup.extensions.clone())
                .with_epoch(epoch);
            let (tools, setup, own) = (work.tools.clone(), Arc::clone(&setup), Arc::clone(&call));
            let presence = active.enter(&call);
            let running = async move {
                let _presence = presence;
                let result = tools.run(&own.tool_use, context, &setup.tool_limits).await;
                (own.slot, result)
            };
            let task = match span.clone() {
                Some(span) => tasks.set.spawn(running.instrument(span)),
                None => tasks.set.spawn(running),
            };
            tasks.calls.push(RunningTool { task, call, is_ended: false });
        }
        work.tasks = Some(tasks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_that_is_stopped_twice_keeps_its_remaining_time() {
        let second = Duration::from_secs(1);
        let mut work = AgentWork::default();
        work.watch(Some(second * 10));
        tokio::time::sleep(second).await;
        work.freeze_watch(true);
        tokio::time::sleep(second * 5).await;
        work.freeze_watch(true);
        assert_eq!(work.spent(), Some(second));
        work.freeze_watch(false);
        tokio::time::sleep(second * 2).await;
        assert_eq!(work.spent(), Some(second * 3));
    }
}
