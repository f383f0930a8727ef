//! Stateful LLM agents.

pub mod message;
pub mod provider;
pub mod tool;
