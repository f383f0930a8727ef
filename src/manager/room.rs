//! Waits until there is room for one more open session.
//!
//! An opening that waits for sessions with running tools fails after a time limit, because such a tool may wait for
//! this very opening.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::{
    Inner,
    opening::{Opening, shut_down},
    registry::{Errand, InLine},
};
use crate::{
    actor::passed,
    run::{Error, ErrorKind},
    store::ConversationId,
};

impl Inner {
    /// Waits until there is room for one more session, if the number of open sessions is limited.
    pub(super) async fn room(self: &Arc<Self>, opening: &Opening) -> Result<(), Error> {
        let Some(line) = self.registry().take_place(&opening.id, opening.number) else {
            return Ok(());
        };
        tokio::select! {
            biased;
            // The shutdown is checked first, because the shutdown itself may free the place.
            () = self.shutting.cancelled() => Err(shut_down()),
            () = self.wait_in_line(line) => Ok(()),
            error = self.stuck(&opening.id) => Err(error),
        }
    }

    /// Waits for a place. Meanwhile, asks sessions to sleep when it receives such errands.
    async fn wait_in_line(&self, line: InLine) {
        let InLine { number, mut errands } = line;
        let mut asking: Option<BoxFuture<'_, ()>> = None;
        loop {
            tokio::select! {
                biased;
                errand = errands.recv() => match errand {
                    Some(Errand::PutToSleep { key, session }) => {
                        asking = Some(Box::pin(async move {
                            // If `sleep` fails, the session has ended, which makes room too.
                            let ends = session.sleep().await.unwrap_or(true);
                            self.registry().answered(session.id(), key, number, ends);
                        }));
                    }
                    Some(Errand::Enter) | None => return,
                },
                () = passed(&mut asking) => asking = None,
            }
        }
    }

    /// Returns an error when an opening has waited too long and some places are held by sessions whose tools are
    /// running. These tools may be waiting for the opening.
    async fn stuck(&self, id: &ConversationId) -> Error {
        let Some(limit) = self.room_timeout else {
            return std::future::pending().await;
        };
        let begun = Instant::now();
        loop {
            sleep(limit.max(SHORTEST_ROOM_TIMEOUT)).await;
            let parents = self.registry().parents();
            if !parents.is_empty() {
                let waited = begun.elapsed();
                let list = parents.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let more = parents.len().saturating_sub(SHOWN);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let text = format!(
                    "there is no room to open conversation {id}: after {waited:?}, places are still held by sessions \
                     whose tools run: {list}{more}; raise `max_open`, or set a time limit for tools"
                );
                let error = Error::new(ErrorKind::NoRoom, text).with_member("conversation", id);
                return error.with_member("waited", waited).with_member("running", parents);
            }
        }
    }
}

/// The number of sessions that an error names.
const SHOWN: usize = 5;

/// The minimum interval between two checks for tools that hold places.
const SHORTEST_ROOM_TIMEOUT: Duration = Duration::from_millis(1);
