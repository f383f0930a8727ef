//! The provider layer through its public API.

mod anthropic;
mod anthropic_content;
mod anthropic_decode;
mod anthropic_encode;
mod anthropic_errors;
mod anthropic_property;
mod chat;
mod fold;
mod framing;
mod http;
mod retry;
