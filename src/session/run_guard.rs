//! A guard for tools that start runs in other sessions in their own way.

use tokio::sync::oneshot;
use tracing::Instrument;

use super::Session;
use crate::{message::TurnId, tool::ToolContext};

/// Interrupts a turn of a session when it is dropped. Returned by [`ToolContext::guard_run`].
#[derive(Debug)]
#[must_use = "dropping the guard interrupts the turn"]
pub struct RunGuard {
    /// Nothing is sent. Dropping the sender wakes the task that waits for it.
    _held: oneshot::Sender<()>,
}

impl ToolContext {
    /// Ties a turn of another session to this call: if the call is cancelled or times out, or the guard is dropped, the
    /// turn is interrupted. If the turn is no longer in flight, nothing happens.
    ///
    /// A tool that prompts a session holds the guard until it has the answer. Otherwise, the run of the session would
    /// continue after the call has ended. An agent that exists for the call only is simpler as a
    /// [`SubAgent`](crate::agent::SubAgent).
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::testing::{ScriptedProvider, Step};
    /// # let expert = ScriptedProvider::new([Step::text("42.")]).model();
    /// # let model =
    /// #     ScriptedProvider::new([Step::tool_use("c", "expert", serde_json::json!({})), Step::text("Done.")]).model();
    /// use omni_agent::{Agent, Session, ToolContext, ToolError, run::Accepted, store::MemoryStore, tool_fn};
    /// use serde_json::Value;
    ///
    /// let session = Session::builder(MemoryStore::new()).agent(Agent::builder().model(expert)).create().await?;
    /// let expert = tool_fn("expert", "Asks the expert.", move |_: Value, context: ToolContext| {
    ///     let session = session.clone();
    ///     async move {
    ///         let Accepted::Started { turn } = session.prompt("What is the answer?").await? else {
    ///             return Err(ToolError::new("The expert is busy."));
    ///         };
    ///         let _guard = context.guard_run(&session, turn);
    ///         session.wait_until_idle().await?;
    ///         Ok("The expert has answered.")
    ///     }
    /// });
    /// let agent = Agent::builder().model(model).tool(expert).start().await?;
    /// assert_eq!(agent.ask("Ask the expert.").await?.text(), "Done.");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn guard_run(&self, session: &Session, turn: TurnId) -> RunGuard {
        let (held, dropped) = oneshot::channel::<()>();
        let (weak, context) = (session.downgrade(), self.clone());
        // A task, because a drop can't wait. It holds no handle, so it keeps no session open.
        let watch = async move {
            tokio::select! {
                _ = dropped => {}
                () = context.cancelled() => {}
            }
            if let Some(session) = weak.upgrade() {
                // An error means that the session has ended, and its run with it.
                let _ = session.interrupt_turn(turn).await;
            }
        };
        tokio::spawn(watch.in_current_span());
        RunGuard { _held: held }
    }
}
