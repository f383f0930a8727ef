//! The tree layer, tested through its public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod changes;
mod erase;
mod hydrate;
mod model;
mod outline;
mod rules;
mod serde;
mod support;
