//! Sessions, through their public surface.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod basics;
mod callbacks;
mod ends;
mod idle;
mod joining;
mod modes;
mod moves;
mod order;
mod races;
mod random;
mod regenerate;
mod watch;
