//! An agent built on the official TypeScript implementation.
//!
//! These tests need npm, which installs Node and the SDK into the target folder.

use std::{fs, path::PathBuf};

use futures_util::StreamExt;
use omni_agent::provider::{
    StopReason,
    acp::AcpBackend,
    custom::{
        Backend, BackendError, BackendEvent, BackendSession, PermissionAnswer, SessionId, SessionOptions,
        TurnPrompt, conformance,
    },
};
use tokio::sync::OnceCell;

use crate::{
    npm::{node, packages},
    support::{Place, asked, prompt, read, soon},
};

/// Returns the program of Node and the folder with the SDK. If one of them can't be installed, reports that the test is
/// skipped, and returns `None`.
pub async fn sdk() -> Option<(PathBuf, PathBuf)> {
    static INSTALLED: OnceCell<Option<(PathBuf, PathBuf)>> = OnceCell::const_new();
    let lists = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acp");
    let install = move || node().zip(packages(lists, "acp_sdk"));
    INSTALLED.get_or_init(async || tokio::task::spawn_blocking(install).await.unwrap()).await.clone()
}

fn agent((node, sdk): &(PathBuf, PathBuf), place: &Place) -> AcpBackend {
    // Node resolves the module relative to the script, so the script is copied next to it.
    let script = sdk.join(format!("agent-{}.mjs", place.path().file_name().unwrap().display()));
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/acp/agent.mjs"), &script).unwrap();
    AcpBackend::new("acp", node)
        .with_arguments([script])
        .with_variable("OMNI_ACP_FOLDER", place.path())
        .with_folder(place.path())
}

struct Subject(AcpBackend, Place);

#[async_trait::async_trait]
impl conformance::BackendUnderTest for Subject {
    fn backend(&self) -> std::sync::Arc<dyn Backend> {
        std::sync::Arc::new(self.0.clone())
    }

    fn long_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Go on for ever"))
    }

    fn tool_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Look"))
    }

    fn asking_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Delete"))
    }

    fn remember_prompt(&self, word: &str) -> Option<TurnPrompt> {
        Some(prompt(&format!("The word is {word}")))
    }

    fn recall_prompt(&self) -> Option<TurnPrompt> {
        Some(prompt("Which word?"))
    }

    fn running(&self) -> Option<usize> {
        Some(self.1.running())
    }

    async fn all_ended(&self) -> bool {
        self.1.is_left().await;
        true
    }

    fn limit(&self) -> std::time::Duration {
        crate::support::LIMIT
    }
}

#[tokio::test]
async fn suite_passes_on_an_agent_of_the_typescript_sdk() {
    let Some(sdk) = sdk().await else { return };
    let report = conformance::check(async || {
        let place = Place::new();
        Subject(agent(&sdk, &place), place)
    });
    let report = report.await;
    assert_eq!(report.skipped, ["fork_starts_at_its_position"], "{report:?}");
}

async fn decided(session: &dyn BackendSession, answer: PermissionAnswer) -> String {
    let mut stream = session.prompt(prompt("Delete")).await.unwrap();
    loop {
        match soon(stream.next()).await.unwrap() {
            BackendEvent::Permission(question) => {
                question.answer(answer);
                return read(stream).await.text;
            }
            event => assert!(!event.is_terminal(), "{event:?}"),
        }
    }
}

#[tokio::test]
async fn turns_of_the_typescript_sdk_are_reported_completely() {
    let Some(sdk) = sdk().await else { return };
    let place = Place::new();
    let session = soon(agent(&sdk, &place).start(&SessionOptions::default())).await.unwrap();
    let looked = asked(&*session, "Look").await;
    let expected = [
        "thinking Hm.",
        r#"plan "Look""#,
        r#"use search {"in":"."}"#,
        r#"update "List files""#,
        r#"update "List files""#,
        "result false a b",
        "text Seen.",
    ];
    assert_eq!(looked.events, expected);
    assert_eq!(decided(&*session, PermissionAnswer::Allow).await, "Deleted.");
    assert_eq!(decided(&*session, PermissionAnswer::Reject("no".into())).await, "Kept.");
    let mut stream = session.prompt(prompt("Go on for ever")).await.unwrap();
    soon(stream.next()).await.unwrap();
    soon(session.cancel()).await.unwrap();
    assert_eq!(read(stream).await.result.unwrap().stop_reason, StopReason::Cancelled);
    let failed = asked(&*session, "Fail").await.result.unwrap_err();
    assert!(matches!(&failed, BackendError::Failed(why) if why.contains("the model is down")), "{failed}");
    let nobody = SessionId::new("nobody");
    let resumed = soon(agent(&sdk, &place).resume(&nobody, &SessionOptions::default())).await;
    assert!(matches!(resumed, Err(BackendError::UnknownSession { .. })));
    soon(session.terminate()).await;
    place.is_left().await;
}
