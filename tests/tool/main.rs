//! The tool layer through its public API.

mod cap;
mod run;
mod schema;
mod schema_limits;
mod set;
mod typed;
