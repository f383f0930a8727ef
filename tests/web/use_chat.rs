//! `useChat` of `@ai-sdk/react` in Chromium, against the routes, with a connection that is reset.

use std::{path::Path, process::Stdio, time::Duration};

use omni_agent::testing::Gate;
use tokio::{process::Command, time::timeout};

use crate::{
    ai_sdk::app,
    js::{SCRIPTS, chromium, front_end, node, packages},
    ports,
};

#[tokio::test(flavor = "multi_thread")]
async fn use_chat_in_chromium_continues_after_a_reset_connection() {
    let (Some(chromium), Some(node)) = (chromium(), node()) else { return };
    let (Some(react), Some(playwright)) = (front_end("use_chat"), packages("page")) else { return };
    let listener = ports::listen(ports::AI_SDK).await;
    let address = listener.local_addr().unwrap();
    let app = app(&Gate::new());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut command = Command::new(node);
    command
        .arg(Path::new(SCRIPTS).join("use_chat/test.mjs"))
        .env("OMNI_SERVER", address.to_string())
        .env("OMNI_MODULES", react)
        .env("OMNI_PLAYWRIGHT", playwright)
        .env("OMNI_CHROMIUM", chromium)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output =
        timeout(Duration::from_mins(12), command.output()).await.expect("Node ends in time").unwrap();
    server.abort();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
}
