//! Sessions, through their public surface.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod basics;
mod callbacks;
mod ends;
mod flushing;
mod idle;
mod losing;
mod modes;
mod moves;
mod order;
mod regenerate;
mod saving;
mod starting;
mod stopping;
mod support;
mod watch;
