//! The message layer, tested through its public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod compaction;
mod drafts;
mod history;
mod ids;
mod law;
mod message;
mod serde;
mod strategies;
