//! Backends: the adapter under agents and sessions, tested through the public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod conformance;
mod conversations;
mod discards;
mod faults;
mod late_id;
mod lifetime;
mod permissions;
mod scripted;
mod turns;
