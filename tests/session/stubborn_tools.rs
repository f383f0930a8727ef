//! Tools that never await. When their session ends, `stop` reports the tools that are still running.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, channel},
    },
    time::Duration,
};

use omni_agent::{
    ErrorKind,
    testing::{Gate, Step},
    tool::{Tool, tool_fn},
};
use serde_json::{Value, json};

use crate::watch::{on, scripted};

fn blocking(blocked: Receiver<()>, begun: &Gate) -> impl Tool {
    let (blocked, begun) = (Arc::new(Mutex::new(blocked)), begun.clone());
    tool_fn("block", "Blocks.", move |_: Value, _| {
        let (blocked, begun) = (Arc::clone(&blocked), begun.clone());
        async move {
            begun.open();
            let _ = blocked.lock().unwrap().recv();
            Ok("")
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn stop_deadline_passes_while_a_tool_blocks_error_names_the_tool_each_time() {
    let (release, receiver) = channel();
    let begun = Gate::new();
    let agent = scripted([Step::tool_use("t1", "block", json!({}))]).tool(blocking(receiver, &begun));
    let session = on(agent).create().await.unwrap();
    session.prompt("Q").await.unwrap();
    begun.pass().await;
    for _ in 0..2 {
        let error = session.stop(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadline);
        let tool = &error.member("tools").unwrap()[0];
        assert_eq!((tool["name"].as_str(), tool["id"].as_str()), (Some("block"), Some("t1")));
    }
    assert_eq!(session.end().unwrap().snapshot.unwrap().unsaved, []);
    release.send(()).unwrap();
}
