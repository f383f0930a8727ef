//! The opening of a request. After `prepare_step`, the request waits for a permit, for a record if the core requires
//! one, and for the provider's instance. Then its stream starts.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream};
use tokio::time::{Sleep, sleep};
use tracing::Span;

use super::{
    AgentTask, ConversationProvider,
    calls::{drop_contained, guard},
};
use crate::{
    agent::{
        Failure, RequestPermit,
        phase::{AgentTurnStage, OpNumber, OutputRequirement},
    },
    provider::{Delta, MessageDelta, Model, Provider, ProviderError, Request, RequestContext, ToolChoice},
    tool::Replay,
};

/// A request that has no stream yet.
pub(super) struct RequestOpening {
    pub(super) request: Box<Request>,
    /// The provider to which the request is sent. It is the provider of the model for which the request was made, even
    /// if `prepare_step` changed the model.
    provider: Arc<dyn Provider>,
    wait: RequestOpeningStage,
}

/// The next thing for which a request waits.
enum RequestOpeningStage {
    /// An effect of the core that opens or connects the request.
    Effect,
    /// A permit to send the request.
    Permit(OpNumber, RequestPermitFuture),
    /// The provider's instance for this conversation.
    Instance(OpNumber, BoxFuture<'static, Result<Option<Arc<dyn Provider>>, ProviderError>>),
}

/// The next thing for which another attempt of a rejected request waits.
pub(super) enum RequestRetryWait {
    /// The delay before the attempt. The request's stream waits for the same delay, but is not polled meanwhile.
    Delay(Pin<Box<Sleep>>),
    /// A permit to send the request again.
    Permit(RequestPermitFuture),
}

type RequestPermitFuture = BoxFuture<'static, RequestPermit>;

/// The least limit of tokens for a summary, of which at most 1,000 words are asked.
const SUMMARY_TOKENS: u32 = 2048;

impl AgentTask {
    /// Called when `prepare_step` has returned the request for `model`.
    pub(super) fn prepared(&mut self, op: OpNumber, mut request: Box<Request>, model: &Model) {
        if let Err(message) = guard("provider", || model.complete(&mut request)) {
            drop_contained(request);
            let failure = Failure::ProviderPanicked { message };
            return self.step(|core, cx| core.stream_failed(op, failure, cx));
        }
        let (wanted, named) = (OutputRequirement::of(&request.options), Arc::clone(&request.model));
        let work = self.work();
        drop_contained(std::mem::replace(&mut work.tools, request.tools.clone()));
        work.opening = Some(RequestOpening {
            request,
            provider: Arc::clone(model.provider()),
            wait: RequestOpeningStage::Effect,
        });
        let replay = replay_of(model);
        self.step(|core, cx| core.prepared(op, wanted, named, replay, cx));
    }

    /// Sends the request for the planned summary, as soon as it has its permit.
    pub(super) fn summarise(&mut self, op: OpNumber) {
        let phase = self.core.phase();
        let (Some(turn), Some(AgentTurnStage::Compacting { plan, .. })) = (phase.turn(), phase.stage())
        else {
            return;
        };
        let model = turn.writer(plan, &self.config).clone();
        let mut request = Box::new(self.request_to(&model, turn));
        if let Some(limit) = request.options.max_tokens() {
            // A limit for short answers would cut the summary.
            let window = model.info().and_then(|info| info.context_window).unwrap_or(u64::MAX);
            let least = u32::try_from(window / 8).map_or(SUMMARY_TOKENS, |part| part.min(SUMMARY_TOKENS));
            request.options.set_max_tokens(Some(limit.max(least)));
        }
        request.history = self.config.settings.sent(&turn.to_summarise(plan, &self.config));
        request.options.set_output(None);
        request.options.set_tool_choice(plan.forbids_tools.then_some(ToolChoice::None));
        if let Err(message) = guard("provider", || model.complete(&mut request)) {
            drop_contained(request);
            let failure = Failure::ProviderPanicked { message };
            return self.step(|core, cx| core.stream_failed(op, failure, cx));
        }
        self.work().opening = Some(RequestOpening {
            request,
            provider: Arc::clone(model.provider()),
            wait: RequestOpeningStage::Effect,
        });
        self.open(op);
    }

    /// Returns the model of the request that is being made.
    fn asked_model(&self) -> &Model {
        let phase = self.core.phase();
        match (phase.turn(), phase.stage()) {
            (Some(turn), Some(AgentTurnStage::Compacting { plan, .. })) => turn.writer(plan, &self.config),
            (Some(turn), _) => turn.model_in(&self.config),
            (None, _) => &self.config.model,
        }
    }

    /// Waits for a permit for the prepared request, if the agent needs one, and then continues with the sending of the
    /// request.
    pub(super) fn open(&mut self, op: OpNumber) {
        if self.is_cut_off() {
            return self.cut_off();
        }
        match self.ask_for_permit() {
            Some(admitting) => self.work().await_opening(RequestOpeningStage::Permit(op, admitting)),
            None => self.admitted(op),
        }
    }

    /// Asks for a permit, if the agent needs one. The turn's clock is stopped until the permit is granted.
    fn ask_for_permit(&mut self) -> Option<RequestPermitFuture> {
        let admission = self.setup.admission.as_ref()?;
        match guard("admission", || admission.admit()) {
            Ok(admitting) => {
                self.work().freeze_watch(true);
                Some(admitting)
            }
            Err(words) => {
                tracing::error!(words, "admission panicked; sending without a permit");
                None
            }
        }
    }

    /// Called when the request was rejected and will be repeated after `delay`. During the delay, the permit can be used
    /// by other agents.
    pub(super) fn await_attempt(&mut self, delay: Duration) {
        if self.setup.admission.is_some() {
            let work = self.work();
            work.give_permit_back();
            work.attempt = Some(RequestRetryWait::Delay(Box::pin(sleep(delay))));
        }
    }

    /// Ready when the next attempt of the request may be sent.
    pub(super) fn poll_attempt(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(RequestRetryWait::Delay(delay)) = &mut self.work().attempt {
            ready!(delay.as_mut().poll(cx));
            self.work().attempt = self.ask_for_permit().map(RequestRetryWait::Permit);
        }
        if let Some(RequestRetryWait::Permit(admitting)) = &mut self.work().attempt {
            let permit = ready!(poll_permit(admitting, cx));
            let work = self.work();
            drop_contained(work.attempt.take());
            work.permit = permit;
            work.freeze_watch(false);
        }
        Poll::Ready(())
    }

    /// Connects to the provider. If the agent makes records, the core may delay the connection until a record is
    /// stored.
    fn admitted(&mut self, op: OpNumber) {
        if self.durability.is_some() {
            self.step(|core, cx| core.admitted(op, cx));
        } else {
            self.connect(op);
        }
    }

    /// Polls for the permit or the provider's instance, whichever the request waits for.
    pub(super) fn poll_opening(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else {
            return Poll::Pending;
        };
        let Some(RequestOpening { wait, .. }) = &mut work.opening else {
            return Poll::Pending;
        };
        let in_run = work.trace.as_ref().map(|trace| trace.span().enter());
        match wait {
            RequestOpeningStage::Effect => return Poll::Pending,
            RequestOpeningStage::Permit(op, admitting) => {
                let op = *op;
                let permit = ready!(poll_permit(admitting, cx));
                drop(in_run);
                let work = self.work();
                work.await_opening(RequestOpeningStage::Effect);
                work.permit = permit;
                work.freeze_watch(false);
                self.admitted(op);
            }
            RequestOpeningStage::Instance(op, opening) => {
                let op = *op;
                let outcome = match guard("provider", || opening.as_mut().poll(cx)) {
                    Ok(Poll::Pending) => return Poll::Pending,
                    Ok(Poll::Ready(opened)) => opened.map_err(Failure::from),
                    Err(message) => Err(Failure::ProviderPanicked { message }),
                };
                drop(in_run);
                self.work().await_opening(RequestOpeningStage::Effect);
                match outcome {
                    Ok(own) => {
                        self.instance = self.provider().map(|of| ConversationProvider { of, own });
                        self.exchange(op);
                    }
                    Err(failure) => self.step(|core, cx| core.stream_failed(op, failure, cx)),
                }
            }
        }
        Poll::Ready(())
    }

    /// Returns the provider of the request that is being opened.
    fn provider(&self) -> Option<Arc<dyn Provider>> {
        self.work.as_ref()?.opening.as_ref().map(|opening| Arc::clone(&opening.provider))
    }

    /// Sends the request through an instance of its provider, if the budgets allow it. Opens the instance first if the
    /// agent has none of this provider.
    pub(super) fn connect(&mut self, op: OpNumber) {
        let Some(provider) = self.provider() else {
            unreachable!("a request was prepared");
        };
        if self.is_cut_off() {
            return self.cut_off();
        }
        if let Err(failure) = self.reserve() {
            return self.step(|core, cx| core.stream_failed(op, failure, cx));
        }
        if self.instance.as_ref().is_some_and(|instance| Arc::ptr_eq(&instance.of, &provider)) {
            return self.exchange(op);
        }
        self.close_instance();
        let opening = Box::pin(async move { provider.open().await });
        self.work().await_opening(RequestOpeningStage::Instance(op, opening));
    }

    fn exchange(&mut self, op: OpNumber) {
        let retry = self.setup.retry.unwrap_or_else(|| self.asked_model().retry_policy());
        let (Some(instance), Some(work)) = (&self.instance, &mut self.work) else {
            return;
        };
        let Some(RequestOpening { request, provider, .. }) = work.opening.take() else {
            return;
        };
        if let Some(spending) = &mut work.spending {
            spending.accounts.sent();
        }
        let provider = instance.own.clone().unwrap_or(provider);
        let (mut context, questions) = RequestContext::with_questions();
        work.questions = Some(questions);
        if let Some(trace) = &mut work.trace {
            trace.request();
            context.set_conversation(trace.conversation());
        }
        // If the service does not report a model name, the response is attributed to the configured model. Therefore
        // report the request's model here if it differs from the configured model.
        let turn = self.core.phase().turn();
        let model = turn.map_or(&self.config.model, |turn| turn.model_in(&self.config));
        let other = (request.model != *model.id()).then(|| request.model.to_string());
        let mut answer = {
            let _in_run = work.span().map(Span::enter);
            retry.stream(provider, *request, context)
        };
        if other.is_some() {
            let data = MessageDelta { model: other, ..MessageDelta::default() };
            answer = Box::pin(stream::iter([Ok(Delta::Message(Box::new(data)))]).chain(answer));
        }
        work.stream = Some((op, answer));
    }
}

/// Polls for a permit. If the admission panics, the request is sent without a permit.
fn poll_permit(admitting: &mut RequestPermitFuture, cx: &mut Context<'_>) -> Poll<Option<RequestPermit>> {
    match guard("admission", || admitting.as_mut().poll(cx)) {
        Ok(permit) => permit.map(Some),
        Err(words) => {
            tracing::error!(words, "admission panicked; sending without a permit");
            Poll::Ready(None)
        }
    }
}

/// Returns the declaration of the model's provider. A provider whose code panics counts as `Never`.
pub(super) fn replay_of(model: &Model) -> Replay {
    guard("provider", || model.provider().replay()).unwrap_or(Replay::Never)
}

impl super::work::AgentWork {
    /// Sets what the opening of the request waits for next.
    fn await_opening(&mut self, wait: RequestOpeningStage) {
        if let Some(opening) = &mut self.opening {
            drop_contained(std::mem::replace(&mut opening.wait, wait));
        }
    }
}
