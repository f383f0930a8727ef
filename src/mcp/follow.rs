//! Replaces a session's tools when the server's list of tools changes.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{McpError, server::ServerConnection, tool::tools};
use crate::{
    Session,
    run::ErrorKind,
    session::WeakSession,
    sync::lock,
    tool::{Replay, Schema, Tool, ToolSet},
};

/// How long to wait after a change before the list is read, so that many changes in a row cause only one request for
/// the list.
const SETTLE: Duration = Duration::from_millis(200);

/// How long to wait after a failed attempt. The time doubles with each further failure, up to [`LONGEST_RETRY`].
const RETRY: Duration = Duration::from_secs(5);

const LONGEST_RETRY: Duration = Duration::from_mins(5);

/// The shortest time after which an expired list is read again, even if the server sets a shorter one.
const SHORTEST_TTL: Duration = Duration::from_secs(1);

pub(super) fn follow(server: &Arc<ServerConnection>, session: &Session) {
    let mut changes = server.changes();
    // The list may have changed since the session got its tools, so it counts as changed.
    changes.mark_changed();
    // The task holds neither the server nor the session while it waits.
    let (server, session) = (Arc::downgrade(server), session.downgrade());
    tokio::spawn(async move {
        tokio::select! {
            () = session.closed() => {}
            _ = adopt_changes(&server, &session, &mut changes) => {}
        }
    });
}

/// Applies changes until the server or the session is gone, and then returns `None`.
async fn adopt_changes(
    server: &Weak<ServerConnection>,
    session: &WeakSession,
    changes: &mut watch::Receiver<u64>,
) -> Option<()> {
    let (mut ttl, mut failures) = (None, 0);
    loop {
        match ttl {
            None => changes.changed().await.ok()?,
            Some(ttl) => {
                // If the server is lost, an expired list does not cause a reconnection. The next connection counts as a
                // change of the list, so the list is read then.
                if timeout(ttl, changes.changed()).await.is_err() && !server.upgrade()?.is_connected() {
                    changes.changed().await.ok()?;
                }
            }
        }
        sleep(SETTLE).await;
        let server = server.upgrade()?;
        changes.borrow_and_update();
        if server.is_over() {
            return None;
        }
        let listed = async {
            let listed = server.list().await?;
            Ok::<_, McpError>((listed.ttl, tools(&server, listed).await?.tools))
        };
        match listed.await {
            Ok((expiry, tools)) => {
                (ttl, failures) = (expiry.map(|ttl| ttl.max(SHORTEST_TTL)), 0);
                adopt(session, &server, tools.into()).await?;
            }
            Err(error) => {
                if failures == 0 {
                    let server = &server.settings.name;
                    tracing::warn!(server, %error, "a changed list of tools can't be read; it is tried again");
                }
                ttl = Some(RETRY.saturating_mul(1 << failures).min(LONGEST_RETRY));
                failures = (failures + 1).min(10);
            }
        }
    }
}

/// The tools that the server has offered and that are still in use, by their addresses in memory. While a tool is in the
/// map, no other tool can get its address.
type KnownTools = BTreeMap<usize, Arc<dyn Tool>>;

fn address(tool: &Arc<dyn Tool>) -> usize {
    Arc::as_ptr(tool).addr()
}

/// Replaces the tools as soon as the session is idle. Returns `None` if the session has ended or refuses the change.
async fn adopt(session: &WeakSession, server: &ServerConnection, tools: Arc<[Arc<dyn Tool>]>) -> Option<()> {
    loop {
        session.idle().await?;
        let session = session.upgrade()?;
        let offered = lock(&server.offered).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let known: KnownTools = offered.into_iter().map(|tool| (address(&tool), tool)).collect();
        let state = session.state().await.ok()?;
        let present = state.config().tools.iter().filter(|tool| known.contains_key(&address(tool)));
        if present.map(declared).eq(tools.iter().map(declared)) {
            return Some(());
        }
        let tools = Arc::clone(&tools);
        let adopted = session.configure(move |config| {
            config.tools = replaced(&config.tools, &known, &tools);
            Ok(())
        });
        match adopted.await {
            Ok(()) => return Some(()),
            // A prompt has started another run. Wait again until the session is idle.
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => {
                tracing::debug!(%error, "changed tools are not adopted");
                return None;
            }
        }
    }
}

/// Returns the parts of a tool by which `adopt` finds out whether a list has changed.
fn declared(tool: &Arc<dyn Tool>) -> (&str, Cow<'_, str>, &Schema, bool, Replay) {
    (tool.name(), tool.description(), tool.schema(), tool.requires_approval(), tool.replay())
}

/// Returns the set with `tools` in place of the known tools. The new tools are inserted where the first known tool was.
fn replaced(present: &ToolSet, known: &KnownTools, tools: &[Arc<dyn Tool>]) -> ToolSet {
    let place = present.iter().position(|tool| known.contains_key(&address(tool))).unwrap_or(present.len());
    let others = |tool: &&Arc<dyn Tool>| !known.contains_key(&address(tool));
    let before = present.iter().take(place).filter(others);
    let after = present.iter().skip(place).filter(others);
    let mut set = ToolSet::new();
    // If a new tool has the same name as a tool of the application, the set keeps the application's tool.
    let taken: BTreeSet<String> = present.iter().filter(others).map(|tool| tool.name().to_owned()).collect();
    let new = tools.iter().filter(|tool| !taken.contains(tool.name()));
    for tool in before.chain(new).chain(after) {
        if let Err(error) = set.insert(Arc::clone(tool)) {
            tracing::warn!(%error, "a tool of an MCP server is not adopted");
        }
    }
    set
}
