//! The conformance suite of backends.

use std::sync::Arc;

use omni_agent::provider::custom::{Backend, TurnPrompt, conformance};

use crate::support::{Place, prompt};

struct Subject(Place, &'static str);

#[async_trait::async_trait]
impl conformance::BackendUnderTest for Subject {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.agent(self.1))
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
}

#[tokio::test]
async fn suite_passes_on_an_agent_that_loads_sessions() {
    let report = conformance::check(async || Subject(Place::new(), "loads")).await;
    // The protocol does not support forks.
    assert_eq!(report.skipped, ["fork_starts_at_its_position"], "{report:?}");
}

#[tokio::test]
async fn suite_passes_on_an_agent_that_resumes_sessions() {
    let report = conformance::check(async || Subject(Place::new(), "resumes")).await;
    assert_eq!(report.skipped, ["fork_starts_at_its_position"], "{report:?}");
}
