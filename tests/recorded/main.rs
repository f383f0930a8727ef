//! Recording the exchanges with a provider, and replaying them.

#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

#[allow(dead_code, reason = "only a part of it is used here")]
#[path = "../telemetry/alone.rs"]
mod alone;
mod exchanges;
mod files;
#[cfg(feature = "http")]
#[path = "../support/server.rs"]
mod http;
mod instances;
mod matching;
#[cfg(feature = "http")]
mod scripted_server;
mod secrets;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use futures_util::StreamExt;
use omni_agent::{
    provider::{Model, ProviderError, Request, RetryPolicy, custom::Delta},
    testing::{Recorded, Recording, ScriptedProvider, Step},
};

/// A new folder for recordings, which is removed at the end of the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("omni-recorded-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the deltas of the response to a request, and the error with which it ended. The request is sent once.
pub(crate) async fn deltas(model: &Model, request: Request) -> (Vec<Delta>, Option<ProviderError>) {
    let model = model.with_retry_policy(RetryPolicy::default().with_max_retries(0));
    let mut stream = model.stream(request);
    let mut deltas = Vec::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(delta) => deltas.push(delta),
            Err(error) => return (deltas, Some(error)),
        }
    }
    (deltas, None)
}

/// Returns the error of a request that fails before its first delta.
pub(crate) async fn refused(model: &Model, request: Request) -> ProviderError {
    let (deltas, error) = deltas(model, request).await;
    assert_eq!(deltas, []);
    error.expect("the request fails")
}

pub(crate) fn recording(script: impl IntoIterator<Item = Step>, path: &Path) -> Recorded {
    Recorded::new(ScriptedProvider::new(script), path, Recording::Record)
}

/// Replays a file with a provider that fails every request.
pub(crate) fn replay(path: &Path) -> Recorded {
    Recorded::new(ScriptedProvider::new([]), path, Recording::Replay)
}

/// Returns the lines of a recording.
pub(crate) fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
