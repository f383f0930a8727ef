//! Adopts changed lists of tools.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{McpClient, server::Server};
use crate::{
    Session,
    sync::lock,
    tool::{Tool, ToolSet},
};

/// How long to wait after a change before the list is read, so that many changes in a row cost one list.
const SETTLE: Duration = Duration::from_millis(200);

/// How long to wait after a failed attempt.
const RETRY: Duration = Duration::from_secs(5);

pub(super) fn follow(server: &Arc<Server>, session: &Session) {
    let mut changes = server.changes();
    // The task holds neither the server nor the session while it waits.
    let (server, session) = (Arc::downgrade(server), session.downgrade());
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            loop {
                sleep(SETTLE).await;
                let Some(server) = server.upgrade() else { return };
                changes.borrow_and_update();
                let listed = McpClient(Arc::clone(&server)).tools().await;
                match listed {
                    Ok(listed) => {
                        let Some(session) = session.upgrade() else { return };
                        let known = lock(&server.offered).clone();
                        if adopt(&session, &known, listed.tools.into()).await.is_none() {
                            return;
                        }
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a changed list of tools can't be read; it is tried again");
                        drop(server);
                        sleep(RETRY).await;
                    }
                }
            }
        }
    });
}

/// Replaces the tools as soon as the session is idle. Returns `None` if the session has ended.
async fn adopt(session: &Session, known: &BTreeSet<String>, tools: Arc<[Arc<dyn Tool>]>) -> Option<()> {
    loop {
        session.wait_until_idle().await.ok()?;
        let (known, tools) = (known.clone(), Arc::clone(&tools));
        let adopted = session.configure(move |config| {
            config.tools = replaced(&config.tools, &known, &tools);
            Ok(())
        });
        match adopted.await {
            Ok(()) => return Some(()),
            // A prompt was faster.
            Err(error) if error.is_busy() => {}
            Err(error) => {
                tracing::debug!(%error, "changed tools are not adopted");
                return None;
            }
        }
    }
}

/// Returns the set with the known tools replaced, at the place of the first of them.
fn replaced(present: &ToolSet, known: &BTreeSet<String>, tools: &[Arc<dyn Tool>]) -> ToolSet {
    let place = present.iter().position(|tool| known.contains(tool.name())).unwrap_or(present.len());
    let others = |tool: &&Arc<dyn Tool>| !known.contains(tool.name());
    let before = present.iter().take(place).filter(others);
    let after = present.iter().skip(place).filter(others);
    let mut set = ToolSet::new();
    // Tools of the application come first if the names are equal.
    let taken: BTreeSet<String> = present.iter().filter(others).map(|tool| tool.name().to_owned()).collect();
    let new = tools.iter().filter(|tool| !taken.contains(tool.name()));
    for tool in before.chain(new).chain(after) {
        if let Err(error) = set.insert(Arc::clone(tool)) {
            tracing::warn!(%error, "a tool of an MCP server is not adopted");
        }
    }
    set
}
