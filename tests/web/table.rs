//! Every route of the three routers, with a request that it accepts.

use axum::{
    body::Body,
    http::{Method, Request},
};
use omni_agent::web::Web;
use serde_json::{Value, json};

use crate::support::{prompt, request, run_input, submit};

/// A route and the path under which the tests nest its router.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) method: Method,
    pub(crate) path: String,
}

/// Returns all routes, as the routers list them.
pub(crate) fn routes() -> Vec<Entry> {
    let entries = |mount: &'static str, routes: Vec<(Method, &'static str)>| {
        let entry = move |(method, path): (Method, &str)| {
            // The path of a nested router's root does not end with a slash.
            Entry { method, path: format!("{mount}{path}").trim_end_matches('/').to_owned() }
        };
        routes.into_iter().map(entry)
    };
    let all = entries("/agent", Web::routes().collect())
        .chain(entries("/api", Web::ai_sdk_routes().collect()))
        .chain(entries("/ag-ui", Web::ag_ui_routes().collect()));
    let all: Vec<Entry> = all.collect();
    assert!(all.len() >= 25, "{all:?}");
    all
}

impl Entry {
    pub(crate) fn is_native(&self) -> bool {
        self.path.starts_with("/agent")
    }

    /// Returns whether the path names a conversation.
    pub(crate) fn has_id_in_path(&self) -> bool {
        ["{id}", "{chat}", "{thread}"].iter().any(|name| self.path.contains(name))
    }

    /// Returns whether the body names a conversation.
    pub(crate) fn has_id_in_body(&self) -> bool {
        self.path == "/api/chat" || self.path == "/ag-ui"
    }

    pub(crate) fn is_of_a_conversation(&self) -> bool {
        self.has_id_in_path() || self.has_id_in_body()
    }

    /// Returns whether a principal may use the route on a conversation that it may only read.
    pub(crate) fn is_reading(&self) -> bool {
        let is_stream = self.path.ends_with("/events")
            || self.path.ends_with("/stream")
            || self.path.ends_with("{thread}");
        self.method == Method::GET && !is_stream
    }

    /// Returns the path for this conversation.
    pub(crate) fn path(&self, id: &str) -> String {
        let path = ["{id}", "{chat}", "{thread}"]
            .iter()
            .fold(self.path.clone(), |path, name| path.replace(name, id));
        path.replace("{message}", "m").replace("{block}", "0")
    }

    /// Returns a body that the route accepts, if it reads one.
    pub(crate) fn body(&self, id: &str) -> Option<Value> {
        match (&self.method, self.path.as_str()) {
            (_, "/api/chat") => Some(submit(id, "u1", "Hi")),
            (_, "/ag-ui") => Some(run_input(id, "r1", "Hi")),
            (&Method::POST, path) if path.ends_with("/commands") => Some(prompt("Hi")),
            (&Method::POST, path) if path.ends_with("/forks") => Some(json!({ "node": 2 })),
            (&Method::POST, path) if path.ends_with("/stop") => None,
            (&Method::POST, _) => Some(json!({})),
            _ => None,
        }
    }

    /// Returns a request of this user for this conversation.
    pub(crate) fn request(&self, user: &str, id: &str) -> Request<Body> {
        request(self.method.clone(), user, &self.path(id), self.body(id))
    }
}
