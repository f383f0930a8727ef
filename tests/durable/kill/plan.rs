//! The work that a prompt asks for. The text of the prompt contains the plan, so that a process that has just started
//! can act as the model of a turn that another process has begun.

use std::hash::{DefaultHasher, Hash, Hasher};

use omni_agent::{
    provider::Request,
    testing::Step,
    tool::{Decision, Replay},
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The number of prompts in each conversation.
pub(crate) const PROMPTS: usize = 4;

/// The tools. `Asked` is a tool of the kind `Never` that needs an approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Kind {
    Safe,
    Keyed,
    Never,
    Asked,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Safe, Self::Keyed, Self::Never, Self::Asked];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Keyed => "keyed",
            Self::Never => "never",
            Self::Asked => "asked",
        }
    }

    pub(crate) fn replay(self) -> Replay {
        match self {
            Self::Safe => Replay::Safe,
            Self::Keyed => Replay::Keyed,
            Self::Never | Self::Asked => Replay::Never,
        }
    }
}

/// The way in which the application ends the run of a prompt early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stop {
    Cancel,
    Interrupt,
}

/// The work of one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The id of the prompt.
    pub(crate) prompt: String,
    /// The tools that each step uses. After these steps, the model answers.
    pub(crate) steps: Vec<Vec<Kind>>,
    /// Whether the next prompt of the conversation is sent without waiting, so that it is staged.
    pub(crate) with_next: bool,
    /// How the application ends the run early, and after how many microseconds.
    pub(crate) stop: Option<(Stop, u64)>,
}

impl Plan {
    pub(crate) fn new(seed: u64, conversation: &str, number: usize) -> Self {
        let mut hasher = DefaultHasher::new();
        (seed, conversation, number).hash(&mut hasher);
        let mut random = StdRng::seed_from_u64(hasher.finish());
        let steps = (0..random.random_range(0..4)).map(|_| {
            let tools = 0..random.random_range(1..=3);
            tools.map(|_| Kind::ALL[random.random_range(0..Kind::ALL.len())]).collect()
        });
        let steps = steps.collect();
        let stop = match random.random_range(0..8) {
            0 => Some(Stop::Cancel),
            1 => Some(Stop::Interrupt),
            _ => None,
        };
        let stop = stop.map(|stop| (stop, random.random_range(0..20_000)));
        let with_next = stop.is_none() && random.random_bool(0.3);
        Self { prompt: format!("{conversation}-{number}"), steps, with_next, stop }
    }

    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap()
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub(crate) fn answer(&self) -> String {
        format!("{} is done", self.prompt)
    }

    /// Returns the plan of a request of this crate's agent, and the number of the step.
    pub(crate) fn of(request: &Request) -> (Self, usize) {
        let mut step = 0;
        let plan = request.history.iter().rev().find_map(|message| {
            let plan = Self::read(&message.text());
            step += usize::from(message.role == omni_agent::message::Role::Assistant);
            plan
        });
        (plan.expect("each turn begins with a plan"), step)
    }

    /// Returns the model's response in a step, without its end.
    pub(crate) fn step(&self, step: usize) -> Step {
        let Some(tools) = self.steps.get(step) else { return Step::new().then_text([self.answer()]) };
        let response = Step::new().then_text([format!("step {step}")]);
        tools.iter().enumerate().fold(response, |response, (slot, tool)| {
            let id = format!("{}.{step}.{slot}", self.prompt);
            response.then_tool_use(&id, tool.name(), json!({ "for": id }))
        })
    }

    /// Returns the model's response to a request of this crate's agent.
    pub(crate) fn respond(request: &Request) -> Step {
        let (plan, step) = Self::of(request);
        plan.step(step).stop()
    }
}

/// Returns a random decision about a tool use, and the text by which its effect is recognised.
pub(crate) fn decision() -> (Decision, Option<String>) {
    let mark = format!("{:08x}", rand::random::<u32>());
    match rand::random_range(0..4) {
        0 => (Decision::reject(format!("No {mark}")), Some(mark)),
        1 => (Decision::ExecuteWith(json!({ "for": mark })), Some(mark)),
        _ => (Decision::Execute, None),
    }
}
