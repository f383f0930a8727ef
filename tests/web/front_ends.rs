//! The front ends of `examples/front_ends` in Chromium, built with unmodified packages, against the example `web_chat`.

use std::{
    path::Path,
    process::{self, Stdio},
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use crate::{
    js::{FRONT_ENDS, SCRIPTS, chromium, front_end, node, packages},
    ports,
    walk::build_web_chat,
};

#[tokio::test]
async fn front_end_with_use_chat_in_chromium_succeeds() {
    drive("use_chat", 0).await;
}

#[tokio::test]
async fn front_end_with_assistant_ui_in_chromium_succeeds() {
    drive("assistant_ui", 3).await;
}

/// `CopilotKit` needs 950 packages, so only `scripts/newest.sh` runs it, with the newest versions.
#[tokio::test]
#[ignore = "scripts/newest.sh runs it"]
async fn front_end_with_copilot_kit_in_chromium_succeeds() {
    drive("copilot_kit", 6).await;
}

/// Builds a front end, and performs the steps of a person in Chromium. A screenshot of the end is beside the result. The
/// server has three ports to choose from, at this offset in the block of this process.
async fn drive(name: &str, offset: u16) {
    let (Some(chromium), Some(node)) = (chromium(), node()) else { return };
    let (Some(modules), Some(playwright)) = (front_end(name), packages("page")) else { return };
    let dist = Path::new(env!("CARGO_TARGET_TMPDIR")).join("front_ends").join(name);
    let source = Path::new(FRONT_ENDS);
    let mut builder = process::Command::new(&node);
    let built = builder
        .arg(source.join("build.mjs"))
        .arg(&modules)
        .arg(&dist)
        .arg(source.join(name))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let web_chat = tokio::task::spawn_blocking(build_web_chat).await.unwrap();
    let mut command = Command::new(node);
    command
        .arg(Path::new(SCRIPTS).join("front_ends").join(format!("{name}.mjs")))
        .env("OMNI_WEB_CHAT", web_chat)
        .env("OMNI_DIST", dist)
        .env("OMNI_PORT", (ports::block(&ports::FRONT_ENDS, 10) + offset).to_string())
        .env("OMNI_PLAYWRIGHT", playwright)
        .env("OMNI_CHROMIUM", chromium)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output =
        timeout(Duration::from_mins(12), command.output()).await.expect("Node ends in time").unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
}
