use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
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
    decisions: mpsc::Sender<DecisionRequest>,
    /// Whether anything was ever asked: the request can't be repeated unseen then.
    asked: AtomicBool,
    /// Questions without an answer yet.
    open: AtomicUsize,
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
        let asking = Asking { decisions, asked: AtomicBool::new(false), open: AtomicUsize::new(0) };
        Self { asking: Some(Arc::new(asking)) }
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
        if asking.decisions.send(DecisionRequest { tool_use, answer }).await.is_err() {
            return Decision::reject("the conversation has ended");
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
