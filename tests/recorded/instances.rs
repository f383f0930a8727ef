//! Providers with an instance per conversation.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use omni_agent::{
    Agent, async_trait,
    message::Message,
    provider::{DeltaStream, Provider, ProviderError, Request, custom::RequestContext},
    testing::{Recorded, Recording, ScriptedProvider, Step},
};

use crate::Folder;

type Calls = Arc<Mutex<Vec<String>>>;

/// A provider that notes its calls.
struct Noting {
    is_instance: bool,
    script: ScriptedProvider,
    calls: Calls,
}

impl Noting {
    fn note(&self, call: &str) {
        let of = if self.is_instance { "instance" } else { "provider" };
        self.calls.lock().unwrap().push(format!("{of} {call}"));
    }
}

#[async_trait]
impl Provider for Noting {
    fn name(&self) -> &str {
        "noting"
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        self.note("open");
        Ok(Some(Arc::new(Self {
            is_instance: true,
            script: self.script.clone(),
            calls: Arc::clone(&self.calls),
        })))
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.note("stream");
        self.script.stream(request, context).await
    }

    fn committed(&self, messages: &[Arc<Message>]) {
        self.note(&format!("committed {}", messages.len()));
    }

    async fn close(&self) {
        self.note("close");
    }
}

async fn run(path: &std::path::Path, recording: Recording) -> (String, Vec<String>) {
    let calls = Calls::default();
    let script = ScriptedProvider::new([Step::text("Hi.")]);
    let noting = Noting { is_instance: false, script, calls: Arc::clone(&calls) };
    let recorded = Recorded::new(noting, path, recording);
    assert_eq!(recorded.model("small").name(), "noting:small");
    let agent = Agent::builder().model(recorded.model("small")).start().await.unwrap();
    let answer = agent.ask("Hello").await.unwrap().text();
    agent.stop(Duration::from_secs(1)).await.unwrap();
    drop(agent);
    // A separate task closes the instance, so let that task run.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let calls = calls.lock().unwrap().clone();
    (answer, calls)
}

#[tokio::test]
async fn instance_of_the_provider_is_used_while_recording_and_never_while_replaying() {
    let folder = Folder::new();
    let path = folder.file("instance.jsonl");
    let (answer, calls) = run(&path, Recording::Record).await;
    assert_eq!(answer, "Hi.");
    assert_eq!(calls, ["provider open", "instance stream", "instance committed 2", "instance close"]);
    let (answer, calls) = run(&path, Recording::Replay).await;
    assert_eq!(answer, "Hi.");
    assert_eq!(calls, [""; 0]);
}
