//! The provider layer through its public API.

mod anthropic;
mod chat;
mod fold;
mod framing;
mod http;
mod retry;
