//! Sessions, through their public surface.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod basics;
mod branches;
mod files;
mod flushing;
mod loading;
mod losing;
mod property;
mod saving;
mod starting;
mod state;
mod stopping;
mod support;
