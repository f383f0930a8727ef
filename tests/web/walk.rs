//! The walks through the chat page in Chromium. They leave their screenshots in `target/tmp/web_chat`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Stdio},
    time::Duration,
};

use omni_agent::{
    agent::Agent,
    message::Usage,
    session::Session,
    store::{ConversationId, FileSystemStore, Labels},
    testing::{ScriptedProvider, Step},
};
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    js::{SCRIPTS, chromium, node, packages},
    ports,
};

/// Stores a conversation of 1,000 messages with costs, which the walk opens.
async fn store_long_conversation(folder: &Path) {
    let mut answers = 0;
    let provider = ScriptedProvider::from_fn(move |_| {
        let text = format!(
            "Answer {answers} with `code` and a [link](https://example.org).\n\n- one\n- two\n\n```js\nconst x = 1;\n\
             ```\n\nThe end."
        );
        answers += 1;
        let usage = Usage::default().with_input(12_000).with_output(345).with_cost(0.012);
        Step::new().then_text([text]).usage(usage).stop()
    });
    let session = Session::builder(FileSystemStore::open(folder).await.unwrap())
        .agent(Agent::builder().model(provider.model()))
        .title("A long conversation")
        .labels(Labels::new([("user", "local")]).unwrap())
        .create_with_id(ConversationId::new("long").unwrap())
        .await
        .unwrap();
    for number in 0..500 {
        session.ask(format!("Question {number}")).await.unwrap();
    }
    session.stop(Duration::from_mins(1)).await.unwrap();
}

/// Builds the program of the example, and returns its path. `cargo test --test web` does not build examples.
pub(crate) fn build_web_chat() -> PathBuf {
    // The library has the features that it has for this test, so it is not compiled again.
    let features = if cfg!(feature = "acp") { "--all-features" } else { "--features=http,web" };
    let mut cargo = process::Command::new(env!("CARGO"));
    cargo.args(["build", "--example", "web_chat", "--message-format=json-render-diagnostics", features]);
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let mut reports = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let report = reports.find(|report| report["target"]["name"] == "web_chat").unwrap();
    report["executable"].as_str().unwrap().into()
}

#[tokio::test]
async fn walk_through_answers_and_the_list_in_chromium_succeeds() {
    walk("answers", 0, &["answers", "acting", "list"]).await;
}

#[tokio::test]
async fn walk_through_looks_attacks_and_restarts_in_chromium_succeeds() {
    walk("restarts", 10, &["looks", "connection", "sending", "attacks", "long", "restart"]).await;
}

/// Runs the steps of these scripts, which have their own browser and servers. The servers have ten ports to choose from, at
/// this offset in the block of this process.
#[allow(clippy::print_stdout)]
async fn walk(name: &str, offset: u16, scripts: &[&str]) {
    let (Some(chromium), Some(node), Some(packages)) = (chromium(), node(), packages("page")) else { return };
    let screenshots = Path::new(env!("CARGO_TARGET_TMPDIR")).join("web_chat").join(name);
    let _ = fs::remove_dir_all(&screenshots);
    fs::create_dir_all(&screenshots).unwrap();
    let store = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("web_chat_store_{name}"));
    let _ = fs::remove_dir_all(&store);
    store_long_conversation(&store).await;
    let mut command = Command::new(node);
    command
        .arg(Path::new(SCRIPTS).join("page/walk.mjs"))
        .env("OMNI_NODE_MODULES", &packages)
        .env("OMNI_WEB_CHAT", build_web_chat())
        .env("OMNI_CHROMIUM", chromium)
        .env("OMNI_PORT", (ports::block(&ports::PAGES, 20) + offset).to_string())
        .env("OMNI_STORE", &store)
        .env("OMNI_SCREENSHOTS", screenshots)
        .env("OMNI_STEPS", scripts.join(" "))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // The script has a shorter time limit. When the limit is reached, the script ends the browser and the server too.
    let output =
        timeout(Duration::from_mins(47), command.output()).await.expect("the walk ends in time").unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{report}\n{}", String::from_utf8_lossy(&output.stderr));
    println!("{report}");
}
