//! Sessions, through their public surface.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod basics;
mod flushing;
mod losing;
mod saving;
mod starting;
mod stopping;
mod support;
