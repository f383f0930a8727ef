//! Subscribing: a snapshot, then numbered events, with no gap and no overlap between them.
//!
//! A [`Subscription`] starts from a snapshot and yields [`Update`]s. Whoever is too slow is not silently short:
//! it gets an [`Update::Resync`] with a fresh snapshot and goes on from there. At the end comes
//! [`Update::Closed`]. Subscriptions keep nothing alive.

use std::{collections::VecDeque, fmt, future::Future, pin::Pin, str::FromStr, sync::Arc};

use futures_core::Stream;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::error::InvalidId;

/// Names one event of one actor: which life of the actor, and which event in it, from 1.
///
/// Its text form, `incarnation-number`, serves as the id of a server-sent event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    /// Which life of the actor; another one after each start.
    pub incarnation: u64,
    /// Which event in it. 0 stands before the first.
    pub number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.incarnation, self.number)
    }
}

impl FromStr for EventId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let parse = || {
            let (incarnation, number) = text.split_once('-')?;
            let incarnation = u64::from_str_radix(incarnation, 16).ok()?;
            Some(Self { incarnation, number: number.parse().ok()? })
        };
        parse().ok_or_else(|| InvalidId::EventId { text: text.to_owned() })
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An event with its id. Cheap to clone.
// Not flattened when serialised: an event may have an `id` of its own.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Numbered<E> {
    /// The event's place.
    pub id: EventId,
    /// What happened.
    pub event: Arc<E>,
}

impl<E> Clone for Numbered<E> {
    fn clone(&self) -> Self {
        Self { id: self.id, event: Arc::clone(&self.event) }
    }
}

/// What a [`Subscription`] yields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Update<S, E> {
    /// The next event.
    Event(Numbered<E>),
    /// Events were missed; this is the truth now, and the next event follows it.
    Resync(Arc<S>),
    /// The actor has ended; nothing follows.
    Closed(End<S>),
}

/// How an actor ended.
#[derive(Debug)]
pub struct End<S> {
    /// Why.
    pub reason: EndReason,
    /// The last truth; `None` if the task was killed and left none.
    pub snapshot: Option<Arc<S>>,
}

impl<S> Clone for End<S> {
    fn clone(&self) -> Self {
        Self { reason: self.reason.clone(), snapshot: self.snapshot.clone() }
    }
}

/// Why an actor ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndReason {
    /// It was stopped.
    #[error("stopped")]
    Stopped,
    /// Its last handle was dropped.
    #[error("its last handle was dropped")]
    HandlesDropped,
    /// Nobody had it open and nothing went on, for as long as it waits then.
    #[error("nobody had it open and nothing went on")]
    Idle,
    /// Its agent ended.
    #[error("its agent ended")]
    AgentEnded,
    /// Another writer took its conversation over in the store.
    #[error("another writer took the conversation over in the store")]
    LostPlace,
    /// The store can never accept what the session has to save.
    #[error("the store can't accept what the session has to save")]
    Unstorable,
    /// Its task was killed, with its runtime say.
    #[error("its task was killed")]
    Killed,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How a subscription gets back to its actor without keeping it alive.
pub(crate) trait Source<S, E>: Send + Sync {
    /// A new place in the stream: after `after` if what follows it is still there, else with a snapshot.
    ///
    /// # Errors
    ///
    /// How the actor ended, if it has.
    fn attach(&self, after: Option<EventId>) -> BoxFuture<Result<Attachment<S, E>, End<S>>>;
}

/// A place in an actor's event stream.
pub(crate) struct Attachment<S, E> {
    /// The truth at this place; `None` where the missed events are all in `backlog`.
    pub(crate) snapshot: Option<Arc<S>>,
    /// The last event before the backlog.
    pub(crate) last: EventId,
    pub(crate) backlog: VecDeque<Numbered<E>>,
    pub(crate) live: broadcast::Receiver<Numbered<E>>,
}

/// A snapshot and the events that follow it.
#[must_use = "a subscription that nobody reads tells nothing"]
pub struct Subscription<S, E> {
    source: Box<dyn Source<S, E>>,
    snapshot: Option<Arc<S>>,
    /// A snapshot that is the next update, and the last event that it includes.
    resync: Option<(Arc<S>, EventId)>,
    last: EventId,
    backlog: VecDeque<Numbered<E>>,
    place: ReaderState<E>,
}

enum ReaderState<E> {
    Live(broadcast::Receiver<Numbered<E>>),
    /// A new place has to be asked for: after the last event, or with a snapshot.
    Lost {
        replay: bool,
    },
    Closed,
}

impl<S, E: Send + Sync + 'static> Subscription<S, E> {
    pub(crate) fn new(source: Box<dyn Source<S, E>>, attachment: Attachment<S, E>) -> Self {
        let Attachment { snapshot, last, backlog, live } = attachment;
        Self { source, snapshot, resync: None, last, backlog, place: ReaderState::Live(live) }
    }

    /// A subscription that continues after `seen`, the last event that its reader saw. If it needs a snapshot, that is
    /// its first update.
    pub(crate) fn resumed(
        source: Box<dyn Source<S, E>>,
        seen: EventId,
        attachment: Attachment<S, E>,
    ) -> Self {
        let resync = attachment.snapshot.clone().map(|snapshot| (snapshot, attachment.last));
        // Until the reader has the snapshot, it has seen nothing newer.
        Self { snapshot: None, resync, last: seen, ..Self::new(source, attachment) }
    }

    /// The truth at the start. `None` if the subscription was resumed from an event: what is missed comes as
    /// updates then.
    pub fn snapshot(&self) -> Option<&Arc<S>> {
        self.snapshot.as_ref()
    }

    /// The id of the last event that this reader has seen, in an update or as part of a snapshot. A resumed subscription
    /// returns the id that it was resumed from until [`next`](Subscription::next) has returned something newer, so
    /// resuming from this id never skips an event.
    pub fn last_id(&self) -> EventId {
        self.last
    }

    /// The next update; `None` after [`Update::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no update.
    pub async fn next(&mut self) -> Option<Update<S, E>> {
        if let Some((snapshot, last)) = self.resync.take() {
            self.last = last;
            return Some(Update::Resync(snapshot));
        }
        loop {
            if let Some(event) = self.backlog.pop_front() {
                self.last = event.id;
                return Some(Update::Event(event));
            }
            match &mut self.place {
                ReaderState::Live(live) => match live.recv().await {
                    Ok(event) => {
                        self.last = event.id;
                        return Some(Update::Event(event));
                    }
                    Err(RecvError::Lagged(_)) => self.place = ReaderState::Lost { replay: false },
                    // Either the end, or the channel was replaced: the actor knows.
                    Err(RecvError::Closed) => self.place = ReaderState::Lost { replay: true },
                },
                ReaderState::Lost { replay } => {
                    let after = replay.then_some(self.last);
                    let attachment = match self.source.attach(after).await {
                        Ok(attachment) => attachment,
                        Err(end) => {
                            self.place = ReaderState::Closed;
                            return Some(Update::Closed(end));
                        }
                    };
                    let Attachment { snapshot, last, backlog, live } = attachment;
                    (self.backlog, self.place) = (backlog, ReaderState::Live(live));
                    if let Some(snapshot) = snapshot {
                        self.last = last;
                        return Some(Update::Resync(snapshot));
                    }
                }
                ReaderState::Closed => return None,
            }
        }
    }

    /// The updates as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Update<S, E>> + Send
    where
        S: Send + Sync + 'static,
    {
        futures_util::stream::unfold(self, |mut subscription| async move {
            let update = subscription.next().await?;
            Some((update, subscription))
        })
    }
}

impl<S, E> fmt::Debug for Subscription<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("last", &self.last).finish_non_exhaustive()
    }
}

/// What is kept for subscribers, by count and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedLimits {
    /// Events that a subscriber may be behind before it is resynced. At least 256 are allowed, and what the
    /// next power of two is.
    pub lag: usize,
    /// Events kept for those who come back and name the last one they saw. At least as many as `lag` allows.
    pub replay: usize,
    /// Bytes kept for both, roughly: the newest event may be larger. A subscriber that has stalled keeps up
    /// to as much again to itself until it goes on or is dropped.
    pub bytes: usize,
}

impl Default for FeedLimits {
    /// 256 events of lag, 1,024 of replay, 4 MiB.
    fn default() -> Self {
        Self { lag: 256, replay: 1024, bytes: 4 * 1024 * 1024 }
    }
}

impl FeedLimits {
    fn effective(self) -> Self {
        // The broadcast channel's length is a power of two, and it refuses absurd ones.
        let lag = self.lag.clamp(256, 1 << 20).next_power_of_two();
        Self { lag, replay: self.replay.max(lag), bytes: self.bytes }
    }
}

/// The actor's side: numbers events and fans them out. Costs a counter until somebody subscribes.
pub(crate) struct Feed<E> {
    last: EventId,
    live: Option<Box<Live<E>>>,
}

struct Live<E> {
    limits: FeedLimits,
    sender: broadcast::Sender<Numbered<E>>,
    /// The newest events. What waits in the channel is among them, so that their bytes bound both.
    ring: VecDeque<(Numbered<E>, usize)>,
    bytes: usize,
    /// Events and bytes since the actor last looked whether its readers keep up.
    unread: usize,
    unread_bytes: usize,
}

impl<E: Send + Sync + 'static> Feed<E> {
    pub(crate) fn new(incarnation: u64) -> Self {
        Self { last: EventId { incarnation, number: 0 }, live: None }
    }

    pub(crate) fn last(&self) -> EventId {
        self.last
    }

    /// Whether an event has to be made at all.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.live.is_some()
    }

    /// Takes the next number without an event, since nobody is there to see it.
    pub(crate) fn skip(&mut self) {
        self.last.number += 1;
    }

    /// Numbers an event and sends it to whoever subscribed. `weight` is its size in bytes, roughly.
    pub(crate) fn publish(&mut self, event: Arc<E>, weight: usize) -> Numbered<E> {
        self.last.number += 1;
        let numbered = Numbered { id: self.last, event };
        if let Some(live) = &mut self.live {
            live.push(numbered.clone(), weight);
        }
        numbered
    }

    /// Lets go of all subscribers: they learn of the end from the actor.
    pub(crate) fn close(&mut self) {
        self.live = None;
    }

    /// A place in the stream now, with a snapshot of this moment.
    pub(crate) fn join<S>(&mut self, limits: FeedLimits, snapshot: S) -> Attachment<S, E> {
        let live = self.live.get_or_insert_with(|| Box::new(Live::new(limits)));
        Attachment {
            snapshot: Some(Arc::new(snapshot)),
            last: self.last,
            backlog: VecDeque::new(),
            live: live.sender.subscribe(),
        }
    }

    /// A place in the stream after `after`, if all that follows it is still there.
    pub(crate) fn replay<S>(&mut self, limits: FeedLimits, after: EventId) -> Option<Attachment<S, E>> {
        if after.incarnation != self.last.incarnation {
            return None;
        }
        let missed = usize::try_from(self.last.number.checked_sub(after.number)?).ok()?;
        let live = self.live.get_or_insert_with(|| Box::new(Live::new(limits)));
        let start = live.ring.len().checked_sub(missed)?;
        let backlog = live.ring.range(start..).map(|(event, _)| event.clone()).collect();
        Some(Attachment { snapshot: None, last: after, backlog, live: live.sender.subscribe() })
    }

    /// Whether the actor is to let its readers run: so much went out since this was last asked for, and still
    /// waits, that a prompt reader could be overrun. That the actor waits for something itself does not mean
    /// that its readers run meanwhile.
    pub(crate) fn is_flooded(&mut self) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        let many = live.limits.lag / 4;
        if live.unread_bytes >= (live.limits.bytes / 4).max(1) {
            // Also where nobody waits in the channel: it may have been replaced, and its readers be on their way.
            (live.unread, live.unread_bytes) = (0, 0);
            return true;
        }
        if live.unread >= many {
            live.unread = 0;
            return live.sender.len() >= many;
        }
        false
    }
}

/// Events that the ring keeps whatever they weigh: as many as an actor may send at once, before its readers can
/// run.
const AT_ONCE: usize = 16;

impl<E: Send + Sync + 'static> Live<E> {
    fn new(limits: FeedLimits) -> Self {
        let limits = limits.effective();
        Self {
            limits,
            sender: broadcast::channel(limits.lag).0,
            ring: VecDeque::new(),
            bytes: 0,
            unread: 0,
            unread_bytes: 0,
        }
    }

    fn push(&mut self, event: Numbered<E>, weight: usize) {
        self.unread += 1;
        self.unread_bytes += weight;
        self.bytes += weight;
        self.ring.push_back((event.clone(), weight));
        // Nobody listens: the event is for those who come back.
        let _ = self.sender.send(event);
        if self.ring.len() > self.limits.replay {
            self.drop_oldest();
        }
        if self.bytes > self.limits.bytes {
            self.make_room();
        }
    }

    /// Gives up old events until half the room for bytes is free, so that this happens rarely.
    fn make_room(&mut self) {
        while self.bytes > self.limits.bytes / 2 && self.ring.len() > AT_ONCE {
            self.drop_oldest();
        }
        // Some reader is behind what is left, and the channel keeps for it what the ring gave up. A new
        // channel lets go of that. Prompt readers see the old one to its end, come back, and find here what
        // they missed meanwhile; the other is resynced when it goes on.
        if self.sender.len() > self.ring.len() {
            self.sender = broadcast::channel(self.limits.lag).0;
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, weight)) = self.ring.pop_front() {
            self.bytes -= weight;
        }
    }
}
