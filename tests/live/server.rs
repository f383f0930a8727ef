//! The servers for the live tests. Without them, their recorded answers are replayed.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex},
};

use omni_agent::{
    async_trait,
    provider::{
        DeltaStream, Model, Provider, ProviderError, Request,
        custom::{AnthropicMessages, ChatCompletions, Dialect, OpenAiResponses, RequestContext},
        http::Endpoint,
    },
    testing::{Recorded, Recording},
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The servers, or the recordings of their answers. Only one test at a time may use the servers.
pub(crate) struct Live {
    scenario: &'static str,
    source: Source,
    providers: Mutex<BTreeMap<String, Recorded>>,
    _turn: SemaphorePermit<'static>,
}

/// The source of the answers.
enum Source {
    /// The servers, with the base URL of each.
    Servers { chat: String, tools: String, recording: bool },
    /// The recordings in the repository. Each replay is recorded again into this folder, and the new recording must
    /// equal the replayed one.
    Recordings(PathBuf),
}

static TURN: Semaphore = Semaphore::const_new(1);

/// Runs a scenario with the servers, if they are configured. Otherwise, replays its recordings on paused time.
///
/// With `OMNI_RECORD=record`, the answers of the servers are recorded in `cassettes`.
pub(crate) fn run(scenario: &'static str, play: impl AsyncFnOnce(&Live)) {
    let url = |name| env::var(name).ok().filter(|url| !url.is_empty());
    let source = match (url("OMNI_LIVE_CHAT_URL"), url("OMNI_LIVE_TOOLS_URL")) {
        (Some(chat), Some(tools)) => {
            Source::Servers { chat, tools, recording: Recording::from_env() == Recording::Record }
        }
        _ => Source::Recordings(env::temp_dir().join(format!("omni-live-{}-{scenario}", process::id()))),
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(matches!(source, Source::Recordings(_)));
    runtime.build().unwrap().block_on(async {
        let turn = TURN.acquire().await.expect("the semaphore is never closed");
        let live = Live { scenario, source, providers: Mutex::default(), _turn: turn };
        play(&live).await;
        live.compare();
    });
}

impl Live {
    /// Returns a model that uses its own chat template.
    pub(crate) fn chat(&self, format: Format) -> Model {
        self.model(format, "chat")
    }

    /// Returns a model whose chat template supports only tools.
    pub(crate) fn tools(&self, format: Format) -> Model {
        self.model(format, "tools")
    }

    /// Returns a model that uses its own chat template, and the requests that it gets.
    ///
    /// The system prompt and the messages are not recorded, because each request of a long conversation repeats them.
    pub(crate) fn watched(&self, format: Format) -> (Model, Arc<Mutex<Vec<Request>>>) {
        let provider = self.provider(format, "chat", |recorded| recorded.ignoring(["/system", "/messages"]));
        let watched = Watched { provider, requests: Arc::default() };
        let requests = Arc::clone(&watched.requests);
        (Model::new(Arc::new(watched), MODEL), requests)
    }

    fn model(&self, format: Format, server: &str) -> Model {
        Model::new(self.provider(format, server, |recorded| recorded), MODEL)
    }

    /// Returns the provider of a server, or of its recordings with these rules.
    fn provider(&self, format: Format, server: &str, rules: fn(Recorded) -> Recorded) -> Arc<dyn Provider> {
        let name = format!("{}-{server}-{}.jsonl", self.scenario, format.name());
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/cassettes").join(&name);
        let recorded = |endpoint, recording| rules(Recorded::new(endpoint, &kept, recording));
        let provider = match &self.source {
            Source::Servers { chat, tools, recording } => {
                let endpoint = format.endpoint(if server == "chat" { chat } else { tools });
                if !recording {
                    return Arc::new(endpoint);
                }
                let mut providers = self.providers.lock().unwrap();
                providers.entry(name).or_insert_with(|| recorded(endpoint, Recording::Record)).clone()
            }
            Source::Recordings(folder) => {
                let mut providers = self.providers.lock().unwrap();
                let again = folder.join(&name);
                let replay =
                    || recorded(format.endpoint("http://127.0.0.1:9"), Recording::Replay).in_real_time();
                let made = || rules(Recorded::new(replay(), again, Recording::Record));
                providers.entry(name).or_insert_with(made).clone()
            }
        };
        Arc::new(provider)
    }

    /// Compares the recordings of the replays with the recordings that were replayed.
    fn compare(&self) {
        let Source::Recordings(folder) = &self.source else { return };
        for name in self.providers.lock().unwrap().keys() {
            let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/live/cassettes").join(name);
            let (kept, again) =
                (fs::read_to_string(kept).unwrap(), fs::read_to_string(folder.join(name)).unwrap());
            // Do not compare recordings with a dropped answer, because the time of the drop depends on the reader.
            if !kept.contains(r#""dropped":true"#) {
                assert!(kept == again, "{name}: the recording of the replay differs");
            }
        }
        let _ = fs::remove_dir_all(folder);
    }
}

const MODEL: &str = "smollm2-135m";

/// A provider that keeps the requests it passes on.
struct Watched {
    provider: Arc<dyn Provider>,
    requests: Arc<Mutex<Vec<Request>>>,
}

#[async_trait]
impl Provider for Watched {
    fn name(&self) -> &str {
        self.provider.name()
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        self.requests.lock().unwrap().push(request.clone());
        self.provider.stream(request, context).await
    }
}

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    ChatCompletions,
    Responses,
    Messages,
}

impl Format {
    /// Returns the name that identifies the format in a message's provider data.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => ChatCompletions::default().name(),
            Self::Responses => OpenAiResponses::default().name(),
            Self::Messages => AnthropicMessages::default().name(),
        }
    }

    /// Returns an endpoint of this format at the base URL.
    pub(crate) fn endpoint(self, url: &str) -> Endpoint {
        match self {
            Self::ChatCompletions => Endpoint::openai_compatible("local", url),
            Self::Responses => Endpoint::openai_responses_compatible("local", url),
            Self::Messages => Endpoint::anthropic_compatible("local", url),
        }
    }
}
