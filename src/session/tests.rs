//! Tests of the parts of a session that only the manager uses.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test's unwrap is its failure; the helpers serve other tests too"
)]
#![allow(
    unreachable_pub,
    unreachable_patterns,
    reason = "the helpers see the public API as an application does"
)]

#[macro_use]
#[path = "../../tests/support/forward.rs"]
mod forward;

pub(crate) mod decided;
mod leaving;
#[path = "../../tests/session/support.rs"]
mod support;
#[path = "../../tests/session/watch.rs"]
mod watch;
mod watching;
