//! A backend that learns the id of its session at the end of the first turn.

use std::sync::{Arc, Mutex, OnceLock};

use async_trait::async_trait;
use futures_util::stream;
use omni_agent::{
    agent::{Agent, AgentBuilder},
    provider::{
        BackendProvider, Model, Registry, StopReason,
        custom::{
            Backend, BackendError, BackendEvent, BackendSession, Capabilities, EventStream, SessionId,
            SessionOptions, TurnPrompt, TurnResult,
        },
    },
    session::Session,
};
use serde_json::json;

use crate::conversations::{SECOND, id, store};

/// A backend that records its calls.
#[derive(Clone, Default)]
struct LateBackend(Arc<Mutex<Vec<String>>>);

impl LateBackend {
    fn note(&self, call: String) {
        self.0.lock().unwrap().push(call);
    }

    fn agent(&self) -> AgentBuilder {
        let provider = || BackendProvider::new(self.clone());
        let model = Model::new(Arc::new(provider()), "default");
        Agent::builder().model(model).registry(Registry::empty().with(provider()))
    }
}

struct LateSession {
    backend: LateBackend,
    id: OnceLock<SessionId>,
}

#[async_trait]
impl Backend for LateBackend {
    fn name(&self) -> &str {
        "late"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().with_resume()
    }

    async fn start(&self, _: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
        self.note("start".to_owned());
        Ok(Arc::new(LateSession { backend: self.clone(), id: OnceLock::new() }))
    }

    async fn resume(
        &self,
        id: &SessionId,
        _: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        self.note(format!("resume {id}"));
        Ok(Arc::new(LateSession { backend: self.clone(), id: OnceLock::from(id.clone()) }))
    }
}

#[async_trait]
impl BackendSession for LateSession {
    fn id(&self) -> Option<SessionId> {
        self.id.get().cloned()
    }

    async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError> {
        let known = self.id.get().map_or("nobody", SessionId::as_str);
        self.backend.note(format!("prompt {known}: {}", prompt.text()));
        let result = TurnResult::new(StopReason::Stop).with_data(json!({ "session_id": "late-1" }));
        Ok(Box::pin(stream::iter([BackendEvent::Text("Hi".to_owned()), BackendEvent::Result(result)])))
    }

    async fn update(&self, result: &TurnResult) -> Result<(), BackendError> {
        let id = result.data["session_id"].as_str().unwrap();
        assert_eq!(self.id.get_or_init(|| SessionId::new(id)).as_str(), id);
        Ok(())
    }

    async fn cancel(&self) -> Result<(), BackendError> {
        Ok(())
    }

    async fn terminate(&self) {}
}

#[tokio::test(start_paused = true)]
async fn session_with_an_id_from_its_first_turn_is_resumed_by_that_id() {
    let (store, backend) = (store(), LateBackend::default());
    let session =
        Session::builder(Arc::clone(&store)).agent(backend.agent()).create_with_id(id()).await.unwrap();
    session.ask("One").await.unwrap();
    session.stop(SECOND).await.unwrap();
    let session = Session::builder(store).agent(backend.agent()).open(id()).await.unwrap();
    session.ask("Two").await.unwrap();
    session.ask("Three").await.unwrap();
    let calls = backend.0.lock().unwrap().clone();
    assert_eq!(
        calls,
        ["start", "prompt nobody: One", "resume late-1", "prompt late-1: Two", "prompt late-1: Three"]
    );
}
