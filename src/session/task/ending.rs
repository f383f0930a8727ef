//! The end of a session: in order, with a deadline, and with nobody left waiting.

use std::sync::Arc;

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{Task, writing};
use crate::{
    agent::{Agent, Snapshot, Status},
    session::{
        SessionError,
        command::{Command, Stop, Unsaved},
    },
    subscription::{End, EndReason},
};

impl Task {
    /// Stops the agent, saves what is unsaved, and leaves the last snapshot behind.
    pub(super) async fn finish(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        reason: EndReason,
        stop: Option<Stop>,
    ) {
        self.shared.fate.close(reason.clone());
        let begun = Instant::now();
        let limit = stop.as_ref().map_or(self.shared.setup.end_timeout, |stop| stop.0);
        let mut deadline = begun.checked_add(limit);
        let mut waiting: Vec<Stop> = stop.into_iter().collect();
        let mut open = true;
        let mut orderly = Box::pin(self.wind_down(limit));
        loop {
            tokio::select! {
                biased;
                command = commands.recv(), if open => match command {
                    // Others who stop the session wait with the first, up to the nearest of their deadlines. Whoever
                    // wants anything else gets no answer but the end.
                    Some(Command::Stop(stop)) => {
                        let other = Instant::now().checked_add(stop.0);
                        deadline = [deadline, other].into_iter().flatten().min();
                        waiting.push(stop);
                    }
                    Some(other) => drop(other),
                    None => open = false,
                },
                () = &mut orderly => break,
                () = sleep_until(deadline.unwrap_or(begun)), if deadline.is_some() => break,
            }
        }
        drop(orderly);

        let snapshot = Arc::new(self.last_snapshot());
        let unsaved = self.unsaved();
        if let (Some(Unsaved { nodes, error }), []) = (&unsaved, &*waiting) {
            tracing::error!(id = %self.shared.id, nodes, error, %reason, "a session ended and was not all saved");
        }
        self.shared.fate.seal(End { reason, snapshot: Some(snapshot) });
        // Subscribers learn of the end before those who stopped the session go on.
        drop(self);
        for stop in waiting {
            let (waited, reply) = *stop;
            let _ = reply.send(match &unsaved {
                None => Ok(()),
                Some(Unsaved { nodes, error }) => {
                    Err(SessionError::Unsaved { nodes: *nodes, waited, error: error.clone() })
                }
            });
        }
    }

    /// Ends the agent, takes its last events, and saves.
    async fn wind_down(&mut self, limit: std::time::Duration) {
        let agent: Agent = self.agent.clone();
        let mut stopping = Box::pin(async move {
            // That it was cut off is in the log of its callbacks; it has ended.
            let _ = agent.stop(limit).await;
        });
        let mut stopped = false;
        let mut heard_out = false;
        // Saving goes on while `terminate` does, repetitions included.
        while !heard_out || !self.core.is_lost() && !self.is_saved() {
            tokio::select! {
                biased;
                delivery = self.deliveries.recv(), if !heard_out => {
                    if let Some(delivery) = delivery {
                        self.take(*delivery);
                    } else {
                        heard_out = true;
                        self.step(|core, _, effects| core.agent_ended(effects));
                        self.save();
                    }
                }
                outcome = writing::outcome(&mut self.write) => self.written(outcome),
                () = super::passed(&mut self.retry) => self.save(),
                () = &mut stopping, if !stopped => stopped = true,
            }
        }
    }

    /// All there is to know at the end.
    fn last_snapshot(&self) -> crate::session::SessionSnapshot {
        let left = self.agent.end().and_then(|end| end.snapshot);
        let agent = match left {
            Some(snapshot) => Snapshot::clone(&snapshot),
            // It was killed, or does not end.
            None => Snapshot {
                last: self.core.seen(),
                state: self.core.config().view(self.core.tree().history().clone()),
                status: Status::Idle,
                step: 0,
                pending: Vec::new(),
                partial: Vec::new(),
                pause: None,
                staged: None,
            },
        };
        self.snapshot_with(agent)
    }
}
