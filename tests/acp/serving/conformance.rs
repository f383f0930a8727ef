//! The crate's backend for the protocol drives the served agent through the whole conformance suite for backends.

use std::sync::Arc;

use omni_agent::provider::{
    acp::{AcpBackend, McpServer},
    custom::{Backend, SessionOptions, TurnPrompt, TurnResult, conformance},
};

use super::host::{SCRIPT, SERVED};
use crate::support::{Place, asked, prompt, soon};

pub fn backend(place: &Place) -> AcpBackend {
    place.program(SCRIPT, "serving::host::manager_is_served").with_variable(SERVED, "1")
}

struct Subject(Place);

#[async_trait::async_trait]
impl conformance::BackendUnderTest for Subject {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(backend(&self.0))
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
        Some(self.0.running())
    }

    async fn all_ended(&self) -> bool {
        self.0.is_left().await;
        true
    }

    fn limit(&self) -> std::time::Duration {
        crate::support::LIMIT
    }
}

#[tokio::test]
async fn suite_of_the_backend_passes_on_a_served_manager() {
    let report = conformance::check(async || Subject(Place::new())).await;
    // The protocol does not support forks, so only this check is skipped.
    assert_eq!(report.skipped, ["fork_starts_at_its_position"], "{report:?}");
}

#[tokio::test]
async fn backend_reads_turns_of_a_served_manager_completely() {
    let place = Place::new();
    let session = soon(backend(&place).start(&SessionOptions::default())).await.unwrap();
    let looked = asked(&*session, "Look").await;
    let expected = [
        r#"use list_files {"in":"."}"#,
        r#"update "list_files""#,
        r#"update "list_files""#,
        r#"update "list_files""#,
        r#"update "list_files""#,
        "result false a b in .",
        "text Seen.",
    ];
    let shown: Vec<_> = looked.events.iter().filter(|event| !event.starts_with("status")).collect();
    assert_eq!(shown, expected);
    let thought = asked(&*session, "Think").await;
    assert!(thought.events.contains(&"thinking Hm.".to_owned()), "{:?}", thought.events);
    let reasons = [("Run out", "length"), ("Work too much", "max_steps"), ("Refuse", "refusal")];
    for (prompt, reason) in reasons {
        let ended: TurnResult = asked(&*session, prompt).await.result.unwrap();
        assert_eq!(ended.stop_reason.to_string(), reason, "{prompt}");
    }
    let failed = asked(&*session, "Fail").await.result.unwrap_err();
    assert!(failed.to_string().contains("the model is down"), "{failed}");
    let place_of_it = asked(&*session, "Where are you?").await.text;
    assert_eq!(place_of_it, format!("The folder is {}.", place.path().display()));
    soon(session.terminate()).await;
    place.is_left().await;
    assert_eq!(std::fs::read_to_string(place.path().join("ended")).unwrap(), "Ok(())");
}

#[tokio::test]
async fn server_that_cannot_be_used_is_named_in_a_warning_and_the_session_works() {
    let place = Place::new();
    let server = McpServer::program("broken", "/no/such/program", Vec::<String>::new());
    let (backend, options) = (backend(&place).with_mcp_server(server), SessionOptions::default());
    let session = soon(backend.start(&options)).await.unwrap();
    let folder = format!("The folder is {}.", place.path().display());
    let first = asked(&*session, "Where are you?").await.text;
    let warning = first.strip_suffix(&folder).expect("the agent answers");
    assert!(warning.starts_with(r#"[the MCP server "broken" can't be used: "#), "{warning}");
    assert_eq!(asked(&*session, "Where are you?").await.text, folder);
    soon(session.terminate()).await;
    place.is_left().await;
}
