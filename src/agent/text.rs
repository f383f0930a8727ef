use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::{StreamExt, stream};

use super::{
    Event, Follow, FollowFrom, FollowTarget, RunProgress, Snapshot, Status,
    running::{rebuilt, result},
};
use crate::{
    message::{Content, Role, TurnId},
    run::Error,
    subscription::{Subscription, Update},
};

/// The text of one turn, in pieces. Returned by [`Subscription::text_deltas`] and
/// [`SessionSubscription::text_deltas`](crate::session::SessionSubscription::text_deltas).
///
/// **Texts.** The stream yields the text blocks of all responses in the turn, before and after tool uses, in order and
/// without a separator. It yields no thinking, no tool inputs and no tool results. Joined together, the pieces are the
/// texts of the turn's assistant messages, unless a request was repeated.
///
/// **Beginning.** If the subscription is new and its snapshot shows a turn in flight, the first piece is the text of
/// this turn so far. Otherwise the stream begins with the next request. If no turn is in flight, the stream waits for
/// the next turn. A compaction between two turns is none.
///
/// **End.** The stream ends when the turn is committed. The subscription is then positioned after the turn, and
/// `text_deltas` can be called again for the next turn. If the agent is paused, the stream waits.
///
/// **Errors.** If the turn is cancelled or fails, the last item is
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) or [`ErrorKind::Failed`](crate::ErrorKind::Failed), even if a
/// part of the failed turn is committed. If the agent ends before a turn is complete, the last item is
/// [`ErrorKind::Ended`](crate::ErrorKind::Ended). An interrupted turn is committed, so its stream ends without an
/// error.
///
/// **Resync.** If the reader was too slow, the missed text is read from the snapshot, so no text is repeated or lost.
/// There are three exceptions. If the turn was cancelled or failed in the meantime, the response in the error is empty.
/// If a whole turn was missed before the first piece, the stream yields the text of the last committed turn. If updates
/// of the turn were read before `text_deltas` was called, the missed text of complete responses is not yielded.
///
/// **Retries.** If a request is repeated after a part of its response was streamed, the text of the new response
/// follows the discarded part. To ignore discarded text, read the [events](Event::Retry) instead.
#[must_use = "a stream does nothing unless it is read"]
pub struct TextDeltas<'a>(Pin<Box<dyn Stream<Item = Result<String, Error>> + Send + 'a>>);

impl Subscription<Snapshot, Event> {
    /// Returns the text of one turn in pieces. This is the turn in flight or, if there is none, the next turn.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use omni_agent::Agent;
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let model = ScriptedProvider::new([Step::text("Hello!")]).model();
    ///
    /// let agent = Agent::builder().model(model).start().await?;
    /// let mut events = agent.subscribe().await?;
    /// agent.prompt("Hi").await?;
    /// let mut text = events.text_deltas();
    /// while let Some(delta) = text.next().await {
    ///     print!("{}", delta?);
    /// }
    /// # Ok::<(), omni_agent::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn text_deltas(&mut self) -> TextDeltas<'_> {
        let is_new = self.snapshot().is_some_and(|snapshot| snapshot.last == self.last_id());
        TextDeltas::new(self, is_new, |event| Some(event), |snapshot| snapshot)
    }
}

impl<'a> TextDeltas<'a> {
    /// Creates the stream. `is_new` states whether the subscription's snapshot still shows the current state.
    pub(crate) fn new<S: Send + Sync + 'static, E: Send + Sync + 'static>(
        events: &'a mut Subscription<S, E>,
        is_new: bool,
        event_of: fn(&E) -> Option<&Event>,
        snapshot_of: fn(&S) -> &Snapshot,
    ) -> Self {
        let (mut turn, mut follow) =
            (BufferedTurnText::default(), Follow::new(FollowTarget::InFlight, FollowFrom::Start));
        if let Some(snapshot) = events.snapshot().map(|snapshot| snapshot_of(snapshot)).filter(|_| is_new)
            && snapshot.status != Status::Idle
        {
            turn.resync(&mut follow, snapshot);
        }
        let items =
            stream::unfold((events, turn, follow), move |(events, mut turn, mut follow)| async move {
                loop {
                    if !turn.text.is_empty() {
                        let text = std::mem::take(&mut turn.text);
                        return Some((Ok(text), (events, turn, follow)));
                    }
                    if turn.is_over {
                        let error = turn.error.take()?;
                        return Some((Err(error), (events, turn, follow)));
                    }
                    match events.next().await? {
                        Update::Event(numbered) => {
                            if let Some(event) = event_of(&numbered.event) {
                                turn.event(&mut follow, event);
                            }
                        }
                        Update::Resync(snapshot) => turn.resync(&mut follow, snapshot_of(&snapshot)),
                        Update::Closed(end) => {
                            // If no turn is in flight, the last snapshot contains no text for this stream.
                            if let Some(snapshot) = end.snapshot.filter(|_| turn.turn.is_some()) {
                                turn.resync(&mut follow, snapshot_of(&snapshot));
                            }
                            if !turn.is_over {
                                turn.end(Some(Error::ended("agent", &end.reason)));
                            }
                        }
                    }
                }
            });
        Self(Box::pin(items.fuse()))
    }

    /// Returns the next piece of text, or `None` at the end.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), [`ErrorKind::Failed`](crate::ErrorKind::Failed)
    /// or [`ErrorKind::Ended`](crate::ErrorKind::Ended). After an error, the stream ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no text.
    pub async fn next(&mut self) -> Option<Result<String, Error>> {
        self.0.next().await
    }
}

impl Stream for TextDeltas<'_> {
    type Item = Result<String, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

crate::debug::impl_debug!(TextDeltas<'_> { .. });

/// The text of a turn that was read but has not been returned yet, and the end of the turn.
#[derive(Default)]
struct BufferedTurnText {
    turn: Option<TurnId>,
    /// Whether the turn is a compaction alone, as far as it was read. `None` before anything of the turn was read.
    is_compaction: Option<bool>,
    text: String,
    is_over: bool,
    error: Option<Error>,
}

impl BufferedTurnText {
    fn end(&mut self, error: Option<Error>) {
        (self.is_over, self.error) = (true, error);
    }

    fn event(&mut self, follow: &mut Follow, event: &Event) {
        // If the reader began in the middle of an answer, it may have read a part of this answer.
        let is_half_read = self.turn.is_none()
            && matches!(event, Event::Message { message, .. } if message.role == Role::Assistant);
        follow.event(event, &mut |progress| {
            if !(is_half_read && matches!(progress, RunProgress::Block { .. })) {
                self.read(progress, None);
            }
        });
        match event {
            Event::Turn { .. } | Event::Cancelled { .. } | Event::Error { .. } if self.is_compaction() => {
                (self.turn, self.is_compaction) = (None, None);
            }
            Event::Turn { .. } => self.end(None),
            Event::Cancelled { response } if !self.is_over => {
                self.end(Some(Error::cancelled(Arc::clone(response))));
            }
            Event::Error { failure, response, .. } if !self.is_over => {
                self.end(Some(Error::failed(failure.clone(), Arc::clone(response))));
            }
            _ => {}
        }
    }

    /// Adds the text that the reader missed.
    fn resync(&mut self, follow: &mut Follow, snapshot: &Snapshot) {
        let last = snapshot.last_run.as_deref().and_then(|run| run.turn);
        if let (None, Status::Idle, Some(turn)) = (self.turn, snapshot.status, last) {
            // The whole turn was missed.
            *follow = Follow::new(FollowTarget::Turn(turn), FollowFrom::Start);
        }
        let own = self.turn;
        follow
            .snapshot(&snapshot.state.history, snapshot, &mut |progress| self.read(progress, Some(snapshot)));
        // The run may have failed in a later turn.
        let is_last = own.is_none_or(|own| last.is_none_or(|last| last == own));
        self.error.take_if(|_| !is_last);
    }

    /// Returns whether the turn is a compaction alone, which answers no prompt.
    fn is_compaction(&self) -> bool {
        self.is_compaction == Some(true)
    }

    fn read(&mut self, progress: RunProgress<'_>, snapshot: Option<&Snapshot>) {
        match progress {
            RunProgress::Compaction { .. } => _ = self.is_compaction.get_or_insert(true),
            RunProgress::User(_) | RunProgress::Request { .. } => self.is_compaction = Some(false),
            _ => {}
        }
        match progress {
            _ if self.is_over => {}
            // The next turn of the run has its own stream.
            RunProgress::Turn(turn) if self.turn.is_some_and(|own| own != turn) && !self.is_compaction() => {
                self.end(None);
            }
            RunProgress::Turn(turn) => self.turn = Some(turn),
            RunProgress::Block { content: Content::Text(_), new, .. } => self.text.push_str(new),
            RunProgress::Ended { .. } if self.is_compaction() => {}
            RunProgress::Ended { outcome, response, message } => {
                let empty = || Arc::new(rebuilt(outcome, None, self.turn, snapshot));
                let response = response.cloned().unwrap_or_else(empty);
                self.end(outcome.and_then(|own| result(Some(own), response, message.is_some()).err()));
            }
            _ => {}
        }
    }
}
