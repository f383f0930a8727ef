//! The end of a session: in order, with a deadline, and with nobody left waiting.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{Task, writing};
use crate::{
    agent::{Agent, Snapshot, Status},
    session::command::{Command, Stop, Unsaved},
    subscription::{End, EndReason},
};

/// How long an agent may take to be cut off.
const CUTTING_OFF: Duration = Duration::from_millis(100);

impl Task {
    /// Stops the agent, saves what is unsaved, and leaves the last snapshot behind.
    pub(super) async fn finish(
        mut self: Box<Self>,
        mut commands: mpsc::Receiver<Box<Command>>,
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
                    Some(command) => {
                        if let Command::Stop(stop) = *command {
                            let other = Instant::now().checked_add(stop.0);
                            deadline = [deadline, other].into_iter().flatten().min();
                            waiting.retain(|(_, reply)| !reply.is_closed());
                            waiting.push(stop);
                        }
                    }
                    None => open = false,
                },
                () = &mut orderly => break,
                () = sleep_until(deadline.unwrap_or(begun)), if deadline.is_some() => break,
            }
        }
        drop(orderly);
        // An agent that is cut off goes at once, unless its callbacks hold up their thread: whoever loads the conversation
        // next is not to meet it.
        let _ = timeout(CUTTING_OFF, self.agent.stop(Duration::ZERO)).await;
        // What is there already takes no time.
        while let Some(Some(delivery)) = self.deliveries.next().now_or_never() {
            self.take(delivery);
        }

        if let Some(tenure) = self.tenure.take() {
            let left = deadline.map_or(limit, |deadline| deadline.saturating_duration_since(Instant::now()));
            // Whoever opens the conversation elsewhere need not wait for the lease to run out.
            let _ = timeout(left.max(CUTTING_OFF), tenure.end()).await;
        }

        // What was cut off leaves no half of a branch behind.
        self.step(|core, _, effects| core.agent_ended(effects));
        let snapshot = Arc::new(self.last_snapshot());
        let unsaved = self.unsaved().or_else(|| self.missed());
        if let (Some(Unsaved { nodes, error }), []) = (&unsaved, &*waiting) {
            tracing::error!(id = %self.shared.id, nodes, error, %reason, "a session ended and was not all saved");
        }
        if let Some(unsaved) = &unsaved {
            // Nobody else sets it.
            let _ = self.shared.left_unsaved.set(Box::new(unsaved.clone()));
        }
        self.shared.fate.seal(End { reason, snapshot: Some(snapshot) });
        // Subscribers learn of the end before those who stopped the session go on.
        drop(self);
        for stop in waiting {
            let (waited, reply) = stop;
            let _ = reply.send(match &unsaved {
                None => Ok(()),
                Some(unsaved) => Err(unsaved.clone().after(waited)),
            });
        }
    }

    /// Ends the agent, takes its last events, and saves.
    async fn wind_down(&mut self, limit: Duration) {
        let agent: Agent = self.agent.clone();
        let mut stopping = Box::pin(async move {
            // That it was cut off is in the log of its callbacks; it has ended.
            let _ = agent.stop(limit).await;
        });
        let mut stopped = false;
        let mut heard_out = false;
        // The agent may take all the time there is: saving goes on meanwhile, repetitions included.
        self.save();
        while !heard_out || !self.core.is_lost() && !self.is_saved() {
            tokio::select! {
                biased;
                delivery = self.deliveries.next(), if !heard_out => {
                    if let Some(delivery) = delivery {
                        self.take(delivery);
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

    /// That it is not known what the agent had to tell yet: it was busy, and cut off. A turn may have been complete.
    fn missed(&self) -> Option<Unsaved> {
        let last = self.agent.end().and_then(|end| end.snapshot).map(|snapshot| snapshot.last.number);
        let knows_all = match last {
            Some(last) => last == self.core.seen().number,
            None => self.core.status() == Status::Idle,
        };
        let error = "the deadline passed before the agent had told all".to_owned();
        if knows_all { None } else { Some(Unsaved { nodes: 0, error: Some(error) }) }
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
