//! A manager's conversations, served to other programs over standard protocols.
//!
//! - `acp` (feature `acp`) serves editors over the Agent Client Protocol. The editor starts the application's program and
//!   uses it as an agent.
//! - `mcp` (feature `mcp-server`) serves other agents over the Model Context Protocol. They use the conversations as tools.
//!
//! The [guide](crate::guides::serving) shows whole programs and the settings of an editor.

#[cfg(feature = "acp")]
pub mod acp;
#[cfg(feature = "mcp-server")]
pub mod mcp;
mod stdio;
