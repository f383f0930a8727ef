//! A manager's conversations, served to other programs over standard protocols.
//!
//! - [`acp`] makes a program that editors drive over the Agent Client Protocol.
//!
//! The [guide](crate::guides::serving) shows a whole program and the settings of an editor.

pub mod acp;
mod stdio;
