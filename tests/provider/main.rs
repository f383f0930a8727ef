//! The provider layer through its public API.

mod anthropic;
mod chat;
mod chat_calls;
mod chat_decode;
mod chat_encode;
mod chat_errors;
mod chat_properties;
mod faults;
mod fold;
mod framing;
mod http;
mod plain;
mod retry;
#[path = "../support/server.rs"]
mod server;
