//! One connection to a server: its handshake, its notifications and its end.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::{
    ClientHandler, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationCapability, ErrorCode, ErrorData, FormElicitationCapability, Implementation, JsonObject,
        ProgressNotificationParam, ProgressToken, ProtocolVersion, RequestId, SubscriptionFilter,
        TASKS_EXTENSION_ID, UrlElicitationCapability,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, InboundStreamOrigin,
        NotificationContext, Peer, RequestContext, RunningService, ServiceError,
    },
    transport::StreamableHttpClientTransport,
};
use serde_json::{Value, json};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, error::Elapsed, sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    McpError,
    bounded::Bounded,
    http::{self, Observed},
    program::{self, Program},
    question,
    recovery::{NextAttempt, Recovery},
    settings::{HttpTarget, Settings, Transport},
};
use crate::{sync::lock, telemetry::McpCall, text::clip, tool::ToolContext};

/// How long to wait for the end of a program whose connection has ended.
const SOON: Duration = Duration::from_secs(1);

/// The maximum number of questions that a server may ask during one call. Further questions are declined.
const MOST_QUESTIONS: usize = 100;

/// The maximum length of a server's text in an error or a report of progress.
pub(super) const LONGEST: usize = 4096;

/// A connection. Dropping this closes the connection and ends the program.
pub(super) struct Connection {
    service: RunningService<RoleClient, Notified>,
    carrier: Carrier,
    runtime: Handle,
    /// Ends the requests and the tasks of the connection when the connection is dropped, or when it can't be made.
    _over: DropGuard,
}

/// The parts of a connection's transport that rmcp does not expose.
enum Carrier {
    Program(Program),
    Http(Arc<Observed>),
}

/// The latest progress of one call.
pub(super) type Reports = watch::Sender<Option<Value>>;

/// A call that waits for its answer.
pub(super) struct RunningCall {
    id: RequestId,
    token: ProgressToken,
    reports: Reports,
    context: Arc<ToolContext>,
    /// The number of questions that the server has asked.
    asked: usize,
}

impl RunningCall {
    pub(super) fn new(
        id: RequestId,
        token: ProgressToken,
        reports: Reports,
        context: Arc<ToolContext>,
    ) -> Self {
        Self { id, token, reports, context, asked: 0 }
    }
}

/// The running calls, in the order of their start.
type RunningCalls = Arc<Mutex<Vec<RunningCall>>>;

/// The receiver of the server's notifications and questions. It refuses all other requests of the server.
struct Notified {
    server: String,
    config: ClientConfig,
    calls: RunningCalls,
    changes: watch::Sender<u64>,
}

impl ClientHandler for Notified {
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
            answer = question::answer(&self.server, request, &call) => Ok(answer),
        }
    }

    fn get_info(&self) -> ClientConfig {
        self.config.clone()
    }
}

impl Notified {
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

impl Connection {
    /// Connects within the time limit that the settings contain.
    pub(super) async fn open(settings: &Settings, changes: watch::Sender<u64>) -> Result<Self, McpError> {
        let limit = settings.connect_limit;
        let over = CancellationToken::new();
        let guard = over.clone().drop_guard();
        let version = settings.version.clone();
        let mut config =
            ClientConfig::new(capabilities(), Implementation::new("omni-agent", env!("CARGO_PKG_VERSION")));
        config.protocol_version = ProtocolVersion::V_2025_11_25;
        let lifecycle = match version {
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
        let handler = Notified {
            server: settings.name.clone(),
            config,
            calls: RunningCalls::default(),
            changes: changes.clone(),
        };
        let (served, carrier) = match &settings.transport {
            Transport::Program(start) => {
                let (program, pipe) = program::start(start, settings)?;
                let served = timeout(limit, handler.serve_with_lifecycle(pipe, lifecycle)).await;
                (served, Carrier::Program(program))
            }
            Transport::Http(target) => {
                let (served, observed) =
                    over_http(handler, lifecycle, target, settings, over.clone()).await?;
                (served, Carrier::Http(observed))
            }
        };
        let service = match served {
            Ok(Ok(service)) => service,
            Ok(Err(error)) => {
                if let Some(unauthorized) = unauthorized(&error, settings) {
                    return Err(unauthorized);
                }
                let reason = format!("{}{}", reason(&error), carrier.ending().await);
                return Err(settings.unreachable(reason));
            }
            Err(_) => return Err(settings.timed_out(limit)),
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
    pub(super) fn record(&self, request: &RequestId, settings: &Settings) {
        let session = match &self.carrier {
            Carrier::Program(_) => None,
            Carrier::Http(observed) => observed.session(),
        };
        let url = match &settings.transport {
            Transport::Program(_) => None,
            Transport::Http(target) => reqwest::Url::parse(&target.url).ok(),
        };
        let (version, request) = (self.version(), request.to_string());
        let address = url.as_ref().and_then(|url| Some((url.host_str()?, url.port_or_known_default())));
        let call = McpCall {
            method: "tools/call",
            version: version.as_deref(),
            session: session.as_deref(),
            request: &request,
            transport: if self.is_program() { "pipe" } else { "tcp" },
            address,
        };
        call.record();
    }

    pub(super) fn is_program(&self) -> bool {
        matches!(self.carrier, Carrier::Program(_))
    }

    pub(super) fn is_lost(&self) -> bool {
        let has_ended = matches!(&self.carrier, Carrier::Program(program) if program.has_ended());
        has_ended || self.peer().is_transport_closed()
    }

    /// Forwards progress and questions of the server to the call until the returned guard is dropped.
    pub(super) fn route(&self, call: RunningCall) -> impl Drop + use<> {
        let (calls, id) = (Arc::clone(&self.service.service().calls), call.id.clone());
        lock(&calls).push(call);
        Route { calls, id }
    }

    /// Returns the known details of the connection's end, as a suffix for the text of an error.
    pub(super) async fn ending(&self) -> String {
        self.carrier.ending().await
    }

    /// Closes the connection, and waits until the program has ended.
    pub(super) async fn close(&self) {
        self.service.cancellation_token().cancel();
        if let Carrier::Program(program) = &self.carrier {
            program.ended().await;
        }
    }
}

type Served = Result<Result<RunningService<RoleClient, Notified>, ClientInitializeError>, Elapsed>;

/// Connects over HTTP, with the tokens of the settings if there are any.
async fn over_http(
    handler: Notified,
    lifecycle: ClientLifecycleMode,
    target: &HttpTarget,
    settings: &Settings,
    over: CancellationToken,
) -> Result<(Served, Arc<Observed>), McpError> {
    let limit = settings.connect_limit;
    let (client, config, observed) = http::client(target, settings, over)?;
    let fault = Arc::clone(&observed.fault);
    #[cfg(feature = "mcp-auth")]
    if let Some(store) = &target.tokens {
        let authorized =
            timeout(limit, super::auth::authorized(client, &target.url, store, &settings.secrets)).await;
        let client = authorized
            .map_err(|_| settings.timed_out(limit))?
            .map_err(|error| settings.unreachable(crate::error_chain(&error)))?;
        let transport = Bounded::new(StreamableHttpClientTransport::with_client(client, config), fault);
        return Ok((timeout(limit, handler.serve_with_lifecycle(transport, lifecycle)).await, observed));
    }
    let transport = Bounded::new(StreamableHttpClientTransport::with_client(client, config), fault);
    Ok((timeout(limit, handler.serve_with_lifecycle(transport, lifecycle)).await, observed))
}

impl Carrier {
    async fn ending(&self) -> String {
        match self {
            Self::Program(program) => program.words().await,
            Self::Http(observed) => observed.ending(),
        }
    }
}

/// Returns the error for a handshake that failed because the server requires another authorization.
fn unauthorized(error: &ClientInitializeError, settings: &Settings) -> Option<McpError> {
    let refused = match error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            return unauthorized(fallback, settings);
        }
        ClientInitializeError::TransportError { error, .. } => http::refusal(&*error.error, settings),
        _ => None,
    };
    refused
        .filter(|refused| matches!(refused, McpError::Unauthorized { .. }))
        .or_else(|| error.is_authorization_required().then(|| settings.unauthorized(None, None)))
}

struct Route {
    calls: RunningCalls,
    id: RequestId,
}

impl Drop for Route {
    fn drop(&mut self) {
        lock(&self.calls).retain(|call| call.id != self.id);
    }
}

/// Returns the text of a failed handshake, without the names of rmcp's own types.
pub(super) fn reason(error: &ClientInitializeError) -> String {
    let text = match error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => return reason(fallback),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".to_owned(),
        ClientInitializeError::JsonRpcError(error) => error.message.to_string(),
        ClientInitializeError::TransportError { error, .. } => crate::error_chain(&*error.error),
        ClientInitializeError::ExpectedInitResult(_) | ClientInitializeError::ExpectedInitResponse(_) => {
            "its answer to the handshake is invalid".to_owned()
        }
        other => other.to_string(),
    };
    clip(&text, LONGEST).into_owned()
}

/// Waits for a program's end for at most [`SOON`].
pub(super) async fn soon(end: impl Future<Output = String>) -> Option<String> {
    timeout(SOON, end).await.ok()
}

/// Subscribes to changes of the tool list again and again, and counts the changes. Changes between two subscriptions are
/// not reported, so each subscription counts as a change.
async fn subscribed(peer: &Peer<RoleClient>, changes: &watch::Sender<u64>) {
    let (mut recovery, since) = (Recovery::default(), Instant::now());
    while !peer.is_transport_closed() {
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        match peer.listen(filter).await {
            Ok(mut subscription) => {
                changes.send_modify(|count| *count += 1);
                while let Ok(Some(_)) = subscription.next().await {
                    changes.send_modify(|count| *count += 1);
                    recovery.worked();
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
        recovery.lost(since.elapsed(), false);
        let NextAttempt::After(delay) = recovery.next(since.elapsed()) else { return };
        sleep(delay).await;
    }
}
