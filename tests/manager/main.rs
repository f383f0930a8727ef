//! The manager, through its public surface.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod basics;
mod room;
mod shutdown;
mod support;
mod titles;
