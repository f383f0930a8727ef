//! Stores: the conformance suite for each store, and tests of each kind of store.
#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

#[macro_use]
#[path = "../support/forward.rs"]
mod forward;

mod attachments;
mod carried;
mod contents;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod corrupt;
mod deleted;
mod erasing;
mod faults;
mod file_system;
mod flight;
mod full;
mod hostile;
mod ids;
mod kill;
mod label_rules;
mod labels;
mod limits;
mod listing;
mod memory;
mod merged;
#[cfg(feature = "postgres")]
mod postgres;
mod processes;
mod rewriting;
#[path = "../support/skip.rs"]
mod skip;
#[cfg(feature = "sqlite")]
mod sqlite;
mod steps;
mod support;
mod torn;
mod transfer;
mod turns;
