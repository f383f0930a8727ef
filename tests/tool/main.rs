//! The tool layer, tested through its public API.
#![allow(clippy::unwrap_used, reason = "a test's helpers may panic as the test itself may")]

mod cap;
mod execute;
mod run;
mod schema;
mod schema_limits;
mod set;
mod typed;
