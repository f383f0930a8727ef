//! The provider layer through its public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod anthropic;
mod chat;
mod deltas;
mod error;
mod fold;
mod fold_limits;
mod framing;
mod http;
mod model;
mod options;
mod registry;
mod retry;
mod salvage;
mod tool_input;
