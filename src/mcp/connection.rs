//! One connection to a server: its handshake, its notifications and its end.

use std::{
    io,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, ErrorCode, ErrorData, FormElicitationCapability, Implementation, JsonObject,
        ProgressNotificationParam, ProgressToken, ProtocolVersion, RequestId, ServerJsonRpcMessage,
        SubscriptionFilter, TASKS_EXTENSION_ID, UrlElicitationCapability,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, InboundStreamOrigin,
        NotificationContext, Peer, RequestContext, RunningService, RxJsonRpcMessage, ServiceError,
        TxJsonRpcMessage,
    },
    transport::{Transport, async_rw::AsyncRwTransport},
};
use serde_json::{Value, json};
use tokio::{
    io::AsyncRead,
    process::{ChildStderr, ChildStdin, ChildStdout},
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tokio_util::{
    codec::AnyDelimiterCodecError,
    sync::{CancellationToken, DropGuard},
};

use super::{
    McpError,
    builder::{self, McpSettings, ProgramStart},
    call,
    http::{self, McpHttpObservations, McpQueueLimitedTransport, McpServerFault},
    incoming::messages,
    server::ReconnectPlan,
};
use crate::{
    process::{Process, lines::StderrTail},
    sync::lock,
    telemetry::McpCallSpanFacts,
    text::clip,
    tool::ToolContext,
};

/// The maximum number of questions that a server may ask during one call. Further questions are declined.
const MOST_QUESTIONS: usize = 100;

/// The maximum length of a server's text in an error or a report of progress, and of a URI or a name in a result.
pub(super) const LONGEST: usize = 4096;

/// A connection. Dropping this closes the connection and ends the program.
pub(super) struct McpConnection {
    service: RunningService<RoleClient, McpClientHandler>,
    carrier: McpTransportDetails,
    runtime: Handle,
    /// Ends the requests and the tasks of the connection when the connection is dropped, or when it can't be made.
    _over: DropGuard,
}

/// The parts of a connection's transport that rmcp does not expose.
enum McpTransportDetails {
    Program(McpProgram),
    Http(Arc<McpHttpObservations>),
}

/// A call that waits for its answer.
pub(super) struct McpOpenCall {
    pub(super) id: RequestId,
    pub(super) token: ProgressToken,
    /// The latest progress.
    pub(super) reports: watch::Sender<Option<Value>>,
    pub(super) context: Arc<ToolContext>,
    /// The number of questions that the server has asked.
    pub(super) asked: usize,
}

/// The calls that wait for their answers, in the order of their start.
type McpOpenCalls = Arc<Mutex<Vec<McpOpenCall>>>;

/// The receiver of the server's notifications and questions. It refuses all other requests of the server.
struct McpClientHandler {
    server: String,
    config: ClientConfig,
    calls: McpOpenCalls,
    changes: watch::Sender<u64>,
}

impl ClientHandler for McpClientHandler {
    async fn on_progress(&self, report: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let calls = lock(&self.calls);
        if let Some(call) = calls.iter().find(|call| call.token == report.progress_token) {
            let message = report.message.as_deref().map(|message| clip(message, LONGEST));
            call.reports.send_replace(Some(
                json!({ "progress": report.progress, "total": report.total, "message": message }),
            ));
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.send_modify(|count| *count += 1);
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let declined = ElicitResult::new(ElicitationAction::Decline);
        let Some(call) = self.asking_call(context.extensions.get()) else { return Ok(declined) };
        tokio::select! {
            biased;
            // The server has cancelled the question, or the connection has ended.
            () = context.ct.cancelled() => Ok(declined),
            answer = call::answer(&self.server, request, &call) => Ok(answer),
        }
    }

    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }
}

impl McpClientHandler {
    /// Returns the call that a question belongs to, or `None` if the question must be declined. Over HTTP, the question
    /// arrives in the answer to the call. A program does not name the call, so the question belongs to the call that
    /// started last.
    fn asking_call(&self, origin: Option<&InboundStreamOrigin>) -> Option<Arc<ToolContext>> {
        let mut calls = lock(&self.calls);
        let call = match origin {
            Some(InboundStreamOrigin::OutboundRequest(id)) => calls.iter_mut().find(|call| call.id == *id)?,
            _ => calls.last_mut()?,
        };
        call.asked += 1;
        (call.asked <= MOST_QUESTIONS).then(|| Arc::clone(&call.context))
    }
}

/// Returns the capabilities that the client declares to servers: it answers questions and waits for tasks.
fn capabilities() -> ClientCapabilities {
    let mut capabilities = ClientCapabilities::default();
    let elicitation = ElicitationCapability::new();
    let elicitation = elicitation.with_form(FormElicitationCapability::default());
    capabilities.elicitation = Some(elicitation.with_url(UrlElicitationCapability::default()));
    capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), JsonObject::new())].into());
    capabilities
}

impl McpConnection {
    /// Connects within the time limit that the settings contain.
    pub(super) async fn open(
        settings: &Arc<McpSettings>,
        changes: watch::Sender<u64>,
    ) -> Result<Self, McpError> {
        let limit = settings.connect_limit;
        let over = CancellationToken::new();
        let guard = over.clone().drop_guard();
        let mut config =
            ClientConfig::new(capabilities(), Implementation::new("omni-agent", env!("CARGO_PKG_VERSION")));
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        let mut lifecycle = match settings.version.clone() {
            None => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::V_2025_11_25),
            },
            Some(version) if version.has_initialize() => {
                config.protocol_version = version;
                ClientLifecycleMode::Initialize
            }
            Some(version) => ClientLifecycleMode::Discover { preferred_versions: vec![version] },
        };
        let handler = || McpClientHandler {
            server: settings.name.clone(),
            config: config.clone(),
            calls: McpOpenCalls::default(),
            changes: changes.clone(),
        };
        let deadline = Instant::now() + limit;
        // The end of a program that was started before.
        let mut earlier = String::new();
        let (served, carrier) = match &settings.transport {
            builder::Transport::Program(start) => loop {
                let (program, pipe, input) = run(start, settings)?;
                let serving = handler().serve_with_lifecycle(pipe, lifecycle.clone());
                let served = timeout_at(deadline, serving).await;
                let is_closed = matches!(served, Ok(Err(ClientInitializeError::ConnectionClosed(_))));
                let is_auto = matches!(lifecycle, ClientLifecycleMode::Auto { .. });
                if is_closed && is_auto && input.is_read() {
                    // Some old servers exit if the first message is not `initialize`. A program that has not read the
                    // message exits for another reason, so another start would not help.
                    lifecycle = ClientLifecycleMode::Initialize;
                    let end = program.words().await;
                    earlier = format!("; before, it was started and got `server/discover`{end}");
                    continue;
                }
                break (served, McpTransportDetails::Program(program));
            },
            builder::Transport::Http(target) => {
                let (observed, transport) =
                    http::start(target, settings, over.clone(), changes.clone()).await?;
                let served = timeout_at(deadline, handler().serve_with_lifecycle(transport, lifecycle)).await;
                (served, McpTransportDetails::Http(observed))
            }
        };
        let service = match served.map_err(|_| settings.timed_out(limit))? {
            Ok(service) => service,
            Err(error) => {
                let reason = format!("{}{}{earlier}", reason(&error, settings)?, carrier.ending().await);
                return Err(settings.unreachable(reason));
            }
        };
        let connection = Self { service, carrier, runtime: Handle::current(), _over: guard };
        if let Some(version) = connection.peer().peer_info().map(|info| info.protocol_version.clone())
            && !ProtocolVersion::KNOWN_VERSIONS.contains(&version)
        {
            let version = clip(version.as_str(), LONGEST);
            let reason = format!("its protocol version {version:?} is unknown to this client");
            return Err(settings.unreachable(reason));
        }
        connection.listen(over, changes);
        Ok(connection)
    }

    /// Subscribes to changes of the tool list. Servers with protocol version 2026-07-28 or later report changes only on
    /// request.
    fn listen(&self, over: CancellationToken, changes: watch::Sender<u64>) {
        let announced = self.peer().peer_info().is_some_and(|info| {
            !info.protocol_version.has_initialize()
                && info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true))
        });
        if !announced {
            return;
        }
        let peer = self.peer().clone();
        // The task ends with the connection, and then the subscription ends.
        tokio::spawn(async move { over.run_until_cancelled(subscribed(&peer, &changes)).await });
    }

    pub(super) fn peer(&self) -> &Peer<RoleClient> {
        self.service.peer()
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn version(&self) -> Option<String> {
        self.peer().peer_info().map(|info| info.protocol_version.to_string())
    }

    /// Records a call of a tool on the current span.
    pub(super) fn record(&self, request: &RequestId, settings: &McpSettings) {
        let session = match &self.carrier {
            McpTransportDetails::Program(_) => None,
            McpTransportDetails::Http(observed) => observed.session(),
        };
        let url = match &settings.transport {
            builder::Transport::Program(_) => None,
            builder::Transport::Http(target) => reqwest::Url::parse(&target.url).ok(),
        };
        let (version, request) = (self.version(), request.to_string());
        let address = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default())));
        let call = McpCallSpanFacts {
            method: "tools/call",
            version: version.as_deref(),
            session: session.as_deref(),
            request: &request,
            transport: if settings.is_program() { "pipe" } else { "tcp" },
            address,
        };
        call.record();
    }

    pub(super) fn is_lost(&self) -> bool {
        let has_ended = matches!(&self.carrier, McpTransportDetails::Program(program) if program.has_ended());
        has_ended || self.peer().is_transport_closed()
    }

    /// Forwards progress and questions of the server to the call until the returned guard is dropped.
    pub(super) fn route(&self, call: McpOpenCall) -> impl Drop + use<> {
        let (calls, id) = (Arc::clone(&self.service.service().calls), call.id.clone());
        lock(&calls).push(call);
        McpOpenCallGuard { calls, id }
    }

    /// Returns the known details of the connection's end, as a suffix for the text of an error.
    pub(super) async fn ending(&self) -> String {
        self.carrier.ending().await
    }

    /// Closes the connection, and waits until the program has ended.
    pub(super) async fn close(&self) {
        self.service.cancellation_token().cancel();
        if let McpTransportDetails::Program(program) = &self.carrier {
            program.ended().await;
        }
    }
}

impl McpTransportDetails {
    async fn ending(&self) -> String {
        match self {
            Self::Program(program) => program.words().await,
            Self::Http(observed) => observed.ending(),
        }
    }
}

struct McpOpenCallGuard {
    calls: McpOpenCalls,
    id: RequestId,
}

impl Drop for McpOpenCallGuard {
    fn drop(&mut self) {
        lock(&self.calls).retain(|call| call.id != self.id);
    }
}

/// Returns the text of a failed handshake, without the names of rmcp's own types. Fails if the server requires another
/// authorization.
fn reason(error: &ClientInitializeError, settings: &McpSettings) -> Result<String, McpError> {
    let text = match error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => return reason(fallback, settings),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".to_owned(),
        ClientInitializeError::JsonRpcError(error) => error.message.to_string(),
        ClientInitializeError::TransportError { error, .. } => match http::refusal(error, settings) {
            Some(unauthorized @ McpError::Unauthorized { .. }) => return Err(unauthorized),
            _ => crate::error_chain(&*error.error),
        },
        ClientInitializeError::ExpectedInitResult(_) | ClientInitializeError::ExpectedInitResponse(_) => {
            "its answer to the handshake is invalid".to_owned()
        }
        other => other.to_string(),
    };
    Ok(clip(&text, LONGEST).into_owned())
}

/// Subscribes to changes of the tool list again and again, and counts the changes. Changes between two subscriptions are
/// not reported, so each subscription counts as a change.
async fn subscribed(peer: &Peer<RoleClient>, changes: &watch::Sender<u64>) {
    let (mut plan, since) = (ReconnectPlan::default(), Instant::now());
    while !peer.is_transport_closed() {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        match peer.listen(filter).await {
            Ok(mut subscription) => {
                changes.send_modify(|count| *count += 1);
                while let Ok(Some(_)) = subscription.next().await {
                    changes.send_modify(|count| *count += 1);
                    plan.worked();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "an MCP server refused to report changes of its tools");
                if matches!(error, ServiceError::McpError(error) if error.code == ErrorCode::METHOD_NOT_FOUND)
                {
                    return;
                }
            }
        }
        plan.lost(since.elapsed(), false);
        let Some(delay) = plan.next(since.elapsed()) else { return };
        sleep(delay).await;
    }
}

// Servers that are programs: their start, their pipes and their end.

/// The maximum size of a message in bytes.
pub(super) const LONGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// How long the program may take to end after its input is closed.
const GRACE: Duration = Duration::from_secs(2);

/// How long writing the last messages may take.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// How long to wait for the end of a program whose connection has ended.
const SOON: Duration = Duration::from_secs(1);

/// The program of a connection.
pub(super) struct McpProgram {
    process: Arc<Process>,
    words: Arc<StderrTail>,
    /// Cancelled when the standard error was read to its end.
    heard: CancellationToken,
    settings: Arc<McpSettings>,
    fault: McpServerFault,
}

/// Another handle of the standard input of a program, which shows whether the program has read it. The program can't see
/// the end of its input before this is dropped.
struct McpInputProbe {
    #[cfg(unix)]
    stdin: Option<std::os::fd::OwnedFd>,
}

impl McpInputProbe {
    #[cfg_attr(not(unix), expect(unused_variables, reason = "only Unix shows what was read"))]
    fn new(stdin: &std::process::ChildStdin) -> Self {
        Self {
            #[cfg(unix)]
            stdin: std::os::fd::AsFd::as_fd(stdin).try_clone_to_owned().ok(),
        }
    }

    /// Returns whether the program has read everything that was written, or `true` if this is not known.
    fn is_read(&self) -> bool {
        #[cfg(unix)]
        if let Some(stdin) = &self.stdin {
            return rustix::io::ioctl_fionread(stdin).is_ok_and(|unread| unread == 0);
        }
        true
    }
}

/// Starts the program.
fn run(
    start: &ProgramStart,
    settings: &Arc<McpSettings>,
) -> Result<(McpProgram, McpQueueLimitedTransport<McpProgramTransport>, McpInputProbe), McpError> {
    let cannot = |error: io::Error| McpError::Unreachable {
        server: settings.name.clone(),
        reason: format!("`{}` did not start: {error}", start.program.to_string_lossy()),
    };
    let mut command = Command::new(&start.program);
    command.args(&start.arguments).envs(start.environment.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = &start.folder {
        command.current_dir(folder);
    }
    let (process, pipes) = Process::start(command).map_err(cannot)?;
    // From here on, an early return drops the process, which kills the program.
    let process = Arc::new(process);
    let input = McpInputProbe::new(&pipes.stdin);
    let stdin = ChildStdin::from_std(pipes.stdin).map_err(cannot)?;
    let stdout = ChildStdout::from_std(pipes.stdout).map_err(cannot)?;
    let stderr = ChildStderr::from_std(pipes.stderr).map_err(cannot)?;
    let words = Arc::new(StderrTail::default());
    let heard = CancellationToken::new();
    let (tail, owner, end) = (Arc::clone(&words), Arc::clone(settings), heard.clone().drop_guard());
    // The task ends when the program and its children have closed their standard error.
    tokio::spawn(async move {
        tail.follow_cleaned(stderr, &owner.name, |text| owner.secrets.removed(text)).await;
        drop(end);
    });
    let fault = McpServerFault::default();
    let is_long = Arc::clone(&fault);
    let messages = messages::<ServerJsonRpcMessage>(stdout, LONGEST_MESSAGE, move |error| {
        if matches!(error, AnyDelimiterCodecError::MaxChunkLengthExceeded) {
            let _ = is_long.set("a message of the server exceeded the maximum size of 16777216 bytes");
        }
    });
    let messages: BoxedReader = Box::new(messages);
    let pipe = McpProgramTransport {
        inner: AsyncRwTransport::new(messages, stdin).with_max_line_length(usize::MAX),
        process: Arc::clone(&process),
    };
    let pipe = McpQueueLimitedTransport::new(pipe, Arc::clone(&fault));
    Ok((McpProgram { process, words, heard, settings: Arc::clone(settings), fault }, pipe, input))
}

impl McpProgram {
    fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    pub(super) async fn ended(&self) {
        self.process.ended().await;
    }

    /// Returns a suffix for the text of an error: the fault for which the client ended the connection, or else the exit
    /// status of the program and the last lines of its standard error.
    pub(super) async fn words(&self) -> String {
        if let Some(reason) = self.fault.get() {
            return format!(": {reason}");
        }
        let how = timeout(SOON, self.process.ended()).await.ok();
        if how.is_some() {
            let _ = timeout(SOON, self.heard.cancelled()).await;
        }
        let how = how.map_or_else(String::new, |how| format!("; the program ended: {how}"));
        let text = format!("{how}{}", self.words.quoted());
        tracing::debug!(server = self.settings.name, "an MCP server's connection ended{text}");
        self.settings.secrets.removed(text)
    }
}

type BoxedReader = Box<dyn AsyncRead + Send + Unpin>;

/// The transport over the pipes of a program. When the task of the connection is dropped, for example because the runtime
/// shuts down, this kills the program.
pub(super) struct McpProgramTransport {
    inner: AsyncRwTransport<RoleClient, BoxedReader, ChildStdin>,
    process: Arc<Process>,
}

impl Drop for McpProgramTransport {
    fn drop(&mut self) {
        self.process.kill();
    }
}

impl Transport<RoleClient> for McpProgramTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        self.inner.receive().await
    }

    async fn close(&mut self) -> io::Result<()> {
        // Without this limit, a program that does not read its input would delay the end of the connection forever.
        let _ = timeout(LAST_WRITES, self.inner.close()).await;
        self.process.stop(GRACE).await;
        Ok(())
    }
}
