//! The spans of runs and tool calls, and of the work that a session and its manager do after turns: writes and titles. A
//! write may contain the turns of several runs, and a title is generated while the run continues. Therefore, the spans of
//! this work have no parent. They have links to the runs instead.
//!
//! Each field is recorded once, because the bridge to OpenTelemetry keeps both values of a field that is recorded
//! twice. Values that a response may repeat, such as its usage, are recorded at its end. Descriptions of failures name
//! the kind of the failure, because its message may quote content.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{Id, Level, Span, field::Empty};

use super::{
    CallerSpan, CapturedContent, RunMetrics, TARGET, ToolMetrics, captures, count, end_now, fail, list,
    names,
    settings::{is_on, record, settings},
};
use crate::message::Usage;

/// The attributes that are known when a run begins.
pub(crate) struct RunSpanFacts<'a> {
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
    staged: Vec<(Box<str>, CallerSpan)>,
    /// The ids of the tool uses that wait for a decision.
    paused: Vec<Box<str>>,
    is_over: bool,
}

impl RunTrace {
    /// Opens the span of a run. Returns `None` if neither spans nor metrics are wanted.
    pub(crate) fn begin(caller: &CallerSpan, facts: &RunSpanFacts<'_>) -> Option<Box<Self>> {
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
    pub(crate) fn staged(&mut self, prompt: &str, caller: CallerSpan) {
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
    pub(crate) fn unstaged(&mut self, prompt: &str) -> Option<CallerSpan> {
        let index = self.staged.iter().position(|(staged, _)| **staged == *prompt);
        index.map(|index| self.staged.swap_remove(index).1)
    }

    /// Records the tool uses that wait for decisions: their ids and names. Those that waited before are recorded
    /// already.
    pub(crate) fn paused<'a>(&mut self, pauses: impl Iterator<Item = (&'a str, &'a str)>) {
        let before = std::mem::take(&mut self.paused);
        for (tool_use, tool) in pauses {
            self.paused.push(tool_use.into());
            if before.iter().any(|known| **known == *tool_use) {
                continue;
            }
            tracing::event!(
                target: TARGET,
                parent: &self.span,
                Level::INFO,
                { names::TOOL_CALL } = tool_use,
                { names::TOOL_NAME } = tool,
                "pause",
            );
        }
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

    /// Records the end of a compaction: the sizes of a request before and after it, or the type of its failure.
    pub(crate) fn compacted(&self, tokens: Option<(u64, u64)>, error: Option<&str>) {
        tracing::event!(
            target: TARGET,
            parent: &self.span,
            Level::INFO,
            { names::TOKENS_BEFORE } = tokens.map(|(before, _)| before),
            { names::TOKENS_AFTER } = tokens.map(|(_, after)| after),
            { names::ERROR_TYPE } = error,
            "compaction",
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

/// The spans of a session's writes.
#[derive(Default)]
pub(crate) struct SaveTraces {
    /// The span of the next write. It is opened when the first of its turns is committed, and not when the write
    /// begins. Because the link to a run is recorded at once, the run's span can close before a slow store has saved
    /// the run.
    next: Option<Span>,
    /// The run to which `next` got its last link.
    linked: Option<Id>,
    /// The span of the write in flight and its repetitions.
    current: Option<Span>,
}

impl SaveTraces {
    /// Links the next write to the run whose turn it will save.
    pub(crate) fn committed(&mut self, run: &CallerSpan, conversation: &str) {
        let Some(run) = run.id() else { return };
        let next = self.next.get_or_insert_with(|| {
            self.linked = None;
            tracing::span!(
                target: TARGET,
                parent: None,
                Level::INFO,
                "save",
                otel.name = "save",
                otel.kind = "internal",
                { names::CONVERSATION } = conversation,
            )
        });
        // A run can commit several turns, but the write needs only one link to the run.
        if self.linked.as_ref() != Some(&run) {
            next.follows_from(&run);
            self.linked = Some(run);
        }
    }

    /// Returns the span of a write of turns that now begins or is repeated.
    pub(crate) fn begin(&mut self) -> Option<&Span> {
        self.current = self.current.take().or_else(|| self.next.take());
        self.current.as_ref()
    }

    /// Closes the span of the write that succeeded.
    pub(crate) fn saved(&mut self) {
        self.current = None;
    }
}

impl Drop for SaveTraces {
    /// Ends the span of a write that is given up while it waits for its repetition.
    fn drop(&mut self) {
        self.current.iter().for_each(end_now);
    }
}

/// Opens the span of a generated title, with a link to the run whose turn caused the title.
pub(crate) fn title(run: &CallerSpan, conversation: &str) -> Span {
    let span = tracing::span!(
        target: TARGET,
        parent: None,
        Level::INFO,
        "title",
        otel.name = "title",
        otel.kind = "internal",
        { names::CONVERSATION } = conversation,
    );
    span.follows_from(run.id());
    span
}

/// The trace of a tool call. If it is dropped before [`end`](Self::end), the call counts as cancelled.
pub(crate) struct ToolTrace {
    span: Span,
    started: Instant,
    name: Box<str>,
    is_over: bool,
}

impl ToolTrace {
    /// Opens the span of a call. Returns `None` if neither spans nor metrics are wanted.
    pub(crate) fn begin(
        name: &str,
        call: &str,
        description: impl FnOnce() -> Option<String>,
    ) -> Option<Box<Self>> {
        if !is_on() {
            return None;
        }
        let span = tracing::span!(
            target: TARGET,
            Level::INFO,
            "execute_tool",
            otel.name = format!("{} {name}", names::EXECUTE_TOOL),
            otel.kind = "internal",
            { names::STATUS_CODE } = Empty,
            { names::STATUS_DESCRIPTION } = Empty,
            { names::OPERATION } = names::EXECUTE_TOOL,
            { names::TOOL_NAME } = name,
            { names::TOOL_TYPE } = "function",
            { names::TOOL_CALL } = call,
            { names::TOOL_DESCRIPTION } = Empty,
            { names::ERROR_TYPE } = Empty,
            { names::TOOL_ARGUMENTS } = Empty,
            { names::TOOL_RESULT } = Empty,
            { names::MCP_METHOD } = Empty,
            { names::MCP_VERSION } = Empty,
            { names::MCP_SESSION } = Empty,
            { names::RPC_REQUEST } = Empty,
            { names::NETWORK_TRANSPORT } = Empty,
            { names::SERVER_ADDRESS } = Empty,
            { names::SERVER_PORT } = Empty,
        );
        if !span.is_disabled() {
            span.record(names::TOOL_DESCRIPTION, description());
        }
        Some(Box::new(Self { span, started: Instant::now(), name: name.into(), is_over: false }))
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Records content if it is captured. Only then, `text` is called to encode the content as JSON.
    pub(crate) fn capture(&self, content: CapturedContent, text: impl FnOnce() -> String) {
        if self.span.is_disabled() || !captures().wants(content) {
            return;
        }
        let name = match content {
            CapturedContent::ToolInput => names::TOOL_ARGUMENTS,
            _ => names::TOOL_RESULT,
        };
        if let Some(text) = captures().prepare(content, text()) {
            self.span.record(name, text);
        }
    }

    /// Records the end of the call.
    pub(crate) fn end(mut self, is_error: bool) {
        const TOOL_ERROR: &str = "tool_error";
        if is_error {
            fail(&self.span, TOOL_ERROR, "the tool call returned an error");
        }
        self.close(is_error.then_some(TOOL_ERROR));
    }

    fn close(&mut self, error_type: Option<&str>) {
        self.is_over = true;
        record(|recorder| {
            recorder.tool(&ToolMetrics { name: &self.name, duration: self.started.elapsed(), error_type });
        });
        end_now(&self.span);
    }
}

/// The facts about a call that an MCP server performs.
#[cfg(feature = "mcp")]
pub(crate) struct McpCallSpanFacts<'a> {
    pub(crate) method: &'a str,
    pub(crate) version: Option<&'a str>,
    /// The id of the protocol session, if the transport has sessions.
    pub(crate) session: Option<&'a str>,
    /// The id of the request.
    pub(crate) request: &'a str,
    /// The transport below the protocol: `pipe` or `tcp`.
    pub(crate) transport: &'a str,
    /// The host and the port of the server, if it has an address.
    pub(crate) address: Option<(&'a str, Option<u16>)>,
}

#[cfg(feature = "mcp")]
impl McpCallSpanFacts<'_> {
    /// Records the facts on the current span, which is that of the tool call. Call it once per tool call.
    pub(crate) fn record(&self) {
        let span = Span::current();
        span.record(names::MCP_METHOD, self.method);
        span.record(names::MCP_VERSION, self.version);
        span.record(names::MCP_SESSION, self.session);
        span.record(names::RPC_REQUEST, self.request);
        span.record(names::NETWORK_TRANSPORT, self.transport);
        if let Some((host, port)) = self.address {
            span.record(names::SERVER_ADDRESS, host);
            span.record(names::SERVER_PORT, port.map(i64::from));
        }
    }
}

impl Drop for ToolTrace {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.record(names::ERROR_TYPE, names::CANCELLED);
            self.close(Some(names::CANCELLED));
        }
    }
}
