//! Clients built on the official TypeScript and Python implementations. Each is a program that starts the agent and
//! checks what it gets. The tests need Node or Python, and install the implementations into the target folder.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use omni_agent::{
    message::Content,
    store::{Listing, custom::Stored},
};
use tokio::sync::OnceCell;

use super::host::{SCRIPT, SERVED, store};
use crate::{
    agent::FOLDER,
    sdk::sdk,
    skip::skip,
    support::{Place, soon},
};

const PYTHON_SDK: &str = "agent-client-protocol==0.12.1";

/// Returns the Python interpreter that has the SDK, or `None` if it can't be installed.
async fn python() -> Option<PathBuf> {
    static PYTHON: OnceCell<Option<PathBuf>> = OnceCell::const_new();
    PYTHON.get_or_init(async || tokio::task::spawn_blocking(install).await.unwrap()).await.clone()
}

fn install() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("acp-python");
    let python = folder.join("bin/python");
    let has_sdk =
        || Command::new(&python).args(["-c", "import acp"]).output().is_ok_and(|run| run.status.success());
    if has_sdk() {
        return Some(python);
    }
    let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).output();
    if !made.as_ref().is_ok_and(|made| made.status.success()) {
        skip(&format!("a virtual environment for Python can't be made: {made:?}"));
        return None;
    }
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYTHON_SDK]);
    let installed = pip.output().unwrap();
    if installed.status.success() && has_sdk() {
        return Some(python);
    }
    skip(&format!("{PYTHON_SDK} can't be installed: {}", String::from_utf8_lossy(&installed.stderr)));
    None
}

/// Returns a command that runs a client. Its arguments are the scenario, and the command that starts the agent.
fn client(program: &Path, script: &Path, scenario: &str, place: &Place) -> Command {
    let mut command = Command::new(program);
    command.arg(script).arg(scenario).args(["sh", "-c", SCRIPT]).arg(env::current_exe().unwrap());
    command.args(["--exact", "serving::host::manager_is_served", "--nocapture"]);
    command.env(SERVED, "1").env(FOLDER, place.path()).current_dir(place.path());
    command.stdin(Stdio::null());
    command
}

/// Copies a test script into the folder of the modules that the script needs. Returns the path of the copy.
fn script(folder: &Path, name: &str, place: &Place) -> PathBuf {
    let to = folder.join(format!("{}-{name}", place.path().file_name().unwrap().display()));
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acp/serving").join(name), &to).unwrap();
    to
}

async fn passes(mut command: Command) {
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    let output = soon(run).await.unwrap();
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim_end().ends_with("passed"), "{said}\n{failed}");
}

#[tokio::test]
async fn client_of_the_typescript_sdk_uses_everything() {
    let Some((node, sdk)) = sdk().await else { return };
    let place = Place::new();
    let script = script(&sdk, "client.mjs", &place);
    fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acp/serving/tools.mjs"),
        place.path().join("tools.mjs"),
    )
    .unwrap();
    passes(client(&node, &script, "all", &place)).await;
    place.is_left().await;
    assert_eq!(fs::read_to_string(place.path().join("ended")).unwrap(), "Ok(())");
}

#[tokio::test]
async fn client_of_the_python_sdk_uses_everything() {
    let Some(python) = python().await else { return };
    let place = Place::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acp/serving/client.py");
    passes(client(&python, &script, "all", &place)).await;
    place.is_left().await;
    assert_eq!(fs::read_to_string(place.path().join("ended")).unwrap(), "Ok(())");
}

/// Kills the client when it has printed a line.
async fn killed(mut command: Command) {
    let mut child: Child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let line = tokio::task::spawn_blocking(move || output.lines().next());
    let line = soon(line).await.unwrap().expect("the client prints a line").unwrap();
    assert_eq!(line, "begun");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Checks that the agent has ended, and that the completed step of the turn is kept.
async fn is_kept(place: &Place) {
    place.is_left().await;
    assert_eq!(fs::read_to_string(place.path().join("ended")).unwrap(), "Ok(())");
    let store = store(place.path()).await;
    let listed = store.list(&Listing::default()).await.unwrap();
    let stored: Stored = store.load(&listed[0].id).await.unwrap();
    let contents = stored.nodes.iter().flat_map(|node| &node.message().content);
    let kept: Vec<String> = contents
        .map(|content| match content {
            Content::Text(text) => text.text.clone(),
            Content::ToolUse(tool_use) => tool_use.name.clone(),
            Content::ToolResult(result) => result.text(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(kept[..3], ["Look, then go on for ever", "list_files", "a b in ."], "{kept:?}");
}

#[tokio::test]
async fn agent_of_a_killed_typescript_client_ends_and_keeps_the_completed_step() {
    let Some((node, sdk)) = sdk().await else { return };
    let place = Place::new();
    let script = script(&sdk, "client.mjs", &place);
    killed(client(&node, &script, "die", &place)).await;
    is_kept(&place).await;
}

#[tokio::test]
async fn agent_of_a_killed_python_client_ends_and_keeps_the_completed_step() {
    let Some(python) = python().await else { return };
    let place = Place::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acp/serving/client.py");
    killed(client(&python, &script, "die", &place)).await;
    is_kept(&place).await;
}
