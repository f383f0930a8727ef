//! A server and its current connection. If the connection is lost, the next request makes a new one.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use rmcp::{
    model::{
        ClientRequest, Extensions, ListToolsRequest, ListToolsRequestMethod, PaginatedRequestParams,
        ServerResult,
    },
    service::{PeerRequestOptions, ServiceError},
};
use serde_json::Value;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    McpError,
    builder::McpSettings,
    call::{CancelOnDrop, McpCancelTarget},
    connection::{LONGEST, LONGEST_MESSAGE, McpConnection},
    http,
};
use crate::{sync::lock, text::clip, tool::Tool};

/// The maximum number of pages of a tool list.
const MOST_PAGES: usize = 100;

/// The maximum number of tools.
const MOST_TOOLS: usize = 10_000;

pub(super) struct ServerConnection {
    pub(super) settings: Arc<McpSettings>,
    slot: Mutex<ConnectionSlot>,
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
struct ConnectionSlot {
    connection: Option<Arc<McpConnection>>,
    plan: ReconnectPlan,
}

/// A list of tools.
#[derive(Default)]
pub(super) struct ListedTools {
    /// The tools as the server sent them.
    pub(super) tools: Vec<Value>,
    /// How long the list is valid, if the server limits this.
    pub(super) ttl: Option<Duration>,
    /// The size of the tools as JSON in bytes.
    size: usize,
}

impl ServerConnection {
    pub(super) async fn connect(settings: McpSettings) -> Result<Self, McpError> {
        let (changes, _) = watch::channel(0);
        let settings = Arc::new(settings);
        let connection = opened(&settings, &changes).await?;
        let slot = ConnectionSlot { connection: Some(Arc::new(connection)), ..ConnectionSlot::default() };
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

    /// Returns a receiver of changes of the tool list.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the connection. If it was lost, waits for the delay and connects again.
    pub(super) async fn connection(&self) -> Result<Arc<McpConnection>, McpError> {
        let connected = self.closed.run_until_cancelled(self.connected()).await;
        connected.unwrap_or_else(|| Err(self.was_closed()))
    }

    async fn connected(&self) -> Result<Arc<McpConnection>, McpError> {
        let _connecting = self.connecting.lock().await;
        let next = {
            let mut slot = lock(&self.slot);
            if let Some(connection) = &slot.connection {
                if !connection.is_lost() {
                    return Ok(Arc::clone(connection));
                }
                self.forget(&mut slot);
            }
            slot.plan.next(self.since.elapsed())
        };
        sleep(next.ok_or_else(|| McpError::Down { server: self.settings.name.clone() })?).await;
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
                self.forget(&mut slot);
                Err(error)
            }
        }
    }

    /// Records that the connection was lost or could not be made.
    fn forget(&self, slot: &mut ConnectionSlot) {
        slot.connection = None;
        slot.plan.lost(self.since.elapsed(), self.settings.is_program());
    }

    /// Records that a call was answered.
    pub(super) fn worked(&self) {
        lock(&self.slot).plan.worked();
    }

    /// Returns the answer to a request, or converts its error. If the connection has ended, the next call opens another
    /// connection.
    pub(super) async fn answered<T>(
        &self,
        connection: &Arc<McpConnection>,
        answer: Result<T, ServiceError>,
    ) -> Result<T, McpError> {
        let settings = &self.settings;
        let failure = match answer {
            Ok(answer) => return Ok(answer),
            Err(ServiceError::McpError(error)) => return Err(settings.refused(&error.message)),
            Err(ServiceError::TransportClosed) => settings.lost(connection.ending().await),
            Err(ServiceError::TransportSend(error)) => match http::refusal(&error, settings) {
                Some(refused @ McpError::Refused { .. }) => return Err(refused),
                // After another login, the tokens belong to another client id, which only a new connection uses.
                Some(unauthorized) => unauthorized,
                None => settings.lost(format!(": {}", clip(&crate::error_chain(&*error.error), LONGEST))),
            },
            Err(other) => return Err(settings.refused(&other.to_string())),
        };
        let mut slot = lock(&self.slot);
        if slot.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            self.forget(&mut slot);
        }
        Err(failure)
    }

    fn was_closed(&self) -> McpError {
        self.settings.lost("; the client was closed".to_owned())
    }

    /// Returns all pages of the tool list. A server that does not declare tools and refuses the request has none.
    pub(super) async fn list(&self) -> Result<ListedTools, McpError> {
        let limit = self.settings.connect_limit;
        timeout(limit, self.pages()).await.unwrap_or_else(|_| Err(self.settings.timed_out(limit)))
    }

    async fn pages(&self) -> Result<ListedTools, McpError> {
        let connection = self.connection().await?;
        let declares_none =
            connection.peer().peer_info().is_some_and(|info| info.capabilities.tools.is_none());
        let refused = |reason| Err(self.settings.refused(reason));
        let mut listed = ListedTools::default();
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
            let answer = async {
                let handle = connection.peer().send_request_with_option(request, options).await?;
                let guard = CancelOnDrop::new(&connection, McpCancelTarget::Request(handle.id.clone()));
                let answer = handle.await_response().await;
                guard.disarm();
                answer
            };
            let answer = answer.await;
            // Some servers have tools and declare none.
            if declares_none && matches!(answer, Err(ServiceError::McpError(_))) {
                return Ok(listed);
            }
            let mut page = match self.answered(&connection, answer).await? {
                ServerResult::ListToolsResult(page) => serde_json::to_value(page).unwrap_or_default(),
                // If rmcp can't read one of the tools, it returns the whole page as a custom result.
                ServerResult::CustomResult(page) => page.0,
                _ => Value::Null,
            };
            let mut tools = match page.get_mut("tools").map(Value::take) {
                Some(Value::Array(tools)) => tools,
                // Go writes an empty list as null.
                Some(Value::Null) => Vec::new(),
                _ => return refused("its answer is not a list of tools"),
            };
            cursor = page["nextCursor"].as_str().map(str::to_owned);
            // A cursor that repeats would lead to the same pages again, and this page may be one of them.
            let is_last = cursor.as_ref().is_none_or(|cursor| !seen.insert(cursor.clone()));
            listed.size += serde_json::to_vec(&tools).map_or(0, |tools| tools.len());
            if is_last && cursor.is_some() {
                let known: BTreeSet<_> = listed.tools.iter().map(|tool| tool["name"].as_str()).collect();
                tools.retain(|tool| !known.contains(&tool["name"].as_str()));
            }
            listed.tools.extend(tools);
            // A limit of zero only forbids caching the list. It does not ask the client to read the list again.
            if let Some(milliseconds @ 1..) = page["ttlMs"].as_u64() {
                let ttl = Duration::from_millis(milliseconds);
                listed.ttl = Some(listed.ttl.map_or(ttl, |other| other.min(ttl)));
            }
            if listed.tools.len() > MOST_TOOLS {
                return refused("it has more than 10,000 tools");
            }
            if listed.size > LONGEST_MESSAGE {
                return refused("its list of tools exceeded the maximum size of 16777216 bytes");
            }
            if is_last {
                return Ok(listed);
            }
        }
        refused("its list of tools has more than 100 pages")
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
        self.closed.is_cancelled() || lock(&self.slot).plan.next(Duration::ZERO).is_none()
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
async fn opened(
    settings: &Arc<McpSettings>,
    changes: &watch::Sender<u64>,
) -> Result<McpConnection, McpError> {
    let (owned, changes) = (Arc::clone(settings), changes.clone());
    // If the caller's future is dropped, the set is dropped too, which ends the task.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { McpConnection::open(&owned, changes).await });
    let joined = tasks.join_next().await.expect("the set has one task");
    result(joined, settings)?
}

/// Returns the result of a task. If the task panicked, continues the panic.
pub(super) fn result<T>(joined: Result<T, JoinError>, settings: &McpSettings) -> Result<T, McpError> {
    joined.map_err(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => settings.unreachable("the runtime shuts down".to_owned()),
    })
}

// Decides when the client connects again to a lost server. The caller supplies the time.

/// The delay after the first failure. It doubles with each further failure.
const FIRST: Duration = Duration::from_millis(500);

/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// A program that ends this many times within [`WINDOW`] is not started again.
const EXITS: usize = 3;

const WINDOW: Duration = Duration::from_mins(1);

/// The lost connections of one server. All times are durations since the same moment.
#[derive(Debug, Default)]
pub(super) struct ReconnectPlan {
    failures: u32,
    not_before: Duration,
    exits: VecDeque<Duration>,
    down: bool,
}

impl ReconnectPlan {
    /// Records that a connection was lost or could not be made.
    pub(super) fn lost(&mut self, now: Duration, is_program: bool) {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(10));
        self.failures += 1;
        self.not_before = now + doubled.min(LONGEST_DELAY);
        if is_program {
            self.exits.push_back(now);
            while self.exits.front().is_some_and(|first| now.saturating_sub(*first) > WINDOW) {
                self.exits.pop_front();
            }
            self.down |= self.exits.len() >= EXITS;
        }
    }

    /// Records that a call was answered, so the next loss starts with the shortest delay.
    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay before the next attempt, which may be zero. Returns `None` if the program ended too often and
    /// stays down.
    pub(super) fn next(&self, now: Duration) -> Option<Duration> {
        (!self.down).then(|| self.not_before.saturating_sub(now))
    }
}

#[cfg(test)]
mod recovery_tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lost_delays_double_up_to_the_longest_and_start_again_after_success() {
        let mut plan = ReconnectPlan::default();
        assert_eq!(plan.next(at(0)), Some(Duration::ZERO));
        let mut delays = Vec::new();
        for _ in 0..8 {
            plan.lost(at(0), false);
            delays.push(plan.next(at(0)).unwrap().as_millis());
        }
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        assert_eq!(plan.next(at(40)), Some(Duration::ZERO));
        plan.worked();
        plan.lost(at(50), false);
        assert_eq!(plan.next(at(50)), Some(FIRST));
    }

    #[test]
    fn lost_program_that_ends_three_times_in_a_minute_stays_down() {
        let mut plan = ReconnectPlan::default();
        for second in [0, 50, 100] {
            plan.lost(at(second), true);
        }
        assert_ne!(plan.next(at(200)), None);
        plan.lost(at(105), true);
        assert_eq!(plan.next(at(1000)), None);
    }
}
