//! The manager, tested through its public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

#[macro_use]
#[path = "../support/forward.rs"]
mod forward;

mod basics;
mod closing;
mod conversation;
mod elsewhere;
mod faults;
mod feed;
mod flavours;
mod fork;
mod kept_at_end;
mod labels;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/leasing.rs"]
mod leasing;
mod lives;
mod making_room;
mod opening;
mod outages;
mod random;
mod renamed_elsewhere;
mod rig;
mod room;
mod shutdown;
mod sub_agent_calls;
mod sub_agents;
mod sub_agents_labels;
mod sub_agents_repeated;
mod sub_agents_waiting;
mod support;
mod titles;
