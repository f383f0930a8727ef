//! A server with the connection in use, which is made again when it was lost.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use rmcp::{
    model::{
        ClientRequest, Extensions, ListToolsRequest, ListToolsRequestMethod, PaginatedRequestParams,
        ServerResult, Tool as WireTool,
    },
    service::{PeerRequestOptions, ServiceError},
};
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::{Instant, sleep, timeout},
};

use super::{
    McpError,
    connection::{Connection, LONGEST},
    recovery::{NextAttempt, Recovery},
    settings::Settings,
};
use crate::text::clip;

/// The maximum number of pages of a tool list.
const MOST_PAGES: usize = 100;

/// The maximum number of tools.
const MOST_TOOLS: usize = 10_000;

pub(super) struct Server {
    settings: Settings,
    // Held while connecting, so that simultaneous calls make one connection.
    slot: AsyncMutex<Slot>,
    changes: watch::Sender<u64>,
    since: Instant,
    /// The names of all tools that were ever offered, to recognise them in a session.
    pub(super) offered: Mutex<BTreeSet<String>>,
}

#[derive(Default)]
struct Slot {
    connection: Option<Arc<Connection>>,
    recovery: Recovery,
    closed: bool,
}

/// The tools of a list, as the server sent them. A tool that can't be read is only named.
pub(super) type Listed = Vec<Result<WireTool, (String, String)>>;

impl Server {
    pub(super) async fn connect(settings: Settings) -> Result<Self, McpError> {
        let (changes, _) = watch::channel(0);
        // The handshake needs a large future.
        let connection = Box::pin(Connection::open(&settings, changes.clone())).await?;
        let slot = Slot { connection: Some(Arc::new(connection)), ..Slot::default() };
        let (slot, since) = (AsyncMutex::new(slot), Instant::now());
        Ok(Self { settings, slot, changes, since, offered: Mutex::default() })
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
        let mut slot = self.slot.lock().await;
        if slot.closed {
            return Err(self.lost("; the client was closed".to_owned()));
        }
        if let Some(connection) = &slot.connection {
            if !connection.is_lost() {
                return Ok(Arc::clone(connection));
            }
            self.forget(&mut slot);
        }
        match slot.recovery.next(self.since.elapsed()) {
            NextAttempt::Never => return Err(McpError::Down { server: self.settings.name.clone() }),
            NextAttempt::After(delay) => sleep(delay).await,
        }
        match Box::pin(Connection::open(&self.settings, self.changes.clone())).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                slot.connection = Some(Arc::clone(&connection));
                // The server may have other tools now.
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
    pub(super) async fn worked(&self) {
        self.slot.lock().await.recovery.worked();
    }

    /// Converts the error of a request. If the connection has ended, the next call makes another.
    pub(super) async fn failed(&self, connection: &Arc<Connection>, error: ServiceError) -> McpError {
        let server = self.settings.name.clone();
        let reason = match error {
            error if error.is_authorization_required() => return McpError::Unauthorized { server },
            ServiceError::McpError(error) => {
                let reason = self.settings.secrets.removed(clip(&error.message, LONGEST).into_owned());
                return McpError::Refused { server, reason };
            }
            ServiceError::TransportClosed => connection.ending().await,
            ServiceError::TransportSend(error) => {
                format!(": {}", clip(&crate::error_chain(&*error.error), LONGEST))
            }
            other => {
                return McpError::Refused { server, reason: clip(&other.to_string(), LONGEST).into_owned() };
            }
        };
        let mut slot = self.slot.lock().await;
        if slot.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            self.forget(&mut slot);
        }
        self.lost(self.settings.secrets.removed(reason))
    }

    fn lost(&self, reason: String) -> McpError {
        McpError::Lost { server: self.settings.name.clone(), reason }
    }

    /// Returns all pages of the tool list.
    pub(super) async fn list(&self) -> Result<Listed, McpError> {
        let limit = self.settings.connect_limit;
        let listed = timeout(limit, self.pages()).await;
        listed.unwrap_or_else(|_| Err(McpError::TimedOut { server: self.settings.name.clone(), limit }))
    }

    async fn pages(&self) -> Result<Listed, McpError> {
        let connection = self.connection().await?;
        let refused = |reason: &str| McpError::Refused {
            server: self.settings.name.clone(),
            reason: reason.to_owned(),
        };
        let mut listed = Listed::new();
        let mut cursor = None;
        for _ in 0..MOST_PAGES {
            let request = ListToolsRequest {
                method: ListToolsRequestMethod,
                params: Some(PaginatedRequestParams::default().with_cursor(cursor)),
                extensions: Extensions::default(),
            };
            let request = ClientRequest::ListToolsRequest(request);
            let options = PeerRequestOptions::no_options();
            let answer = match connection.peer().send_request_with_option(request, options).await {
                Ok(handle) => handle.await_response().await,
                Err(error) => Err(error),
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => return Err(self.failed(&connection, error).await),
            };
            cursor = match answer {
                ServerResult::ListToolsResult(page) => {
                    listed.extend(page.tools.into_iter().map(Ok));
                    page.next_cursor
                }
                // One tool that can't be read makes the whole page another kind of result.
                ServerResult::CustomResult(page) => {
                    let tools = page.0.get("tools").and_then(|tools| tools.as_array());
                    let tools = tools.ok_or_else(|| refused("its answer is not a list of tools"))?;
                    listed.extend(tools.iter().map(read));
                    page.0.get("nextCursor").and_then(|cursor| cursor.as_str()).map(str::to_owned)
                }
                _ => return Err(refused("its answer is not a list of tools")),
            };
            if listed.len() > MOST_TOOLS {
                return Err(refused("it has more than 10,000 tools"));
            }
            if cursor.is_none() {
                return Ok(listed);
            }
        }
        Err(refused("its list of tools has more than 100 pages"))
    }

    /// Closes the connection for good, and waits until a program has ended.
    pub(super) async fn close(&self) {
        let connection = {
            let mut slot = self.slot.lock().await;
            slot.closed = true;
            slot.connection.take()
        };
        if let Some(connection) = connection {
            connection.close().await;
        }
    }

    /// Returns the protocol version in use, if there is a connection.
    pub(super) async fn version(&self) -> Option<String> {
        self.slot.lock().await.connection.as_ref().and_then(|connection| connection.version())
    }
}

fn read(tool: &serde_json::Value) -> Result<WireTool, (String, String)> {
    let name = || tool.get("name").and_then(|name| name.as_str()).unwrap_or_default();
    serde_json::from_value(tool.clone()).map_err(|error| (name().to_owned(), error.to_string()))
}
