//! The provider layer, tested through its public API.

#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

#[cfg(feature = "http")]
mod alibaba;
mod anthropic;
#[cfg(feature = "http")]
mod anthropic_binding;
#[cfg(feature = "test-util")]
mod anthropic_cache;
#[cfg(feature = "http")]
mod anthropic_container;
mod anthropic_content;
mod anthropic_decode;
mod anthropic_encode;
mod anthropic_errors;
mod anthropic_irregular;
#[cfg(feature = "http")]
mod anthropic_limits;
mod anthropic_property;
#[cfg(feature = "test-util")]
mod anthropic_turns;
#[cfg(feature = "http")]
mod assistant_first;
#[cfg(feature = "http")]
mod bodies;
mod catalogue;
mod catalogue_models_dev;
mod chat;
mod chat_calls;
mod chat_decode;
mod chat_encode;
mod chat_errors;
#[cfg(feature = "http")]
mod chat_irregular;
mod chat_properties;
#[cfg(feature = "http")]
mod compressed;
mod cost;
mod deltas;
#[cfg(feature = "http")]
mod deviations;
#[cfg(feature = "http")]
mod echoes;
mod edges;
#[cfg(feature = "http")]
mod endings;
#[cfg(feature = "http")]
mod endpoints;
mod error;
#[cfg(feature = "http")]
mod extra;
#[cfg(feature = "http")]
mod faults;
mod fit;
mod fold;
mod fold_limits;
#[cfg(feature = "http")]
mod framing;
mod gemini;
mod gemini_decode;
mod gemini_encode;
mod gemini_errors;
#[cfg(feature = "http")]
mod groq;
#[cfg(feature = "http")]
mod halves;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "http")]
mod log;
#[cfg(feature = "http")]
#[path = "../support/logged.rs"]
mod logged;
#[cfg(feature = "http")]
mod malformed_calls;
#[cfg(feature = "http")]
mod mapping;
mod model;
#[cfg(feature = "http")]
mod moonshot;
mod moonshot_schemas;
mod ollama;
mod ollama_decode;
mod ollama_encode;
mod ollama_errors;
mod open_items;
mod openai_models;
#[cfg(feature = "http")]
mod opencode;
#[cfg(feature = "http")]
mod openrouter;
mod options;
#[cfg(feature = "test-util")]
#[cfg(feature = "http")]
mod origin;
mod output;
mod output_schemas;
#[cfg(feature = "test-util")]
mod output_strict;
mod output_tool;
#[cfg(feature = "http")]
mod plain;
mod property_names;
mod questions;
#[cfg(feature = "http")]
mod refused;
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
#[cfg(feature = "http")]
mod strays;
#[cfg(feature = "http")]
mod text_files;
mod tool_input;
mod tool_names;
mod tool_schemas;
#[cfg(feature = "http")]
mod unread;
#[cfg(feature = "http")]
mod unverified;
#[cfg(feature = "http")]
mod usage_reports;
#[cfg(feature = "http")]
mod wires;
#[cfg(feature = "http")]
mod zai;

/// Removes the placeholder before a conversation that the assistant begins, so that tests can encode a single message.
/// `assistant_first` tests the placeholder.
fn without_opening(body: &mut serde_json::Map<String, serde_json::Value>, key: &str) {
    if let Some(serde_json::Value::Array(messages)) = body.get_mut(key) {
        messages.retain(|message| !message.to_string().contains("(The assistant begins the conversation.)"));
    }
}
