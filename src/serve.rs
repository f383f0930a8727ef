//! A manager's conversations, served to other programs over standard protocols.
//!
//! - [`acp`] serves editors over the Agent Client Protocol. The editor starts the application's program and uses it as
//!   an agent.
//!
//! The [guide](crate::guides::serving) shows a whole program and the settings of an editor.

pub mod acp;
mod stdio;
