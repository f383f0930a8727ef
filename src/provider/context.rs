use tokio::sync::{mpsc, oneshot};

use crate::{message::ToolUse, tool::Decision};

/// What a provider may ask of the conversation that it serves, while its stream is open.
///
/// A provider keeps private state with the conversation by putting it into the
/// [`provider_data`](super::MessageDelta::provider_data) of its answers; it finds it again with
/// [`Request::private_state`](super::Request::private_state).
#[derive(Clone, Debug, Default)]
pub struct RequestContext {
    decisions: Option<mpsc::Sender<DecisionRequest>>,
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
        Self { decisions: Some(decisions) }
    }

    /// A context for a request outside an agent: questions are answered with a rejection.
    pub fn detached() -> Self {
        Self::default()
    }

    /// Asks for a decision on a tool that the service runs itself. In an agent the question goes through
    /// `handle_tool_use`, and if that pauses, through `resume`; the stream stays open meanwhile, and must be
    /// polled for the answer to arrive.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future withdraws the question: [`DecisionRequest::answer`] is closed then.
    pub async fn decide(&self, tool_use: ToolUse) -> Decision {
        let Some(decisions) = &self.decisions else {
            return Decision::reject("nobody is there to decide");
        };
        let (answer, decision) = oneshot::channel();
        if decisions.send(DecisionRequest { tool_use, answer }).await.is_err() {
            return Decision::reject("the conversation has ended");
        }
        decision.await.unwrap_or_else(|_| Decision::reject("the question was dropped"))
    }
}
