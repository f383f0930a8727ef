//! The provider layer through its public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod anthropic;
mod chat;
mod fold;
mod framing;
mod http;
mod retry;
