//! Subscriptions, which consist of a snapshot and then numbered events, without a gap and without an overlap.
//!
//! Agents, sessions and the manager are *actors*: tasks that own a state and emit events when the state changes. The
//! `subscribe` methods of agents and managers return a [`Subscription`]. The method of a session returns a
//! [`SessionSubscription`](crate::session::SessionSubscription), which contains a [`Subscription`].
//!
//! # Main types
//!
//! - [`Subscription`] starts with a snapshot and yields [`Update`]s with [`next`](Subscription::next) or as a stream.
//! - [`Update::Event`] contains the next event with its [`EventId`]. A reader can store an id and resume after it. For
//!   example, a browser does this with server-sent events.
//! - [`Update::Resync`] contains a fresh snapshot. A reader that is too slow gets it instead of the events that it
//!   missed. The next event follows the fresh snapshot. A slow reader never blocks the actor.
//! - [`Update::Closed`] is the last update. It contains the [`End`], which consists of the reason and the last
//!   snapshot.
//! - [`FeedLimits`] sets how many events are buffered for slow readers and for readers that resume.
//!
//! A [`Subscription`] does not keep its actor alive. A `SessionSubscription` keeps its session alive if it belongs to a
//! [controller](crate::session::Mode).
//!
//! # Example
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
//! # let model = provider.model();
//! use omni_agent::{Agent, Update};
//!
//! let agent = Agent::builder().model(model).start().await?;
//! let mut updates = agent.subscribe().await?;
//! agent.ask("Hi").await?;
//!
//! // Read two events, and remember the id of the second one.
//! updates.next().await;
//! updates.next().await;
//! let seen = updates.last_id();
//! drop(updates);
//!
//! // Later: the event after it is replayed.
//! let mut updates = agent.resume_from(seen).await?;
//! let Some(Update::Event(next)) = updates.next().await else { panic!("the events are still buffered") };
//! assert_eq!(next.id.number, seen.number + 1);
//! # Ok::<(), omni_agent::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::VecDeque,
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    str::FromStr,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::ReusableBoxFuture;

use crate::error::InvalidId;
use crate::setters::setters;

/// The id of an event. It consists of the actor's life and the event's number in this life, counted from 1.
///
/// The text form is `life-number`, with the life in hexadecimal. It can be used as the id of a server-sent event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "String", extend("pattern" = "^[0-9a-f]{1,16}-(0|[1-9][0-9]{0,19})$"))
)]
#[non_exhaustive]
pub struct EventId {
    /// The life of the actor, which is different after each start of the actor.
    ///
    /// The lives of a session are ordered: each time the conversation is opened, by any process, its life is higher. An
    /// event with a lower life than one that was already seen comes from a former owner of the conversation. The life
    /// of a conversation that was not stored when its session began is 0. The lives of agents and managers are random.
    pub life: u64,
    /// The number of the event in this life. 0 is the position before the first event.
    pub number: u64,
}

impl EventId {
    /// Creates the id of an event.
    pub fn new(life: u64, number: u64) -> Self {
        Self { life, number }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{}", self.life, self.number)
    }
}

impl FromStr for EventId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let parse = || {
            let (life, number) = text.split_once('-')?;
            let life = u64::from_str_radix(life, 16).ok()?;
            Some(Self { life, number: number.parse().ok()? })
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

/// An event with its id. It is cheap to clone.
// In the serialised form, the event is a field and is not flattened, because an event may have an `id` field itself.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[non_exhaustive]
pub struct Numbered<E> {
    /// The id of the event.
    pub id: EventId,
    /// The event.
    pub event: Arc<E>,
}

impl<E> Numbered<E> {
    /// Creates an event with its id, for example to [apply](crate::agent::Snapshot::apply) it to a snapshot.
    pub fn new(id: EventId, event: Arc<E>) -> Self {
        Self { id, event }
    }
}

impl<E> Clone for Numbered<E> {
    fn clone(&self) -> Self {
        Self { id: self.id, event: Arc::clone(&self.event) }
    }
}

/// An item of a [`Subscription`].
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([]);
/// # let model = provider.model();
/// use std::time::Duration;
/// use omni_agent::{Agent, Update};
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut updates = agent.subscribe().await?;
/// agent.stop(Duration::from_secs(5)).await?;
/// while let Some(update) = updates.next().await {
///     match update {
///         Update::Event(numbered) => println!("{}: {:?}", numbered.id, numbered.event),
///         Update::Resync(snapshot) => println!("missed events; now {:?}", snapshot.status),
///         Update::Closed(end) => assert_eq!(end.reason.to_string(), "stopped"),
///         _ => {}
///     }
/// }
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The JSON form has a `type` field, as events do:
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let model = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]).model();
/// use omni_agent::{Agent, serde_json};
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut updates = agent.subscribe().await?;
/// agent.ask("Hi").await?;
/// let update = serde_json::to_value(updates.next().await)?;
/// assert_eq!(update["type"], "event"); // with `id` and `event`
/// assert_eq!(update["event"]["type"], "status");
/// // A resync is {"type": "resync", "snapshot": …}, the end {"type": "closed", "reason": "stopped", "snapshot": …}.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Update<S, E> {
    /// The next event.
    Event(Numbered<E>),
    /// The reader missed events. This snapshot includes the effects of the missed events, and the next event follows
    /// this snapshot.
    Resync(
        #[serde(with = "as_field")]
        #[cfg_attr(feature = "schema", schemars(with = "ResyncJson<S>"))]
        Arc<S>,
    ),
    /// The actor has ended. This is the last update.
    Closed(End<S>),
}

/// The JSON form of [`Update::Resync`]. The snapshot is a field, because otherwise its own fields would mix with the
/// tag.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
struct ResyncJson<S> {
    /// The fresh snapshot.
    snapshot: S,
}

/// Serialises a snapshot as a field.
mod as_field {
    use super::{Arc, Deserialize, Deserializer, ResyncJson, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        snapshot: &Arc<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        ResyncJson { snapshot }.serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        ResyncJson::deserialize(deserializer).map(|resync| resync.snapshot)
    }
}

/// The end of an actor.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[non_exhaustive]
pub struct End<S> {
    /// The reason for the end.
    pub reason: EndReason,
    /// The last snapshot. `None` if the task was killed before it could store a snapshot.
    pub snapshot: Option<Arc<S>>,
}

impl<S> Clone for End<S> {
    fn clone(&self) -> Self {
        Self { reason: self.reason.clone(), snapshot: self.snapshot.clone() }
    }
}

/// The reason why an actor ended.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EndReason {
    /// The actor was stopped.
    #[error("stopped")]
    Stopped,
    /// The last handle of the actor was dropped.
    #[error("its last handle was dropped")]
    HandlesDropped,
    /// The session was unused for the whole idle time: nothing kept it open, and nothing was in progress.
    #[error("nothing kept it open and nothing was in progress")]
    Idle,
    /// The session's agent ended.
    #[error("its agent ended")]
    AgentEnded,
    /// Another writer took over the conversation in the store.
    #[error("another writer took over the conversation in the store")]
    LostPlace,
    /// The store can never accept the unsaved data of the session.
    #[error("the store cannot accept the unsaved data of the session")]
    Unstorable,
    /// The actor's task was killed, for example because its runtime was shut down.
    #[error("its task was killed")]
    Killed,
}

crate::error::debug_as_chain!(EndReason);

type BoxSendFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Gives a subscription access to its actor without keeping the actor alive.
pub(crate) trait SubscriptionSource<S, E>: Send + Sync {
    /// Returns the beginning of a subscription. If the events that follow `after` are still buffered, the subscription
    /// begins directly after `after`. Otherwise, it begins with a snapshot.
    ///
    /// # Errors
    ///
    /// If the actor has ended, the error is the actor's end.
    fn attach(&self, after: Option<EventId>) -> BoxSendFuture<Result<SubscriptionStart<S, E>, End<S>>>;
}

/// Changes the updates of one reader. Returns `None` if the reader needs a fresh snapshot in place of the update.
pub(crate) type UpdateFilter<S, E> = Box<dyn FnMut(Update<S, E>) -> Option<Update<S, E>> + Send + Sync>;

/// The beginning of a subscription: a point in an actor's stream of events, and the events that follow it.
pub(crate) struct SubscriptionStart<S, E> {
    /// The snapshot at this point. `None` if the backlog contains all events that the reader missed.
    pub(crate) snapshot: Option<Arc<S>>,
    /// The id of the last event before the backlog.
    pub(crate) last: EventId,
    pub(crate) backlog: VecDeque<Numbered<E>>,
    pub(crate) live: broadcast::Receiver<Numbered<E>>,
}

/// A snapshot of an actor, and the events that follow it.
///
/// The sequence is complete. The first event directly follows the snapshot, and if events are missing, an
/// [`Update::Resync`] replaces them. The [module documentation](self) explains the updates. A subscription is also a
/// [`Stream`] of updates.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let provider = omni_agent::testing::ScriptedProvider::new([omni_agent::testing::Step::text("Hello!")]);
/// # let model = provider.model();
/// use omni_agent::{Agent, Event, Update};
///
/// let agent = Agent::builder().model(model).start().await?;
/// let mut updates = agent.subscribe().await?;
/// assert_eq!(updates.snapshot().map(|snapshot| snapshot.messages().count()), Some(0));
///
/// agent.ask("Hi").await?;
/// let mut view = None;
/// while let Some(update) = updates.next().await {
///     match update {
///         Update::Event(numbered) if matches!(*numbered.event, Event::Turn { .. }) => break,
///         Update::Event(numbered) => println!("event {}", numbered.id),
///         // This reader was too slow. The snapshot replaces the events that it missed.
///         Update::Resync(snapshot) => view = Some(snapshot),
///         Update::Closed(end) => return Err(end.reason.into()),
///         _ => {}
///     }
/// }
/// assert!(view.is_none(), "this reader is never too slow");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a subscription does nothing unless it is read"]
pub struct Subscription<S, E> {
    snapshot: Option<Arc<S>>,
    last: EventId,
    /// The reader, or `None` while the future in `waiting` owns it.
    reader: Option<FeedReader<S, E>>,
    /// The future that waits for the next update. It is created when the stream is polled. After the wait, it is kept
    /// so that its memory can be reused.
    waiting: Option<NextUpdateFuture<S, E>>,
}

/// The position of a subscription in the actor's events.
struct FeedReader<S, E> {
    source: Box<dyn SubscriptionSource<S, E>>,
    /// The snapshot to return as the next update, and the id of the last event that this snapshot includes.
    resync: Option<(Arc<S>, EventId)>,
    last: EventId,
    backlog: VecDeque<Numbered<E>>,
    state: FeedReaderState<E>,
    filter: Option<UpdateFilter<S, E>>,
}

type NextUpdateFuture<S, E> = ReusableBoxFuture<'static, (FeedReader<S, E>, Option<Update<S, E>>)>;

enum FeedReaderState<E> {
    Live(broadcast::Receiver<Numbered<E>>),
    /// The reader has lost its place in the stream and must attach to the actor again. If `replay` is set, it asks to
    /// continue after the last event, otherwise it asks for a snapshot.
    Lost {
        replay: bool,
    },
    Closed,
}

impl<S: Send + Sync + 'static, E: Send + Sync + 'static> Subscription<S, E> {
    pub(crate) fn new(
        source: Box<dyn SubscriptionSource<S, E>>,
        attachment: SubscriptionStart<S, E>,
    ) -> Self {
        let SubscriptionStart { snapshot, last, backlog, live } = attachment;
        let reader = FeedReader {
            source,
            resync: None,
            last,
            backlog,
            state: FeedReaderState::Live(live),
            filter: None,
        };
        Self { snapshot, last, reader: Some(reader), waiting: None }
    }

    /// Creates a subscription that continues after `seen`, the last event that its reader saw. If the reader needs a
    /// snapshot, the snapshot is the first update.
    pub(crate) fn resumed(
        source: Box<dyn SubscriptionSource<S, E>>,
        seen: EventId,
        attachment: SubscriptionStart<S, E>,
    ) -> Self {
        let SubscriptionStart { snapshot, last, backlog, live } = attachment;
        let resync = snapshot.map(|snapshot| (snapshot, last));
        // Until the reader gets the snapshot, the last event that it has seen is `seen`.
        let reader = FeedReader {
            source,
            resync,
            last: seen,
            backlog,
            state: FeedReaderState::Live(live),
            filter: None,
        };
        Self { snapshot: None, last: seen, reader: Some(reader), waiting: None }
    }

    /// Filters the snapshot and all updates of a subscription that was not read yet.
    pub(crate) fn filtered(mut self, mut filter: UpdateFilter<S, E>) -> Self {
        if let Some(snapshot) = self.snapshot.take()
            && let Some(Update::Resync(seen)) = filter(Update::Resync(snapshot))
        {
            self.snapshot = Some(seen);
        }
        if let Some(reader) = &mut self.reader {
            reader.filter = Some(filter);
        }
        self
    }

    /// Returns the snapshot at the start of the subscription. Returns `None` if the subscription was resumed from an
    /// event, because then the missed events or a resync arrive as updates.
    pub fn snapshot(&self) -> Option<&Arc<S>> {
        self.snapshot.as_ref()
    }

    /// Returns the id of the last event that this reader has seen, either in an update or as part of a snapshot.
    /// Resuming from this id never skips an event. A resumed subscription first returns the id from which it was
    /// resumed. After [`next`](Subscription::next) has returned something newer, it returns the newer id.
    pub fn last_id(&self) -> EventId {
        self.last
    }

    /// Waits for the next update and returns it. Returns `None` after [`Update::Closed`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no update.
    pub async fn next(&mut self) -> Option<Update<S, E>> {
        let Some(reader) = &mut self.reader else {
            // An earlier poll of the stream has started to wait, so this call continues that wait.
            return poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await;
        };
        let update = reader.next().await;
        self.last = reader.last;
        update
    }
}

impl<S: Send + Sync + 'static, E: Send + Sync + 'static> Stream for Subscription<S, E> {
    type Item = Update<S, E>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(mut reader) = this.reader.take() {
            let wait = async move {
                let update = reader.next().await;
                (reader, update)
            };
            match &mut this.waiting {
                Some(waiting) => waiting.set(wait),
                None => this.waiting = Some(ReusableBoxFuture::new(wait)),
            }
        }
        let waiting = this.waiting.as_mut().expect("a subscription without its reader waits");
        let (reader, update) = ready!(waiting.poll(cx));
        this.last = reader.last;
        this.reader = Some(reader);
        Poll::Ready(update)
    }
}

impl<S, E: Send + Sync + 'static> FeedReader<S, E> {
    async fn next(&mut self) -> Option<Update<S, E>> {
        loop {
            let update = self.unfiltered().await?;
            let Some(filter) = &mut self.filter else { return Some(update) };
            if let Some(seen) = filter(update) {
                return Some(seen);
            }
            self.backlog.clear();
            self.state = FeedReaderState::Lost { replay: false };
        }
    }

    async fn unfiltered(&mut self) -> Option<Update<S, E>> {
        if let Some((snapshot, last)) = self.resync.take() {
            self.last = last;
            return Some(Update::Resync(snapshot));
        }
        loop {
            if let Some(event) = self.backlog.pop_front() {
                self.last = event.id;
                return Some(Update::Event(event));
            }
            match &mut self.state {
                FeedReaderState::Live(live) => match live.recv().await {
                    Ok(event) => {
                        self.last = event.id;
                        return Some(Update::Event(event));
                    }
                    Err(RecvError::Lagged(_)) => self.state = FeedReaderState::Lost { replay: false },
                    // Either the actor has ended, or the channel was replaced. The reader attaches to the actor again
                    // to find out.
                    Err(RecvError::Closed) => self.state = FeedReaderState::Lost { replay: true },
                },
                FeedReaderState::Lost { replay } => {
                    let after = replay.then_some(self.last);
                    let attachment = match self.source.attach(after).await {
                        Ok(attachment) => attachment,
                        Err(end) => {
                            self.state = FeedReaderState::Closed;
                            return Some(Update::Closed(end));
                        }
                    };
                    let SubscriptionStart { snapshot, last, backlog, live } = attachment;
                    (self.backlog, self.state) = (backlog, FeedReaderState::Live(live));
                    if let Some(snapshot) = snapshot {
                        self.last = last;
                        return Some(Update::Resync(snapshot));
                    }
                }
                FeedReaderState::Closed => return None,
            }
        }
    }
}

impl<S, E> fmt::Debug for Subscription<S, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("last", &self.last).finish_non_exhaustive()
    }
}

/// The limits on the number and the size of the events that an actor buffers for subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedLimits {
    /// The number of events that a subscriber may lag behind before it is resynced. A number below 256 or above 2^20 is
    /// replaced by this limit, and the result is rounded up to a power of two.
    pub lag: usize,
    /// The number of events that are buffered for subscribers that resume after the last event they saw. The number is
    /// raised to at least the value of `lag`.
    pub replay: usize,
    /// The approximate number of bytes that are buffered for lagging and resuming subscribers together. The newest
    /// events may exceed this limit. A stalled subscriber can hold up to the same number of bytes in addition, until it
    /// continues or is dropped.
    pub bytes: usize,
}

setters!(FeedLimits: with_lag(lag: usize), with_replay(replay: usize), with_bytes(bytes: usize));

impl Default for FeedLimits {
    /// Returns a lag of 256 events, a replay of 1,024 events, and 4 MiB.
    fn default() -> Self {
        Self { lag: 256, replay: 1024, bytes: 4 * 1024 * 1024 }
    }
}

impl FeedLimits {
    fn effective(self) -> Self {
        // The capacity of a broadcast channel is a power of two, and creating a channel above the maximum capacity
        // panics.
        let lag = self.lag.clamp(256, 1 << 20).next_power_of_two();
        Self { lag, replay: self.replay.max(lag), bytes: self.bytes }
    }
}

/// The actor's side of its subscriptions. It numbers the events and sends them to all subscribers. Before the first
/// subscriber arrives, each event only increments a counter.
pub(crate) struct Feed<E> {
    last: EventId,
    live: Option<Box<SubscribedFeed<E>>>,
}

struct SubscribedFeed<E> {
    limits: FeedLimits,
    sender: broadcast::Sender<Numbered<E>>,
    /// The newest events, with their sizes. The ring includes the events that wait in the channel, so that a single
    /// limit on the bytes bounds both.
    ring: VecDeque<(Numbered<E>, usize)>,
    bytes: usize,
    /// The number of events since the actor last checked whether its readers keep up.
    unread: usize,
    unread_bytes: usize,
}

impl<E: Send + Sync + 'static> Feed<E> {
    pub(crate) fn new(life: u64) -> Self {
        Self { last: EventId { life, number: 0 }, live: None }
    }

    pub(crate) fn last(&self) -> EventId {
        self.last
    }

    /// Returns whether events must be created, because somebody has subscribed.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.live.is_some()
    }

    /// Uses the next number without an event, because nobody has subscribed.
    pub(crate) fn skip(&mut self) {
        self.last.number += 1;
    }

    /// Numbers an event and sends it to the subscribers. `weight` is its approximate size in bytes.
    pub(crate) fn publish(&mut self, event: Arc<E>, weight: usize) -> Numbered<E> {
        self.last.number += 1;
        let numbered = Numbered { id: self.last, event };
        if let Some(live) = &mut self.live {
            live.push(numbered.clone(), weight);
        }
        numbered
    }

    /// Removes all earlier events from memory. Subscribers that have not seen all of them get a new snapshot.
    pub(crate) fn forget(&mut self) {
        if let Some(live) = &mut self.live {
            **live = SubscribedFeed::new(live.limits);
        }
    }

    /// Closes the channel. The subscribers then attach to the actor again, and get its end.
    pub(crate) fn close(&mut self) {
        self.live = None;
    }

    /// Returns the beginning of a subscription after the last event, with this snapshot of the current state.
    pub(crate) fn join<S>(&mut self, limits: FeedLimits, snapshot: S) -> SubscriptionStart<S, E> {
        let live = self.live.get_or_insert_with(|| Box::new(SubscribedFeed::new(limits)));
        SubscriptionStart {
            snapshot: Some(Arc::new(snapshot)),
            last: self.last,
            backlog: VecDeque::new(),
            live: live.sender.subscribe(),
        }
    }

    /// Returns the beginning of a subscription directly after `after`, if all events that follow `after` are still
    /// buffered.
    pub(crate) fn replay<S>(
        &mut self,
        limits: FeedLimits,
        after: EventId,
    ) -> Option<SubscriptionStart<S, E>> {
        if after.life != self.last.life {
            return None;
        }
        let missed = usize::try_from(self.last.number.checked_sub(after.number)?).ok()?;
        let live = self.live.get_or_insert_with(|| Box::new(SubscribedFeed::new(limits)));
        let start = live.ring.len().checked_sub(missed)?;
        let backlog = live.ring.range(start..).map(|(event, _)| event.clone()).collect();
        Some(SubscriptionStart { snapshot: None, last: after, backlog, live: live.sender.subscribe() })
    }

    /// Returns whether the actor must yield to its readers. This is the case if it has sent so many events since the
    /// last call that even a fast reader could be overrun, and these events still wait in the channel. Readers do not
    /// necessarily run while the actor waits for something.
    pub(crate) fn is_flooded(&mut self) -> bool {
        let Some(live) = &mut self.live else {
            return false;
        };
        let many = live.limits.lag / 4;
        if live.unread_bytes >= (live.limits.bytes / 4).max(1) {
            // The channel is not checked here. It may be empty because it has just been replaced and its readers have
            // not yet attached to the new channel.
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

/// The number of events that the ring keeps regardless of their size. An actor may send this many events at once before
/// its readers can run.
const AT_ONCE: usize = 16;

impl<E: Send + Sync + 'static> SubscribedFeed<E> {
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
        // An error means that there is no receiver. The ring still keeps the event for subscribers that resume.
        let _ = self.sender.send(event);
        if self.ring.len() > self.limits.replay {
            self.drop_oldest();
        }
        if self.bytes > self.limits.bytes {
            self.make_room();
        }
    }

    /// Drops old events until half of the byte limit is free, so that events have to be dropped only rarely.
    fn make_room(&mut self) {
        while self.bytes > self.limits.bytes / 2 && self.ring.len() > AT_ONCE {
            self.drop_oldest();
        }
        // If a reader lags further behind than the ring reaches, the channel still holds events that the ring has
        // dropped. Replacing the channel frees these events. Fast readers read the old channel to its end, attach
        // again, and get the missed events from the ring. The slow reader is resynced when it continues.
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
