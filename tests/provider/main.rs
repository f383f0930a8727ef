//! The provider layer through its public API.

mod anthropic;
mod chat;
mod faults;
mod fold;
mod framing;
mod http;
mod plain;
mod retry;
#[path = "../support/server.rs"]
mod server;
