//! A backend that follows a script and records its calls.

use std::{
    collections::{BTreeMap, VecDeque},
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream;
use omni_agent::{
    agent::{Agent, AgentBuilder},
    message::ToolUse,
    provider::{
        BackendProvider, Model, Registry, StopReason,
        custom::{
            Backend, BackendError, BackendEvent, BackendSession, Capabilities, EventStream, PermissionAnswer,
            PermissionOption, PermissionRequest, SessionId, SessionOptions, SessionPosition, TurnPrompt,
            TurnResult,
        },
    },
    testing::Gate,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The behaviour of a call that replaces its normal work.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Fail(BackendError),
    Hang,
    Panic,
}

/// A step of a turn. The steps run in order.
pub(crate) enum Step {
    Event(BackendEvent),
    /// Sends a text that contains all prompts that the session remembers.
    Recall,
    Ask(ToolUse, Vec<PermissionOption>),
    /// Requests a permission, and continues without waiting for the answer.
    AskOn(ToolUse),
    /// Requests a permission, and withdraws the request when the turn has reached the gate. Then opens the gate.
    AskUntil(ToolUse, Gate),
    Gate(Gate),
    Wait(Duration),
    /// Sends an endless stream of empty texts.
    Chatter,
    Hang,
    Panic,
}

/// The steps of one turn.
#[derive(Default)]
pub(crate) struct Turn(VecDeque<Step>);

impl Turn {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn step(mut self, step: Step) -> Self {
        self.0.push_back(step);
        self
    }

    pub(crate) fn event(self, event: BackendEvent) -> Self {
        self.step(Step::Event(event))
    }

    pub(crate) fn text(self, text: &str) -> Self {
        self.event(BackendEvent::Text(text.to_owned()))
    }

    pub(crate) fn stop(self) -> Self {
        self.event(BackendEvent::Result(TurnResult::new(StopReason::Stop)))
    }
}

/// A violation of the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Keeps the stream of a turn open after the session was terminated.
    StreamsOn,
    /// Accepts prompts after the session was terminated.
    AnswersOn,
    /// Keeps something running after the session was terminated or dropped.
    RunsOn,
    /// Does not remember the earlier turns of the session.
    Forgets,
    /// Shares the prompts of each session with all sessions.
    MixesSessions,
    /// Starts a new session instead of resuming the old one.
    ResumesAnew,
    /// Resumes sessions that never existed.
    ResumesAnything,
    /// Forks the session at its end, instead of at the given position.
    ForksAtTheEnd,
    /// Returns the same session instead of forking it.
    ForksNothing,
}

/// A function that returns the turn for a prompt.
type ByPrompt = fn(&str) -> Option<Turn>;

/// A backend that follows a script. Clones share the script and the records of the calls.
#[derive(Clone)]
pub(crate) struct ScriptedBackend(Arc<Inner>);

struct Inner {
    capabilities: Capabilities,
    /// Whether sessions have ids and checkpoints.
    named: bool,
    fault: Option<Fault>,
    by_prompt: Option<ByPrompt>,
    /// The number of sessions that run something.
    running: AtomicUsize,
    script: Mutex<VecDeque<Turn>>,
    acts: Mutex<BTreeMap<&'static str, VecDeque<Act>>>,
    log: Mutex<Vec<String>>,
    noted: Notify,
    /// The number of prompts that each session had at the end of its last finished turn.
    finished: Mutex<BTreeMap<String, usize>>,
    /// The prompts of each session.
    prompts: Mutex<BTreeMap<String, Vec<String>>>,
    options: Mutex<Vec<SessionOptions>>,
    answers: Mutex<Vec<Option<PermissionAnswer>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedBackend {
    pub(crate) fn new(script: impl IntoIterator<Item = Turn>) -> Self {
        Self::with(Capabilities::default(), true, script)
    }

    pub(crate) fn able(capabilities: Capabilities, script: impl IntoIterator<Item = Turn>) -> Self {
        Self::with(capabilities, true, script)
    }

    /// Creates a backend with all capabilities, and with a turn for each prompt of the conformance suite.
    pub(crate) fn whole(by_prompt: ByPrompt, fault: Option<Fault>) -> Self {
        let able = Capabilities::default().with_resume().with_fork().with_history().with_edits();
        let mut backend = Self::with(able, true, []);
        let inner = Arc::get_mut(&mut backend.0).expect("it is not shared yet");
        (inner.by_prompt, inner.fault) = (Some(by_prompt), fault);
        backend
    }

    fn has(&self, fault: Fault) -> bool {
        self.0.fault == Some(fault)
    }

    /// Returns the number of sessions that run something.
    pub(crate) fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Waits until no session runs anything.
    pub(crate) async fn until_none_runs(&self) {
        loop {
            let noted = self.0.noted.notified();
            if self.running() == 0 {
                return;
            }
            noted.await;
        }
    }

    pub(crate) fn nameless() -> Self {
        Self::with(Capabilities::default().with_resume().with_fork(), false, [])
    }

    fn with(capabilities: Capabilities, named: bool, script: impl IntoIterator<Item = Turn>) -> Self {
        Self(Arc::new(Inner {
            capabilities,
            named,
            fault: None,
            by_prompt: None,
            running: AtomicUsize::new(0),
            script: Mutex::new(script.into_iter().collect()),
            acts: Mutex::default(),
            log: Mutex::default(),
            noted: Notify::new(),
            finished: Mutex::default(),
            prompts: Mutex::default(),
            options: Mutex::default(),
            answers: Mutex::default(),
        }))
    }

    /// Makes the next call of this method perform `act` instead of its normal work.
    pub(crate) fn act(self, call: &'static str, act: Act) -> Self {
        self.will(call, act);
        self
    }

    /// Like [`act`](Self::act), for a backend that is already in use.
    pub(crate) fn will(&self, call: &'static str, act: Act) {
        lock(&self.0.acts).entry(call).or_default().push_back(act);
    }

    pub(crate) fn provider(&self) -> BackendProvider {
        BackendProvider::new(self.clone())
    }

    pub(crate) fn model(&self) -> Model {
        Model::new(Arc::new(self.provider()), "default")
    }

    pub(crate) fn agent(&self) -> AgentBuilder {
        Agent::builder().model(self.model()).registry(Registry::empty().with(self.provider()))
    }

    /// Returns the calls so far.
    pub(crate) fn log(&self) -> Vec<String> {
        lock(&self.0.log).clone()
    }

    /// Returns how often this call was made.
    pub(crate) fn count(&self, call: &str) -> usize {
        self.log().iter().filter(|noted| *noted == call).count()
    }

    /// Waits until this call was made.
    pub(crate) async fn until(&self, call: &str) {
        self.until_some(|noted| noted == call).await;
    }

    /// Waits until any session has received a prompt with this text.
    pub(crate) async fn until_prompted(&self, text: &str) {
        self.until_some(|noted| noted.starts_with("prompt ") && noted.ends_with(&format!(": {text}"))).await;
    }

    async fn until_some(&self, is_it: impl Fn(&str) -> bool) {
        let come = async {
            loop {
                let noted = self.0.noted.notified();
                if self.log().iter().any(|noted| is_it(noted)) {
                    return;
                }
                noted.await;
            }
        };
        let come = tokio::time::timeout(Duration::from_hours(1), come).await;
        assert!(come.is_ok(), "the call was not made: {:?}", self.log());
    }

    pub(crate) fn options(&self) -> Vec<SessionOptions> {
        lock(&self.0.options).clone()
    }

    pub(crate) fn answers(&self) -> Vec<Option<PermissionAnswer>> {
        lock(&self.0.answers).clone()
    }

    fn knows(&self, id: &str) -> bool {
        lock(&self.0.prompts).contains_key(id)
    }

    fn note(&self, call: String) {
        lock(&self.0.log).push(call);
        self.0.noted.notify_waiters();
    }

    fn next_act(&self, call: &'static str) -> Option<Act> {
        lock(&self.0.acts).get_mut(call).and_then(VecDeque::pop_front)
    }

    async fn called(&self, call: &'static str, note: String) -> Result<(), BackendError> {
        self.note(note);
        match self.next_act(call) {
            None => Ok(()),
            Some(Act::Fail(error)) => Err(error),
            Some(Act::Hang) => pending().await,
            Some(Act::Panic) => panic!("{call} panics"),
        }
    }

    fn session(&self, options: &SessionOptions, prompts: Vec<String>) -> Arc<dyn BackendSession> {
        let id = {
            let mut all = lock(&self.0.prompts);
            let id = format!("s{}", all.len() + 1);
            lock(&self.0.finished).insert(id.clone(), prompts.len());
            all.insert(id.clone(), prompts);
            id
        };
        self.attach(id, options)
    }

    fn attach(&self, id: String, options: &SessionOptions) -> Arc<dyn BackendSession> {
        lock(&self.0.options).push(options.clone());
        self.0.running.fetch_add(1, Ordering::SeqCst);
        let runs = AtomicBool::new(true);
        Arc::new(ScriptedSession { backend: self.clone(), id, ended: CancellationToken::new(), runs })
    }
}

#[async_trait]
impl Backend for ScriptedBackend {
    fn name(&self) -> &str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    async fn start(&self, options: &SessionOptions) -> Result<Arc<dyn BackendSession>, BackendError> {
        self.called("start", "start".to_owned()).await?;
        Ok(self.session(options, Vec::new()))
    }

    async fn resume(
        &self,
        id: &SessionId,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        self.called("resume", format!("resume {id}")).await?;
        if self.has(Fault::ResumesAnew) || self.has(Fault::ResumesAnything) && !self.knows(id.as_str()) {
            return Ok(self.session(options, Vec::new()));
        }
        if !self.knows(id.as_str()) {
            return Err(BackendError::unknown_session(id));
        }
        Ok(self.attach(id.to_string(), options))
    }

    async fn fork(
        &self,
        place: &SessionPosition,
        options: &SessionOptions,
    ) -> Result<Arc<dyn BackendSession>, BackendError> {
        self.called("fork", format!("fork {} at {}", place.session, place.prompts)).await?;
        if self.has(Fault::ForksNothing) {
            return Ok(self.attach(place.session.to_string(), options));
        }
        let prompts = lock(&self.0.prompts).get(place.session.as_str()).cloned();
        let mut prompts = prompts.ok_or_else(|| BackendError::unknown_session(&place.session))?;
        let kept: usize = place.checkpoint.as_ref().unwrap().parse().unwrap();
        if !self.has(Fault::ForksAtTheEnd) {
            prompts.truncate(kept);
        }
        Ok(self.session(options, prompts))
    }
}

struct ScriptedSession {
    backend: ScriptedBackend,
    id: String,
    ended: CancellationToken,
    /// Whether the session runs something.
    runs: AtomicBool,
}

impl ScriptedSession {
    fn remembered(&self) -> Vec<String> {
        let all = lock(&self.backend.0.prompts);
        match self.backend.0.fault {
            Some(Fault::Forgets) => all[&self.id].last().cloned().into_iter().collect(),
            Some(Fault::MixesSessions) => all.values().flatten().cloned().collect(),
            _ => all[&self.id].clone(),
        }
    }

    /// Records that the session no longer runs anything, except with `Fault::RunsOn`.
    fn rest(&self) {
        if !self.backend.has(Fault::RunsOn) && self.runs.swap(false, Ordering::SeqCst) {
            self.backend.0.running.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl BackendSession for ScriptedSession {
    fn id(&self) -> Option<SessionId> {
        if matches!(self.backend.next_act("id"), Some(Act::Panic)) {
            panic!("id panics");
        }
        self.backend.0.named.then(|| SessionId::new(self.id.as_str()))
    }

    fn checkpoint(&self) -> Option<String> {
        self.backend.0.named.then(|| lock(&self.backend.0.finished)[&self.id].to_string())
    }

    async fn prompt(&self, prompt: TurnPrompt) -> Result<EventStream, BackendError> {
        self.backend.called("prompt", format!("prompt {}: {}", self.id, prompt.text())).await?;
        if self.ended.is_cancelled() && !self.backend.has(Fault::AnswersOn) {
            return Err(BackendError::Ended("it was terminated".to_owned()));
        }
        lock(&self.backend.0.prompts).get_mut(&self.id).unwrap().push(prompt.text());
        let next = lock(&self.backend.0.script).pop_front();
        let next = next.or_else(|| self.backend.0.by_prompt?(&prompt.text()));
        let turn = next.unwrap_or_else(|| Turn::new().step(Step::Recall).stop());
        let ended = match self.backend.0.fault {
            Some(Fault::StreamsOn | Fault::AnswersOn) => CancellationToken::new(),
            _ => self.ended.clone(),
        };
        let state = (turn.0, self.backend.clone(), self.remembered().join(" | "), ended);
        Ok(Box::pin(stream::unfold(state, |(mut turn, backend, remembered, ended)| async move {
            let event = tokio::select! {
                biased;
                () = ended.cancelled() => None,
                event = perform(&mut turn, &backend, &remembered) => event,
            };
            Some((event?, (turn, backend, remembered, ended)))
        })))
    }

    async fn update(&self, result: &TurnResult) -> Result<(), BackendError> {
        self.backend.called("update", format!("update {}: {}", self.id, result.stop_reason)).await?;
        let count = self.remembered().len();
        lock(&self.backend.0.finished).insert(self.id.clone(), count);
        Ok(())
    }

    async fn cancel(&self) -> Result<(), BackendError> {
        self.backend.called("cancel", format!("cancel {}", self.id)).await
    }

    async fn terminate(&self) {
        self.ended.cancel();
        self.rest();
        // `terminate` can't return an error, so ignore the scripted one.
        let _ = self.backend.called("terminate", format!("terminate {}", self.id)).await;
    }
}

impl Drop for ScriptedSession {
    fn drop(&mut self) {
        self.rest();
        self.backend.note(format!("drop {}", self.id));
    }
}

/// Returns the next event of a turn.
async fn perform(
    turn: &mut VecDeque<Step>,
    backend: &ScriptedBackend,
    remembered: &str,
) -> Option<BackendEvent> {
    loop {
        match turn.pop_front()? {
            Step::Event(event) => return Some(event),
            Step::Recall => return Some(BackendEvent::Text(remembered.to_owned())),
            Step::Ask(tool_use, options) => {
                let (request, answer) = PermissionRequest::new(tool_use, options);
                let backend = backend.clone();
                turn.push_front(Step::Gate(answered(answer, backend)));
                return Some(BackendEvent::Permission(request));
            }
            Step::AskOn(tool_use) => {
                let (request, answer) = PermissionRequest::new(tool_use, []);
                // The task keeps the permission request open until it is answered.
                tokio::spawn(answer);
                return Some(BackendEvent::Permission(request));
            }
            Step::AskUntil(tool_use, gate) => {
                let (request, answer) = PermissionRequest::new(tool_use, []);
                turn.push_front(Step::Gate(gate.clone()));
                tokio::spawn(async move {
                    gate.reached().await;
                    drop(answer);
                    gate.open();
                });
                return Some(BackendEvent::Permission(request));
            }
            Step::Gate(gate) => gate.pass().await,
            Step::Wait(time) => tokio::time::sleep(time).await,
            Step::Chatter => {
                turn.push_front(Step::Chatter);
                return Some(BackendEvent::Text(String::new()));
            }
            Step::Hang => pending().await,
            Step::Panic => panic!("the turn panics"),
        }
    }
}

/// Records the answer to a permission request. Returns a gate that opens when the answer arrives or can no longer
/// arrive.
fn answered(answer: tokio::sync::oneshot::Receiver<PermissionAnswer>, backend: ScriptedBackend) -> Gate {
    let gate = Gate::new();
    let opened = gate.clone();
    tokio::spawn(async move {
        let answer = answer.await.ok();
        lock(&backend.0.answers).push(answer);
        backend.note("answered".to_owned());
        opened.open();
    });
    gate
}
