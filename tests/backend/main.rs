//! Backends: the adapter that connects them to agents and sessions, tested through the public API.

#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

mod conformance;
mod conversations;
mod discards;
mod faults;
mod late_id;
mod lifetime;
mod permissions;
mod scripted;
mod turns;
