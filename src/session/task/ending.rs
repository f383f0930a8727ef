//! Ends a session cleanly and before a deadline. Every waiting caller gets a reply.
//!
//! The order: commands that wait get the reason as an error, a turn that is left to the next owner is recorded, the
//! agent is stopped and its last events are processed, and saving continues meanwhile. All of it has one deadline,
//! after which the last snapshot is left to readers.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use tracing::Span;

use super::{SessionTask, leaving::TurnsToLeave, writing};
use crate::{
    actor::passed,
    agent::{Agent, AgentStopTurnPolicy, Snapshot, Status},
    session::{
        command::{SessionTaskCommand, StopSessionCommand, UnsavedChangesReport},
        core::SessionCore,
    },
    store::Lease,
    subscription::{End, EndReason, EventId},
};

/// The maximum time for aborting an agent, and the minimum time for releasing the conversation.
const CUTTING_OFF: Duration = Duration::from_millis(100);

impl SessionTask {
    /// Stops the agent, saves all changes, releases the conversation, and keeps the last snapshot for readers. If the
    /// session ends because its handles were dropped, or if `stop` requests it, leaves the turn in flight to the next
    /// owner of the conversation.
    pub(super) async fn finish(
        mut self: Box<Self>,
        mut commands: mpsc::Receiver<Box<SessionTaskCommand>>,
        reason: EndReason,
        stop: Option<StopSessionCommand>,
    ) {
        self.shared.termination.close(reason.clone());
        let limit = stop.as_ref().map_or(self.shared.setup.end_timeout, |stop| stop.deadline);
        self.ends_by = Instant::now().checked_add(limit);
        let in_flight = match stop.as_ref().map(|stop| stop.in_flight).unwrap_or_default() {
            AgentStopTurnPolicy::Leave => self.leave_turn(TurnsToLeave::All).await,
            AgentStopTurnPolicy::Keep if reason == EndReason::HandlesDropped => {
                self.leave_turn(TurnsToLeave::Paused).await
            }
            in_flight => in_flight,
        };
        // Another owner continues the recorded turn, and repeats its calls.
        let is_continued = self.core.is_lost() && self.core.is_recorded();
        let in_flight = if is_continued { AgentStopTurnPolicy::Leave } else { in_flight };
        let mut waiting: Vec<StopSessionCommand> = stop.into_iter().collect();
        self.wind_down(&mut commands, &mut waiting, limit, in_flight).await;
        // Abort the agent if it is still running. It ends at once, unless its callbacks block their thread. The agent
        // must have ended before the next session of this conversation starts.
        let cut_off = match timeout(CUTTING_OFF, self.agent.end_within(Duration::ZERO, in_flight)).await {
            // If `terminate` was aborted, the agent has already logged that. Only tools that are still running are
            // reported.
            Ok(Err(error)) if error.member("tools").is_some() => Some(error),
            _ => None,
        };
        // Some events of the agent may still be in the channel, so process them.
        while let Some(Some(delivery)) = self.deliveries.next().now_or_never() {
            self.take(delivery);
        }

        // If the run was aborted, its uncommitted branch must be removed, unless the turn is recorded.
        self.step(|core, _, effects| core.agent_ended(effects));
        let left = self.left_of(limit);
        let _ = timeout(left.max(CUTTING_OFF), self.release()).await;
        let snapshot = Arc::new(self.last_snapshot());
        let unsaved = self.unsaved().or_else(|| self.missed());
        if let (Some(UnsavedChangesReport { nodes, error }), []) = (&unsaved, &*waiting) {
            tracing::error!(id = %self.shared.id, nodes, error, %reason, "a session ended with unsaved changes");
        }
        if let Some(unsaved) = &unsaved {
            // `set` always succeeds, because the cell is set only here.
            let _ = self.shared.left_unsaved.set(Box::new(unsaved.clone()));
        }
        if let Some(error) = &cut_off {
            // `set` always succeeds, because the cell is set only here.
            let _ = self.shared.left_running.set(error.clone());
        }
        self.shared.termination.seal(End { reason, snapshot: Some(snapshot) });
        // The task is dropped first, so that subscribers see the end before the callers of `stop` continue.
        drop(self);
        for stop in waiting {
            let _ = stop.reply.send(match &unsaved {
                None => cut_off.clone().map_or(Ok(()), Err),
                Some(unsaved) => Err(unsaved.clone().after(stop.deadline)),
            });
        }
    }

    /// Returns the time until the deadline of the end. `limit` is the time from the begin of the end to the deadline.
    fn left_of(&self, limit: Duration) -> Duration {
        self.ends_by.map_or(limit, |ends_by| ends_by.saturating_duration_since(Instant::now()))
    }

    /// Ends the agent, processes its last events and saves all changes. Returns when everything is done or the deadline
    /// has passed.
    async fn wind_down(
        &mut self,
        commands: &mut mpsc::Receiver<Box<SessionTaskCommand>>,
        waiting: &mut Vec<StopSessionCommand>,
        limit: Duration,
        in_flight: AgentStopTurnPolicy,
    ) {
        let (agent, limit): (Agent, _) = (self.agent.clone(), self.left_of(limit));
        let mut stopping = Box::pin(async move {
            // The result is ignored: the agent has ended in any case, and if its callbacks were aborted, the agent logs
            // that itself.
            let _ = agent.end_within(limit, in_flight).await;
        });
        // The events of an agent whose turn is left have no end, so the session waits for the agent itself.
        let waits_for_agent = in_flight == AgentStopTurnPolicy::Leave;
        let (mut stopped, mut heard_out, mut open) = (false, false, true);
        let mut deadline = self.ends_by.map(|ends_by| Box::pin(sleep_until(ends_by)));
        // The agent may use all the remaining time. Meanwhile, the session continues to save and repeats failed writes.
        self.step(SessionCore::hurry);
        while !heard_out || waits_for_agent && !stopped || !self.core.is_lost() && !self.is_saved() {
            // Commands are polled last, so that many commands do not delay the end.
            tokio::select! {
                biased;
                // The agent gets the order to end before it learns of another write, so that it starts no tool that
                // would be cut off at once.
                () = &mut stopping, if !stopped => stopped = true,
                delivery = self.deliveries.next(), if !heard_out => {
                    if let Some(delivery) = delivery {
                        self.take(delivery);
                    } else {
                        heard_out = true;
                        self.step(|core, env, effects| {
                            core.agent_ended(effects);
                            core.save(env, effects);
                        });
                    }
                }
                outcome = self.attempts.outcome() => self.written(outcome),
                () = passed(&mut self.retry) => self.retry(),
                () = passed(&mut deadline) => break,
                command = commands.recv(), if open => match command {
                    // Further calls of `stop` wait together with the first call, and the nearest of their deadlines
                    // applies. All other commands are answered with the reason of the end.
                    Some(command) => {
                        if let SessionTaskCommand::Stop(stop) = *command {
                            let other = Instant::now().checked_add(stop.deadline);
                            if let Some(other) = other.filter(|other| self.ends_by.is_none_or(|by| *other < by)) {
                                self.ends_by = Some(other);
                                deadline = Some(Box::pin(sleep_until(other)));
                                self.step(SessionCore::hurry);
                            }
                            waiting.retain(|stop| !stop.reply.is_closed());
                            waiting.push(stop);
                        }
                    }
                    None => open = false,
                },
            }
        }
    }

    /// Releases the conversation before its lease expires, so that it can be opened elsewhere, and records the last
    /// event of the feed.
    async fn release(&mut self) {
        if self.core.leaves_turn() {
            self.mark_handed_over().await;
        }
        let mark = self.final_mark().await;
        if let Some(tenure) = self.tenure.take() {
            tenure.end(mark).await;
        } else if mark.is_some() {
            let (store, id) = (Arc::clone(&self.store), self.shared.id.clone());
            let released = writing::contained(Span::none(), async move {
                store.release(&id, &Lease::unlimited(), mark).await
            });
            // A failure is ignored: the mark is then missing, and readers get a snapshot.
            let _ = released.await;
        }
    }

    /// Returns the event after which readers can continue in the next life, if there were readers and the store has the
    /// state after this event. It is the last event of the feed or, if this life has emitted no event, the event from
    /// which readers could continue in this life. If `None`, readers need a snapshot.
    async fn final_mark(&mut self) -> Option<EventId> {
        if !self.feed.is_listened_to() || !self.is_saved() || self.core.is_lost() || self.missed().is_some() {
            return None;
        }
        let (store, id) = (Arc::clone(&self.store), self.shared.id.clone());
        // Another writer may have renamed the conversation, so compare the versions.
        let stored = writing::contained(Span::none(), async move { store.summary(&id).await }).await.ok()?;
        let last = self.feed.last();
        let continued = self.mark.as_ref().filter(|_| last.number == 0);
        (self.core.version() == Some(stored.version)).then(|| continued.map_or(last, |mark| *mark))
    }

    /// Returns an error if events of the agent are missing because a busy agent was aborted or could not end. The missing
    /// events may include those of a complete turn.
    fn missed(&self) -> Option<UnsavedChangesReport> {
        let last = self.agent.end().and_then(|end| end.snapshot).map(|snapshot| snapshot.last.number);
        let knows_all = match last {
            _ if self.core.leaves_turn() => true,
            Some(last) => last == self.core.seen().number,
            None => self.core.status() == Status::Idle,
        };
        let error =
            "the deadline passed before all events of the agent arrived; the last turn may be missing"
                .to_owned();
        if knows_all { None } else { Some(UnsavedChangesReport { nodes: 0, error: Some(error) }) }
    }

    /// Returns the session's last snapshot.
    fn last_snapshot(&self) -> crate::session::SessionSnapshot {
        let left = self.agent.end().and_then(|end| end.snapshot);
        let agent = match left {
            Some(snapshot) => Snapshot::clone(&snapshot),
            // The agent left no snapshot, because it was killed or has not ended.
            None => Snapshot {
                last: self.core.seen(),
                state: self.core.config().view(self.core.tree().history().clone()),
                status: Status::Idle,
                step: 0,
                compacting: None,
                pending: Vec::new(),
                partial: Vec::new(),
                run: 0,
                first_turn: None,
                turn: None,
                answer: None,
                pauses: Vec::new(),
                tools: Vec::new(),
                decisions: Vec::new(),
                budget: None,
                // Nothing ended the run of a prompt in flight, so readers must not take it for ended.
                prompts: self.core.known_prompts().to_vec(),
                staged: Vec::new(),
                last_run: None,
            },
        };
        self.snapshot_with(agent)
    }
}
