//! A chat in the terminal, driven through its public API: entries go in, text comes out.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an unwrap is a failure of the test; a process prints"
)]

mod answers;
mod approvals;
mod commands;
mod ends;
mod markdown;
#[cfg(unix)]
mod pty;
mod support;
