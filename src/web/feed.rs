//! The stream of a page: updates of the list and of several conversations, as server-sent events.
//!
//! The response reads the subscriptions only when its socket has room, so the router has no queue. A conversation
//! leaves the stream when the principal may no longer watch it. The labels of snapshots are checked too, because a slow
//! reader gets a snapshot in place of the event with the new labels. The list always begins with a snapshot, because
//! the labels of a deleted conversation can't be checked later.

use std::{
    collections::{HashSet, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use axum::response::{Response, sse::Event as Frame};
use futures_core::Stream;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use serde::Serialize;
use tokio::sync::OnceCell;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Action, AuthorizedClient, Problem, Web,
    gate::WebRequest,
    streams::{LoadPermit, StreamLifetime},
    view::ConversationViewFilter,
};
use crate::{
    agent::Event,
    manager::{ManagerEvent, ManagerSnapshot, OpenSession},
    run::Error,
    session::{Mode, Session, SessionEvent, SessionSnapshot, SessionSubscription},
    store::{ConversationId, Labels},
    subscription::{EventId, Numbered, Subscription, Update},
    sync::lock,
};

/// For each conversation of a stream, the id of the last session event that the client has seen. The text
/// `ID:EVENT,ID:EVENT` is the SSE `id` of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionEventPositions(Vec<(ConversationId, EventId)>);

impl SessionEventPositions {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let position = |part: &str| {
            let (id, event) = part.rsplit_once(':')?;
            Some((ConversationId::new(id).ok()?, event.parse().ok()?))
        };
        text.split(',').filter(|part| !part.is_empty()).map(position).collect::<Option<_>>().map(Self)
    }

    pub(super) fn of(&self, id: &ConversationId) -> Option<EventId> {
        self.0.iter().find(|(known, _)| known == id).map(|(_, event)| *event)
    }

    fn set(&mut self, id: &ConversationId, event: EventId) {
        match self.0.iter_mut().find(|(known, _)| known == id) {
            Some((_, last)) => *last = event,
            None => self.0.push((id.clone(), event)),
        }
    }

    fn text(&self) -> String {
        let parts: Vec<String> = self.0.iter().map(|(id, event)| format!("{id}:{event}")).collect();
        parts.join(",")
    }
}

/// A conversation of a stream.
pub(super) struct ConversationToWatch {
    pub(super) id: ConversationId,
    /// The subscription, if the conversation is open already. Otherwise the stream checks the access and opens it.
    pub(super) subscription: Option<SessionSubscription>,
    /// The maximum number of messages in a snapshot, if the client wants only the last ones.
    pub(super) messages: Option<usize>,
}

/// One item of the merged stream.
enum MergedFeedItem {
    Conversation(ConversationId, Update<SessionSnapshot, SessionEvent>),
    Refused(ConversationId, Problem),
    List(Update<ManagerSnapshot, ManagerEvent>),
}

/// A stream of the items of a few streams, which take turns. Unlike `SelectAll`, `MergedFeedStreams` allocates nothing per item.
#[derive(Default)]
struct MergedFeedStreams(VecDeque<BoxStream<'static, MergedFeedItem>>);

impl Stream for MergedFeedStreams {
    type Item = MergedFeedItem;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<MergedFeedItem>> {
        for _ in 0..self.0.len() {
            let Some(mut stream) = self.0.pop_front() else { break };
            match stream.poll_next_unpin(context) {
                Poll::Ready(None) => {}
                Poll::Ready(item) => {
                    self.0.push_back(stream);
                    return Poll::Ready(item);
                }
                Poll::Pending => self.0.push_back(stream),
            }
        }
        if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

/// A conversation of a stream, as the client sees it.
struct WatchedConversationView {
    id: ConversationId,
    lens: ConversationViewFilter,
    /// Ends the subscription when it is dropped.
    _subscription: DropGuard,
}

/// The state of a stream.
struct UpdateStream {
    web: Web,
    client: AuthorizedClient,
    items: MergedFeedStreams,
    /// The conversations of the stream. A conversation is removed when it is refused.
    watched: Vec<WatchedConversationView>,
    positions: SessionEventPositions,
    lifetime: StreamLifetime,
    has_ended: bool,
    /// The permit of this stream. It is released at the end of the stream, so that another stream can be opened.
    _permit: LoadPermit,
}

#[derive(Serialize)]
struct ConversationUpdateFrame<'a> {
    conversation: &'a ConversationId,
    update: &'a Update<SessionSnapshot, SessionEvent>,
}

#[derive(Serialize)]
struct ListUpdateFrame<'a> {
    update: &'a Update<ManagerSnapshot, ManagerEvent>,
}

/// Opens a conversation, unless it is open, and subscribes to it: as a controller if the principal may prompt,
/// otherwise as an observer. With `after`, the subscription continues after that event. Also returns the labels that
/// decide what is permitted. Fails if the principal may not watch the open conversation.
pub(super) async fn subscribe(
    client: &AuthorizedClient,
    id: &ConversationId,
    labels: &Labels,
    after: Option<EventId>,
) -> Result<(Session, SessionSubscription, Labels), Error> {
    let mode = if client.may(Action::Prompt, labels) { Mode::Controller } else { Mode::Observer };
    client.subscribe((id, labels), mode, after, &[Action::Watch]).await
}

/// Checks the access to the conversation with this id, opens it, and subscribes to it.
async fn enter(
    client: &AuthorizedClient,
    id: &ConversationId,
    after: Option<EventId>,
) -> Result<SessionSubscription, Error> {
    let labels = client.permitted(id, &[Action::Watch]).await?;
    Ok(subscribe(client, id, &labels, after).await?.1)
}

/// Returns the response with the stream.
pub(super) fn respond(
    call: &WebRequest,
    permit: LoadPermit,
    list: bool,
    watches: Vec<ConversationToWatch>,
    after: &SessionEventPositions,
) -> Response {
    let (web, client) = (&call.web, &call.client);
    let mut items = MergedFeedStreams::default();
    let mut conversations = Vec::new();
    if list {
        items.0.push_back(ListWatch::of(web, client).items().boxed());
    }
    for watch in watches {
        let (id, ended) = (watch.id.clone(), CancellationToken::new());
        let updates = updates(client.clone(), watch, after.of(&id));
        items.0.push_back(updates.take_until(ended.clone().cancelled_owned()).boxed());
        conversations.push(WatchedConversationView {
            lens: call.lens(&id),
            id,
            _subscription: ended.drop_guard(),
        });
    }
    // The id of a frame contains the positions in all conversations, beginning with the positions from the request.
    // Without the positions from the request, a client that resumes twice would lose its place in conversations that
    // sent nothing in between.
    let mut positions = after.clone();
    positions.0.retain(|(id, _)| conversations.iter().any(|watched| watched.id == *id));
    let feed = UpdateStream {
        web: web.clone(),
        client: client.clone(),
        items,
        watched: conversations,
        positions,
        lifetime: web.lifetime(),
        has_ended: false,
        _permit: permit,
    };
    let frames = stream::unfold(feed, |mut feed| async move { feed.next().await.map(|frame| (frame, feed)) });
    web.respond(frames, CancellationToken::new())
}

/// Opens a conversation, unless it is open, and returns its updates.
fn updates(
    client: AuthorizedClient,
    watch: ConversationToWatch,
    after: Option<EventId>,
) -> impl Stream<Item = MergedFeedItem> + Send {
    stream::once(async move {
        let ConversationToWatch { id, subscription, messages } = watch;
        let subscription = match subscription {
            Some(subscription) => Ok(subscription),
            None => enter(&client, &id, after).await,
        };
        let subscription = match subscription {
            Ok(subscription) => match messages {
                Some(limit) => subscription.into_tail(limit),
                None => subscription,
            },
            Err(error) => return stream::iter([MergedFeedItem::Refused(id, error.into())]).boxed(),
        };
        // A resumed subscription has no snapshot of its own. Its first update is a resync if events are missing.
        let first = subscription.snapshot().map(Arc::clone).map(Update::Resync);
        let first = stream::iter(first.map(|update| MergedFeedItem::Conversation(id.clone(), update)));
        let rest = stream::unfold((subscription, id), |(mut subscription, id)| async move {
            let update = subscription.next().await?;
            Some((MergedFeedItem::Conversation(id.clone(), update), (subscription, id)))
        });
        first.chain(rest).boxed()
    })
    .flatten()
}

/// Adds data in its JSON form to a frame. `Frame::json_data` would make the frame's buffer grow in several steps.
fn with_data(frame: Frame, data: &impl Serialize) -> Result<Frame, axum::Error> {
    /// Most frames are smaller, in bytes.
    const USUAL: usize = 512;

    let mut json = Vec::with_capacity(USUAL);
    serde_json::to_writer(&mut json, data).map_err(axum::Error::new)?;
    String::from_utf8(json).map(|json| frame.data(json)).map_err(axum::Error::new)
}

impl UpdateStream {
    /// Returns the next frame, or `None` at the end of the stream.
    async fn next(&mut self) -> Option<Result<Frame, axum::Error>> {
        let draining = self.web.0.draining.clone();
        while !self.has_ended {
            let item = tokio::select! {
                biased;
                () = draining.cancelled() => None,
                () = &mut self.lifetime => None,
                item = self.items.next() => item,
            };
            let Some(item) = item else {
                self.has_ended = true;
                let retry_after = if self.web.is_draining() { 5 } else { 0 };
                let ending = serde_json::json!({ "retry_after": retry_after });
                return Some(with_data(Frame::default().event("ending"), &ending));
            };
            let frame = match item {
                MergedFeedItem::Conversation(id, update) => self.conversation(&id, update).await,
                MergedFeedItem::Refused(id, problem) => Some(self.refused(&id, &problem)),
                MergedFeedItem::List(update) => {
                    Some(with_data(Frame::default().event("list"), &ListUpdateFrame { update: &update }))
                }
            };
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    async fn conversation(
        &mut self,
        id: &ConversationId,
        update: Update<SessionSnapshot, SessionEvent>,
    ) -> Option<Result<Frame, axum::Error>> {
        if self.watched.iter().all(|watched| watched.id != *id) {
            return None;
        }
        if !self.client.still_watches(id, &update).await {
            return Some(self.refused(id, &Problem::not_found()));
        }
        let WatchedConversationView { lens, .. } =
            self.watched.iter_mut().find(|watched| watched.id == *id)?;
        let mut is_delta = false;
        match &update {
            Update::Event(numbered) => {
                is_delta = numbered.event.agent().is_some_and(is_a_delta);
                self.positions.set(id, numbered.id);
            }
            Update::Resync(snapshot) => self.positions.set(id, snapshot.last),
            Update::Closed(_) => {}
        }
        let update = lens.update(update);
        let mut frame = Frame::default().event("conversation");
        if !is_delta {
            frame = frame.id(self.positions.text());
        }
        Some(with_data(frame, &ConversationUpdateFrame { conversation: id, update: &update }))
    }

    /// Removes a conversation from the stream, and returns a frame that reports the problem with it.
    fn refused(&mut self, id: &ConversationId, problem: &Problem) -> Result<Frame, axum::Error> {
        self.watched.retain(|watched| watched.id != *id);
        self.positions.0.retain(|(known, _)| known != id);
        let mut refused = serde_json::json!({ "conversation": id, "problem": problem.to_json() });
        if let Some(after) = problem.retry_after() {
            refused["retry_after"] = after.into();
        }
        with_data(Frame::default().event("refused"), &refused)
    }
}

/// The list as a principal sees it.
struct ListWatch {
    web: Web,
    client: AuthorizedClient,
    /// The first update, until it is read.
    first: Option<ListUpdate>,
    rest: Subscription<ManagerSnapshot, ManagerEvent>,
    /// The conversations of the list that the client knows.
    shown: HashSet<ConversationId>,
}

type ListUpdate = Update<ManagerSnapshot, ManagerEvent>;

impl ListWatch {
    fn of(web: &Web, client: &AuthorizedClient) -> Self {
        let rest = web.0.manager.subscribe();
        let first = rest.snapshot().map(Arc::clone).map(Update::Resync);
        Self { web: web.clone(), client: client.clone(), first, rest, shown: HashSet::new() }
    }

    /// Returns the visible updates. Reading labels can take long, so it is part of this stream: the other items and the
    /// end of the whole stream do not wait for it.
    fn items(self) -> impl Stream<Item = MergedFeedItem> + Send {
        stream::unfold(self, |mut listing| async move {
            loop {
                let next = match listing.first.take() {
                    Some(first) => first,
                    None => listing.rest.next().await?,
                };
                if let Some(update) = listing.visible(next).await {
                    return Some((MergedFeedItem::List(update), listing));
                }
            }
        })
    }

    /// Returns an update as the principal sees it, or `None` if the principal may not see it.
    async fn visible(&mut self, update: ListUpdate) -> Option<ListUpdate> {
        Some(match update {
            Update::Event(Numbered { id, event }) => {
                let event = self.event(id, event).await?;
                Update::Event(Numbered::new(id, event))
            }
            Update::Resync(snapshot) => {
                // The conversations that the client knew may belong to somebody else by now.
                self.shown.clear();
                let mut snapshot = ManagerSnapshot::clone(&snapshot);
                snapshot.open.retain(|session| self.client.may_list(&session.labels));
                let mut waiting = Vec::new();
                for id in std::mem::take(&mut snapshot.waiting) {
                    if self.is_listed(snapshot.last, &id).await {
                        waiting.push(id);
                    }
                }
                snapshot.waiting = waiting;
                self.shown.extend(snapshot.open.iter().map(|session| session.id.clone()));
                Update::Resync(Arc::new(snapshot))
            }
            closed @ Update::Closed(_) => closed,
        })
    }

    async fn event(&mut self, at: EventId, event: Arc<ManagerEvent>) -> Option<Arc<ManagerEvent>> {
        let is_visible = match &*event {
            ManagerEvent::Opened { session: OpenSession { id, labels, .. } }
            | ManagerEvent::Labels { id, labels } => {
                if !self.client.may_list(labels) {
                    return self.lost(id);
                }
                self.shown.insert(id.clone());
                true
            }
            ManagerEvent::Deleted { id } => self.shown.remove(id),
            // These events contain the reason of a failure, which only an operator may see.
            ManagerEvent::NotRecovered { .. } | ManagerEvent::NotFired { .. } => false,
            // An earlier event or the snapshot has shown the conversation, if the principal may see it.
            ManagerEvent::GivenUp { id }
            | ManagerEvent::Status { id, .. }
            | ManagerEvent::Closed { id, .. } => self.shown.contains(id),
            ManagerEvent::Waiting { id } | ManagerEvent::Title { id, .. } => self.is_listed(at, id).await,
        };
        is_visible.then_some(event)
    }

    /// Returns the event about a conversation that belongs to somebody else now: it is gone for this principal. Returns
    /// `None` if the client does not know the conversation.
    fn lost(&mut self, id: &ConversationId) -> Option<Arc<ManagerEvent>> {
        self.shown.remove(id).then(|| Arc::new(ManagerEvent::Deleted { id: id.clone() }))
    }

    /// Returns whether the principal may see a conversation. If so, also notes that the client knows the conversation.
    /// `at` is the event that needs this.
    async fn is_listed(&mut self, at: EventId, id: &ConversationId) -> bool {
        if self.shown.contains(id) {
            return true;
        }
        let labels = self.web.labels_at(at, id).await;
        // A conversation whose labels cannot be read is not shown.
        let is_listed = labels.is_some_and(|labels| self.client.may_list(&labels));
        if is_listed {
            self.shown.insert(id.clone());
        }
        is_listed
    }
}

/// The labels that the latest events of the list needed. All streams read them from the store once.
#[derive(Debug, Default)]
pub(super) struct LabelsCache(Mutex<VecDeque<Arc<LabelsAtEvent>>>);

/// The labels of a conversation at an event of the list.
#[derive(Debug)]
struct LabelsAtEvent {
    event: EventId,
    conversation: ConversationId,
    labels: OnceCell<Labels>,
}

/// The number of readings that are kept.
const KEPT_READINGS: usize = 64;

impl Web {
    /// Returns the labels of a conversation that an event of the list is about, or `None` if they cannot be read.
    async fn labels_at(&self, event: EventId, id: &ConversationId) -> Option<Labels> {
        let reading = {
            let mut kept = lock(&self.0.read_labels.0);
            let known = kept.iter().find(|known| known.event == event && known.conversation == *id);
            if let Some(known) = known {
                Arc::clone(known)
            } else {
                let (conversation, labels) = (id.clone(), OnceCell::new());
                let reading = Arc::new(LabelsAtEvent { event, conversation, labels });
                kept.truncate(KEPT_READINGS - 1);
                kept.push_front(Arc::clone(&reading));
                reading
            }
        };
        // An error is not kept, so the next stream reads again.
        reading.labels.get_or_try_init(|| self.0.manager.labels_of(id)).await.ok().cloned()
    }
}

/// Returns whether the event is so frequent that its frame has no id.
fn is_a_delta(event: &Event) -> bool {
    matches!(event, Event::TextDelta { .. } | Event::ThinkingDelta { .. } | Event::ToolUseDelta { .. })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn items(name: &str, count: usize) -> BoxStream<'static, MergedFeedItem> {
        let id = ConversationId::new(name).expect("an id");
        let item = move || MergedFeedItem::Refused(id.clone(), Problem::not_found());
        stream::repeat_with(item).take(count).boxed()
    }

    #[test]
    fn merged_streams_take_turns_until_all_have_ended() {
        let waiting = stream::pending().boxed();
        let mut merged =
            MergedFeedStreams(VecDeque::from([items("a", 3), waiting, items("b", 1), items("c", 2)]));
        let mut names = Vec::new();
        while let Some(item) = merged.next().now_or_never() {
            let Some(MergedFeedItem::Refused(id, _)) = item else { panic!("one stream still waits") };
            names.push(id.to_string());
        }
        assert_eq!(names, ["a", "b", "c", "a", "c", "a"]);
        merged.0.clear();
        merged.0.push_back(items("d", 0));
        assert!(merged.next().now_or_never().is_some_and(|end| end.is_none()));
    }
}
