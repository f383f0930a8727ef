use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use tokio::sync::{mpsc, oneshot};

use crate::{message::ToolUse, tool::Decision};

/// What a provider may ask of the conversation that it serves, while its stream is open.
///
/// A provider keeps private state with the conversation by putting it into the
/// [`provider_data`](super::MessageDelta::provider_data) of its answers; it finds it again with
/// [`Request::private_state`](super::Request::private_state).
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    asking: Option<Arc<Asking>>,
}

#[derive(Debug)]
struct Asking {
    to: To,
    /// Whether anything was ever asked: the request can't be repeated unseen then.
    asked: AtomicBool,
    /// Questions without an answer yet.
    open: AtomicUsize,
}

#[derive(Debug)]
enum To {
    Channel(mpsc::Sender<DecisionRequest>),
    Desk(Mutex<Desk>),
}

/// Where questions wait for an agent. Hardly any request asks one, and a channel for each would be the most
/// expensive part of a short turn.
#[derive(Debug, Default)]
struct Desk {
    waiting: VecDeque<DecisionRequest>,
    agent: Option<Waker>,
    closed: bool,
}

impl Desk {
    /// Lays a question down, unless nobody is there any more.
    fn put(&mut self, question: DecisionRequest) -> Option<Waker> {
        if !self.closed {
            self.waiting.retain(|question| !question.answer.is_closed());
            self.waiting.push_back(question);
        }
        self.agent.take()
    }
}

/// The other end of a request's context, for an agent. Once it is dropped, questions are answered with a
/// rejection.
#[derive(Debug)]
pub(crate) struct Questions(Arc<Asking>);

impl Questions {
    /// The oldest question that was not taken yet.
    pub(crate) fn poll_next(&self, cx: &Context<'_>) -> Poll<DecisionRequest> {
        let mut desk = self.desk();
        if let Some(question) = desk.waiting.pop_front() {
            return Poll::Ready(question);
        }
        match &mut desk.agent {
            Some(agent) => agent.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        match &self.0.to {
            To::Desk(desk) => lock(desk),
            To::Channel(_) => unreachable!("questions are taken from a desk"),
        }
    }
}

impl Drop for Questions {
    fn drop(&mut self) {
        // What it held is dropped when the lock is free again.
        let _left = std::mem::replace(&mut *self.desk(), Desk { closed: true, ..Desk::default() });
    }
}

/// A lock that a panic does not spoil: nothing behind it is ever half changed.
fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asking {
    fn new(to: To) -> Self {
        Self { to, asked: AtomicBool::new(false), open: AtomicUsize::new(0) }
    }
}

/// Counts a question as open for as long as it lives.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn new(open: &'a AtomicUsize) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A provider's question, on its way to whoever decides.
#[derive(Debug)]
pub struct DecisionRequest {
    /// What the service wants to run.
    pub tool_use: ToolUse,
    /// Where the answer goes. Dropping it is a rejection.
    pub answer: oneshot::Sender<Decision>,
}

impl RequestContext {
    /// A context whose questions are answered by whoever reads the channel's other end.
    pub fn new(decisions: mpsc::Sender<DecisionRequest>) -> Self {
        Self { asking: Some(Arc::new(Asking::new(To::Channel(decisions)))) }
    }

    /// A context for an agent, and where its questions come out.
    pub(crate) fn with_questions() -> (Self, Questions) {
        let asking = Arc::new(Asking::new(To::Desk(Mutex::default())));
        (Self { asking: Some(Arc::clone(&asking)) }, Questions(asking))
    }

    /// A context for a request outside an agent: questions are answered with a rejection.
    pub fn detached() -> Self {
        Self::default()
    }

    /// Asks for a decision on a tool that the service runs itself. In an agent the question goes through
    /// `handle_tool_use`, and if that pauses, through `resume`; the stream stays open meanwhile, and must be
    /// polled for the answer to arrive. A request that has asked is never repeated unseen, and its total
    /// timeout does not end it while a question is open.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the question: [`DecisionRequest::answer`] is closed then.
    pub async fn decide(&self, tool_use: ToolUse) -> Decision {
        let Some(asking) = &self.asking else {
            return Decision::reject("nobody is there to decide");
        };
        asking.asked.store(true, Ordering::Relaxed);
        let _open = Open::new(&asking.open);
        let (answer, decision) = oneshot::channel();
        let question = DecisionRequest { tool_use, answer };
        match &asking.to {
            To::Channel(decisions) => {
                if decisions.send(question).await.is_err() {
                    return Decision::reject("the conversation has ended");
                }
            }
            To::Desk(desk) => {
                let agent = lock(desk).put(question);
                agent.into_iter().for_each(Waker::wake);
            }
        }
        decision.await.unwrap_or_else(|_| Decision::reject("the question was dropped"))
    }

    /// Whether a decision was ever asked for.
    pub(super) fn has_asked(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.asked.load(Ordering::Relaxed))
    }

    /// Whether a decision is waited for now.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.as_ref().is_some_and(|asking| asking.open.load(Ordering::Relaxed) > 0)
    }
}
