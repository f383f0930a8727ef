//! The table of recoveries: every phase of a run, with every reply of the callbacks, every declaration about repetition
//! and every kind of start. A process is closed at each of its steps that changes something outside of it, and the next
//! process continues. The recovery is closed again in the same way, in its first half, before the turn continues, and
//! in its second half. In the end, the conversation equals that of a process that was never closed.

mod closing;
mod rows;

use std::collections::BTreeSet;

use closing::Scenario;
use rows::rows;

use super::Start;
use crate::{
    actor::simulation::{Check, ensure},
    agent::{OnUncertain, process::PHASES},
    tool::Replay,
};

/// The declarations of the tools and of the provider, and the treatment of tools that must not run again.
#[derive(Clone, Copy, Debug)]
struct Declared {
    tools: Replay,
    provider: Replay,
    on_uncertain: OnUncertain,
}

/// How the run of a row starts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Begun {
    Fresh,
    Asked,
    Regenerated,
    /// Another prompt is staged for the next turn.
    Staged,
    /// Another prompt is staged for the next step.
    Joined,
}

impl Begun {
    const ALL: [Self; 5] = [Self::Fresh, Self::Asked, Self::Regenerated, Self::Staged, Self::Joined];

    fn starts(self) -> Vec<Start> {
        match self {
            Self::Fresh => vec![Start::Prompt],
            Self::Asked => vec![Start::Ask],
            Self::Regenerated => vec![Start::Prompt, Start::Regenerate],
            Self::Staged | Self::Joined => vec![Start::Prompt, Start::Prompt],
        }
    }
}

/// Plays all rows of the table to which the declaration matters. Returns the phases in which processes were closed.
fn play(declared: Declared) -> BTreeSet<&'static str> {
    let mut closed = BTreeSet::new();
    let depends_on_tools = declared.tools != Replay::Safe && declared.provider == Replay::Safe;
    for row in rows().iter().filter(|row| row.uses_tools() || !depends_on_tools) {
        // A provider that must not repeat requests keeps the conversation itself, so nothing is compacted.
        if row.compacts && declared.provider == Replay::Never {
            continue;
        }
        let mut own = BTreeSet::new();
        // Without tools, no prompt joins a turn in flight.
        for begun in Begun::ALL.into_iter().filter(|begun| row.uses_tools() || *begun != Begun::Joined) {
            let played = Scenario { row, begun, declared }.play(&mut own);
            played.unwrap_or_else(|breach| panic!("{}, {begun:?}, {declared:?}: {breach}", row.name));
        }
        names_its_phases(row.phases, &own).unwrap_or_else(|breach| panic!("{}: {breach}", row.name));
        closed.extend(own);
    }
    closed
}

fn names_its_phases(named: &[&'static str], closed: &BTreeSet<&'static str>) -> Check {
    for phase in named {
        ensure!(PHASES.contains(phase), "there is no phase {phase:?}");
        ensure!(closed.contains(phase), "no process was closed in the phase {phase:?}, only in {closed:?}");
    }
    Ok(())
}

#[test]
fn process_closed_in_each_phase_continues_safe_tools() {
    let declared =
        Declared { tools: Replay::Safe, provider: Replay::Safe, on_uncertain: OnUncertain::Report };
    let closed = play(declared);
    assert!(PHASES.iter().all(|phase| closed.contains(phase)), "processes were only closed in {closed:?}");
}

#[test]
fn process_closed_in_each_phase_repeats_keyed_tools() {
    play(Declared { tools: Replay::Keyed, provider: Replay::Safe, on_uncertain: OnUncertain::Report });
}

#[test]
fn process_closed_in_each_phase_reports_tools_that_must_not_run_again() {
    play(Declared { tools: Replay::Never, provider: Replay::Safe, on_uncertain: OnUncertain::Report });
}

#[test]
fn process_closed_in_each_phase_asks_about_tools_that_must_not_run_again() {
    play(Declared { tools: Replay::Never, provider: Replay::Safe, on_uncertain: OnUncertain::Ask });
}

#[test]
fn process_closed_in_each_phase_repeats_no_request_of_a_provider_that_must_not_repeat_it() {
    play(Declared { tools: Replay::Never, provider: Replay::Never, on_uncertain: OnUncertain::Ask });
}
