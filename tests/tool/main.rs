//! The tool layer through its public API.

mod run;
mod schema;
mod typed;
