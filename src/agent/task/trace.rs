//! The telemetry of runs. A run's trace follows the agent's events.
//!
//! The shell passes each event to the trace before it emits the event. So the core knows nothing about telemetry, and
//! an idle agent, which has no work in progress, holds no span. The span is entered while a callback, a stream or the
//! creation of a provider's instance is polled, never across an await. The core's steps run outside of it, so that it
//! closes exactly at the end of the run.

use tracing::Span;

use super::{AgentTask, work::AgentWork};
use crate::{
    agent::{Event, Failure, PromptState, Status},
    message::Purpose,
    provider::{PROVIDER_PANICKED, error_type},
    telemetry::{self, CallerSpan, RunSpanFacts, RunTrace},
    tool::Decision,
};

impl AgentWork {
    /// Returns the run's span, if telemetry is on.
    pub(super) fn span(&self) -> Option<&Span> {
        self.trace.as_ref().map(|trace| trace.span())
    }
}

impl AgentTask {
    /// Records an event in the trace of its run, if telemetry is on. If the event commits a turn, keeps the run's span
    /// for the event's delivery to the owner of the history.
    #[inline]
    pub(super) fn trace(&mut self, event: &Event) {
        if self.work.as_ref().is_some_and(|work| work.trace.is_some()) {
            self.record_in_trace(event);
        } else if matches!(event, Event::Status { status: Status::Busy, .. } | Event::Resumed { .. })
            && telemetry::is_on()
        {
            self.begin_trace();
        }
    }

    #[cold]
    fn record_in_trace(&mut self, event: &Event) {
        let Some(work) = &mut self.work else { return };
        // The span is read before the event is recorded, because the last event of a run ends the trace.
        if event.committed().is_some()
            && let (Some(commit), Some(span)) = (&mut self.commit, work.span())
        {
            commit.run = CallerSpan::of(span);
        }
        record(work, event);
    }

    #[cold]
    fn begin_trace(&mut self) {
        let caller =
            self.work.as_mut().map_or_else(CallerSpan::default, |work| std::mem::take(&mut work.caller));
        let turn = self.core.phase().turn();
        let model = turn.map_or(&self.config.model, |turn| turn.model_in(&self.config));
        let prompt = turn.map(|turn| &turn.origin.prompt.options);
        let output =
            prompt.and_then(|options| options.output()).or_else(|| self.config.settings.options.output());
        let trace = RunTrace::begin(
            &caller,
            &RunSpanFacts {
                agent: self.setup.name.as_deref(),
                conversation: self.setup.hold.as_ref().map(|hold| hold.conversation()),
                provider: model.provider_name(),
                model: model.id(),
                is_json: output.is_some(),
            },
        );
        self.work().trace = trace;
    }
}

fn record(work: &mut AgentWork, event: &Event) {
    let Some(trace) = &mut work.trace else { return };
    match event {
        Event::ToolStart { .. } => trace.tool_call(),
        Event::Prompt { id, state, .. } => match state {
            PromptState::Staged => trace.staged(id.as_str(), std::mem::take(&mut work.caller)),
            PromptState::InFlight { .. } => trace.taken(id.as_str()),
            PromptState::Ended { .. } | PromptState::Returned => drop(trace.unstaged(id.as_str())),
        },
        Event::Status { pauses, .. } => {
            trace.paused(pauses.iter().map(|pause| (pause.tool_use.id.as_str(), &*pause.tool_use.name)));
        }
        Event::Decided(decided) => {
            trace.decided(decided.tool_use_id.as_str(), name_of(&decided.decision), decided.expired);
        }
        Event::Retry { failure, delay, .. } => trace.retried(&kind(failure), *delay),
        Event::CompactionEnd { message, failure, .. } => {
            let tokens = message.as_ref().and_then(|message| message.compaction.as_ref()?.tokens);
            trace.compacted(tokens, failure.as_ref().map(kind).as_deref());
        }
        Event::Step(response) => trace.add(response.usage),
        // The run of a sub-agent has its own span, so each request counts in one.
        Event::Usage(row) if row.purpose != Purpose::SubAgent => trace.add(row.usage),
        Event::Turn { response, continues: false, .. } => {
            end(work, Some((&response.stop_reason.to_string(), None)));
        }
        Event::Error { failure, .. } => {
            end(work, Some(("error", Some((&kind(failure), &failure.summary())))));
        }
        Event::Cancelled { .. } => end(work, None),
        _ => {}
    }
}

/// The finish reason of a run, and the type and the description of its failure.
type RunEndAttributes<'a> = (&'a str, Option<(&'a str, &'a str)>);

/// Ends the run's trace. `ending` is `None` if the run was cancelled.
fn end(work: &mut AgentWork, ending: Option<RunEndAttributes<'_>>) {
    let Some(trace) = work.trace.take() else { return };
    if let Some((finish_reason, failure)) = ending {
        trace.end(finish_reason, failure);
    }
}

fn name_of(decision: &Decision) -> &'static str {
    match decision {
        Decision::Execute => "execute",
        Decision::ExecuteWith(_) => "execute_with",
        Decision::Reject(_) => "reject",
        Decision::Provide(_) => "provide",
    }
}

fn kind(failure: &Failure) -> String {
    match failure {
        Failure::Provider { error } => error_type(error.kind),
        Failure::ProviderPanicked { .. } => PROVIDER_PANICKED.0.to_owned(),
        Failure::TimeLimit { .. } => "time_limit".to_owned(),
        Failure::Budget { .. } => "budget".to_owned(),
        Failure::Output { .. } => "output".to_owned(),
        Failure::Refused => "refused".to_owned(),
        Failure::OnHold { .. } => "on_hold".to_owned(),
        Failure::Interrupted => "interrupted".to_owned(),
        Failure::Uncertain => "uncertain".to_owned(),
        Failure::Callback { .. } => "callback".to_owned(),
    }
}
