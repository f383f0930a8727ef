//! A simulator of sessions over crashes. The real cores of agent and session run in simulated processes, with a model of
//! the store. A process may end between any two effects, and inside any write, which then is performed or not. It may
//! also freeze, lose the conversation to the next process, and wake up later. The next process continues with the stored
//! state.
//!
//! - `cargo test --lib joined` runs 1,200 schedules. `OMNI_SCHEDULES` and `OMNI_SEED` work as in the other simulations.
//!
//! The promises are in `agent/core/simulation/process/oracle.rs`, `place.rs` and `end.rs`. If nothing but crashes
//! disturbs a schedule, its conversation must equal that of the undisturbed schedule.

mod end;
mod life;
mod loading;
mod people;
mod place;
mod runs;
mod table;
mod writes;

use life::Life;
use place::Place;

use crate::{
    actor::{
        random::Rng,
        simulation::{Check, Simulated, ensure, play_all},
    },
    agent::{
        Durable, OnUncertain,
        process::{Condition, Fault, Outside},
    },
    tree::NodeId,
};

#[test]
fn lives_keep_the_contract() {
    play_all::<World>(1_200, "session::core::simulation::joined");
}

#[test]
fn lives_with_a_fault_are_noticed() {
    for fault in Fault::ALL {
        let is_noticed = (0..5_000).any(|seed| {
            let mut world = World::new(seed, true, Some(fault), false);
            let run = std::panic::AssertUnwindSafe(|| world.run());
            !matches!(std::panic::catch_unwind(run), Ok(Ok(())))
        });
        assert!(is_noticed, "{fault:?} is not noticed");
    }
}

/// A request of the user that starts a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    Prompt,
    /// A prompt whose sender waits for the response.
    Ask,
    Regenerate,
    Edit,
}

/// A request for another response to a message.
#[derive(Clone)]
struct Regenerated {
    /// The number of the request.
    number: usize,
    user: NodeId,
    /// The text of the message.
    text: String,
    /// The number of responses before the request.
    before: usize,
}

/// Everything that the processes of a schedule share.
#[derive(Clone)]
struct Common {
    outside: Outside,
    place: Place,
    /// The requests of the user, in order. They are sent again until they are acknowledged.
    starts: Vec<Start>,
    /// The number of requests that were sent.
    sent: usize,
    /// The requests for other responses that were sent.
    regenerated: Vec<Regenerated>,
    /// Whether prompts have ids, so that a repetition is recognised. Otherwise, the user looks for them in the store.
    has_ids: bool,
    /// How often a staged prompt is for the next step, in percent.
    joins: usize,
    /// The treatment of tool uses whose outcome is not known. If it is `None`, it is random.
    on_uncertain: Option<OnUncertain>,
    /// How often a write fails, in percent.
    trouble: usize,
    /// How often a life freezes instead of ending.
    freezes: usize,
    writes: u64,
}

struct World {
    seed: u64,
    common: Common,
    /// A process that has lost the conversation and may not know it.
    former: Option<Life>,
    crashes: usize,
}

impl World {
    /// Creates the world of a schedule. Without `crashes`, there is one life, and the store never fails.
    fn new(seed: u64, crashes: bool, fault: Option<Fault>, trace: bool) -> Self {
        let mut outside = Outside::new(seed, fault, trace);
        let mut rng = Rng::new(seed ^ 0x0D15);
        let others = [Start::Prompt, Start::Prompt, Start::Ask, Start::Regenerate, Start::Edit];
        let mut starts = vec![Start::Prompt];
        starts.extend((0..rng.below(3)).map(|_| rng.pick(&others)));
        // In a few schedules, processes end so often that turns are abandoned.
        let is_stubborn = seed % 16 == 7 && !outside.script.is_plain;
        if is_stubborn {
            outside.crash_chance = 12;
        }
        let has_ids = outside.script.level == Durable::InFlight && rng.percent(50);
        let lives = if is_stubborn { 9 } else { 1 + rng.below(4) };
        let mut world = Self {
            seed,
            common: Common {
                starts,
                outside,
                place: Place::new(fault),
                sent: 0,
                has_ids,
                joins: 50,
                on_uncertain: None,
                regenerated: Vec::new(),
                trouble: rng.pick(&[0, 20, 50]) * usize::from(crashes),
                freezes: rng.pick(&[0, 0, 2]),
                writes: 0,
            },
            former: None,
            crashes: lives * usize::from(crashes),
        };
        if rng.percent(33) {
            world.common.outside.compact(&mut rng);
        }
        world
    }

    /// Plays lives until one ends with nothing left to do.
    fn play(&mut self) -> Check {
        let common = &mut self.common;
        for life in 0..=self.crashes {
            let is_last = life == self.crashes;
            common.outside.note(|| format!("life {life}"));
            let condition = if is_last { Condition::Stable } else { Condition::MayCrash };
            let Some(mut life) = Life::begin(common, condition)? else { continue };
            let end = life.run(common, self.former.as_mut())?;
            ensure!(!is_last || end == life::End::Settled, "the last life ends as {end:?}");
            if end == life::End::Settled {
                break;
            }
            life.resend(common);
            if end == life::End::Frozen {
                self.former = Some(life);
            }
            people::decide_stored(common)?;
        }
        self.check_end()
    }
}

impl Simulated for World {
    fn begin(seed: u64, trace: bool) -> Self {
        Self::new(seed, true, None, trace)
    }

    fn run(&mut self) -> Check {
        self.play()?;
        if self.common.outside.script.is_plain && self.common.outside.fault.is_none() {
            self.ends_as_undisturbed()?;
        }
        Ok(())
    }

    fn lines(&self) -> &[String] {
        self.common.outside.lines.as_deref().unwrap_or_default()
    }
}
