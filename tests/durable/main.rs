//! Turns in flight and approvals that outlive their process.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an unwrap is a failure of the test; the results are printed"
)]

#[macro_use]
#[path = "../support/forward.rs"]
mod forward;

#[macro_use]
mod stores;

mod approvals;
mod approvals_property;
mod faults;
mod foreign;
mod hostile;
#[cfg(unix)]
mod kill;
#[path = "../support/lives.rs"]
mod lives;
mod managed;
mod owned;
mod prompts;
mod queued;
mod schedules;
mod sub_agent_order;
mod sub_agent_usage;
mod sub_agents;
mod sweep;
mod trees;
mod writes;

#[cfg(feature = "postgres")]
#[allow(dead_code, reason = "shared with the tests of the store")]
#[path = "../store/postgres/server.rs"]
mod server;
#[cfg(feature = "postgres")]
#[path = "../support/skip.rs"]
mod skip;
