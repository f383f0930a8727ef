//! The provider layer through its public API.

mod anthropic;
mod chat;
mod chat_calls;
mod chat_decode;
mod chat_encode;
mod chat_errors;
mod chat_properties;
mod fold;
mod framing;
mod http;
mod retry;
