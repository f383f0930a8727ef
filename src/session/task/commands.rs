//! Executes the commands that handles send.

use std::time::Duration;

use tokio::sync::oneshot;

use super::{
    SessionExit, SessionTask,
    replies::{CallWaitingForStore, ReplyAfterStore},
};
use crate::{
    agent::{Durable, Status},
    run::{Error, ErrorKind, RunSpec},
    session::{
        SessionEvent, SessionSnapshot, StoreReport,
        command::{
            SessionCommandResult, SessionTaskCommand, StartedRun, StopSessionCommand, UnsavedChangesReport,
        },
        core::{HistoryReplacement, PathMove, SessionCore},
        error::{of_agent, unknown_node},
    },
    store::TitleBy,
    subscription::{EndReason, EventId, SubscriptionStart},
    telemetry::CallerSpan,
    tree::NodeId,
};

impl SessionTask {
    /// Executes a command. Before most commands, the session first processes the events that the agent has emitted so
    /// far.
    ///
    /// If the agent has ended, the session also ends at once, and all commands are answered with the reason of the end.
    /// The commands are not executed first, because the agent's `terminate` may run for a while and may itself wait for
    /// a reply of the session.
    pub(super) async fn serve(&mut self, command: Box<SessionTaskCommand>) -> Option<SessionExit> {
        match self.answer(command).await {
            Ok(()) => None,
            Err(CommandLoopEnd::Stopped(stop)) => Some((EndReason::Stopped, Some(stop))),
            Err(CommandLoopEnd::AgentEnded) => Some((EndReason::AgentEnded, None)),
            Err(CommandLoopEnd::Unwanted) => Some((EndReason::Idle, None)),
        }
    }

    async fn answer(&mut self, command: Box<SessionTaskCommand>) -> Result<(), CommandLoopEnd> {
        if self.agent.end().is_some() && !matches!(*command, SessionTaskCommand::Stop(_)) {
            return Err(CommandLoopEnd::AgentEnded);
        }
        // Sending a reply fails if its caller no longer waits. That is not an error.
        // The futures of rare commands are boxed, because this future is as large as its largest part.
        match *command {
            SessionTaskCommand::Stop(stop) => return Err(CommandLoopEnd::Stopped(stop)),
            SessionTaskCommand::Unsaved(reply) => {
                self.catch_up().await?;
                let _ = reply.send(self.unsaved());
            }
            SessionTaskCommand::Title(reply) => drop(reply.send(self.core.title().cloned())),
            SessionTaskCommand::SetTitle(title, reply) => {
                self.step(|core, env, effects| core.set_title(title, TitleBy::Person, env, effects));
                let _ = reply.send(());
            }
            SessionTaskCommand::Labels(reply) => drop(reply.send(self.core.labels().clone())),
            SessionTaskCommand::SetLabels(labels, reply) => {
                self.step(|core, env, effects| core.set_labels(labels, env, effects));
                let _ = reply.send(());
            }
            SessionTaskCommand::Store(reply) => {
                self.step(SessionCore::store);
                let wanted = if self.core.is_stored() { 0 } else { self.core.wanted() };
                self.flushes.push(CallWaitingForStore {
                    wanted,
                    until: None,
                    reply: ReplyAfterStore::Flushed(reply),
                });
                self.answer_flushes();
            }
            SessionTaskCommand::Spent(row, reply) => {
                self.step(|core, env, effects| core.spent(row, env, effects));
                let _ = reply.send(());
            }
            SessionTaskCommand::SuggestTitle(title, of, reply) => {
                let is_untitled = self.step(|core, env, effects| core.suggest_title(title, of, env, effects));
                let _ = reply.send(is_untitled);
            }
            SessionTaskCommand::Sleep(reply) => {
                let ends = self.can_sleep().await;
                if !ends {
                    self.refuse_sleep();
                }
                let _ = reply.send(ends);
                if ends {
                    return Err(CommandLoopEnd::Unwanted);
                }
            }
            SessionTaskCommand::Tree(reply) => {
                self.catch_up().await?;
                let _ = reply.send(self.core.tree().clone());
            }
            SessionTaskCommand::Snapshot(reply) => {
                let snapshot = self.snapshot().await?;
                let _ = reply.send(snapshot);
            }
            SessionTaskCommand::Subscribe(after, reply) => {
                if !reply.is_closed() {
                    let _ = reply.send(self.attach(after).await?);
                }
            }
            SessionTaskCommand::Flush(until, reply) => {
                self.catch_up().await?;
                self.flushes.retain(|flush| !flush.reply.is_closed());
                self.flushes.push(CallWaitingForStore {
                    wanted: self.core.wanted(),
                    until,
                    reply: ReplyAfterStore::Flushed(reply),
                });
                self.step(SessionCore::hurry);
                self.answer_flushes();
            }
            SessionTaskCommand::Outcome(id, reply) => Box::pin(self.await_outcome(id, reply)).await?,
            SessionTaskCommand::Begin(spec, caller, reply) => {
                let begun = Box::pin(self.begin(spec, caller)).await;
                match settled(begun)? {
                    Ok(begun) if self.shared.setup.durable == Durable::InFlight => {
                        // The agent's record of the turn has to arrive before the reply can wait until it is stored.
                        self.catch_up().await?;
                        let reply = ReplyAfterStore::Begun(reply, begun);
                        self.flushes.push(CallWaitingForStore {
                            wanted: self.core.wanted(),
                            until: None,
                            reply,
                        });
                        self.answer_flushes();
                    }
                    begun => drop(reply.send(begun)),
                }
            }
            SessionTaskCommand::Erase(node, reply) => {
                let erased = Box::pin(self.erase(node)).await;
                let _ = reply.send(settled(erased)?);
            }
            SessionTaskCommand::Navigate(node, reply) => {
                let moved = Box::pin(self.navigate(node)).await;
                let _ = reply.send(settled(moved)?);
            }
        }
        Ok(())
    }

    /// Starts a run on a new branch. If the caller waits for the response, also returns the receiver of the response.
    async fn begin(&mut self, spec: RunSpec, caller: CallerSpan) -> Result<StartedRun, Error> {
        loop {
            let at = self.catch_up_idle().await?;
            let (HistoryReplacement { history, then }, opening) =
                self.core.begin(spec.at, spec.prompt.clone())?;
            let (asker, response) = spec.wait.then(oneshot::channel).unzip();
            let begun = self.owner.begin(at, history, opening, asker, caller.clone()).await;
            if let Some(done) = self.follow(begun, then).await {
                return done.map(|turn| (turn, response));
            }
        }
    }

    async fn navigate(&mut self, node: Option<NodeId>) -> Result<(), Error> {
        loop {
            let at = self.catch_up_idle().await?;
            let Some(HistoryReplacement { history, then }) = self.core.navigate(node)? else {
                return Ok(());
            };
            let moved = self.owner.set(at, history).await.map(|with| (with, ()));
            if let Some(done) = self.follow(moved, then).await {
                return done;
            }
        }
    }

    /// Erases a node with all nodes below it from the agent's history, from the tree and from the events kept in
    /// memory, and starts to erase them from the store.
    async fn erase(&mut self, node: NodeId) -> Result<(), Error> {
        loop {
            let at = self.catch_up_idle().await?;
            if let Some(unsaved) = self.unsaved() {
                return Err(unsaved.after(Duration::ZERO));
            }
            let mut tree = self.core.tree().clone();
            let erased = tree.erase(node).map_err(|_| unknown_node(node))?;
            match self.owner.erase(at, tree.history().clone()).await {
                Ok(with) => {
                    // The earlier events may contain erased messages, so they are removed from memory. Readers that
                    // have seen all earlier events continue with the events of the erasure.
                    self.feed.forget();
                    self.take_until(with).await?;
                }
                Err(error) if error.kind() == ErrorKind::Conflict => continue,
                Err(error) => return Err(of_agent(error)),
            }
            self.step(|core, env, effects| core.erased(erased, env, effects));
            return Ok(());
        }
    }

    /// Processes the agent's events so far, and returns the id of the last event. Fails if the agent is then not idle.
    async fn catch_up_idle(&mut self) -> Result<Option<EventId>, Error> {
        match self.catch_up().await? {
            Status::Idle => Ok(Some(self.core.seen())),
            status => Err(Error::busy("session", status)),
        }
    }

    /// Completes a change of the path, after the agent's history was replaced: processes the agent's events up to the
    /// `state` event of this change, at which the session changes the tree's path. Returns `None` if the agent refused
    /// the change because it emitted another event first. The caller then has to start again.
    async fn follow<T>(
        &mut self,
        moved: Result<(EventId, T), Error>,
        then: PathMove,
    ) -> Option<Result<T, Error>> {
        let (with, result) = match moved {
            Ok(moved) => moved,
            Err(error) if error.kind() == ErrorKind::Conflict => return None,
            Err(error) => return Some(Err(of_agent(error))),
        };
        self.core.moved(with, then);
        Some(self.take_until(with).await.map(|()| result))
    }

    /// Returns the event after which a reader that has seen `after` continues: the beginning of this life if `after` is
    /// the last event of the previous life, otherwise `after` itself.
    fn continued(&self, after: EventId) -> EventId {
        let is_mark = self.mark.as_ref().is_some_and(|mark| *mark == after);
        if is_mark { EventId { number: 0, ..self.feed.last() } } else { after }
    }

    /// Returns the point in the stream of events at which a subscription begins: directly after `after` if all later
    /// events are still in memory, otherwise at the current event.
    async fn attach(
        &mut self,
        after: Option<EventId>,
    ) -> Result<SubscriptionStart<SessionSnapshot, SessionEvent>, Error> {
        let limits = self.shared.setup.feed_limits;
        if let Some(attachment) = after.and_then(|after| self.feed.replay(limits, self.continued(after))) {
            return Ok(attachment);
        }
        let snapshot = self.snapshot().await?;
        let attachment = self.feed.join(limits, snapshot);
        self.step(|core, _, effects| core.joined(effects));
        Ok(attachment)
    }

    /// Returns the changes that are not in the store, if there are any.
    pub(super) fn unsaved(&self) -> Option<UnsavedChangesReport> {
        if self.is_saved() {
            return None;
        }
        let error = self.core.report().and_then(StoreReport::error).map(str::to_owned);
        Some(UnsavedChangesReport { nodes: self.core.unsaved().len(), error })
    }
}

/// The reason why no more commands are executed.
enum CommandLoopEnd {
    Stopped(StopSessionCommand),
    AgentEnded,
    Unwanted,
}

impl From<Error> for CommandLoopEnd {
    /// A request from the session to its agent fails only if the agent has ended.
    fn from(_: Error) -> Self {
        Self::AgentEnded
    }
}

/// Returns `CommandLoopEnd` if the agent has ended. Passes on all other outcomes of a command.
fn settled<T>(moved: SessionCommandResult<T>) -> Result<SessionCommandResult<T>, CommandLoopEnd> {
    match moved {
        Err(error) if error.kind() == ErrorKind::Ended => Err(CommandLoopEnd::AgentEnded),
        other => Ok(other),
    }
}
