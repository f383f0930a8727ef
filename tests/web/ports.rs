//! The ports of the servers that the tests start. All ports are below those that the system gives to outgoing connections.
//!
//! Each kind of server has its own range, because a test chooses the port of a program before the program binds it. If the
//! ranges overlapped, another server could take this port first. The tests in `tests/mcp` and `tests/store/postgres` use
//! the ports from 20,000 on.

use std::{ops::Range, process};

use tokio::net::TcpListener;

/// The servers of the walks through the chat page. Browsers refuse to connect to port 10,080.
pub(crate) const PAGES: Range<u16> = 10_100..13_000;
/// The servers of the front ends.
pub(crate) const FRONT_ENDS: Range<u16> = 13_000..15_000;
/// The processes behind nginx, and nginx.
#[cfg(unix)]
pub(crate) const PROXIES: Range<u16> = 15_000..18_000;
/// The servers for the AI SDK.
pub(crate) const AI_SDK: Range<u16> = 18_000..18_400;
/// The servers for the clients of AG-UI.
pub(crate) const AG_UI: Range<u16> = 18_460..18_560;
/// The servers that are killed.
#[cfg(unix)]
pub(crate) const KILLED: Range<u16> = 18_600..20_000;

/// Returns the first port of the block of this size that belongs to this test process.
pub(crate) fn block(range: &Range<u16>, size: u16) -> u16 {
    let blocks = (range.end - range.start) / size;
    range.start + u16::try_from(process::id() % u32::from(blocks)).unwrap() * size
}

/// Binds a free port in this range.
pub(crate) async fn listen(range: Range<u16>) -> TcpListener {
    let first = block(&range, 1);
    for port in (first..range.end).chain(range.start..first) {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
    }
    panic!("all ports in {range:?} are taken");
}
