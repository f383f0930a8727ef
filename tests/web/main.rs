//! The routes of a manager behind HTTP.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

#[allow(unused_macros, reason = "shared with other tests")]
#[macro_use]
#[path = "../support/forward.rs"]
mod forward;

mod access;
mod ag_ui;
mod ag_ui_routes;
mod ag_ui_tools;
mod ai_sdk;
mod ai_sdk_routes;
mod approvals;
mod bad_input;
mod broken_bodies;
mod client_ids;
mod commands;
mod compacted;
mod faulty;
mod forks;
mod front_ends;
mod hidden;
mod js;
#[cfg(unix)]
mod killed_server;
mod late_access;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/leasing.rs"]
mod leasing;
mod left_runs;
mod limits;
#[path = "../support/lives.rs"]
mod lives;
mod load;
#[path = "../support/logged.rs"]
mod logged;
mod lost_access;
mod media_types;
mod moved_labels;
#[path = "../support/nested.rs"]
mod nested;
mod nested_approvals;
#[path = "../support/npm.rs"]
mod npm;
mod older_versions;
mod omitted;
mod openapi;
mod own_files;
mod page;
mod ports;
mod problems;
#[cfg(unix)]
mod proxies;
mod repeated_ids;
mod restarts;
mod routes;
#[path = "../support/skip.rs"]
mod skip;
mod stops;
mod store_failures;
mod streams;
mod streams_random;
mod sub_agents;
mod support;
mod table;
mod tails;
mod unreadable_turns;
mod use_chat;
mod walk;
