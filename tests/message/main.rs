//! The message layer through its public API.

mod history;
mod law;
