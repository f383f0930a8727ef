//! A server and its current connection. If the connection is lost, the next request makes a new one.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use rmcp::{
    model::{
        ClientRequest, Extensions, ListToolsRequest, ListToolsRequestMethod, PaginatedRequestParams,
        ServerResult, Tool as WireTool,
    },
    service::{PeerRequestOptions, ServiceError},
};
use serde::Serialize;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    McpError,
    call::CancelOnDrop,
    connection::{Connection, LONGEST},
    http,
    program::LONGEST_MESSAGE,
    recovery::{NextAttempt, Recovery},
    settings::Settings,
};
use crate::{sync::lock, text::clip, tool::Tool};

/// The maximum number of pages of a tool list.
const MOST_PAGES: usize = 100;

/// The maximum number of tools.
const MOST_TOOLS: usize = 10_000;

pub(super) struct Server {
    settings: Arc<Settings>,
    slot: Mutex<Slot>,
    // Held while connecting, so that simultaneous calls make one connection.
    connecting: AsyncMutex<()>,
    /// Cancelled when the client is closed.
    closed: CancellationToken,
    changes: watch::Sender<u64>,
    since: Instant,
    /// The tools that were created for this server. They identify the server's tools in a session.
    pub(super) offered: Mutex<Vec<Weak<dyn Tool>>>,
}

#[derive(Default)]
struct Slot {
    connection: Option<Arc<Connection>>,
    recovery: Recovery,
}

/// A list of tools.
#[derive(Default)]
pub(super) struct Listed {
    /// The tools as the server sent them. A tool that can't be read is an error with the tool's name and the reason.
    pub(super) tools: Vec<Result<WireTool, (String, String)>>,
    /// How long the list is valid, if the server limits this.
    pub(super) ttl: Option<Duration>,
    /// The size of the tools as JSON in bytes.
    size: usize,
}

impl Listed {
    fn limit_ttl(&mut self, milliseconds: Option<u64>) {
        // A limit of zero only forbids caching the list. It does not ask the client to read the list again.
        if let Some(milliseconds @ 1..) = milliseconds {
            let ttl = Duration::from_millis(milliseconds);
            self.ttl = Some(self.ttl.map_or(ttl, |other| other.min(ttl)));
        }
    }
}

impl Server {
    pub(super) async fn connect(settings: Settings) -> Result<Self, McpError> {
        let (changes, _) = watch::channel(0);
        let settings = Arc::new(settings);
        let connection = opened(&settings, &changes).await?;
        let slot = Slot { connection: Some(Arc::new(connection)), ..Slot::default() };
        Ok(Self {
            settings,
            slot: Mutex::new(slot),
            connecting: AsyncMutex::default(),
            closed: CancellationToken::new(),
            changes,
            since: Instant::now(),
            offered: Mutex::default(),
        })
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns a receiver of changes of the tool list.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the connection. If it was lost, waits for the delay and connects again.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, McpError> {
        let connected = self.closed.run_until_cancelled(self.connected()).await;
        connected.unwrap_or_else(|| Err(self.was_closed()))
    }

    async fn connected(&self) -> Result<Arc<Connection>, McpError> {
        let _connecting = self.connecting.lock().await;
        let next = {
            let mut slot = lock(&self.slot);
            if let Some(connection) = &slot.connection {
                if !connection.is_lost() {
                    return Ok(Arc::clone(connection));
                }
                self.forget(&mut slot);
            }
            slot.recovery.next(self.since.elapsed())
        };
        match next {
            NextAttempt::Never => return Err(McpError::Down { server: self.settings.name.clone() }),
            NextAttempt::After(delay) => sleep(delay).await,
        }
        let opened = opened(&self.settings, &self.changes).await;
        let mut slot = lock(&self.slot);
        match opened {
            // `close` cancels the token before it takes the connection out of the slot.
            Ok(_) if self.closed.is_cancelled() => Err(self.was_closed()),
            Ok(connection) => {
                let connection = Arc::new(connection);
                slot.connection = Some(Arc::clone(&connection));
                // After a reconnection, the server may offer other tools, so the tool list counts as changed.
                self.changes.send_modify(|count| *count += 1);
                Ok(connection)
            }
            Err(error) => {
                let is_program = matches!(self.settings.transport, super::settings::Transport::Program(_));
                slot.recovery.lost(self.since.elapsed(), is_program);
                Err(error)
            }
        }
    }

    fn forget(&self, slot: &mut Slot) {
        if let Some(connection) = slot.connection.take() {
            slot.recovery.lost(self.since.elapsed(), connection.is_program());
        }
    }

    /// Records that a call was answered.
    pub(super) fn worked(&self) {
        lock(&self.slot).recovery.worked();
    }

    /// Converts the error of a request. If the connection has ended, the next call opens another connection.
    pub(super) async fn failed(&self, connection: &Arc<Connection>, error: ServiceError) -> McpError {
        let is_unauthorized = error.is_authorization_required();
        let failure = match error {
            ServiceError::McpError(error) => return self.refused(&error.message),
            ServiceError::TransportClosed => self.lost(connection.ending().await),
            ServiceError::TransportSend(error) => match http::refusal(&*error.error, &self.settings) {
                Some(refused @ McpError::Refused { .. }) => return refused,
                // After another login, the tokens belong to another client id, which only a new connection uses.
                Some(unauthorized) => unauthorized,
                None if is_unauthorized => self.settings.unauthorized(None, None),
                None => self.lost(format!(": {}", clip(&crate::error_chain(&*error.error), LONGEST))),
            },
            other => return self.refused(&other.to_string()),
        };
        let mut slot = lock(&self.slot);
        if slot.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            self.forget(&mut slot);
        }
        failure
    }

    /// Returns the error for an answer that is invalid or refuses the request.
    pub(super) fn refused(&self, reason: &str) -> McpError {
        self.settings.refused(reason)
    }

    fn was_closed(&self) -> McpError {
        self.lost("; the client was closed".to_owned())
    }

    fn lost(&self, reason: String) -> McpError {
        McpError::Lost { server: self.settings.name.clone(), reason: self.settings.secrets.removed(reason) }
    }

    /// Returns all pages of the tool list.
    pub(super) async fn list(&self) -> Result<Listed, McpError> {
        let limit = self.settings.connect_limit;
        let listed = timeout(limit, self.pages()).await;
        listed.unwrap_or_else(|_| Err(McpError::TimedOut { server: self.settings.name.clone(), limit }))
    }

    async fn pages(&self) -> Result<Listed, McpError> {
        let connection = self.connection().await?;
        let mut listed = Listed::default();
        let mut cursor: Option<String> = None;
        let mut seen = BTreeSet::new();
        for _ in 0..MOST_PAGES {
            let request = ListToolsRequest {
                method: ListToolsRequestMethod,
                params: Some(PaginatedRequestParams::default().with_cursor(cursor)),
                extensions: Extensions::default(),
            };
            let request = ClientRequest::ListToolsRequest(request);
            let options = PeerRequestOptions::no_options();
            let answer = match connection.peer().send_request_with_option(request, options).await {
                Ok(handle) => {
                    let guard = CancelOnDrop::new(&connection, &handle);
                    let answer = handle.await_response().await;
                    guard.disarm();
                    answer
                }
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => return Err(self.failed(&connection, error).await),
            };
            cursor = match answer {
                ServerResult::ListToolsResult(page) => {
                    listed.size += size(&page.tools);
                    listed.limit_ttl(page.ttl_ms);
                    listed.tools.extend(page.tools.into_iter().map(Ok));
                    page.next_cursor
                }
                // If rmcp can't read one of the tools, it returns the whole page as a custom result.
                ServerResult::CustomResult(page) => {
                    let tools = page.0.get("tools").and_then(|tools| tools.as_array());
                    let tools = tools.ok_or_else(|| self.refused("its answer is not a list of tools"))?;
                    listed.size += size(tools);
                    listed.limit_ttl(page.0.get("ttlMs").and_then(serde_json::Value::as_u64));
                    listed.tools.extend(tools.iter().map(read));
                    page.0.get("nextCursor").and_then(|cursor| cursor.as_str()).map(str::to_owned)
                }
                _ => return Err(self.refused("its answer is not a list of tools")),
            };
            if listed.tools.len() > MOST_TOOLS {
                return Err(self.refused("it has more than 10,000 tools"));
            }
            if listed.size > LONGEST_MESSAGE {
                let reason = "its list of tools exceeded the maximum size of 16777216 bytes";
                return Err(self.refused(reason));
            }
            // A cursor that repeats would lead to the same pages again.
            if cursor.as_ref().is_none_or(|cursor| !seen.insert(cursor.clone())) {
                return Ok(listed);
            }
        }
        Err(self.refused("its list of tools has more than 100 pages"))
    }

    /// Closes the connection for good. If the server is a program, waits until it has ended. An attempt to connect is
    /// abandoned.
    pub(super) async fn close(&self) {
        self.closed.cancel();
        let connection = lock(&self.slot).connection.take();
        // Wake the tasks that wait for changes of the tool list, so that they see that the client is closed.
        self.changes.send_modify(|count| *count += 1);
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    /// Returns whether there will never be a connection again.
    pub(super) fn is_over(&self) -> bool {
        self.closed.is_cancelled() || lock(&self.slot).recovery.next(Duration::ZERO) == NextAttempt::Never
    }

    /// Returns whether there is a connection, without making one.
    pub(super) fn is_connected(&self) -> bool {
        lock(&self.slot).connection.as_ref().is_some_and(|connection| !connection.is_lost())
    }

    /// Returns the protocol version in use, if there is a connection.
    pub(super) fn version(&self) -> Option<String> {
        lock(&self.slot).connection.as_ref().and_then(|connection| connection.version())
    }
}

/// Connects in a task without a span. The tasks of the connection live longer than the caller, whose span would
/// otherwise stay open with them.
async fn opened(settings: &Arc<Settings>, changes: &watch::Sender<u64>) -> Result<Connection, McpError> {
    let (owned, changes) = (Arc::clone(settings), changes.clone());
    // If the caller's future is dropped, the set is dropped too, which ends the task.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { Connection::open(&owned, changes).await });
    let joined = tasks.join_next().await.expect("the set has one task");
    result(joined, settings)?
}

/// Returns the result of a task. If the task panicked, continues the panic.
pub(super) fn result<T>(joined: Result<T, JoinError>, settings: &Settings) -> Result<T, McpError> {
    joined.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => settings.unreachable("the runtime shuts down".to_owned()),
    })
}

/// Returns the size of tools as JSON in bytes.
fn size(tools: &impl Serialize) -> usize {
    serde_json::to_vec(tools).map_or(0, |tools| tools.len())
}

fn read(tool: &serde_json::Value) -> Result<WireTool, (String, String)> {
    let name = || tool.get("name").and_then(|name| name.as_str()).unwrap_or_default();
    serde_json::from_value(tool.clone()).map_err(|error| (name().to_owned(), error.to_string()))
}
