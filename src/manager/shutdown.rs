//! Ends a manager with all its sessions.

use std::{collections::BTreeMap, time::Duration};

use super::{Manager, closing::Ending};
use crate::{
    run::{Error, ErrorKind},
    session::Session,
    store::ConversationId,
};

impl Manager {
    /// Shuts the manager down and ends all sessions.
    ///
    /// As soon as the call starts, no more conversations are opened and prompts are refused. Active runs may continue
    /// for the [grace period](Shutdown::with_grace), and are interrupted after it. Each session may then use the time
    /// up to the [deadline](Shutdown::within) to finish the title that is being generated for it and to save its
    /// changes. Openings are given up, also those of a [sweep](super::ManagerBuilder::sweep), and the call waits until
    /// their leases are released. A second shutdown succeeds. If a [`Duration`] is given instead of a [`Shutdown`], it is
    /// the deadline, and there is no grace period.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::EndedIncomplete`] lists the sessions that are not completely saved or whose aborted tools are
    /// still running. All sessions are closed in any case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some sessions may remain open, but they refuse prompts. Call `shutdown` again to end
    /// them.
    pub async fn shutdown(&self, limits: impl Into<Shutdown>) -> Result<(), Error> {
        self.end_with(limits.into(), Ending::Stop).await
    }

    /// Shuts the manager down like [`shutdown`](Self::shutdown), and leaves turns in flight to the next owners of their
    /// conversations, for example when a new version of a service is deployed.
    ///
    /// In a session with a level above [`Durable::Turns`](crate::agent::Durable::Turns), a run gets the grace period to
    /// end or to pause. After it, the session records its turn and ends its requests and tools. Another manager
    /// continues the turn when it opens the conversation, for instance in its next
    /// [sweep](super::ManagerBuilder::sweep). The restart does not count as a crash. If the turn can't be recorded before
    /// the deadline, it continues from its last record. The runs of other sessions are interrupted, as by `shutdown`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    ///
    /// As for [`shutdown`](Self::shutdown). A later call of either method ends the remaining sessions.
    pub async fn hand_over(&self, limits: impl Into<Shutdown>) -> Result<(), Error> {
        self.end_with(limits.into(), Ending::HandOver).await
    }

    async fn end_with(&self, limits: Shutdown, ending: Ending) -> Result<(), Error> {
        let Shutdown { grace, deadline } = limits;
        let inner = &self.0;
        inner.registry().is_shut = true;
        inner.shutting.cancel();
        let begun = tokio::time::Instant::now();
        let mut failed = Vec::new();
        loop {
            let (sessions, claims) = {
                let registry = inner.registry();
                (registry.sessions(), registry.claims())
            };
            sessions.iter().for_each(Session::drain);
            if sessions.is_empty() && claims.is_empty() {
                break;
            }
            failed.extend(inner.end_all(sessions, begun, limits, ending).await);
            // Also wait until no session is being opened or closed, but not beyond the deadline, because a store may
            // hang.
            let left = grace.saturating_add(deadline).saturating_sub(begun.elapsed());
            let claims = async {
                for claim in &claims {
                    claim.cancelled().await;
                }
            };
            if tokio::time::timeout(left, claims).await.is_err() && inner.registry().sessions().is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
        // An opening that was given up may still get its lease from the store, and then releases it. The process may
        // exit after this call, so wait for the release.
        let left = grace.saturating_add(deadline).saturating_sub(begun.elapsed());
        let _ = tokio::time::timeout(left, inner.setup.all_released()).await;
        inner.registry().finish();
        if failed.is_empty() {
            return Ok(());
        }
        let mut named: Vec<_> =
            failed.iter().take(NAMED).map(|(id, error)| format!("{id}: {error}")).collect();
        if failed.len() > NAMED {
            named.push(format!("and {} more", failed.len() - NAMED));
        }
        let text =
            format!("{} of the sessions could not be ended completely: {}", failed.len(), named.join("; "));
        let sessions: BTreeMap<_, _> = failed.into_iter().collect();
        Err(Error::new(ErrorKind::EndedIncomplete, text).with_member("sessions", sessions))
    }
}

/// The number of sessions that the error of a shutdown names in its text.
const NAMED: usize = 3;

impl Error {
    /// Returns the sessions that a shutdown [could not end completely](ErrorKind::EndedIncomplete), with their errors,
    /// which have kinds, texts and members, but no causes.
    pub fn sessions(&self) -> Vec<(ConversationId, Self)> {
        self.typed::<BTreeMap<_, _>>("sessions").into_iter().flatten().collect()
    }
}

/// The time limits of a [shutdown](Manager::shutdown) or a [hand-over](Manager::hand_over).
///
/// ```
/// use std::{collections::BTreeMap, time::Duration};
/// use omni_agent::manager::Shutdown;
///
/// let limits = Shutdown::within(Duration::from_secs(10)).with_grace(Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    pub(super) grace: Duration,
    pub(super) deadline: Duration,
}

impl Shutdown {
    /// Returns limits without a grace period: runs end at once, and each session has the time `deadline` to save its
    /// changes.
    pub fn within(deadline: Duration) -> Self {
        Self { grace: Duration::ZERO, deadline }
    }

    /// Returns the same limits with a grace period: active runs have the time `grace` to finish before they are ended.
    /// The time of the deadline begins after the grace period.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }
}

impl From<Duration> for Shutdown {
    fn from(deadline: Duration) -> Self {
        Self::within(deadline)
    }
}
