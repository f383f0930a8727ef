//! The end of an agent: cleanly, within a deadline, and with a reply to every caller.

use std::{
    future::{Future, poll_fn},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};

use super::{AgentTask, calls::drop_contained};
use crate::{
    actor::FairYield,
    agent::{
        AgentCallbacks,
        command::{AgentCommand, AgentStopTurnPolicy, StopAgentCommand},
        core::AgentCore,
    },
    message::ToolUse,
    panics::contained_async,
    run::{Error, ErrorKind},
    subscription::{End, EndReason},
};

impl AgentTask {
    /// Ends the turn in flight as the `stop` command requests. Without such a command, interrupts the turn, unless it is
    /// paused and its state is stored, or nobody receives its commit. Then makes the last snapshot available, runs
    /// `terminate`, and waits for aborted tools.
    pub(super) async fn finish(
        mut self: Box<Self>,
        callbacks: &mut dyn AgentCallbacks,
        mut commands: mpsc::Receiver<Box<AgentCommand>>,
        reason: EndReason,
        stop: Option<StopAgentCommand>,
    ) {
        // After its first error, the commit channel is not used again.
        let is_unheard =
            self.commit.take_if(|commit| commit.sender.is_closed()).map(drop_contained).is_some();
        // A report that has come since the agent has agreed to end must not change this.
        let parks = stop.is_none() && !is_unheard && self.park();
        self.take_delegated();
        let in_flight = match &stop {
            Some(stop) => stop.in_flight,
            None if is_unheard || parks => AgentStopTurnPolicy::Leave,
            None => AgentStopTurnPolicy::Keep,
        };
        // If the agent is idle, the interrupt or the cancel returns an error, because no turn is in flight. Ignore this
        // error.
        let _ = match in_flight {
            AgentStopTurnPolicy::Keep => self.interrupt(),
            AgentStopTurnPolicy::Discard => self.step(AgentCore::cancel),
            AgentStopTurnPolicy::Leave => {
                self.leave_delegations();
                Ok(())
            }
        };
        drop_contained(self.work.take());
        drop_contained(self.wanted.take());
        if !self.notices.is_empty() {
            tracing::warn!(
                count = self.notices.len(),
                "application events are dropped because the agent ended before handle_event got them"
            );
        }
        self.notices.drain(..).for_each(drop_contained);
        let snapshot = Some(Arc::new(self.snapshot()));
        self.last_words.0.termination.seal(End { reason: reason.clone(), snapshot });
        self.idle_waiters.clear();

        let state = self.state();
        let own = self.instance.take().and_then(|instance| {
            drop_contained(instance.of);
            instance.own
        });
        let mut limit = stop.as_ref().map_or(self.setup.terminate_timeout, |stop| stop.deadline);
        let mut deadline = Box::pin(sleep(limit));
        let mut waiting: Vec<StopAgentCommand> = stop.into_iter().collect();
        let active_calls = Arc::clone(&self.active_calls);
        // The parts of the end run concurrently, so that a part that hangs does not prevent the other parts from
        // running.
        let mut orderly = Box::pin(async {
            tokio::join!(
                active_calls.all_ended(),
                poll_fn(|cx| self.poll_outbox(cx)),
                survive("terminate", async { callbacks.terminate(&reason, &state).await }),
                survive("the provider's close", async {
                    if let Some(own) = &own {
                        own.close().await;
                    }
                }),
            )
        });
        let mut round = None;
        let in_time = poll_fn(|cx| {
            while let Poll::Ready(Some(command)) = commands.poll_recv(cx) {
                // Other callers of `stop` also wait, until the earliest of all deadlines. Other commands get no reply.
                let AgentCommand::Stop(stop) = *command else {
                    drop_contained(command);
                    continue;
                };
                let other = Box::pin(sleep(stop.deadline));
                if other.deadline() < deadline.deadline() {
                    (limit, deadline) = (stop.deadline, other);
                }
                waiting.retain(|stop| !stop.reply.is_closed());
                waiting.push(stop);
            }
            if orderly.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
            std::task::ready!(deadline.as_mut().poll(cx));
            // Aborted tools that await something are dropped when the runtime next polls them. So even after the
            // deadline, give the runtime one round.
            let round = round.get_or_insert_with(FairYield::begin);
            round.poll(cx).map(|()| orderly.as_mut().poll(cx).is_ready())
        })
        .await;
        drop_contained(orderly);
        let cut_off = (!in_time).then(|| cut_off(limit, &active_calls.running()));
        if let Some(error) = &cut_off {
            // Setting the cell cannot fail, because it is set only here.
            let _ = self.last_words.0.cut_off.set(error.clone());
        }
        self.hand_over_outbox();
        drop_contained(own);
        drop_contained(state);
        // Drop the task before the replies are sent, so that subscribers see the agent's end before the callers of
        // `stop` get their reply.
        drop_contained(self);
        for stop in waiting {
            let _ = stop.reply.send(cut_off.clone().map_or(Ok(()), Err));
        }
    }
}

impl AgentTask {
    /// Sends the events that still wait for the commit channel from a separate task, which waits while the channel is
    /// full.
    fn hand_over_outbox(&mut self) {
        if let Some(mut commit) =
            self.commit.take().filter(|commit| !commit.outbox.is_empty() && !commit.sender.is_closed())
        {
            tokio::spawn(async move { poll_fn(|cx| commit.poll(cx)).await });
        }
    }
}

/// Runs application or provider code until the code has ended. If the code panics, logs the panic.
async fn survive(what: &'static str, code: impl Future<Output = ()>) {
    if let Err(words) = contained_async(code).await {
        tracing::error!(what, words, "code outside the crate panicked");
    }
}

/// Returns the error of an agent that did not end within `limit`, while these aborted tools still run.
fn cut_off(limit: Duration, tools: &[ToolUse]) -> Error {
    if tools.is_empty() {
        let text = format!("the agent did not end within the deadline of {limit:?} and was cut off");
        return Error::new(ErrorKind::Deadline, text).with_member("deadline", limit);
    }
    tracing::warn!(?tools, ?limit, "aborted tools still run after the end of their agent");
    let named: Vec<_> = tools.iter().map(|tool| format!("{} ({})", tool.name, tool.id)).collect();
    let text = format!(
        "aborted tools still run after the deadline of {limit:?}: {}; a tool can only be aborted where it awaits",
        named.join(", ")
    );
    let list = |tool: &ToolUse| serde_json::json!({ "id": tool.id, "name": tool.name });
    let error = Error::new(ErrorKind::Deadline, text).with_member("deadline", limit);
    error.with_member("tools", tools.iter().map(list).collect::<Vec<_>>())
}
