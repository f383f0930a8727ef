use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use tokio::sync::oneshot;

use crate::{message::ToolUse, sync::lock, telemetry::SharedRequestTelemetry, tool::Decision};

/// The connection of a provider to the conversation that it serves. The connection is open while the stream of the
/// response is open.
///
/// A provider can store private state with the conversation, in the
/// [`provider_data`](super::MessageDelta::provider_data) of its responses. It reads this state with
/// [`Request::private_state`](super::Request::private_state).
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    asking: Option<Arc<RequestQuestionsState>>,
    /// The telemetry data of the request. `None` if telemetry is off.
    scope: Option<Arc<SharedRequestTelemetry>>,
}

struct RequestQuestionsState {
    decider: ProviderQuestionDecider,
    /// Whether a question has been asked. If so, the request must not be repeated.
    asked: AtomicBool,
    /// The number of open questions.
    open: AtomicUsize,
}

crate::debug::impl_debug!(RequestQuestionsState(self) { asked: self.asked, open: self.open, .. });

type DecideFn = dyn Fn(ToolUse) -> Pin<Box<dyn Future<Output = Decision> + Send>> + Send + Sync;

enum ProviderQuestionDecider {
    Function(Box<DecideFn>),
    Agent(Mutex<ProviderQuestionQueue>),
}

/// The questions that wait for an agent. This is a plain queue and not a channel, because few requests ask a question,
/// and creating a channel for each request would be the most expensive part of a short turn.
#[derive(Debug, Default)]
struct ProviderQuestionQueue {
    waiting: VecDeque<ProviderQuestion>,
    agent: Option<Waker>,
    closed: bool,
}

impl ProviderQuestionQueue {
    /// Adds a question, unless [`ProviderQuestionReceiver`] has been dropped. Returns the waker of the agent, if the agent waits for a
    /// question.
    fn put(&mut self, question: ProviderQuestion) -> Option<Waker> {
        if !self.closed {
            self.waiting.retain(|question| !question.answer.is_closed());
            self.waiting.push_back(question);
        }
        self.agent.take()
    }
}

/// The agent's receiver of the questions that a request asks. After it is dropped, questions are answered with a
/// rejection.
#[derive(Debug)]
pub(crate) struct ProviderQuestionReceiver(Arc<RequestQuestionsState>);

impl ProviderQuestionReceiver {
    /// Returns the oldest question that has not been taken yet.
    pub(crate) fn poll_next(&self, cx: &Context<'_>) -> Poll<ProviderQuestion> {
        let mut queue = self.queue();
        if let Some(question) = queue.waiting.pop_front() {
            return Poll::Ready(question);
        }
        match &mut queue.agent {
            Some(agent) => agent.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn queue(&self) -> MutexGuard<'_, ProviderQuestionQueue> {
        match &self.0.decider {
            ProviderQuestionDecider::Agent(queue) => lock(queue),
            ProviderQuestionDecider::Function(_) => unreachable!("questions are taken from a queue"),
        }
    }
}

impl Drop for ProviderQuestionReceiver {
    fn drop(&mut self) {
        // Keep the questions in `_left` until the lock is released, because dropping a question may run other code.
        let _left = std::mem::replace(
            &mut *self.queue(),
            ProviderQuestionQueue { closed: true, ..ProviderQuestionQueue::default() },
        );
    }
}

impl RequestQuestionsState {
    fn new(decider: ProviderQuestionDecider) -> Self {
        Self { decider, asked: AtomicBool::new(false), open: AtomicUsize::new(0) }
    }
}

/// Counts a question as open until it is dropped.
struct OpenQuestionGuard<'a>(&'a AtomicUsize);

impl<'a> OpenQuestionGuard<'a> {
    fn new(open: &'a AtomicUsize) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open)
    }
}

impl Drop for OpenQuestionGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A provider's question to an agent.
#[derive(Debug)]
pub(crate) struct ProviderQuestion {
    /// The tool use in question.
    pub(crate) tool_use: ToolUse,
    /// The sender of the answer. Dropping it rejects the tool use.
    pub(crate) answer: oneshot::Sender<Decision>,
}

impl RequestContext {
    /// Creates a context for a request outside an agent. The function `decide` answers the questions.
    ///
    /// ```
    /// use omni_agent::{provider::custom::RequestContext, tool::Decision};
    ///
    /// let context = RequestContext::new(async |tool_use| match tool_use.name.as_str() {
    ///     "read" => Decision::Execute,
    ///     _ => Decision::reject("only `read` is allowed"),
    /// });
    /// ```
    pub fn new<F, D>(decide: F) -> Self
    where
        F: Fn(ToolUse) -> D + Send + Sync + 'static,
        D: Future<Output = Decision> + Send + 'static,
    {
        let decide = Box::new(move |tool_use| Box::pin(decide(tool_use)) as Pin<Box<_>>);
        Self {
            asking: Some(Arc::new(RequestQuestionsState::new(ProviderQuestionDecider::Function(decide)))),
            scope: None,
        }
    }

    /// Creates a context for an agent, and the receiver of its questions.
    pub(crate) fn with_questions() -> (Self, ProviderQuestionReceiver) {
        let asking = Arc::new(RequestQuestionsState::new(ProviderQuestionDecider::Agent(Mutex::default())));
        (Self { asking: Some(Arc::clone(&asking)), scope: None }, ProviderQuestionReceiver(asking))
    }

    /// Returns a context of the same request, but `decide` answers the questions.
    #[cfg(feature = "test-util")]
    pub(crate) fn answered_by<F, D>(&self, decide: F) -> Self
    where
        F: Fn(ToolUse) -> D + Send + Sync + 'static,
        D: Future<Output = Decision> + Send + 'static,
    {
        Self { scope: self.scope.clone(), ..Self::new(decide) }
    }

    /// Creates a context for a request outside an agent. Questions are answered with a rejection.
    pub fn detached() -> Self {
        Self::default()
    }

    /// Asks for a decision on a tool that the service runs itself. In an agent, `handle_tool_use` decides. If this
    /// callback pauses, `resume` decides. While the question is open, the stream stays open, and it must be polled so
    /// that the answer can arrive. A request that has asked a question is never repeated automatically, and its total
    /// timeout does not end it while a question is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the question.
    pub async fn decide(&self, tool_use: ToolUse) -> Decision {
        let Some(asking) = &self.asking else {
            return Decision::reject("no agent is available to decide");
        };
        asking.asked.store(true, Ordering::Relaxed);
        let _open = OpenQuestionGuard::new(&asking.open);
        let queue = match &asking.decider {
            ProviderQuestionDecider::Function(decide) => return decide(tool_use).await,
            ProviderQuestionDecider::Agent(queue) => queue,
        };
        let (answer, decision) = oneshot::channel();
        let agent = lock(queue).put(ProviderQuestion { tool_use, answer });
        agent.into_iter().for_each(Waker::wake);
        decision.await.unwrap_or_else(|_| Decision::reject("the question was dropped"))
    }

    /// Sets the id of the conversation to which the request belongs, for telemetry.
    pub(crate) fn set_conversation(&mut self, conversation: Option<&str>) {
        self.scope = Some(Arc::new(SharedRequestTelemetry::new(conversation)));
    }

    /// Returns the scope of the request's telemetry, and creates it if there is none.
    pub(super) fn open_scope(&mut self) -> Arc<SharedRequestTelemetry> {
        Arc::clone(self.scope.get_or_insert_default())
    }

    /// Reports the service to which the request is sent, for telemetry.
    #[cfg(feature = "http")]
    pub(super) fn set_server(&self, address: &str, port: Option<u16>) {
        if let Some(scope) = &self.scope {
            scope.set_server(address, port);
        }
    }

    /// Returns whether a decision was requested.
    pub(super) fn has_asked(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.asked.load(Ordering::Relaxed))
    }

    /// Returns whether a decision is pending.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.open.load(Ordering::Relaxed) > 0)
    }
}

#[cfg(test)]
mod tests;
