//! A provider's instance is notified of the turns that were committed.

use std::sync::{Arc, Mutex};

use crate::{
    agent::{Agent, AgentCallbacks, Response, State, TurnDecision},
    message::Message,
    provider::{DeltaStream, Model, Provider, ProviderError, ProviderErrorKind, Request, RequestContext},
    testing::{ScriptedProvider, Step},
};
use async_trait::async_trait;

type Heard = Arc<Mutex<Vec<Vec<String>>>>;

/// A provider that answers from a script, and records the committed messages.
struct Listening {
    script: ScriptedProvider,
    heard: Heard,
    panics: bool,
}

#[async_trait]
impl Provider for Listening {
    fn name(&self) -> &str {
        "listening"
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        let (script, heard) = (self.script.clone(), Arc::clone(&self.heard));
        Ok(Some(Arc::new(Self { script, heard, panics: self.panics })))
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.script.stream(request, context).await
    }

    fn committed(&self, messages: &[Arc<Message>]) {
        self.heard.lock().unwrap().push(messages.iter().map(|message| message.text()).collect());
        assert!(!self.panics, "committed panics");
    }
}

/// Callbacks whose `handle_turn` panics when the answer is `Two.`.
struct Fragile;

#[async_trait]
impl AgentCallbacks for Fragile {
    async fn handle_turn(&mut self, response: &Response, _: &mut State) -> TurnDecision {
        assert_ne!(response.text(), "Two.");
        TurnDecision::Stop
    }
}

async fn heard(panics: bool) -> Vec<Vec<String>> {
    let script = ScriptedProvider::new(["One.", "Two.", "Three."].map(Step::text));
    let heard = Heard::default();
    let provider = Listening { script, heard: Arc::clone(&heard), panics };
    let model = Model::new(Arc::new(provider), "m");
    let agent = Agent::builder().model(model).callbacks(Fragile).start().await.unwrap();
    agent.ask("1").await.unwrap();
    agent.ask("2").await.unwrap_err();
    agent.ask("3").await.unwrap();
    heard.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn committed_turns_are_reported_and_discarded_turns_are_not() {
    assert_eq!(heard(false).await, [["1", "One."], ["3", "Three."]]);
}

#[tokio::test(start_paused = true)]
async fn committed_work_of_a_failed_turn_is_reported() {
    let error = ProviderError::new(ProviderErrorKind::Auth, "no");
    let script =
        ScriptedProvider::new([Step::new().then_text(["Half"]).fail(error.clone()), Step::error(error)]);
    let heard = Heard::default();
    let provider = Listening { script, heard: Arc::clone(&heard), panics: false };
    let agent = Agent::builder().model(Model::new(Arc::new(provider), "m")).start().await.unwrap();
    agent.ask("1").await.unwrap_err();
    agent.ask("2").await.unwrap_err();
    assert_eq!(*heard.lock().unwrap(), [["1", "Half"]]);
}

#[tokio::test(start_paused = true)]
async fn committed_panics_agent_continues() {
    assert_eq!(heard(true).await.len(), 2);
}
