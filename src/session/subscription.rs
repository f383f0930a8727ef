use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::sync::mpsc;

use super::{
    SessionEvent, SessionSnapshot, WeakSession, command::SessionTaskCommand, shared::SessionShared,
    tail::LastMessagesFilter,
};
use crate::{
    actor,
    agent::TextDeltas,
    run::Error,
    subscription::{EventId, Subscription, Update},
};

/// Whether a subscriber keeps its session open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// The subscriber keeps the session open. For clients that act on the session.
    #[default]
    Controller,
    /// The subscriber does not keep the session open. For clients that only watch.
    Observer,
}

/// A snapshot of a session, the events that follow the snapshot, and the subscriber's [`Guard`], which determines the
/// [`Mode`].
///
/// The subscription ends when it is dropped. A subscription is also a [`Stream`] of updates.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use omni_agent::agent::{Agent, Event, Status};
/// use omni_agent::session::{Mode, Session, SessionEvent};
/// use omni_agent::store::MemoryStore;
/// use omni_agent::subscription::Update;
/// use omni_agent::testing::{ScriptedProvider, Step};
///
/// let provider = ScriptedProvider::new([Step::text("Hello!")]);
/// let agent = Agent::builder().model(provider.model());
/// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
/// let mut events = session.subscribe(Mode::Controller).await?;
/// session.prompt("Hi").await?;
/// while let Some(update) = events.next().await {
///     match update {
///         Update::Event(numbered) => match &*numbered.event {
///             SessionEvent::Agent(event) => match &**event {
///                 Event::TextDelta { delta, .. } => print!("{delta}"),
///                 Event::Error { failure, .. } => return Err(failure.clone().into()),
///                 Event::Cancelled { .. } => return Err("the run was cancelled".into()),
///                 _ => {}
///             },
///             // The turn is part of the tree.
///             SessionEvent::Tree(_) => break,
///             _ => {}
///         },
///         // This reader was too slow. The snapshot replaces the events that it missed.
///         Update::Resync(snapshot) => {
///             println!("{}", snapshot.tree);
///             if snapshot.agent.status == Status::Idle {
///                 break;
///             }
///         }
///         Update::Closed(end) => return Err(end.reason.into()),
///         _ => {}
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping it unsubscribes, and a session without controllers may end"]
pub struct SessionSubscription {
    events: Subscription<SessionSnapshot, SessionEvent>,
    guard: Guard,
}

impl SessionSubscription {
    pub(super) fn new(events: Subscription<SessionSnapshot, SessionEvent>, guard: Guard) -> Self {
        Self { events, guard }
    }

    /// Turns a subscription that was not read yet into one to the last messages of the path.
    pub(crate) fn into_tail(self, limit: usize) -> Self {
        let mut tail = LastMessagesFilter::new(limit);
        Self { events: self.events.filtered(Box::new(move |update| tail.seen(update))), ..self }
    }

    /// Returns the snapshot at the start of the subscription, or `None` if the subscription was resumed after an event.
    /// A resumed subscription receives the missed events as updates.
    pub fn snapshot(&self) -> Option<&Arc<SessionSnapshot>> {
        self.events.snapshot()
    }

    /// Returns the id of the last event that this reader has seen, either in an update or as part of a snapshot. See
    /// [`Subscription::last_id`].
    pub fn last_id(&self) -> EventId {
        self.events.last_id()
    }

    /// Returns the next update, or `None` after [`Update::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no update.
    pub async fn next(&mut self) -> Option<Update<SessionSnapshot, SessionEvent>> {
        self.events.next().await
    }

    /// Returns whether the subscriber keeps the session open.
    pub fn mode(&self) -> Mode {
        self.guard.mode()
    }

    /// Changes whether the subscriber keeps the session open: see [`Guard::set_mode`].
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session has ended or is ending.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the mode stays as it was.
    pub async fn set_mode(&mut self, mode: Mode) -> Result<(), Error> {
        self.guard.set_mode(mode).await
    }

    /// Splits the subscription, so that the events and the guard can be held in different places.
    pub fn into_parts(self) -> (Subscription<SessionSnapshot, SessionEvent>, Guard) {
        (self.events, self.guard)
    }

    /// Returns the text of the turn in flight in pieces. If no turn is in flight, returns the text of the next turn.
    /// See [`TextDeltas`].
    pub fn text_deltas(&mut self) -> TextDeltas<'_> {
        let is_new = self.snapshot().is_some_and(|snapshot| snapshot.last == self.last_id());
        TextDeltas::new(&mut self.events, is_new, SessionEvent::agent, |snapshot| &snapshot.agent)
    }
}

impl Stream for SessionSubscription {
    type Item = Update<SessionSnapshot, SessionEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.events).poll_next(cx)
    }
}

crate::debug::impl_debug!(SessionSubscription(self) { events: self.events, guard: self.guard });

/// Keeps a session open while its mode is [`Mode::Controller`]. An observer's guard has no effect.
///
/// When the last controller is dropped, the idle time starts after which an idle session shuts down.
#[must_use = "dropping it releases the session, and a session without controllers may end"]
pub struct Guard {
    session: WeakSession,
    /// The hold that keeps the session open. Present for a controller only.
    hold: Option<ControllerHold>,
}

/// Counts as a controller of the session until it is dropped.
pub(super) struct ControllerHold {
    shared: Arc<SessionShared>,
    /// This handle is dropped only after the count is reduced. If it were dropped first, the session could end for lack
    /// of handles although a controller is still counted.
    commands: mpsc::Sender<Box<SessionTaskCommand>>,
}

impl ControllerHold {
    pub(super) fn new(shared: Arc<SessionShared>, commands: mpsc::Sender<Box<SessionTaskCommand>>) -> Self {
        shared.controllers.fetch_add(1, Ordering::AcqRel);
        Self { shared, commands }
    }

    /// Waits for a reply from the session. When the reply arrives, the session has seen this controller and no longer
    /// ends for lack of controllers.
    pub(super) async fn confirm(&self) -> Result<(), Error> {
        match actor::call(&self.commands, |reply| Box::new(SessionTaskCommand::Title(reply))).await {
            Some(_) => Ok(()),
            None => Err(Error::ended("session", &self.shared.termination.closed().await)),
        }
    }
}

impl Drop for ControllerHold {
    fn drop(&mut self) {
        if self.shared.controllers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.left.give();
        }
    }
}

impl Guard {
    pub(super) fn new(session: WeakSession, hold: Option<ControllerHold>) -> Self {
        Self { session, hold }
    }

    /// Returns whether the subscriber keeps the session open.
    pub fn mode(&self) -> Mode {
        if self.hold.is_some() { Mode::Controller } else { Mode::Observer }
    }

    /// Changes whether the subscriber keeps the session open.
    ///
    /// If the subscriber becomes a controller, waits until the session confirms that it stays open, because an idle
    /// shutdown may be in progress.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the session has ended or is ending. The subscriber
    /// stays an observer.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the mode stays as it was.
    pub async fn set_mode(&mut self, mode: Mode) -> Result<(), Error> {
        match mode {
            Mode::Observer => self.hold = None,
            Mode::Controller if self.hold.is_some() => {}
            Mode::Controller => self.hold = Some(self.session.confirmed_hold().await?),
        }
        Ok(())
    }
}

crate::debug::impl_debug!(Guard(self) { mode: self.mode(), .. });
