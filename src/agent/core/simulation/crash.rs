//! A simulator of crashes. A seeded world plays the shell, the store, the callbacks, the provider and the tools. The
//! process may end between any two effects, and before or after any write. The next life continues with what is stored.
//!
//! - `cargo test --lib crashes` runs 20,000 schedules. `OMNI_SCHEDULES` and `OMNI_SEED` work as in the simulation
//!   without crashes.
//!
//! The model, the callbacks and the tools answer as a script says, so that a recovered run must end as an undisturbed
//! one.

mod fault;
mod life;
mod oracle;
mod person;

use std::sync::Arc;

use super::world::config;
use crate::{
    actor::{
        random::Rng,
        simulation::{Check, Simulated, ensure, play_all},
    },
    agent::{Config, Durable, record::TurnRecord},
    message::{History, Message},
    tool::{Replay, Tool, ToolSet, tool_fn},
};
use fault::Fault;
use life::Life;
use oracle::Oracle;

#[test]
fn crashes_keep_the_contract() {
    play_all::<World>(20_000, "agent::core::simulation::crash");
}

/// One step of the model.
#[derive(Clone, Debug)]
enum Said {
    Text,
    /// The names of the tools that are used, and the decisions of `handle_tool_use`.
    Tools(Vec<(&'static str, Verdict)>),
}

/// A decision of `handle_tool_use`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Execute,
    Replace,
    Reject,
    Pause,
}

/// The script of a schedule. It depends on the schedule's seed alone.
struct Script {
    steps: Vec<Said>,
    /// The number of turns that `handle_turn` adds.
    continuations: usize,
    prompts: usize,
    provider: Replay,
    level: Durable,
    /// Whether nothing but crashes disturbs the run, so that its outcome is determined.
    is_plain: bool,
}

impl Script {
    fn new(rng: &mut Rng) -> Self {
        let is_plain = rng.percent(50);
        let names: &[&'static str] = if is_plain { &["read", "put"] } else { &["read", "put", "send"] };
        let steps = (0..8).map(|_| {
            if rng.percent(45) {
                return Said::Text;
            }
            let uses = (0..=rng.below(3)).map(|_| {
                let verdicts =
                    [Verdict::Execute, Verdict::Execute, Verdict::Replace, Verdict::Reject, Verdict::Pause];
                (rng.pick(names), rng.pick(&verdicts))
            });
            Said::Tools(uses.collect())
        });
        Self {
            steps: steps.collect(),
            continuations: rng.below(2),
            prompts: 1 + rng.below(3),
            provider: if is_plain { Replay::Safe } else { rng.pick(&[Replay::Safe, Replay::Never]) },
            level: if is_plain {
                Durable::InFlight
            } else {
                rng.pick(&[Durable::InFlight, Durable::Approvals])
            },
            is_plain,
        }
    }

    /// Returns the model's next step in a conversation that already contains this number of responses.
    fn said(&self, responses: usize) -> Said {
        self.steps.get(responses).cloned().unwrap_or(Said::Text)
    }
}

/// The data that outlives a process.
#[derive(Default)]
struct Disk {
    history: History,
    turn: Option<TurnRecord>,
}

struct World {
    seed: u64,
    rng: Rng,
    script: Script,
    config: Config,
    tools: ToolSet,
    disk: Disk,
    oracle: Oracle,
    fault: Option<Fault>,
    /// The number of prompts that were sent.
    sent: usize,
    clock: u64,
    turns: u128,
    crashes: usize,
    lines: Option<Vec<String>>,
}

fn tool(name: &str, replay: Replay) -> impl Tool + use<> {
    let tool = tool_fn(name, "Runs.", |_: std::collections::BTreeMap<String, u8>, _| async {
        Ok::<_, crate::tool::ToolError>("done")
    });
    tool.with_replay(replay)
}

thread_local! {
    static TOOLS: ToolSet = ToolSet::new()
        .with(tool("read", Replay::Safe))
        .and_then(|tools| tools.with(tool("put", Replay::Keyed)))
        .and_then(|tools| tools.with(tool("send", Replay::Never)))
        .expect("the names differ");
    static CONFIG: Config = config();
}

impl World {
    fn new(seed: u64, crashes: usize, fault: Option<Fault>, trace: bool) -> Self {
        let mut of_script = Rng::new(seed);
        let script = Script::new(&mut of_script);
        Self {
            seed,
            rng: Rng::new(seed ^ 0x5EED),
            script,
            config: CONFIG.with(Config::clone),
            tools: TOOLS.with(ToolSet::clone),
            disk: Disk::default(),
            oracle: Oracle::default(),
            fault,
            sent: 0,
            clock: 0,
            turns: 0,
            crashes,
            lines: trace.then(Vec::new),
        }
    }

    fn note(&mut self, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(words());
        }
    }

    /// Plays lives until one ends with nothing left to do.
    fn play(&mut self) -> Check {
        for life in 0..=self.crashes {
            let is_last = life == self.crashes;
            self.note(|| format!("life {life}"));
            let ended = Life::begin(self)?.run(is_last)?;
            ensure!(!is_last || ended, "the last life did not become idle");
            if ended && self.sent == self.script.prompts {
                break;
            }
            self.decide_stored();
        }
        ensure!(self.disk.turn.is_none(), "a turn stays recorded: {:?}", self.disk.turn);
        self.oracle.check_end(&self.disk.history, self.script.level, self.script.is_plain)
    }

    /// Returns the contents of the history without ids and times.
    fn contents(&self) -> Vec<String> {
        let content = |message: &Arc<Message>| format!("{:?} {:?}", message.role, message.content);
        self.disk.history.iter().map(content).collect()
    }

    fn run_all(&mut self) -> Check {
        self.play()?;
        if self.script.is_plain && self.fault.is_none() {
            let mut undisturbed = Self::new(self.seed, 0, None, false);
            undisturbed.play()?;
            let (own, other) = (self.contents(), undisturbed.contents());
            ensure!(own == other, "the history is {own:#?}, undisturbed {other:#?}");
        }
        Ok(())
    }
}

impl Simulated for World {
    fn begin(seed: u64, trace: bool) -> Self {
        let crashes = 1 + Rng::new(seed).below(4);
        Self::new(seed, crashes, None, trace)
    }

    fn run(&mut self) -> Check {
        self.run_all()
    }

    fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}
