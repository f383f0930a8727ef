//! Sessions, tested through their public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

#[macro_use]
#[path = "../support/forward.rs"]
mod forward;

mod again;
mod basics;
mod branches;
mod callbacks;
mod compaction;
mod cost;
mod durable;
mod ends;
mod erasing;
mod failed_runs;
mod fairness;
mod files;
mod flushing;
mod gates;
mod guarded;
mod idle;
mod joined;
mod joining;
mod kept_at_end;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/leasing.rs"]
mod leasing;
mod lives;
mod loading;
mod long_work;
mod losing;
mod modes;
mod moves;
mod omitted;
mod on_hold;
mod open_uses;
mod order;
mod outages;
mod outputs;
mod perform;
mod property;
mod races;
mod random;
mod records;
mod regenerate;
mod retitled;
mod saving;
mod starting;
mod state;
mod stopping;
mod stubborn_tools;
mod support;
mod tails;
mod tenure;
mod unanswered;
mod unstorable;
mod watch;
