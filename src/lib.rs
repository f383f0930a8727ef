//! Stateful LLM agents.

pub mod agent;
pub mod message;
pub mod provider;
pub mod subscription;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod tool;
