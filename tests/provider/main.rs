//! The provider layer through its public API.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod anthropic;
mod anthropic_content;
mod anthropic_decode;
mod anthropic_encode;
mod anthropic_errors;
mod anthropic_property;
mod chat;
mod chat_calls;
mod chat_decode;
mod chat_encode;
mod chat_errors;
mod chat_properties;
mod deltas;
mod error;
#[cfg(feature = "http")]
mod faults;
mod fold;
mod fold_limits;
#[cfg(feature = "http")]
mod framing;
mod gemini;
mod gemini_decode;
mod gemini_encode;
mod gemini_errors;
#[cfg(feature = "http")]
mod http;
mod model;
mod ollama;
mod ollama_decode;
mod ollama_encode;
mod ollama_errors;
mod options;
#[cfg(feature = "http")]
mod plain;
mod questions;
mod registry;
mod responses;
mod responses_decode;
mod responses_encode;
mod responses_errors;
mod responses_properties;
mod retry;
mod salvage;
#[cfg(feature = "http")]
#[path = "../support/server.rs"]
mod server;
#[cfg(feature = "http")]
mod services;
mod tool_input;
