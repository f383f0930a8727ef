//! The plan of a schedule, and the facts outside of its processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use omni_agent::{
    agent::Durable,
    budget::Budget,
    message::Usage,
    store::{ConversationId, Labels},
    tool::Decision,
};
use serde_json::json;

use super::team::Life;

/// The tokens of each request, which are fewer than those that it reserves.
pub(crate) const TOKENS: u64 = 1_000;

/// A source of random numbers. The same seed and name give the same numbers.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ hash)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a time of at most this many milliseconds. Times are multiples of 10 ms, so that much happens at the same
    /// moment.
    pub(crate) fn time(&mut self, most: u64) -> Duration {
        Duration::from_millis(10 * self.below(most / 10 + 1))
    }

    /// Returns one of these items, or `None` if there are none.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = self.below(items.len().max(1) as u64);
        items.get(usize::try_from(index).unwrap())
    }
}

/// A tool of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A sub-agent.
    Sub,
    /// A tool that may run again with its key.
    Keyed,
    /// A tool that must not run again.
    Never,
    /// A tool that needs an approval, and must not run again.
    Asked,
    /// A tool that asks a question, and may run again.
    Question,
    /// A tool that prompts another session, guards its run, and may run again.
    Guard,
}

impl Kind {
    pub(crate) const TOOLS: [Self; 5] = [Self::Keyed, Self::Never, Self::Asked, Self::Question, Self::Guard];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sub => "sub",
            Self::Keyed => "keyed",
            Self::Never => "never",
            Self::Asked => "asked",
            Self::Question => "question",
            Self::Guard => "guard",
        }
    }
}

/// The choices of the seed for the whole schedule.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
pub(crate) struct Shape {
    pub(crate) seed: u64,
    pub(crate) level: Durable,
    /// Whether the tree has three levels of sub-agents, and one request is in flight at a time.
    pub(crate) is_deep: bool,
    pub(crate) max_turns: Option<usize>,
    /// Whether only few sub-agents may run at once.
    pub(crate) is_tight: bool,
    pub(crate) idle: Option<Duration>,
    pub(crate) record_delay: Duration,
    /// The budget of each prompt.
    pub(crate) budget: Option<Budget>,
    /// The budget of all prompts.
    pub(crate) shared: Option<Budget>,
    pub(crate) turn_timeout: Option<Duration>,
    pub(crate) call_timeout: Option<Duration>,
    /// Whether the root gets a random id, and is stored with its first turn.
    pub(crate) is_unnamed: bool,
    /// Whether the root may be deleted.
    pub(crate) deletes: bool,
    /// The longest delay of the store, in milliseconds.
    pub(crate) slow: u64,
    /// The number of processes that do not finish.
    pub(crate) lives: usize,
    pub(crate) prompts: usize,
}

impl Shape {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed, "shape");
        let level = [Durable::Turns, Durable::Approvals, Durable::InFlight, Durable::InFlight];
        let is_deep = dice.percent(20);
        let mut maybe = |chance, value: u64| dice.percent(chance).then_some(value);
        let (tight, idle, budget, shared) = (maybe(20, 1), maybe(60, 0), maybe(35, 0), maybe(20, 0));
        let (turn_timeout, call_timeout) = (maybe(8, 0), maybe(12, 0));
        Self {
            seed,
            level: *dice.pick(&level).unwrap(),
            is_deep,
            max_turns: (is_deep || dice.percent(20)).then_some(1),
            is_tight: tight.is_some(),
            idle: idle.map(|_| dice.time(400)),
            record_delay: dice.time(80),
            budget: budget.map(|_| Self::budget(1 + dice.below(12), &mut dice)),
            shared: shared.map(|_| Self::budget(4 + dice.below(20), &mut dice)),
            turn_timeout: turn_timeout.map(|_| Duration::from_millis(50) + dice.time(600)),
            call_timeout: call_timeout.map(|_| Duration::from_millis(50) + dice.time(400)),
            is_unnamed: dice.percent(30),
            deletes: dice.percent(25),
            slow: [1, 10, 60][usize::try_from(dice.below(3)).unwrap()],
            lives: usize::try_from(dice.below(5)).unwrap(),
            prompts: usize::try_from(1 + dice.below(3)).unwrap(),
        }
    }

    /// Returns whether a limit can end a turn.
    pub(crate) fn has_limits(&self) -> bool {
        self.turn_timeout.is_some()
            || self.call_timeout.is_some()
            || self.budget.is_some()
            || self.shared.is_some()
    }

    /// Returns the number of sub-agents that may run at once. The next process may have less room.
    pub(crate) fn max_sub_agents(&self, life: usize) -> usize {
        let mut dice = Dice::new(self.seed, &format!("room {life}"));
        if self.is_tight { usize::try_from(dice.below(4)).unwrap() } else { 1_000 }
    }

    /// Returns a budget for this number of requests.
    fn budget(requests: u64, dice: &mut Dice) -> Budget {
        if dice.percent(50) {
            Budget::requests(u32::try_from(requests).unwrap())
        } else {
            // More than a request reserves.
            Budget::tokens((requests + 1) * TOKENS)
        }
    }

    /// Returns the tool uses of this step of an agent, and nothing if the step is the answer.
    pub(crate) fn uses(&self, path: &str, step: usize) -> Vec<(String, Kind)> {
        let depth = path.matches('/').count();
        let mut of_agent = Dice::new(self.seed, path);
        let steps = match (path.starts_with('x'), self.is_deep, depth) {
            (true, ..) | (false, true, 3..) => 0,
            (false, true, _) => 1,
            (false, false, 0) => 1 + of_agent.below(2),
            (false, false, _) => of_agent.below(3),
        };
        if step as u64 >= steps {
            return Vec::new();
        }
        let mut dice = Dice::new(self.seed, &format!("{path}#{step}"));
        let width = if self.is_deep && dice.percent(60) { 3 } else { 1 + dice.below(3) };
        let is_sub = |dice: &mut Dice| match depth {
            0 => dice.percent(70),
            1 => dice.percent(50),
            2 => self.is_deep && dice.percent(60),
            _ => false,
        };
        let uses = (0..width).map(|slot| {
            let kind = if is_sub(&mut dice) { Kind::Sub } else { *dice.pick(&Kind::TOOLS).unwrap() };
            (format!("{path}/{step}{slot}"), kind)
        });
        uses.collect()
    }
}

/// A decision about a tool use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The text by which the result is recognised. No other decision has it.
    pub(crate) mark: String,
    /// Whether the tool runs.
    pub(crate) runs: bool,
    /// Whether the mark is not in the result.
    pub(crate) is_plain: bool,
}

/// The decisions about a tool use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) said: Vec<Said>,
    /// The decision that was acknowledged, and its life.
    pub(crate) acked: Option<(Said, usize)>,
}

/// A request that the models have received.
#[derive(Clone, Debug)]
pub(crate) struct Requested {
    pub(crate) path: String,
    pub(crate) step: usize,
    pub(crate) life: usize,
}

/// The facts outside of the processes.
#[derive(Default)]
pub(crate) struct Facts {
    lines: Vec<String>,
    breach: Option<String>,
    pub(crate) root: Option<ConversationId>,
    /// The time before the present life, in milliseconds.
    pub(crate) before: u64,
    /// The lives in which a tool has started, by its tool use.
    pub(crate) effects: BTreeMap<String, Vec<usize>>,
    /// The requests. The usage of each has its number, which is counted from 1.
    pub(crate) requests: Vec<Requested>,
    pub(crate) asked: BTreeMap<String, Asked>,
    pub(crate) marks: usize,
    /// The tool uses of sub-agents by their conversations.
    pub(crate) names: BTreeMap<ConversationId, String>,
    /// The prompts that were sent, and whether this was acknowledged.
    pub(crate) prompts: Vec<(String, bool)>,
    /// The prompts that were stopped, for which nothing may start any more.
    pub(crate) over: BTreeSet<String>,
    /// The prompts that a person has stopped, or that a process has interrupted.
    pub(crate) cut: BTreeSet<String>,
    /// The lives that have died, or that have given nothing to the store at their end.
    pub(crate) crashed: BTreeSet<usize>,
    /// The number of the tenant, and of one whose acknowledgement is missing.
    pub(crate) tenant: usize,
    pub(crate) new_tenant: Option<usize>,
    /// The prompts that were erased, and those that are being erased.
    pub(crate) erased: BTreeSet<String>,
    pub(crate) erasing: Vec<String>,
    /// Whether a conversation was deleted.
    pub(crate) has_deleted: bool,
    /// Whether the root is being deleted.
    pub(crate) deleting: bool,
    pub(crate) deleted: bool,
    /// The number of calls of the store by conversation.
    pub(crate) counts: BTreeMap<String, u64>,
    /// The times of the last records.
    pub(crate) recorded: BTreeMap<ConversationId, u64>,
}

pub(crate) struct World {
    pub(crate) shape: Shape,
    facts: Mutex<Facts>,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let world = Self { shape: Shape::new(seed), facts: Mutex::default() };
        world.facts().lines.push(format!("{:?}", world.shape));
        world
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, life: &Life, words: impl AsRef<str>) {
        let text = format!("{}@{:>6} {}", life.number, life.passed(), words.as_ref());
        self.facts().lines.push(text);
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.facts().lines.clone()
    }

    /// Records a broken promise.
    pub(crate) fn breach(&self, words: impl Into<String>) {
        let words = words.into();
        let mut facts = self.facts();
        facts.lines.push(format!("BREACH {words}"));
        facts.breach.get_or_insert(words);
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.facts().breach.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.facts().breach.is_some()
    }

    /// Returns the id of the root.
    pub(crate) fn root(&self) -> ConversationId {
        self.facts().root.clone().unwrap_or_else(|| ConversationId::new("root").unwrap())
    }

    /// Returns the labels of the root with this tenant.
    pub(crate) fn labels(tenant: usize) -> Labels {
        Labels::new([("family", "f"), ("tenant", &format!("t{tenant}"))]).unwrap()
    }
}

impl Facts {
    /// Returns a new decision about a tool use, and records it.
    pub(crate) fn decide(&mut self, name: &str, is_question: bool, dice: &mut Dice) -> (Decision, Said) {
        self.marks += 1;
        let mark = format!("m{}!", self.marks);
        let said = |runs, is_plain| Said { mark: mark.clone(), runs, is_plain };
        let (decision, said) = match dice.below(4) {
            _ if is_question => (Decision::ExecuteWith(json!(mark)), said(true, false)),
            0 => (Decision::reject(&mark), said(false, false)),
            1 => (Decision::ExecuteWith(json!({ "id": name, "mark": mark })), said(true, false)),
            _ => (Decision::Execute, said(true, true)),
        };
        self.asked.entry(name.to_owned()).or_default().said.push(said.clone());
        (decision, said)
    }
}

/// Returns the usage of the request with this number.
pub(crate) fn usage_of(request: u64) -> Usage {
    let mut usage = Usage::default().with_output(TOKENS);
    usage.reasoning = request;
    usage
}

/// Returns the prompt of the root to which an agent or a tool use belongs.
pub(crate) fn prompt_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}
