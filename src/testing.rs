//! Tools for tests of applications that use this crate (feature `test-util`).
//!
//! A [`ScriptedProvider`] is a provider without a network. It answers each request with the next [`Step`] of its
//! script, or with the step that a function returns for the request. It also records the requests that it receives.
//! Steps stream text, thinking and tool uses. At any delta, a step can wait, ask for a decision, fail or break off. A
//! [`Gate`] blocks a script, a tool or a callback until the test opens it, so that no test has to sleep.
//!
//! A [`Recorded`] provider records the exchanges with a real service in a file, and replays them in later tests.
//!
//! ```
//! use omni_agent::provider::Request;
//! use omni_agent::testing::{ScriptedProvider, Step};
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//!
//! let provider = ScriptedProvider::new([Step::text("Paris.")]);
//! let response = provider.model().generate(Request::prompt("The capital of France?")).await?;
//! assert_eq!(response.message.text(), "Paris.");
//! assert_eq!(provider.requests()[0].history.len(), 1);
//! # Ok::<(), omni_agent::provider::ProviderError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod recorded;

use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream;
use serde_json::Value;
use tokio::{sync::Semaphore, time::sleep};

pub use self::recorded::{Recorded, Recording};
pub use crate::conformance::ConformanceReport;
#[cfg(feature = "http")]
use crate::provider::{
    dialect::Dialect,
    http::{Framer, Limits},
};
use crate::{
    message::{Timestamp, ToolUse, Usage},
    provider::{
        BlockStart, Completion, Delta, DeltaStream, Fold, MessageDelta, Model, Part, Provider, ProviderError,
        ProviderErrorKind, Request, RequestContext, StopReason,
    },
    setters::setters,
    sync::lock,
    tool::Decision,
};

/// Parts of the crate that its own tests and fuzz targets need. They are not part of the API and may change at any
/// time.
#[doc(hidden)]
pub mod internals {
    pub use crate::provider::fold::Fold;
}

/// Decodes a complete response in a wire format as an endpoint does, without a network. The body may be split into
/// pieces anywhere.
///
/// A test of a [`Dialect`] passes recorded bytes to this function. [`fold`] then joins the deltas into the message.
///
/// ```
/// use omni_agent::provider::{Request, custom::ChatCompletions};
/// use omni_agent::testing::{decode, fold};
///
/// let recorded = [
///     &br#"data: {"choices": [{"delta": {"content": "Par"}}]}"#[..],
///     b"\n\n",
///     b"data: {\"choices\": [{\"delta\": {\"content\": \"is.\"}, \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n",
/// ];
/// let deltas = decode(&ChatCompletions::openai(), &Request::prompt("The capital of France?"), recorded)?;
/// assert_eq!(fold(deltas)?.message.text(), "Paris.");
/// # Ok::<(), omni_agent::provider::ProviderError>(())
/// ```
///
/// # Errors
///
/// Fails with the error that the response would cause, for example because the response is invalid or incomplete.
#[cfg(feature = "http")]
pub fn decode<'a>(
    dialect: &dyn Dialect,
    request: &Request,
    body: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<Delta>, ProviderError> {
    let mut framer = Framer::new(dialect.framing(), &Limits::default());
    let (mut decoder, mut deltas) = (dialect.decoder(request), Vec::new());
    for piece in body.into_iter().map(Some).chain([None]) {
        match piece {
            Some(piece) => framer.push(piece.to_vec().into()),
            None => framer.finish(),
        }
        while let Some(frame) = framer.next_frame()? {
            decoder.decode(frame, &mut deltas)?;
            if decoder.is_done() {
                return Ok(deltas);
            }
        }
    }
    decoder.end(&mut deltas)?;
    Ok(deltas)
}

/// Joins the deltas of a response into the message of the response.
///
/// # Errors
///
/// Fails at the first delta that does not fit the deltas before it, or if the response has no end.
pub fn fold(deltas: impl IntoIterator<Item = Delta>) -> Result<Completion, ProviderError> {
    let mut fold = Fold::default();
    deltas.into_iter().try_for_each(|delta| fold.apply(delta))?;
    fold.finish(Timestamp::now())
}

/// A provider that answers from a script. Clones share the script and the recorded requests.
///
/// A step may refuse its request, or break off before it has streamed content. If the error is retryable, the request
/// is repeated as [`RetryPolicy`](crate::provider::RetryPolicy) specifies, and the repetition uses the next step of the
/// script. If a test needs the error without a retry, set
/// [`Options::max_retries`](crate::provider::Options::max_retries) to 0.
#[derive(Clone)]
pub struct ScriptedProvider {
    name: Arc<str>,
    shared: Arc<ScriptState>,
}

struct ScriptState {
    script: Mutex<VecDeque<Step>>,
    /// A function that answers the requests after the end of the script.
    beyond: Option<Mutex<FallbackStepFn>>,
    requests: Mutex<Vec<Request>>,
    decisions: Mutex<Vec<Decision>>,
    open: AtomicUsize,
}

type FallbackStepFn = Box<dyn FnMut(&Request) -> Step + Send>;
type ScriptStepFn = Box<dyn FnOnce(&Request) -> Step + Send>;

impl ScriptedProvider {
    /// Creates a provider that answers with these steps, in order. A request after the last step fails with an error of
    /// kind [`ProviderErrorKind::InvalidRequest`].
    pub fn new(script: impl IntoIterator<Item = Step>) -> Self {
        Self::made(script.into_iter().collect(), None)
    }

    /// Creates a provider that answers each request with the step that `answer` returns for it.
    ///
    /// ```
    /// use omni_agent::{provider::Request, testing::{ScriptedProvider, Step}};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// let parrot = ScriptedProvider::from_fn(|request| {
    ///     Step::text(request.history.last().map(|message| message.text()).unwrap_or_default())
    /// });
    /// let response = parrot.model().generate(Request::prompt("Hello")).await?;
    /// assert_eq!(response.message.text(), "Hello");
    /// # Ok::<(), omni_agent::provider::ProviderError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_fn(answer: impl FnMut(&Request) -> Step + Send + 'static) -> Self {
        Self::made(VecDeque::new(), Some(Mutex::new(Box::new(answer))))
    }

    fn made(script: VecDeque<Step>, beyond: Option<Mutex<FallbackStepFn>>) -> Self {
        let shared = ScriptState {
            script: Mutex::new(script),
            beyond,
            requests: Mutex::default(),
            decisions: Mutex::default(),
            open: AtomicUsize::new(0),
        };
        Self { name: "test".into(), shared: Arc::new(shared) }
    }

    /// Returns the same provider with this name instead of `test`, for a registry with several providers.
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Returns the model `scripted` of this provider. The provider accepts any other model id as well.
    pub fn model(&self) -> Model {
        Model::new(Arc::new(self.clone()), "scripted")
    }

    /// Adds a step at the end of the script.
    pub fn push(&self, step: Step) {
        lock(&self.shared.script).push_back(step);
    }

    /// Returns all requests so far, including requests that were refused.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Returns the newest request.
    pub fn last_request(&self) -> Option<Request> {
        lock(&self.shared.requests).last().cloned()
    }

    /// Returns the number of responses that are streaming. These responses have started, and have neither been read to
    /// the end nor dropped.
    pub fn streaming(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Returns the decisions that steps with [`Step::decide`] have received so far.
    pub fn decisions(&self) -> Vec<Decision> {
        lock(&self.shared.decisions).clone()
    }

    /// Returns the number of steps left in the script.
    pub fn steps_left(&self) -> usize {
        lock(&self.shared.script).len()
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn name(&self) -> &str {
        &self.name
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        lock(&self.shared.requests).push(request.clone());
        let next = lock(&self.shared.script).pop_front();
        let mut step = match (next, &self.shared.beyond) {
            (Some(step), _) => step,
            (None, Some(beyond)) => lock(beyond)(&request),
            (None, None) => {
                let words = "the script has no step left for this request; add one with `push`";
                return Err(ProviderError::new(ProviderErrorKind::InvalidRequest, words));
            }
        };
        while let Some(make) = step.make.take() {
            step = make(&request);
        }
        if let Some(error) = step.refuse {
            return Err(error);
        }
        let state = (step.actions.into_iter(), OpenResponseGuard::new(self.clone()), context);
        Ok(Box::pin(stream::unfold(state, |(mut actions, open, context)| async move {
            let item = loop {
                match actions.next()? {
                    ScriptAction::Delta(delta) => break Ok(delta),
                    ScriptAction::Fail(error) => {
                        // The stream ends after an error, so the remaining actions are dropped.
                        actions = Vec::new().into_iter();
                        break Err(error);
                    }
                    ScriptAction::Wait(delay) => sleep(delay).await,
                    ScriptAction::Gate(gate) => gate.pass().await,
                    ScriptAction::Hang => pending().await,
                    ScriptAction::Panic(words) => std::panic::panic_any(words),
                    ScriptAction::Decide(tool_use) => {
                        let decision = context.decide(tool_use).await;
                        lock(&open.0.shared.decisions).push(decision);
                    }
                }
            };
            Some((item, (actions, open, context)))
        })))
    }
}

/// A guard that counts a response as streaming until it is dropped.
struct OpenResponseGuard(ScriptedProvider);

impl OpenResponseGuard {
    fn new(provider: ScriptedProvider) -> Self {
        provider.shared.open.fetch_add(1, Ordering::SeqCst);
        Self(provider)
    }
}

impl Drop for OpenResponseGuard {
    fn drop(&mut self) {
        self.0.shared.open.fetch_sub(1, Ordering::SeqCst);
    }
}

crate::debug::impl_debug!(ScriptedProvider(self) { name: self.name, steps_left: self.steps_left(), .. });

/// A response of a [`ScriptedProvider`].
///
/// A step is built from left to right, and [`stop`](Step::stop) ends it. A step without an end breaks off after its
/// last action, like a connection that is cut.
///
/// ```
/// use omni_agent::testing::Step;
/// use serde_json::json;
///
/// let step = || Step::new().then_text(["Let me ", "see."]).then_tool_use("call-1", "look", json!({})).stop();
/// // Two blocks, three pieces and the end; the response can be cut off at each of them.
/// assert_eq!(step().actions(), 6);
/// let cut: Vec<Step> = (0..6).map(|actions| step().cut_after(actions)).collect();
/// ```
#[derive(Default)]
pub struct Step {
    actions: Vec<ScriptAction>,
    blocks: usize,
    uses_tools: bool,
    refuse: Option<ProviderError>,
    make: Option<ScriptStepFn>,
}

enum ScriptAction {
    Delta(Delta),
    Fail(ProviderError),
    Wait(Duration),
    Gate(Gate),
    Hang,
    Panic(String),
    Decide(ToolUse),
}

impl Step {
    /// Creates an empty response without an end, to which content can be added.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a complete response with one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new().then_text([text.into()]).stop()
    }

    /// Creates a complete response with one value, like the response of a service that enforces the output schema
    /// itself.
    pub fn output(value: &Value) -> Self {
        let enforced = MessageDelta { output_enforced: true, ..MessageDelta::default() };
        Self::new().data(enforced).then_text([value.to_string()]).stop()
    }

    /// Creates a complete response with one tool use.
    pub fn tool_use(id: &str, name: &str, input: Value) -> Self {
        Self::new().then_tool_use(id, name, input).stop()
    }

    /// Creates a step that refuses the request before anything is streamed. Anything added to this step has no effect.
    pub fn error(error: ProviderError) -> Self {
        Self { refuse: Some(error), ..Self::default() }
    }

    /// Creates a response that depends on the request. Anything added to this step has no effect. Instead, add it to
    /// the step that `make` returns.
    pub fn from_fn(make: impl FnOnce(&Request) -> Step + Send + 'static) -> Self {
        Self { make: Some(Box::new(make)), ..Self::default() }
    }

    fn block(mut self, block: BlockStart, parts: impl IntoIterator<Item = Part>) -> Self {
        let index = self.blocks;
        self.blocks += 1;
        self = self.delta(Delta::Start { index, block });
        for part in parts {
            self = self.delta(Delta::Extend { index, part });
        }
        self
    }

    /// Adds a delta.
    pub fn delta(mut self, delta: Delta) -> Self {
        self.actions.push(ScriptAction::Delta(delta));
        self
    }

    /// Adds data that concerns the message as a whole, such as the model's name or a warning.
    pub fn data(self, data: MessageDelta) -> Self {
        self.delta(Delta::Message(Box::new(data)))
    }

    /// Adds a text block, with one delta per piece. The block has no explicit end. It ends with the message.
    pub fn then_text<T: Into<String>>(self, pieces: impl IntoIterator<Item = T>) -> Self {
        let parts = pieces.into_iter().map(|piece| Part::Text(piece.into()));
        self.block(BlockStart::Text, parts)
    }

    /// Adds a part to the last block. If that block has ended, the part makes the response invalid.
    pub fn more(self, part: Part) -> Self {
        let index = self.blocks.saturating_sub(1);
        self.delta(Delta::Extend { index, part })
    }

    /// Adds a thinking block with an explicit end. The block is signed if `signature` is not empty.
    pub fn then_thinking(self, text: &str, signature: &str) -> Self {
        let mut parts = vec![Part::Text(text.to_owned())];
        if !signature.is_empty() {
            parts.push(Part::Signature(signature.to_owned()));
        }
        let step = self.block(BlockStart::Thinking, parts);
        let index = step.blocks - 1;
        step.delta(Delta::End { index })
    }

    /// Adds reasoning that the service does not show, in a block with an explicit end.
    pub fn then_redacted_thinking(self, payload: &str) -> Self {
        let step = self.block(BlockStart::Thinking, [Part::Redacted(payload.to_owned())]);
        let index = step.blocks - 1;
        step.delta(Delta::End { index })
    }

    /// Adds a tool use.
    #[expect(clippy::needless_pass_by_value, reason = "`json!` makes one")]
    pub fn then_tool_use(self, id: &str, name: &str, input: Value) -> Self {
        self.then_raw_tool_use(id, name, &[&input.to_string()])
    }

    /// Adds a tool use whose input is any text, with one delta per piece.
    pub fn then_raw_tool_use(mut self, id: &str, name: &str, pieces: &[&str]) -> Self {
        self.uses_tools = true;
        let start = BlockStart::ToolUse { id: id.into(), name: name.to_owned() };
        self.block(start, pieces.iter().map(|piece| Part::Input((*piece).to_owned())))
    }

    /// Adds the usage of the request up to this point, also to a complete step such as [`Step::text`]. Without usage, the
    /// cost of the request is not known.
    pub fn usage(self, usage: Usage) -> Self {
        self.data(MessageDelta { usage: Some(usage), ..MessageDelta::default() })
    }

    setters! {
        /// Adds a wait of this duration.
        pub fn wait(self, delay: Duration) { self.actions.push(ScriptAction::Wait(delay)) }

        /// Adds a wait until the gate is opened.
        pub fn gate(self, gate: &Gate) { self.actions.push(ScriptAction::Gate(gate.clone())) }

        /// Asks the agent for a decision on a tool that the service runs itself. [`ScriptedProvider::decisions`]
        /// returns the agent's decisions.
        pub fn decide(self, tool_use: ToolUse) { self.actions.push(ScriptAction::Decide(tool_use)) }
    }

    /// Ends the response in the ordinary way. The stop reason is [`StopReason::ToolUse`] if the response uses tools,
    /// otherwise [`StopReason::Stop`].
    pub fn stop(self) -> Self {
        let reason = if self.uses_tools { StopReason::ToolUse } else { StopReason::Stop };
        self.stop_with(reason)
    }

    /// Ends the response with this stop reason.
    pub fn stop_with(self, reason: StopReason) -> Self {
        self.delta(Delta::stop(reason))
    }

    setters! {
        /// Breaks the response off with an error.
        pub fn fail(self, error: ProviderError) { self.actions.push(ScriptAction::Fail(error)) }

        /// Lets the response wait forever without a further delta.
        pub fn hang(self) { self.actions.push(ScriptAction::Hang) }

        /// Lets the response panic with this message.
        pub fn panic(self, words: &str) { self.actions.push(ScriptAction::Panic(words.to_owned())) }
    }

    /// Returns the number of actions in this step, such as deltas and waits.
    pub fn actions(&self) -> usize {
        self.actions.len()
    }

    /// Cuts the response off after this number of [`actions`](Step::actions), without an end, like a connection that is
    /// cut. To replace the removed actions by an error, call [`fail`](Step::fail) afterwards.
    pub fn cut_after(mut self, actions: usize) -> Self {
        self.actions.truncate(actions);
        self
    }
}

crate::debug::impl_debug!(Step(self) { actions: self.actions.len(), .. });

/// Blocks a script, a tool or a callback until a test opens it. All clones are the same gate.
///
/// ```
/// use omni_agent::{agent::{Agent, Status}, testing::{Gate, ScriptedProvider, Step}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let gate = Gate::new();
/// let provider = ScriptedProvider::new([Step::new().then_text(["Well"]).gate(&gate).stop()]);
/// let agent = Agent::builder().model(provider.model()).start().await?;
/// agent.prompt("Hi").await?;
/// gate.reached().await;
/// assert_eq!(agent.status().await?, Status::Busy);
/// gate.open();
/// agent.wait_until_idle().await?;
/// # Ok::<(), omni_agent::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<(Semaphore, Semaphore)>);

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self(Arc::new((Semaphore::new(0), Semaphore::new(0))))
    }

    /// Lets one caller of [`pass`](Gate::pass) through. The caller may already be waiting or arrive later.
    pub fn open(&self) {
        self.0.0.add_permits(1);
    }

    /// Waits until a caller of [`pass`](Gate::pass) has reached the gate. Each arrival is reported once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not use up an arrival.
    pub async fn reached(&self) {
        take(&self.0.1).await;
    }

    /// Waits at the gate until it is opened.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not use up an opening. The arrival of its caller still counts for
    /// [`reached`](Gate::reached).
    pub async fn pass(&self) {
        self.0.1.add_permits(1);
        take(&self.0.0).await;
    }
}

async fn take(semaphore: &Semaphore) {
    let permit = semaphore.acquire().await.expect("a gate's semaphores are never closed");
    permit.forget();
}
