use std::{fmt, sync::Arc, time::Duration};

use crate::{
    agent::AgentBuilder,
    session::{Mode, Session, SessionBuilder, SessionSubscription},
};

/// How a session is started. Where one runs already, only the caller's own subscription is taken from it.
///
/// The store, the registry of models, and what is saved of a conversation are the manager's; all else is here.
#[must_use = "it does nothing by itself"]
pub struct OpenOptions {
    /// Boxed: what is moved from one future into the next adds up in the task that opens.
    pub(super) agent: Box<AgentBuilder>,
    pub(super) title: Option<Arc<str>>,
    pub(super) tenant: Option<Arc<str>>,
    pub(super) mode: Option<Mode>,
    idle_shutdown: IdleShutdown,
}

/// How long the session stays when nobody wants it.
enum IdleShutdown {
    /// As long as the manager's sessions do.
    Usual,
    /// So long, or for ever.
    After(Option<Duration>),
}

impl OpenOptions {
    /// A session with this agent, to which the caller subscribes as a controller. The manager's registry takes the place of
    /// the agent's.
    pub fn new(agent: AgentBuilder) -> Self {
        Self {
            agent: Box::new(agent),
            title: None,
            tenant: None,
            mode: Some(Mode::Controller),
            idle_shutdown: IdleShutdown::Usual,
        }
    }

    /// The title of a new conversation.
    pub fn title(mut self, title: impl Into<Arc<str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Whose session it is: those of one tenant share a limit of turns, if the manager has one for tenants.
    pub fn tenant(mut self, tenant: impl Into<Arc<str>>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// How long the session stays open while it is idle and has no controller, in place of the manager's time. `None` is for
    /// ever.
    pub fn idle_shutdown(mut self, after: Option<Duration>) -> Self {
        self.idle_shutdown = IdleShutdown::After(after);
        self
    }

    /// How the caller subscribes; `None` for not at all.
    pub fn subscribe(mut self, mode: Option<Mode>) -> Self {
        self.mode = mode;
        self
    }

    /// The session's settings, laid over the manager's.
    pub(super) fn set_up(self, session: SessionBuilder, usual: Option<Duration>) -> SessionBuilder {
        let mut session = session;
        if let Some(title) = self.title {
            session = session.title(title);
        }
        let after = match self.idle_shutdown {
            IdleShutdown::Usual => usual,
            IdleShutdown::After(after) => after,
        };
        if let Some(after) = after {
            session = session.idle_shutdown(after);
        }
        session.agent(*self.agent)
    }
}

impl From<AgentBuilder> for OpenOptions {
    fn from(agent: AgentBuilder) -> Self {
        Self::new(agent)
    }
}

impl fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenOptions")
            .field("agent", &self.agent)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A session that was opened or created.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenedSession {
    /// The session.
    pub session: Session,
    /// The caller's subscription, unless it wanted none.
    pub subscription: Option<SessionSubscription>,
    /// Whether it was started; else it was running already, and what it was to be started with was not used.
    pub started: bool,
}
