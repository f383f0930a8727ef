use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use futures_core::Stream;
use tokio::sync::mpsc;

use super::{
    SessionError, SessionEvent, SessionSnapshot, WeakSession, command::Command, task::SessionShared,
};
use crate::{
    actor,
    agent::TextDeltas,
    subscription::{EventId, Subscription, Update},
};

/// Whether a subscriber keeps its session alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It does, as long as it is there: somebody works with the session.
    #[default]
    Controller,
    /// It does not: somebody watches.
    Observer,
}

/// A snapshot of a session and the events that follow it, and the guard of the subscriber's [`Mode`]: dropping it
/// unsubscribes. It is a [`Stream`] of updates too.
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
#[must_use = "a subscriber that is dropped has left, and a session without controllers may end"]
pub struct SessionSubscription {
    events: Subscription<SessionSnapshot, SessionEvent>,
    guard: Guard,
}

impl SessionSubscription {
    pub(super) fn new(events: Subscription<SessionSnapshot, SessionEvent>, guard: Guard) -> Self {
        Self { events, guard }
    }

    /// The truth at the start. `None` if the subscription was resumed from an event: what is missed comes as updates
    /// then.
    pub fn snapshot(&self) -> Option<&Arc<SessionSnapshot>> {
        self.events.snapshot()
    }

    /// The id of the last event that this reader has seen, in an update or as part of a snapshot; see
    /// [`Subscription::last_id`].
    pub fn last_id(&self) -> EventId {
        self.events.last_id()
    }

    /// The next update; `None` after [`Update::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no update.
    pub async fn next(&mut self) -> Option<Update<SessionSnapshot, SessionEvent>> {
        self.events.next().await
    }

    /// Whether the subscriber keeps the session alive.
    pub fn mode(&self) -> Mode {
        self.guard.mode()
    }

    /// Changes whether the subscriber keeps the session alive: see [`Guard::set_mode`].
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`] if the session has ended, or is ending.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the mode as it was.
    pub async fn set_mode(&mut self, mode: Mode) -> Result<(), SessionError> {
        self.guard.set_mode(mode).await
    }

    /// The events and the guard apart, to hand the events to somebody else.
    pub fn into_parts(self) -> (Subscription<SessionSnapshot, SessionEvent>, Guard) {
        (self.events, self.guard)
    }

    /// Returns the text of the turn in flight or of the next turn, in pieces. See [`TextDeltas`].
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

impl fmt::Debug for SessionSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionSubscription")
            .field("events", &self.events)
            .field("guard", &self.guard)
            .finish()
    }
}

/// Keeps a session alive as a [`Mode::Controller`], or stands by as an observer. The last controller that goes starts the
/// session's idle shutdown.
#[must_use = "a controller that is dropped has left, and a session without controllers may end"]
pub struct Guard {
    session: WeakSession,
    /// What keeps the session alive, for a controller.
    hold: Option<Hold>,
}

/// Counts a controller, for as long as it is there.
pub(super) struct Hold {
    shared: Arc<SessionShared>,
    /// Dropped after the count, so that the session does not end for want of handles with a controller counted.
    commands: mpsc::Sender<Box<Command>>,
}

impl Hold {
    pub(super) fn new(shared: Arc<SessionShared>, commands: mpsc::Sender<Box<Command>>) -> Self {
        shared.controllers.fetch_add(1, Ordering::AcqRel);
        Self { shared, commands }
    }

    /// Waits until the session has answered. Then it has seen this controller, and does not end for want of one.
    pub(super) async fn confirm(&self) -> Result<(), SessionError> {
        match actor::call(&self.commands, |reply| Box::new(Command::Title(reply))).await {
            Some(_) => Ok(()),
            None => Err(SessionError::Ended(self.shared.termination.closed().await)),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.shared.controllers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.left.give();
        }
    }
}

impl Guard {
    pub(super) fn new(session: WeakSession, hold: Option<Hold>) -> Self {
        Self { session, hold }
    }

    /// Whether the subscriber keeps the session alive.
    pub fn mode(&self) -> Mode {
        if self.hold.is_some() { Mode::Controller } else { Mode::Observer }
    }

    /// Changes whether the subscriber keeps the session alive. For a new controller, the session confirms that it stays: it
    /// may be shutting down because nobody kept it alive.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`] if the session has ended, or is ending. The subscriber stays an observer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the mode as it was.
    pub async fn set_mode(&mut self, mode: Mode) -> Result<(), SessionError> {
        match mode {
            Mode::Observer => self.hold = None,
            Mode::Controller if self.hold.is_some() => {}
            Mode::Controller => self.hold = Some(self.session.confirmed_hold().await?),
        }
        Ok(())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("mode", &self.mode()).finish_non_exhaustive()
    }
}
