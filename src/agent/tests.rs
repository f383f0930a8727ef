//! The agent layer, tested through its public API and through the interfaces that sessions and the manager use.
#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]
#![allow(
    unreachable_pub,
    unreachable_patterns,
    reason = "the tests see the public API as an application does"
)]

mod admission;
mod ask;
mod at_once;
mod backups;
mod budgets;
mod commit_channel;
mod committed;
mod compaction;
mod configuration;
mod cost;
mod cut_compactions;
mod cutting_short;
mod decisions;
mod durable;
mod ending;
mod errors;
mod event_data;
mod failing;
mod finished_tools;
mod flood;
mod hooks;
mod joining;
mod kept_at_end;
mod limits;
mod little_room;
mod liveness;
#[path = "../../tests/support/logged.rs"]
mod logged;
mod message_ids;
mod models;
mod notices;
mod open_uses;
mod operations;
mod outputs;
mod owner;
mod panics;
mod pauses;
mod pauses_property;
mod predicament;
mod prompt_model;
mod questions;
mod races;
mod rare_orders;
mod requests;
mod restoring;
mod retiring;
mod rig;
mod running;
mod secrets;
mod staging;
mod start;
mod stated;
mod stubborn_tools;
mod sub_agents;
mod subscribing;
mod support;
mod testing;
mod text_deltas;
mod tool_questions;
mod tools;
mod turns;
