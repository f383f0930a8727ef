//! A provider that records exchanges with a model service, and replays them without the service.

mod cassette;

use std::{env, mem, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use self::cassette::{Cassette, CassetteLine, CassetteMatch, CassetteRules, TimedDelta, secrets};
use crate::{
    message::Message,
    provider::{
        Delta, DeltaStream, Model, Provider, ProviderError, ProviderErrorKind, Request, RequestContext,
        Secret,
    },
    tool::Decision,
};

/// The variable that selects the [`Recording`].
const VARIABLE: &str = "OMNI_RECORD";

/// How long a replayed response waits after its last delta if the recorded response was dropped at that point.
const DROPPED: Duration = Duration::from_mins(1);

/// The treatment of requests by a [`Recorded`] provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Recording {
    /// Answers each request from the file. The wrapped provider gets no request. Only its secrets are read, so that
    /// requests that contain them equal the recorded ones.
    #[default]
    Replay,
    /// Passes each request to the wrapped provider, and replaces the file with the exchanges.
    Record,
    /// Answers a request from the file if the file has an answer. Otherwise, passes it to the wrapped provider and adds
    /// the exchange to the file.
    Missing,
}

impl Recording {
    /// Returns the mode that the variable `OMNI_RECORD` selects: `replay`, `record` or `missing`. The default is
    /// [`Recording::Replay`].
    ///
    /// # Panics
    ///
    /// Panics if the variable has another value, because a misspelt value would otherwise replay an old recording.
    pub fn from_env() -> Self {
        match env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "replay") => Self::Replay,
            Ok("record") => Self::Record,
            Ok("missing") => Self::Missing,
            Ok(other) => panic!("{VARIABLE} is {other:?}: set it to `replay`, `record` or `missing`"),
        }
    }
}

/// A provider that records the exchanges of another provider in a file, and later answers from the file without a
/// network and without a key.
///
/// The file has one line of JSON per request: the request, the deltas of its answer with their delays, and the error,
/// if the exchange failed. The lines are sorted by request, so the file stays the same if parallel agents finish in a
/// different order. Commit the file to the repository, next to the test.
///
/// A request is answered from the file if the file contains an equal request. Requests are compared by the model's id,
/// the system prompt, the messages, the tool declarations and the options. Ids, timestamps, provider data, the
/// application's data, decisions about tool uses, the ends of answers and counted sizes are not compared. If the file has
/// several equal requests, their answers are used in the recorded order. If no request of the file is equal, the request fails with [`ProviderErrorKind::InvalidRequest`]. The error
/// shows the nearest request of the file, and the first difference.
///
/// The key and the headers of a request are never written. If one of them occurs in another text of the exchange, it is
/// removed there too. The same applies to the key and the headers that an endpoint adds, for example a key from the
/// environment ([`Provider::secrets`]). If a secret arrives in several pieces, these pieces are joined.
/// [`scrub`](Self::scrub) removes other secrets.
///
/// Clones, and the instances that the provider opens for conversations, share one recording. Use one file per test,
/// because each recording replaces its file.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use omni_agent::Agent;
/// use omni_agent::testing::{Recorded, Recording, ScriptedProvider, Step};
///
/// # let folder = std::env::temp_dir().join(format!("omni-recorded-{}", std::process::id()));
/// # let path = folder.join("capital.jsonl");
/// let service = ScriptedProvider::new([Step::text("Paris.")]);
/// let recorded = Recorded::new(service, &path, Recording::Record);
/// let agent = Agent::builder().model(recorded.model("small")).start().await?;
/// assert_eq!(agent.ask("The capital of France?").await?.text(), "Paris.");
///
/// // The replay needs no service.
/// let replayed = Recorded::new(ScriptedProvider::new([]), &path, Recording::Replay);
/// let agent = Agent::builder().model(replayed.model("small")).start().await?;
/// assert_eq!(agent.ask("The capital of France?").await?.text(), "Paris.");
///
/// let error = agent.ask("The capital of Spain?").await.unwrap_err();
/// assert!(error.to_string().contains("no answer"));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Recorded {
    provider: Arc<dyn Provider>,
    rules: Arc<CassetteRules>,
    cassette: Arc<Cassette>,
}

impl Recorded {
    /// Wraps a provider. The file is read at the first request. If the file can't be read, the request fails.
    pub fn new(provider: impl Provider, path: impl Into<PathBuf>, recording: Recording) -> Self {
        Self::shared(Arc::new(provider), path, recording)
    }

    /// Wraps a provider that is shared, such as the [provider of a model](Model::provider).
    pub fn shared(provider: Arc<dyn Provider>, path: impl Into<PathBuf>, recording: Recording) -> Self {
        let cassette = Arc::new(Cassette::new(path.into(), recording));
        Self { provider, rules: Arc::default(), cassette }
    }

    /// Ignores parts of requests, such as `/system` or `/options/metadata`. Ignored parts are neither written nor
    /// compared. Each pointer is a JSON pointer into the member `request` of a line.
    pub fn ignoring<T: Into<String>>(mut self, pointers: impl IntoIterator<Item = T>) -> Self {
        Arc::make_mut(&mut self.rules).ignored.extend(pointers.into_iter().map(Into::into));
        self
    }

    /// Sets the function that changes each text before it is written, to remove secrets or facts that differ between
    /// machines. It receives every text of a request, of its deltas and of its error. Requests are compared after the
    /// change.
    ///
    /// A text that a service streams arrives in pieces, and the function receives each piece separately.
    pub fn scrub(mut self, scrub: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.rules).scrub = Some(Arc::new(scrub));
        self
    }

    /// Replays answers with their recorded delays. By default, all deltas are sent at once. If tokio's time is paused,
    /// the delays take no real time.
    pub fn in_real_time(mut self) -> Self {
        Arc::make_mut(&mut self.rules).is_in_real_time = true;
        self
    }

    /// Returns the model `id` of this provider.
    pub fn model(&self, id: impl Into<Arc<str>>) -> Model {
        Model::new(Arc::new(self.clone()), id)
    }

    /// Returns a copy of the model whose requests use this provider. The copy keeps the model's facts, its retry policy
    /// and the key from its registry.
    pub fn wrap(&self, model: &Model) -> Model {
        model.through(Arc::new(self.clone()))
    }

    /// Returns the number of recorded answers that no request has used so far.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be read.
    pub fn unused(&self) -> Result<usize, ProviderError> {
        self.cassette.unused(&self.rules)
    }

    async fn record(
        &self,
        mut recorder: CassetteRecorder,
        request: Request,
        context: &RequestContext,
    ) -> Result<DeltaStream, ProviderError> {
        let asked = Arc::new(Notify::new());
        let noticed = Arc::clone(&asked);
        // A question of the provider is never answered, because the exchange fails as soon as the provider asks one.
        let context = context.answered_by(move |_| {
            noticed.notify_one();
            std::future::pending::<Decision>()
        });
        let begun = tokio::select! {
            biased;
            begun = self.provider.stream(request, context) => begun,
            () = asked.notified() => return Err(recorder.refuse()),
        };
        let deltas = match begun {
            Ok(deltas) => deltas,
            Err(error) => {
                recorder.end(Some(&error))?;
                return Err(error);
            }
        };
        Ok(Box::pin(stream::unfold(Some((deltas, recorder, asked)), |state| async {
            let (mut deltas, mut recorder, asked) = state?;
            let item = tokio::select! {
                biased;
                item = deltas.next() => item,
                () = asked.notified() => return Some((Err(recorder.refuse()), None)),
            };
            match item {
                Some(Ok(delta)) => {
                    recorder.delta(&delta);
                    Some((Ok(delta), Some((deltas, recorder, asked))))
                }
                Some(Err(error)) => Some((Err(recorder.end(Some(&error)).err().unwrap_or(error)), None)),
                None => recorder.end(None).err().map(|error| (Err(error), None)),
            }
        })))
    }

    async fn replay(&self, line: CassetteLine) -> Result<DeltaStream, ProviderError> {
        let is_in_real_time = self.rules.is_in_real_time;
        let pause = async move |millis: u64| {
            if is_in_real_time && millis > 0 {
                sleep(Duration::from_millis(millis)).await;
            }
        };
        let CassetteLine { deltas, error, ended_after, dropped, .. } = line;
        if let Some(error) = error.clone().filter(|_| deltas.is_empty()) {
            pause(ended_after).await;
            return Err(error);
        }
        let path = Arc::clone(&self.cassette);
        Ok(Box::pin(stream::unfold(Some(deltas.into_iter()), move |deltas| {
            let (error, path) = (error.clone(), Arc::clone(&path));
            async move {
                let mut deltas = deltas?;
                if let Some(next) = deltas.next() {
                    pause(next.after).await;
                    return Some((Ok(next.delta), Some(deltas)));
                }
                if dropped {
                    // When the response was recorded, its reader dropped it here. Give the reader of the replay time to
                    // do the same.
                    let _ = timeout(DROPPED, std::future::pending::<()>()).await;
                    return Some((Err(path.dropped()), None));
                }
                pause(ended_after).await;
                error.map(|error| (Err(error), None))
            }
        })))
    }
}

#[async_trait]
impl Provider for Recorded {
    fn name(&self) -> &str {
        self.provider.name()
    }

    fn secrets(&self, request: &Request) -> Vec<Secret> {
        self.provider.secrets(request)
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        if self.cassette.recording() == Recording::Replay {
            return Ok(None);
        }
        let own = self.provider.open().await?;
        Ok(own.map(|provider| Arc::new(Self { provider, ..self.clone() }) as Arc<dyn Provider>))
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        let secrets = secrets(&*self.provider, &request);
        match self.cassette.find(&self.rules, &request, secrets)? {
            CassetteMatch::Line(line) => self.replay(line).await,
            CassetteMatch::Nothing(recorder) => self.record(recorder, request, &context).await,
        }
    }

    fn committed(&self, messages: &[Arc<Message>]) {
        if self.cassette.recording() != Recording::Replay {
            self.provider.committed(messages);
        }
    }

    async fn close(&self) {
        if self.cassette.recording() != Recording::Replay {
            self.provider.close().await;
        }
    }
}

crate::debug::impl_debug! { Recorded(self) {
    provider: self.provider.name(), path: self.cassette.path(), recording: self.cassette.recording(), ..
} }

/// Returns an error that concerns the recording, not the service. It is never retried.
fn failure(words: impl Into<String>) -> ProviderError {
    ProviderError::new(ProviderErrorKind::InvalidRequest, words)
}

/// Records one exchange. If the recorder is dropped before the end, the answer is recorded as dropped, unless its stop
/// reason has already arrived.
struct CassetteRecorder {
    cassette: Arc<Cassette>,
    rules: Arc<CassetteRules>,
    /// The index of the exchange in the cassette.
    number: usize,
    secrets: Vec<Secret>,
    deltas: Vec<TimedDelta>,
    /// The time of the last delta. Before the first delta, the time of the request.
    last: Instant,
    has_stop_reason: bool,
    is_over: bool,
}

impl CassetteRecorder {
    fn new(cassette: Arc<Cassette>, rules: Arc<CassetteRules>, number: usize, secrets: Vec<Secret>) -> Self {
        let (deltas, last) = (Vec::new(), Instant::now());
        Self { cassette, rules, number, secrets, deltas, last, has_stop_reason: false, is_over: false }
    }

    fn delta(&mut self, delta: &Delta) {
        let after = self.lap();
        self.has_stop_reason |= matches!(delta, Delta::Message(data) if data.stop_reason.is_some());
        self.deltas.push(TimedDelta { after, delta: delta.clone() });
    }

    /// Writes the exchange, which ended with this error, or successfully if `error` is `None`.
    fn end(&mut self, error: Option<&ProviderError>) -> Result<(), ProviderError> {
        self.write(error.cloned(), false)
    }

    /// Returns the error of an exchange that can't be recorded, because its answer depends on a decision.
    fn refuse(&mut self) -> ProviderError {
        self.is_over = true;
        let words = "this exchange can't be recorded, because the provider asks for a decision on a tool use; use a \
                     scripted provider for this test";
        ProviderError::new(ProviderErrorKind::Unsupported, words)
    }

    fn write(&mut self, error: Option<ProviderError>, dropped: bool) -> Result<(), ProviderError> {
        self.is_over = true;
        let (ended_after, deltas) = (self.lap(), mem::take(&mut self.deltas));
        let make = |request| CassetteLine { request, deltas, error, ended_after, dropped };
        self.cassette.add(&self.rules, self.number, &self.secrets, make)
    }

    /// Returns the milliseconds since the last call of this method.
    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let millis = now.duration_since(mem::replace(&mut self.last, now)).as_millis();
        u64::try_from(millis).unwrap_or(u64::MAX)
    }
}

impl Drop for CassetteRecorder {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let dropped = !self.has_stop_reason;
        if let Err(error) = self.write(None, dropped) {
            tracing::error!(%error, "a dropped answer could not be recorded");
        }
    }
}
