//! A chat in the terminal, driven through its public API: entries go in, text comes out.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod answers;
mod approvals;
mod commands;
mod ends;
mod markdown;
mod support;
