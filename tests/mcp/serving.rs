//! A manager that is served to clients of the Model Context Protocol.

#[cfg(feature = "web")]
mod access;
mod calls;
mod endings;
pub mod host;
mod hostile;
mod npm;
mod person;
mod questions;
#[cfg(feature = "web")]
mod sub_agents;
#[cfg(feature = "web")]
mod web;
