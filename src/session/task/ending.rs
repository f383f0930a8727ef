//! The end of a session: in order, with a deadline, and with nobody left waiting.

use std::sync::Arc;

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{Task, writing};
use crate::{
    agent::{Agent, Snapshot, Status},
    session::command::{Command, Stop, Unsaved},
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

        // What was cut off leaves no half of a branch behind.
        self.step(|core, _, effects| core.agent_ended(effects));
        let snapshot = Arc::new(self.last_snapshot());
        let unsaved = self.unsaved();
        if let (Some(Unsaved { nodes, error }), []) = (&unsaved, &*waiting) {
            tracing::error!(id = %self.shared.id, nodes, error, %reason, "a session ended and was not all saved");
        }
        if let Some(unsaved) = &unsaved {
            // Nobody else sets it.
            let _ = self.shared.left_unsaved.set(unsaved.clone());
        }
        self.shared.fate.seal(End { reason, snapshot: Some(snapshot) });
        // Subscribers learn of the end before those who stopped the session go on.
        drop(self);
        for stop in waiting {
            let (waited, reply) = *stop;
            let _ = reply.send(match &unsaved {
                None => Ok(()),
                Some(unsaved) => Err(unsaved.clone().after(waited)),
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
        // The agent may take all the time there is: what is to be saved does not wait for it.
        self.save();
        loop {
            tokio::select! {
                biased;
                delivery = self.deliveries.recv() => match delivery {
                    Some(delivery) => self.take(*delivery),
                    None => break,
                },
                outcome = writing::outcome(&mut self.write) => self.written(outcome),
                () = super::passed(&mut self.retry) => self.save(),
                () = &mut stopping, if !stopped => stopped = true,
            }
        }
        self.step(|core, _, effects| core.agent_ended(effects));
        self.save();
        while !self.core.is_lost() && !self.core.is_safe(self.core.wanted()) {
            tokio::select! {
                biased;
                outcome = writing::outcome(&mut self.write) => self.written(outcome),
                () = super::passed(&mut self.retry) => self.save(),
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
