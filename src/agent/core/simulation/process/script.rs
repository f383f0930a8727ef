//! The script of a schedule: the responses of the model, the decisions of the callbacks, and the tools.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::json;

use crate::{
    actor::random::Rng,
    agent::{
        Config, Durable, ErrorDecision, Prompt, RecoveryDecision, ToolDecision,
        core::simulation::world::config,
    },
    message::ToolUse,
    tool::{Decision, Replay, Tool, ToolError, ToolSet, tool_fn},
};

/// The id of the tool use about which the provider asks.
pub(super) const QUESTION: &str = "question";

/// One step of the model.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    Text,
    /// The names of the tools that are used, and the decisions of `handle_tool_use`.
    Tools(Vec<(&'static str, Verdict)>),
}

/// A decision of `handle_tool_use`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Execute,
    Replace,
    Reject,
    Pause,
    /// A pause with a time limit.
    PauseFor,
}

/// The script of a schedule. It depends on the schedule's seed alone.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    steps: Vec<Said>,
    /// The number of turns that `handle_turn` adds.
    pub(super) continuations: usize,
    pub(super) provider: Replay,
    pub(crate) level: Durable,
    /// Whether nothing but crashes disturbs the runs, so that their outcome is determined.
    pub(crate) is_plain: bool,
    pub(crate) plot: Plot,
}

/// The parts of a script that are chosen for a purpose. In random scripts, these things do not happen, or the replies
/// are random.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plot {
    /// The number of requests that fail, from now on.
    pub(crate) failures: usize,
    /// The reply of `handle_error`.
    pub(crate) on_error: Option<ErrorDecision>,
    /// The reply of `handle_recovery`.
    pub(crate) on_recovery: Option<RecoveryDecision>,
    /// The reply of `handle_event`.
    pub(crate) on_event: Option<Prompt>,
    /// Whether `handle_tool_result` replaces results.
    pub(crate) replaces_results: bool,
    /// The decision of `handle_tool_use` about the provider's question, which the first response contains.
    pub(crate) question: Option<Verdict>,
    /// Whether running tools ask a question.
    pub(crate) tools_ask: bool,
    /// Whether all requests for summaries succeed.
    pub(crate) summaries_succeed: bool,
}

impl Script {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let is_plain = rng.percent(50);
        let names: &[&'static str] = if is_plain { &["read", "put"] } else { &["read", "put", "send"] };
        let verdicts = [
            Verdict::Execute,
            Verdict::Execute,
            Verdict::Replace,
            Verdict::Reject,
            Verdict::Pause,
            Verdict::PauseFor,
        ];
        let steps = (0..8).map(|_| {
            if rng.percent(45) {
                return Said::Text;
            }
            let uses = (0..=rng.below(3)).map(|_| (rng.pick(names), rng.pick(&verdicts)));
            Said::Tools(uses.collect())
        });
        Self {
            steps: steps.collect(),
            continuations: rng.below(2),
            provider: if is_plain { Replay::Safe } else { rng.pick(&[Replay::Safe, Replay::Never]) },
            level: if is_plain { Durable::InFlight } else { random_level(rng) },
            is_plain,
            plot: Plot::default(),
        }
    }

    /// Returns a script without randomness, for turns that are always recorded.
    pub(crate) fn chosen(steps: Vec<Said>, continuations: usize, provider: Replay, plot: Plot) -> Self {
        Self { steps, continuations, provider, level: Durable::InFlight, is_plain: false, plot }
    }

    /// Returns the model's next step in a conversation that already contains this number of responses.
    pub(super) fn said(&self, responses: usize) -> Said {
        self.steps.get(responses).cloned().unwrap_or(Said::Text)
    }

    /// Returns the decision of `handle_tool_use`, which depends on the tool use alone.
    pub(super) fn decision(&self, tool_use: &ToolUse) -> ToolDecision {
        if let Some(verdict) = self.plot.question.filter(|_| tool_use.id.as_str().starts_with(QUESTION)) {
            return verdict.decision();
        }
        // The agent appends a number to an id that was used before.
        let id = tool_use.id.as_str().split('_').next().unwrap_or_default();
        let place = id.split_once('-');
        let place = place.and_then(|(step, index)| Some((step.parse().ok()?, index.parse::<usize>().ok()?)));
        let verdict = place.and_then(|(step, index)| match self.said(step) {
            Said::Tools(uses) => uses.get(index).map(|(_, verdict)| *verdict),
            Said::Text => None,
        });
        verdict.unwrap_or(Verdict::Execute).decision()
    }
}

impl Verdict {
    fn decision(self) -> ToolDecision {
        match self {
            Self::Execute => ToolDecision::Execute,
            Self::Replace => ToolDecision::ExecuteWith(json!({ "n": 1 })),
            Self::Reject => ToolDecision::Reject("no".to_owned()),
            Self::Pause => ToolDecision::Pause(json!("ask")),
            Self::PauseFor => ToolDecision::PauseFor {
                reason: json!("ask soon"),
                expires_in: Duration::from_mins(1),
                // A person decides in the same way, so that the outcome is determined.
                on_expiry: Decision::Execute,
            },
        }
    }
}

/// Returns a random level.
pub(crate) fn random_level(rng: &mut Rng) -> Durable {
    rng.pick(&[Durable::InFlight, Durable::InFlight, Durable::Approvals, Durable::Turns])
}

fn tool(name: &str, replay: Replay) -> impl Tool + use<> {
    let tool = tool_fn(name, "Runs.", |_: BTreeMap<String, u8>, _| async { Ok::<_, ToolError>("done") });
    tool.with_replay(replay)
}

thread_local! {
    static TOOLS: ToolSet = ToolSet::new()
        .with(tool("read", Replay::Safe))
        .and_then(|tools| tools.with(tool("put", Replay::Keyed)))
        .and_then(|tools| tools.with(tool("send", Replay::Never)))
        .expect("the names differ");
    static CONFIG: Arc<Config> = Arc::new(config());
}

pub(super) fn shared_tools() -> ToolSet {
    TOOLS.with(ToolSet::clone)
}

pub(super) fn shared_config() -> Arc<Config> {
    CONFIG.with(Arc::clone)
}
