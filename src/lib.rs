//! Stateful LLM agents.

pub mod message;
pub mod tool;
pub mod provider;
