//! The routes of a manager behind HTTP.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

mod access;
mod ag_ui;
mod ai_sdk;
mod ai_sdk_routes;
mod bad_input;
mod broken_bodies;
mod js;
mod load;
mod openapi;
mod page;
mod routes;
#[path = "../support/skip.rs"]
mod skip;
mod streams;
mod support;
mod use_chat;
mod walk;
