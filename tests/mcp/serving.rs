//! A manager that is served to other programs.

mod calls;
mod endings;
pub mod host;
mod hostile;
mod npm;
mod person;
mod questions;
#[cfg(feature = "web")]
mod web;
