//! The readers of conversations, and the end of runs that nobody reads any more: see
//! [`WebBuilder::interrupt_when_left`](crate::web::WebBuilder::interrupt_when_left).
//!
//! `Web` owns a map of the conversations with an open stream of the AI SDK or of AG-UI. The key of an entry contains the
//! life of the session, so that a conversation that is opened again has a new entry. The states of an entry:
//!
//! - *Absent.* No stream is open.
//! - *Read.* One or more streams are open, such as those of two tabs. `started` lists the runs that they have started.
//!   A stream that ends together with its run removes its run from the list. If the last stream ends and the list is
//!   empty, the entry is *absent*. If the list is not empty, a stream has left its run, and the entry is *waiting*. The
//!   server can learn that a stream was left after the next post of the same principal has come. So a new post during an
//!   active run first waits for the end of the principal's other streams, at most [`LEAVING`].
//! - *Waiting.* No stream is open, and one task waits for the grace. A new stream stops the task, and the entry is *read*
//!   again with the same list. So a stream that only joins a run can leave it, too. After the grace, or as soon as the
//!   principal that has left posts something new, the entry is *ending*. If the session ends, the task stops: at a
//!   shutdown, at an eviction, and after a deletion. If the server itself has ended the last stream, the task only keeps
//!   the list until the client has joined again.
//! - *Ending.* The task unstages the prompts in the list, and interrupts the active run if it is in the list. This takes
//!   at most [`ENDING`], and new posts wait for it. Then the entry is *read* or *absent*.
//!
//! A [`WebRunReader`] counts one stream and is part of the response's body. A [`ReaderGraceTaskBody`] belongs to the task. Both change the
//! entry when they are dropped. So an entry disappears after a panic and at the end of the runtime, too. The task holds
//! only weak handles while it waits. At most one entry per open session waits, with one task.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    sync::oneshot::{self, error::TryRecvError},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    agent::{Snapshot, Status},
    run::{Error, PromptId, PromptState},
    session::{Session, SessionCommand, SessionSnapshot, SessionSubscription, WeakSession},
    store::ConversationId,
    sync::lock,
    time::NEVER,
    web::{Action, Principal, Problem, Web, WebShared, gate::WebRequest, requests::prompt_of},
};

/// The maximum time for the end of a run that nobody reads.
const ENDING: Duration = Duration::from_secs(5);

/// The maximum time from a new post to the moment at which the server knows that the client has left its older stream.
const LEAVING: Duration = Duration::from_secs(5);

/// The maximum number of runs in the list of an entry, without those that have ended. If there are more, the oldest one
/// is forgotten and continues.
const MAX_STARTED: usize = 256;

/// The conversation, and the life of its session.
type ConversationLifeKey = (ConversationId, u64);

/// The readers of all conversations.
#[derive(Debug, Default)]
pub(in crate::web) struct WebRunReaders {
    /// The time after which a run without readers ends. `None` if such runs continue.
    pub(in crate::web) grace: Option<Duration>,
    open: Mutex<HashMap<ConversationLifeKey, ConversationReaders>>,
}

/// The readers of a conversation.
#[derive(Debug, Default)]
struct ConversationReaders {
    /// The principals of the open streams, with tokens that are cancelled at the ends of the streams.
    streams: Vec<(Principal, CancellationToken)>,
    /// The runs that streams have started, except those that have ended together with their stream. Runs that have ended
    /// otherwise are removed when the next run is added.
    started: Vec<StreamStartedRun>,
    wait: Option<ReaderGraceTask>,
}

/// A run that a stream has started.
#[derive(Clone, Debug, PartialEq)]
enum StreamStartedRun {
    /// The run of this prompt, which may be staged first.
    Prompt(PromptId),
    /// The run with this number, until a prompt with an id starts a turn.
    Run(u32),
}

impl StreamStartedRun {
    /// Returns whether the run has ended.
    fn is_over(&self, agent: &Snapshot) -> bool {
        match self {
            Self::Prompt(id) => agent.prompts.iter().any(|known| {
                known.id == *id && matches!(known.state, PromptState::Ended { .. } | PromptState::Returned)
            }),
            Self::Run(run) => *run < agent.run,
        }
    }

    /// Returns whether the run is active.
    fn is_active(&self, agent: &Snapshot) -> bool {
        match self {
            Self::Prompt(id) => in_flight(agent).any(|other| other == id),
            // A prompt that was staged starts a turn in the same run, but the turn can belong to another principal.
            Self::Run(run) => *run == agent.run && in_flight(agent).next().is_none(),
        }
    }
}

/// Iterates over the prompts of the turn in flight.
fn in_flight(agent: &Snapshot) -> impl Iterator<Item = &PromptId> {
    let prompts = agent.prompts.iter().filter(|known| matches!(known.state, PromptState::InFlight { .. }));
    prompts.map(|known| &known.id)
}

/// The task that waits for the grace or ends the run.
#[derive(Debug)]
struct ReaderGraceTask {
    principal: Principal,
    /// Ends the grace when it is used, and stops the task when it is dropped. `None` while the task ends the run.
    now: Option<oneshot::Sender<()>>,
    /// Cancelled when the task is over.
    done: CancellationToken,
}

/// One reader of a conversation.
pub(in crate::web) struct WebRunReader {
    web: Web,
    principal: Principal,
    session: WeakSession,
    key: ConversationLifeKey,
    /// The run that this stream has started.
    own: Option<StreamStartedRun>,
    /// Cancelled at the end of the stream.
    ended: CancellationToken,
    /// Cancelled when the server ends the stream before the end of the run.
    cut: CancellationToken,
    runtime: Handle,
}

/// The part of a waiting task that ends the wait.
struct ReaderGraceTaskBody {
    web: Weak<WebShared>,
    key: ConversationLifeKey,
    done: CancellationToken,
}

impl WebRequest {
    /// Subscribes to the route's conversation like [`subscribe`](Self::subscribe), for a stream that starts a run. If the
    /// principal has left an active run and `is_new` returns `true`, first waits for the end of that run.
    pub(in crate::web) async fn subscribe_reader(
        &mut self,
        is_new: impl Fn(&SessionSnapshot) -> bool,
    ) -> Result<(Session, SessionSubscription, Arc<SessionSnapshot>, Option<WebRunReader>), Problem> {
        let (mut session, mut updates, mut snapshot) = self.subscribe().await?;
        let ends_runs = self.web.0.readers.grace.is_some();
        let mut asks = ends_runs && is_new(&snapshot);
        let others = if asks { self.other_streams(&session, &snapshot) } else { Vec::new() };
        if !others.is_empty() {
            let all_ended = join_all(others.iter().map(CancellationToken::cancelled));
            // A stream that is still open then belongs to another page.
            let _ = timeout(LEAVING, all_ended).await;
            (session, updates, snapshot) = self.subscribe().await?;
            asks = ends_runs && is_new(&snapshot);
        }
        let (reader, ending) = self.add_reader(&session, &snapshot, asks);
        let Some(ending) = ending else { return Ok((session, updates, snapshot, reader)) };
        ending.cancelled().await;
        let (session, updates, snapshot) = self.subscribe().await?;
        let reader = self.reader(&session, &snapshot);
        Ok((session, updates, snapshot, reader))
    }

    /// Returns a new reader of a conversation, or `None` if runs without readers continue.
    pub(in crate::web) fn reader(
        &self,
        session: &Session,
        snapshot: &SessionSnapshot,
    ) -> Option<WebRunReader> {
        self.add_reader(session, snapshot, false).0
    }

    /// Returns the tokens of the open streams of the principal, if a run that a stream has started is active.
    fn other_streams(&self, session: &Session, snapshot: &SessionSnapshot) -> Vec<CancellationToken> {
        let open = lock(&self.web.0.readers.open);
        let Some(reading) = open.get(&(session.id().clone(), snapshot.last.life)) else { return Vec::new() };
        if !reading.started.iter().any(|started| started.is_active(&snapshot.agent)) {
            return Vec::new();
        }
        let own = reading.streams.iter().filter(|(principal, _)| *principal == self.client.principal);
        own.map(|(_, ended)| ended.clone()).collect()
    }

    /// Adds a reader. If the reader must wait for the end of another run, also returns the token of this end.
    fn add_reader(
        &self,
        session: &Session,
        snapshot: &SessionSnapshot,
        is_new: bool,
    ) -> (Option<WebRunReader>, Option<CancellationToken>) {
        let readers = &self.web.0.readers;
        if readers.grace.is_none() {
            return (None, None);
        }
        let key = (session.id().clone(), snapshot.last.life);
        let mut open = lock(&readers.open);
        let reading = open.entry(key.clone()).or_default();
        let ended = CancellationToken::new();
        reading.streams.push((self.client.principal.clone(), ended.clone()));
        if let Some(wait) = &mut reading.wait
            && is_new
            && wait.principal == self.client.principal
            && let Some(now) = wait.now.take()
        {
            let _ = now.send(());
        }
        // A wait that is not over ends without an effect.
        reading.wait.take_if(|wait| wait.now.is_some());
        let ending = reading.wait.as_ref().filter(|_| is_new).map(|wait| wait.done.clone());
        let reader = WebRunReader {
            web: self.web.clone(),
            principal: self.client.principal.clone(),
            session: session.downgrade(),
            key,
            own: None,
            ended,
            cut: CancellationToken::new(),
            runtime: Handle::current(),
        };
        (Some(reader), ending)
    }
}

impl WebRunReader {
    /// Records that the stream is about to start a run with this command. `snapshot` is the state before the command.
    pub(in crate::web) fn start(&mut self, command: &mut SessionCommand, snapshot: &SessionSnapshot) {
        let run = snapshot.agent.run;
        let (prompt, run) = match prompt_of(command) {
            Some(prompt) => (prompt.id.clone(), run.saturating_add(1)),
            // A decision continues the turn in flight.
            None => (in_flight(&snapshot.agent).next().cloned(), run),
        };
        let started = prompt.map_or(StreamStartedRun::Run(run), StreamStartedRun::Prompt);
        self.own = Some(started.clone());
        if let Some(reading) = lock(&self.web.0.readers.open).get_mut(&self.key) {
            reading.started.retain(|other| *other != started && !other.is_over(&snapshot.agent));
            if reading.started.len() == MAX_STARTED {
                reading.started.remove(0);
            }
            reading.started.push(started);
        }
    }

    /// Records that the stream has shown the end of its run, or that its run was not started.
    pub(in crate::web) fn end(&mut self) {
        if let Some(own) = self.own.take()
            && let Some(reading) = lock(&self.web.0.readers.open).get_mut(&self.key)
        {
            reading.started.retain(|started| *started != own);
        }
    }

    /// Records that the server ends the stream before the end of its run.
    pub(in crate::web) fn cut(&mut self) {
        self.cut.cancel();
    }

    /// Returns the token that is cancelled when the server ends the stream before the end of its run.
    pub(in crate::web) fn server_end(&self) -> CancellationToken {
        self.cut.clone()
    }
}

impl Drop for WebRunReader {
    fn drop(&mut self) {
        let readers = &self.web.0.readers;
        let mut open = lock(&readers.open);
        self.ended.cancel();
        let Some(reading) = open.get_mut(&self.key) else { return };
        reading.streams.retain(|(_, ended)| !ended.is_cancelled());
        if !reading.streams.is_empty() || reading.wait.is_some() {
            return;
        }
        if reading.started.is_empty() {
            open.remove(&self.key);
            return;
        }
        let (now, told) = oneshot::channel();
        let done = CancellationToken::new();
        reading.wait =
            Some(ReaderGraceTask { principal: self.principal.clone(), now: Some(now), done: done.clone() });
        // If the runtime has ended, it drops the task at once, and the task locks the map.
        drop(open);
        let waiting = ReaderGraceTaskBody { web: Arc::downgrade(&self.web.0), key: self.key.clone(), done };
        let leaver = (!self.cut.is_cancelled()).then(|| self.principal.clone());
        let grace = readers.grace.unwrap_or(NEVER).min(NEVER);
        let task = waiting.run(told, grace, self.session.clone(), leaver);
        self.runtime.spawn(task.in_current_span());
    }
}

impl ReaderGraceTaskBody {
    /// Waits for the grace, and then ends the runs that `leaver` has left. Without `leaver`, only waits.
    async fn run(
        self,
        mut told: oneshot::Receiver<()>,
        grace: Duration,
        session: WeakSession,
        leaver: Option<Principal>,
    ) {
        let is_told = tokio::select! {
            biased;
            told = &mut told => match told {
                Ok(()) => true,
                Err(_) => return,
            },
            () = session.closed() => return,
            () = sleep(grace) => false,
        };
        let Some(web) = self.web.upgrade().map(Web) else { return };
        let started = {
            let mut open = lock(&web.0.readers.open);
            // A new stream may have stopped this task since the grace was over.
            if !is_told && told.try_recv() == Err(TryRecvError::Closed) {
                return;
            }
            let Some(reading) = open.get_mut(&self.key) else { return };
            if let Some(wait) = &mut reading.wait {
                wait.now = None;
            }
            std::mem::take(&mut reading.started)
        };
        let (Some(leaver), Some(session)) = (leaver, session.upgrade()) else { return };
        let ended = timeout(ENDING, web.end_left(leaver, &session, &started)).await;
        if let Ok(Err(error)) = ended {
            tracing::debug!(id = %self.key.0, %error, "a run without readers was not interrupted");
        }
    }
}

impl Drop for ReaderGraceTaskBody {
    fn drop(&mut self) {
        self.done.cancel();
        let Some(web) = self.web.upgrade() else { return };
        let mut open = lock(&web.readers.open);
        if let Some(reading) = open.get_mut(&self.key) {
            // The entry may have a newer task.
            reading.wait.take_if(|wait| wait.done.is_cancelled());
            if reading.streams.is_empty() && reading.wait.is_none() {
                open.remove(&self.key);
            }
        }
    }
}

impl Web {
    /// Unstages and interrupts the runs that a principal has left, and returns when the session is idle. Does nothing
    /// while the server stops, or if the principal may not stop runs. A paused run stays.
    async fn end_left(
        &self,
        leaver: Principal,
        session: &Session,
        started: &[StreamStartedRun],
    ) -> Result<(), Error> {
        let labels = session.labels().await?;
        let client = self.client(leaver);
        if self.is_draining() || client.still_permitted(session.id(), &labels, &[Action::Stop]).await.is_err()
        {
            return Ok(());
        }
        for started in started {
            if let StreamStartedRun::Prompt(id) = started {
                // A prompt that is not staged gives an error.
                let _ = session.unstage(id.clone()).await;
            }
        }
        loop {
            let agent = session.snapshot().await?.agent;
            let is_active = started.iter().any(|started| started.is_active(&agent));
            let is_running = is_active && agent.status == Status::Busy && agent.is_answering();
            match agent.turn.filter(|_| is_running) {
                None => return Ok(()),
                Some(turn) if session.interrupt_turn(turn).await? => return session.wait_until_idle().await,
                // The run has reached its next turn.
                Some(_) => {}
            }
        }
    }
}
