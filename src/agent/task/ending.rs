//! The end of an agent: in order, with a deadline, and with nobody left waiting.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use futures_util::FutureExt;
use tokio::{sync::mpsc, time::timeout};

use super::{Task, calls::words};
use crate::{
    agent::{
        AgentCallbacks, AgentError,
        command::{Command, Reply},
    },
    subscription::{End, EndReason},
};

type Stop = Box<(Duration, Reply<Result<(), AgentError>>)>;

impl Task {
    /// Cancels the turn in flight, lets `terminate` run, and leaves the last snapshot behind.
    pub(super) async fn finish(
        mut self,
        callbacks: &mut dyn AgentCallbacks,
        mut commands: mpsc::Receiver<Command>,
        reason: EndReason,
        stop: Option<Stop>,
    ) {
        // Nothing is left to be cancelled if the agent is idle.
        let _ = self.step(|core, env, effects| core.cancel(env, effects));
        self.work = None;
        self.idle_waiters.clear();
        let snapshot = Some(Arc::new(self.snapshot()));
        let _ = self.last_words.0.end.set(End { reason: reason.clone(), snapshot });

        let limit = stop.as_ref().map_or(self.setup.terminate_timeout, |stop| stop.0);
        let mut waiting: Vec<Stop> = stop.into_iter().collect();
        let state = self.state();
        let own = self.instance.take().and_then(|instance| instance.own);
        let orderly = async {
            poll_fn(|cx| self.poll_outbox(cx)).await;
            let terminate = std::panic::AssertUnwindSafe(callbacks.terminate(&reason, &state)).catch_unwind();
            if let Err(panic) = terminate.await {
                tracing::error!(words = words(&*panic), "terminate panicked");
            }
            if let Some(own) = own
                && let Err(panic) = std::panic::AssertUnwindSafe(own.close()).catch_unwind().await
            {
                tracing::error!(words = words(&*panic), "the provider panicked when it was closed");
            }
        };
        let mut orderly = Box::pin(timeout(limit, orderly));
        let in_time = poll_fn(|cx| {
            // Others who stop the agent wait with the first; whoever wants anything else gets no answer.
            while let Poll::Ready(Some(command)) = commands.poll_recv(cx) {
                if let Command::Stop(stop) = command {
                    waiting.push(stop);
                }
            }
            orderly.as_mut().poll(cx)
        })
        .await
        .is_ok();
        drop(orderly);
        // Subscribers learn of the end before those who stopped the agent go on.
        drop(self);
        for stop in waiting {
            let _ = stop.1.send(if in_time { Ok(()) } else { Err(AgentError::Deadline(limit)) });
        }
    }
}
