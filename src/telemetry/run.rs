//! The span of a run.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{Level, Span, field::Empty};

use super::{
    Caller, RunMetrics, TARGET, count, end_now, fail, list, names,
    recorder::record,
    settings::{is_on, settings},
};
use crate::message::Usage;

/// The attributes that are known when a run begins.
pub(crate) struct RunFacts<'a> {
    pub(crate) agent: Option<&'a str>,
    pub(crate) conversation: Option<&'a str>,
    pub(crate) provider: &'a str,
    pub(crate) model: &'a str,
    /// Whether the prompt asks for a value instead of text.
    pub(crate) is_json: bool,
}

/// The trace of a run. If it is dropped before [`end`](Self::end), the run counts as cancelled.
pub(crate) struct RunTrace {
    span: Span,
    started: Instant,
    agent: Option<Box<str>>,
    conversation: Option<Box<str>>,
    provider: Box<str>,
    model: Box<str>,
    requests: u32,
    tool_calls: u32,
    usage: Usage,
    /// The spans of the callers whose prompts are staged.
    staged: Vec<(Box<str>, Caller)>,
    /// The ids of the tool uses that have waited for a decision.
    paused: Vec<Box<str>>,
    is_over: bool,
}

impl RunTrace {
    /// Opens the span of a run. Returns `None` if neither spans nor metrics are wanted.
    pub(crate) fn begin(caller: &Caller, facts: &RunFacts<'_>) -> Option<Box<Self>> {
        if !is_on() {
            return None;
        }
        let differences = settings().convention().differences();
        let provider = names::provider(facts.provider);
        let name = match facts.agent {
            Some(agent) => format!("{} {agent}", names::INVOKE_AGENT),
            None => names::INVOKE_AGENT.to_owned(),
        };
        let span = tracing::span!(
            target: TARGET,
            parent: caller.id(),
            Level::INFO,
            "invoke_agent",
            otel.name = name,
            otel.kind = "internal",
            { names::STATUS_CODE } = Empty,
            { names::STATUS_DESCRIPTION } = Empty,
            { names::OPERATION } = names::INVOKE_AGENT,
            { names::PROVIDER } = differences.run_has_provider.then_some(provider),
            { names::AGENT_NAME } = facts.agent,
            { names::CONVERSATION } = facts.conversation,
            { names::REQUEST_MODEL } = facts.model,
            { names::OUTPUT_TYPE } = output_type(facts.is_json),
            { names::FINISH_REASONS } = Empty,
            { names::INPUT_TOKENS } = Empty,
            { names::OUTPUT_TOKENS } = Empty,
            { names::CACHE_READ_TOKENS } = Empty,
            { names::CACHE_CREATION_TOKENS } = Empty,
            { names::CACHE_WRITE_TOKENS } = Empty,
            { names::COST } = Empty,
            { names::ERROR_TYPE } = Empty,
        );
        Some(Box::new(Self {
            span,
            started: Instant::now(),
            agent: facts.agent.map(Into::into),
            conversation: facts.conversation.map(Into::into),
            provider: provider.into(),
            model: facts.model.into(),
            requests: 0,
            tool_calls: 0,
            usage: Usage::default(),
            staged: Vec::new(),
            paused: Vec::new(),
            is_over: false,
        }))
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn conversation(&self) -> Option<&str> {
        self.conversation.as_deref()
    }

    pub(crate) fn request(&mut self) {
        self.requests += 1;
    }

    pub(crate) fn tool_call(&mut self) {
        self.tool_calls += 1;
    }

    pub(crate) fn add(&mut self, usage: Usage) {
        self.usage += usage;
    }

    /// Records that a prompt was staged, and keeps the span of its caller.
    pub(crate) fn staged(&mut self, prompt: &str, caller: Caller) {
        tracing::event!(target: TARGET, parent: &self.span, Level::INFO, "staged");
        self.staged.push((prompt.into(), caller));
    }

    /// If the prompt was staged, records that it is used, and links the run's span to the span of the prompt's caller.
    pub(crate) fn taken(&mut self, prompt: &str) {
        let Some(caller) = self.unstaged(prompt) else { return };
        self.span.follows_from(caller.id());
        tracing::event!(target: TARGET, parent: &self.span, Level::INFO, "staged prompt used");
    }

    /// Removes and returns the caller of a staged prompt.
    pub(crate) fn unstaged(&mut self, prompt: &str) -> Option<Caller> {
        let index = self.staged.iter().position(|(staged, _)| **staged == *prompt);
        index.map(|index| self.staged.swap_remove(index).1)
    }

    /// Records that a tool use waits for a decision, unless this is recorded already.
    pub(crate) fn paused(&mut self, tool_use: &str, tool: &str) {
        if self.paused.iter().any(|known| **known == *tool_use) {
            return;
        }
        self.paused.push(tool_use.into());
        tracing::event!(
            target: TARGET,
            parent: &self.span,
            Level::INFO,
            { names::TOOL_CALL } = tool_use,
            { names::TOOL_NAME } = tool,
            "pause",
        );
    }

    pub(crate) fn decided(&self, tool_use: &str, decision: &str, expired: bool) {
        tracing::event!(
            target: TARGET,
            parent: &self.span,
            Level::INFO,
            { names::TOOL_CALL } = tool_use,
            { names::DECISION } = decision,
            { names::EXPIRED } = expired.then_some(true),
            "decision",
        );
    }

    pub(crate) fn retried(&self, error: &str, delay: Duration) {
        tracing::event!(
            target: TARGET,
            parent: &self.span,
            Level::INFO,
            { names::ERROR_TYPE } = error,
            { names::RETRY_DELAY } = delay.as_secs_f64(),
            "retry",
        );
    }

    /// Records the end of a run that was not cancelled, with the failure's type and description if it failed.
    pub(crate) fn end(mut self, finish_reason: &str, failure: Option<(&str, &str)>) {
        self.span.record(names::FINISH_REASONS, list([names::finish_reason(finish_reason)]));
        if let Some((kind, description)) = failure {
            fail(&self.span, kind, description);
        }
        self.close(failure.map(|(kind, _)| kind));
    }

    fn close(&mut self, error_type: Option<&str>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let usage = &self.usage;
        let differences = settings().convention().differences();
        self.span.record(names::INPUT_TOKENS, count(usage.prompt()));
        self.span.record(names::OUTPUT_TOKENS, count(usage.output));
        if differences.run_has_provider {
            self.span.record(names::CACHE_READ_TOKENS, count(usage.cache_read));
            self.span.record(differences.cache_write, count(usage.cache_write));
        }
        if let Some(cost) = usage.cost {
            self.span.record(names::COST, cost);
        }
        record(|recorder| {
            recorder.run(&RunMetrics {
                agent: self.agent.as_deref(),
                provider: &self.provider,
                model: &self.model,
                duration: self.started.elapsed(),
                requests: self.requests,
                tool_calls: self.tool_calls,
                usage: self.usage,
                error_type,
            });
        });
        end_now(&self.span);
    }
}

impl Drop for RunTrace {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.record(names::FINISH_REASONS, list([names::CANCELLED]));
            self.span.record(names::ERROR_TYPE, names::CANCELLED);
            self.close(Some(names::CANCELLED));
        }
    }
}

pub(super) fn output_type(is_json: bool) -> &'static str {
    if is_json { "json" } else { "text" }
}
