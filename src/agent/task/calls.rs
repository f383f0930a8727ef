//! Calls of the application's code, with protection against panics.
//!
//! A callback is a boxed future that borrows the callback object and owns a copy of the state. A cancel drops the
//! future and keeps the object. A snapshot needs neither, so it can be taken while a callback runs.

use std::{pin::Pin, sync::Arc};

use super::{AgentTask, RequestedAgentCallback};
use crate::{
    agent::{
        AgentCallbacks, Config, ErrorDecision, Prompt, Recovery, RecoveryDecision, State, ToolDecision,
        TurnDecision, core::CallbackCall, phase::Turn,
    },
    message::ToolResult,
    panics::{contained, contained_async},
    provider::{Model, Options, Request},
};

/// A callback in flight. Its output is the callback's result or the message of its panic.
pub(super) type RunningCallback<'a> =
    Pin<Box<dyn Future<Output = Result<CallbackReturnWithConfig, String>> + Send + 'a>>;

/// The result of a callback, and the configuration before and after it.
pub(super) struct CallbackReturnWithConfig {
    pub(super) outcome: CallbackReturnValue,
    pub(super) before: Arc<Config>,
    pub(super) after: Arc<Config>,
}

pub(super) enum CallbackReturnValue {
    Prepared(Box<Request>),
    ToolUse(ToolDecision),
    ToolResult(ToolResult),
    Turn(TurnDecision),
    Error(ErrorDecision),
    Event(Option<Box<Prompt>>),
    Recovery(RecoveryDecision, Box<Recovery>),
}

impl AgentTask {
    /// Calls a callback with a copy of the state. Each callback has a separate future, so no future is larger than
    /// necessary.
    pub(super) fn call<'a>(
        &mut self,
        callbacks: &'a mut dyn AgentCallbacks,
        RequestedAgentCallback { op, call }: RequestedAgentCallback,
    ) -> RunningCallback<'a> {
        let mut state = self.state();
        let before = Arc::clone(&state.config);
        match call {
            CallbackCall::PrepareStep => {
                let mut request = Box::new(self.request());
                let turn = self.core.phase().turn();
                let sent = |turn: &Turn| self.config.settings.sent(turn.working.sent());
                let conversation = turn.map(sent).unwrap_or_default();
                contain(async move {
                    prepare(callbacks, &mut request, &mut state).await;
                    request.mark_lasting(&conversation);
                    CallbackReturnWithConfig {
                        outcome: CallbackReturnValue::Prepared(request),
                        before,
                        after: state.config,
                    }
                })
            }
            CallbackCall::HandleToolUse(tool_use) => contain(async move {
                let decision = callbacks.handle_tool_use(&tool_use, &mut state).await;
                CallbackReturnWithConfig {
                    outcome: CallbackReturnValue::ToolUse(decision),
                    before,
                    after: state.config,
                }
            }),
            CallbackCall::HandleToolResult(result) => contain(async move {
                let result = callbacks.handle_tool_result(*result, &mut state).await;
                CallbackReturnWithConfig {
                    outcome: CallbackReturnValue::ToolResult(result),
                    before,
                    after: state.config,
                }
            }),
            CallbackCall::HandleTurn(response) => contain(async move {
                let decision = callbacks.handle_turn(&response, &mut state).await;
                CallbackReturnWithConfig {
                    outcome: CallbackReturnValue::Turn(decision),
                    before,
                    after: state.config,
                }
            }),
            CallbackCall::HandleError(failure) => contain(async move {
                let decision = callbacks.handle_error(&failure, &mut state).await;
                CallbackReturnWithConfig {
                    outcome: CallbackReturnValue::Error(decision),
                    before,
                    after: state.config,
                }
            }),
            CallbackCall::HandleRecovery(mut recovery) => contain(async move {
                let decision = callbacks.handle_recovery(&mut recovery, &mut state).await;
                CallbackReturnWithConfig {
                    outcome: CallbackReturnValue::Recovery(decision, recovery),
                    before,
                    after: state.config,
                }
            }),
            CallbackCall::HandleEvent => {
                self.core.event_begun(op);
                let event = self.notices.pop_front().expect("the core counts the queued events");
                contain(async move {
                    let prompt = callbacks.handle_event(event, &mut state).await;
                    CallbackReturnWithConfig {
                        outcome: CallbackReturnValue::Event(prompt.map(Box::new)),
                        before,
                        after: state.config,
                    }
                })
            }
        }
    }

    /// Returns the next request, before `prepare_step` sees it.
    fn request(&self) -> Request {
        let Some(turn) = self.core.phase().turn() else {
            unreachable!("a request is prepared for a turn");
        };
        self.request_to(turn.model_in(&self.config), turn)
    }

    /// Returns the next request of a turn, to this model.
    pub(super) fn request_to(&self, model: &Model, turn: &Turn) -> Request {
        let own = &turn.origin.prompt.options;
        let mut request = Request::new(self.config.settings.sent(&turn.conversation()));
        request.model = Arc::clone(model.id());
        request.system.clone_from(&self.config.settings.system);
        request.tools = turn.origin.prompt.client_tools.after(&self.config.tools);
        let ours = kept_secrets(
            &self.config.settings.options,
            self.secrets_of.as_ref().map(Model::provider_name),
            model,
        );
        request.options = ours.overlaid(&kept_secrets(own, turn.origin.secrets_of.as_deref(), model));
        let mut credentials = self.setup.credentials.iter();
        if let Some(credentials) = credentials.find(|given| given.provider() == model.provider_name()) {
            credentials.complete(&mut request.options);
        }
        request
    }

    /// Replaces the configuration.
    pub(super) fn configure(&mut self, config: Arc<Config>) {
        if !config.settings.options.shares_secrets(&self.config.settings.options) {
            self.secrets_of = secrets_of(&config.settings.options, &config.model);
        }
        drop_contained(std::mem::replace(&mut self.config, config));
    }

    /// Applies a callback's edits of the configuration. If the configuration was replaced while the callback ran, the
    /// edits are discarded.
    pub(super) fn adopt(&mut self, before: &Arc<Config>, after: Arc<Config>) -> Result<(), String> {
        if Arc::ptr_eq(before, &after) {
            return Ok(());
        }
        if let Err(error) = after.check() {
            drop_contained(after);
            return Err(error.to_string());
        }
        if Arc::ptr_eq(before, &self.config) {
            if after.settings.max_steps != before.settings.max_steps {
                self.core.set_max_steps(after.settings.max_steps);
            }
            if after.budget() != before.budget() {
                self.core.set_budget();
            }
            if after.model != before.model {
                self.core.set_model();
            }
            self.configure(after);
        } else {
            tracing::warn!(
                "a callback's changes are dropped because the configuration was replaced while it ran"
            );
            drop_contained(after);
        }
        Ok(())
    }
}

/// Returns a copy of `options`. If `provider`, which owns their API key and headers, is not the provider of `model`,
/// the key and headers are removed.
fn kept_secrets(options: &Options, provider: Option<&str>, model: &Model) -> Options {
    if !options.has_secrets() || provider == Some(model.provider_name()) {
        return options.clone();
    }
    tracing::warn!(
        model = model.name(),
        given_for = provider,
        "the API key and headers in the options are not sent because they belong to another provider"
    );
    options.clone().without_secrets()
}

/// Returns the model whose provider owns the API key and headers in `options`, if there are any.
pub(super) fn secrets_of(options: &Options, model: &Model) -> Option<Model> {
    options.has_secrets().then(|| model.clone())
}

fn contain<'a>(callback: impl Future<Output = CallbackReturnWithConfig> + Send + 'a) -> RunningCallback<'a> {
    Box::pin(contained_async(callback))
}

async fn prepare(callbacks: &mut dyn AgentCallbacks, request: &mut Request, state: &mut State) {
    let unchanged = request.history.clone();
    callbacks.prepare_step(request, state).await;
    if !request.history.same(&unchanged) && request.history.check_sendable().is_err() {
        tracing::debug!("the history is repaired because prepare_step left it invalid");
        request.history = request.history.repair();
    }
    request.history = request.history.sent();
}

/// Drops a value that contains application code. If its `drop` panics, the panic is caught.
#[inline]
pub(super) fn drop_contained<T>(held: T) {
    // `guard` has already logged the panic, and nothing else can be done about it.
    let _ = guard("a drop", || drop(held));
}

/// Runs application or provider code. If the code panics, logs and returns the panic's message.
#[inline]
pub(in crate::agent) fn guard<T>(what: &'static str, code: impl FnOnce() -> T) -> Result<T, String> {
    contained(code).inspect_err(|words| log_panic(what, words))
}

#[cold]
fn log_panic(what: &'static str, words: &str) {
    tracing::error!(what, words, "code outside the crate panicked");
}
