use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use futures_util::{StreamExt, stream};

use super::{Event, Response, RunEnd, RunOutcome, Snapshot, Status};
use crate::{
    message::{Message, Role, TurnId},
    provider::{PartialBlock, StopReason},
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
/// this turn so far. Otherwise the stream begins with the next update. If no turn is in flight, the stream waits for
/// the next turn.
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
        let mut turn = TurnText::default();
        if is_new
            && let Some(snapshot) = events.snapshot()
            && snapshot_of(snapshot).status != Status::Idle
        {
            turn.resync(snapshot_of(snapshot));
        }
        let items = stream::unfold((events, turn), move |(events, mut turn)| async move {
            loop {
                if !turn.text.is_empty() {
                    let text = std::mem::take(&mut turn.text);
                    return Some((Ok(text), (events, turn)));
                }
                if turn.is_over {
                    let error = turn.error.take()?;
                    return Some((Err(error), (events, turn)));
                }
                match events.next().await? {
                    Update::Event(numbered) => {
                        if let Some(event) = event_of(&numbered.event) {
                            turn.event(event);
                        }
                    }
                    Update::Resync(snapshot) => turn.resync(snapshot_of(&snapshot)),
                    Update::Closed(end) => {
                        // If no turn is in flight, the last snapshot contains no text for this stream.
                        if let Some(snapshot) = end.snapshot.filter(|_| turn.has_begun) {
                            turn.resync(snapshot_of(&snapshot));
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

/// The part of a turn's text that was already read.
#[derive(Default)]
struct TurnText {
    has_begun: bool,
    /// The prompt of the turn. The turn is found in a snapshot by this prompt. `None` if neither an event nor a
    /// snapshot has shown the prompt.
    prompt: Option<Arc<Message>>,
    /// The id of the turn.
    turn: Option<TurnId>,
    /// The number of complete messages that were read, including the prompt.
    messages: usize,
    /// The number of bytes that were already read from the response that is being streamed.
    partial: usize,
    is_over: bool,
    /// The text that was read but has not been returned yet.
    text: String,
    error: Option<Error>,
}

impl TurnText {
    fn end(&mut self, error: Option<Error>) {
        (self.is_over, self.error) = (true, error);
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::TextDelta { delta, .. } => {
                self.has_begun = true;
                self.partial += delta.len();
                self.text.push_str(delta);
            }
            Event::Message { message, turn, .. } => {
                self.turn = Some(*turn);
                if !self.has_begun && is_prompt(message) {
                    self.prompt = Some(Arc::clone(message));
                }
                self.has_begun = true;
                self.messages += 1;
                self.partial = 0;
            }
            Event::Retry { pending, .. } => (self.messages, self.partial) = (*pending, 0),
            Event::Turn { .. } => self.end(None),
            Event::Cancelled { response, .. } => self.end(Some(Error::cancelled(Arc::clone(response)))),
            Event::Error { failure, response, .. } => {
                self.end(Some(Error::failed(failure.clone(), Arc::clone(response))));
            }
            _ => {}
        }
    }

    /// Adds the text that the reader missed.
    fn resync(&mut self, snapshot: &Snapshot) {
        let (pending, history) = (&snapshot.pending, &snapshot.state.history);
        let is_in_flight = match (&self.prompt, pending.first()) {
            (Some(prompt), Some(first)) => Arc::ptr_eq(prompt, first),
            (None, first) => first.is_some(),
            (Some(_), None) => false,
        };
        if is_in_flight {
            // If the turn was not read from its prompt on, only the rest of the current response can be determined.
            let is_partly_known = self.has_begun && self.prompt.is_none();
            let read = if is_partly_known { pending.len() } else { self.messages };
            self.read(pending.iter().skip(read), &snapshot.partial);
            (self.has_begun, self.messages, self.prompt) = (true, pending.len(), pending.first().cloned());
            self.turn = snapshot.turn;
            return;
        }
        let is_idle = snapshot.status == Status::Idle;
        let last_run = snapshot.last_run.as_deref().filter(|_| self.has_begun || is_idle);
        let outcome = last_run.map(|end| &end.outcome);
        let is_kept = last_run.is_some_and(|end| match end.outcome {
            RunOutcome::Stopped { .. } => true,
            RunOutcome::Abandoned | RunOutcome::Failed { .. } => end.unanswered.is_empty(),
            _ => false,
        });
        let after = match &self.prompt {
            // If the history contains the turn's prompt, the turn is committed.
            Some(prompt) => history.iter().rev().position(|message| Arc::ptr_eq(prompt, message)),
            // The last turn was missed completely.
            None if !self.has_begun && is_kept => history.iter().rev().position(|message| is_prompt(message)),
            None => None,
        };
        let response =
            |reason| Arc::new(Response::empty(&snapshot.state.model, reason, snapshot.step, snapshot.run));
        let failed = outcome.and_then(|outcome| match outcome {
            RunOutcome::Failed { failure } => {
                Some(Error::failed(failure.clone(), response(StopReason::Failed)))
            }
            _ => None,
        });
        if let Some(after) = after {
            let start = history.len() - 1 - after;
            let messages = history.iter().skip(start + 1).take_while(|message| !is_prompt(message));
            self.read(messages.skip(self.messages.saturating_sub(1)), &[]);
            // The run may have failed in a later turn.
            let is_last = |end: &RunEnd| self.turn.is_none_or(|turn| end.turn == Some(turn));
            let is_last = is_kept && last_run.is_some_and(is_last);
            return self.end(failed.filter(|_| is_last));
        }
        match outcome {
            Some(RunOutcome::Failed { .. }) => self.end(failed),
            Some(_) if is_kept && self.prompt.is_none() => self.end(None),
            Some(_) => self.end(Some(Error::cancelled(response(StopReason::Cancelled)))),
            None => {}
        }
    }

    /// Adds the unread texts of messages, and then the unread text of the streamed response.
    fn read<'m>(&mut self, messages: impl Iterator<Item = &'m Arc<Message>>, partial: &[PartialBlock]) {
        for message in messages.filter(|message| message.role == Role::Assistant) {
            self.add(&message.text());
            self.partial = 0;
        }
        let text: String = partial.iter().filter_map(|block| block.content.as_text()).collect();
        self.add(&text);
        self.partial = text.len();
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text.get(self.partial..).unwrap_or_default());
    }
}

/// Returns whether the message is a user message without tool results. A turn usually begins with such a message.
fn is_prompt(message: &Message) -> bool {
    message.role == Role::User && message.tool_results().next().is_none()
}
