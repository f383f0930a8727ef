//! The rows of the table, as data.

use std::time::Duration;

use crate::{
    agent::{
        ErrorDecision, RecoveryDecision,
        process::{Plot, Said, Verdict},
    },
    run::Prompt,
    tool::Decision,
};

/// One row: what happens in a run, and the phases in which a process is closed at least once.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) phases: &'static [&'static str],
    /// The decisions of `handle_tool_use`, for each step with tools.
    pub(super) steps: &'static [&'static [Verdict]],
    /// The number of turns that `handle_turn` adds.
    pub(super) continuations: usize,
    pub(super) plot: Plot,
    /// The decision about each pause. If it is `None`, the time limit of the pause ends.
    pub(super) decision: Option<Decision>,
    pub(super) event: Event,
    /// Whether each answer is followed by a compaction.
    pub(super) compacts: bool,
}

/// When the application sends an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Event {
    Never,
    BeforeTheRun,
    DuringTheRun,
}

impl Row {
    fn new(name: &'static str, phases: &'static [&'static str]) -> Self {
        Self {
            name,
            phases,
            steps: &[],
            continuations: 0,
            // A request of a provider that must not be repeated has failed if its outcome is not known.
            plot: Plot { on_error: Some(ErrorDecision::Retry), ..Plot::default() },
            decision: Some(Decision::Execute),
            event: Event::Never,
            compacts: false,
        }
    }

    fn tools(
        name: &'static str,
        phases: &'static [&'static str],
        steps: &'static [&'static [Verdict]],
    ) -> Self {
        Self { steps, ..Self::new(name, phases) }
    }

    pub(super) fn uses_tools(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Returns the responses of the model, which uses the tool with this name.
    pub(super) fn said(&self, tool: &'static str) -> Vec<Said> {
        let uses = |verdicts: &&[Verdict]| verdicts.iter().map(|verdict| (tool, *verdict)).collect();
        self.steps.iter().map(uses).map(Said::Tools).collect()
    }
}

/// The phases of compactions.
const PLACES: &[&str] = &["compacting", "compacting alone"];

/// Returns the table.
pub(super) fn rows() -> Vec<Row> {
    use Verdict::{Execute, Pause, PauseFor, Reject, Replace};

    let reject = Some(Decision::reject("No."));
    let failing = |name, phases, failures, on_error| Row {
        plot: Plot { failures, on_error: Some(on_error), ..Plot::default() },
        ..Row::new(name, phases)
    };
    let asked = |name, verdict, decision| {
        let row = Row::new(name, &["asked by the provider"]);
        Row { plot: Plot { question: Some(verdict), ..row.plot.clone() }, decision, ..row }
    };
    let asking = |name, decision| {
        let row = Row::tools(name, &["asked by a tool"], &[&[Execute, Execute]]);
        Row { plot: Plot { tools_ask: true, ..row.plot.clone() }, decision, ..row }
    };
    let recovering = |name, decision| {
        let row = Row::tools(name, &["recovering"], &[&[Execute, Pause]]);
        Row { plot: Plot { on_recovery: Some(decision), ..row.plot.clone() }, ..row }
    };
    let compacting = |name, phases, steps| {
        let row = Row::tools(name, phases, steps);
        Row { compacts: true, plot: Plot { summaries_succeed: true, ..row.plot.clone() }, ..row }
    };
    let prompt = Plot { on_event: Some(Prompt::new("from an event")), ..Row::new("", &[]).plot };
    vec![
        Row::new("handle_turn stops", &["idle", "preparing", "streaming", "concluding"]),
        Row { continuations: 1, ..Row::new("handle_turn continues", &["concluding", "preparing"]) },
        Row::tools("a tool is executed", &["deciding", "executing", "reviewing"], &[&[Execute]]),
        Row::tools("tools are executed in two steps", &["executing"], &[&[Execute, Execute], &[Execute]]),
        Row::tools("a tool is executed with another input", &["deciding", "executing"], &[&[Replace]]),
        Row::tools("a tool is rejected", &["deciding", "reviewing"], &[&[Reject]]),
        Row::tools("a tool pauses and is executed", &["deciding", "paused"], &[&[Pause]]),
        Row {
            decision: reject.clone(),
            ..Row::tools("a tool pauses and is rejected", &["paused"], &[&[Pause]])
        },
        Row { decision: None, ..Row::tools("the time limit of a pause ends", &["paused"], &[&[PauseFor]]) },
        Row::tools("some tools pause", &["deciding", "paused"], &[&[Execute, Pause, Reject, Pause]]),
        {
            let row =
                Row::tools("handle_tool_result replaces results", &["reviewing"], &[&[Execute, Replace]]);
            Row { plot: Plot { replaces_results: true, ..row.plot.clone() }, ..row }
        },
        failing("handle_error stops", &["failing"], usize::MAX, ErrorDecision::Stop),
        failing("handle_error retries", &["failing"], 1, ErrorDecision::Retry),
        failing(
            "handle_error retries after a delay",
            &["failing", "delaying"],
            1,
            ErrorDecision::RetryAfter(Duration::from_secs(1)),
        ),
        Row {
            event: Event::BeforeTheRun,
            ..Row::new("handle_event returns nothing", &["noticing at rest", "noticing in a turn"])
        },
        Row {
            event: Event::DuringTheRun,
            continuations: 1,
            ..Row::new("handle_event returns nothing between turns", &["noticing between turns"])
        },
        Row {
            event: Event::DuringTheRun,
            continuations: 1,
            plot: prompt,
            ..Row::new("handle_event returns a prompt", &["noticing between turns"])
        },
        asked("the provider's question is accepted", Execute, None),
        asked("the provider's question is rejected", Reject, None),
        asked("the provider's question pauses", Pause, reject.clone()),
        asking("a tool's question is accepted", Some(Decision::Execute)),
        asking("a tool's question is rejected", reject),
        recovering("handle_recovery interrupts", RecoveryDecision::Interrupt),
        recovering("handle_recovery discards", RecoveryDecision::Discard),
        Row { continuations: 1, ..compacting("the conversation is compacted after each turn", PLACES, &[]) },
        compacting("the conversation is compacted between steps", &["compacting"], &[&[Execute], &[Pause]]),
    ]
}
