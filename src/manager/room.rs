//! Waits until there is room for one more open session.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep};

use super::{
    Inner, ManagerError,
    opening::Claim,
    registry::{Errand, InLine},
};
use crate::actor::passed;

impl Inner {
    /// Waits until there is room for one more session, if the number of open sessions is limited.
    pub(super) async fn room(self: &Arc<Self>, claim: &Claim) -> Result<(), ManagerError> {
        let Some(line) = self.registry().take_place(&claim.id, claim.key) else {
            return Ok(());
        };
        tokio::select! {
            biased;
            // The shutdown is checked first, because the shutdown itself may free the place.
            () = self.shutting.cancelled() => return Err(ManagerError::ShutDown),
            () = self.wait_in_line(line) => {}
            error = self.stuck(claim) => return Err(error),
        }
        // From now on, the id can't be borrowed, because its opening has a place. If the id is already borrowed, wait
        // until it is returned.
        let loan = self.registry().loan(&claim.id);
        if let Some(loan) = loan {
            loan.cancelled().await;
        }
        Ok(())
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
    async fn stuck(&self, claim: &Claim) -> ManagerError {
        let Some(limit) = self.room_timeout else {
            return std::future::pending().await;
        };
        let begun = Instant::now();
        loop {
            sleep(limit.max(SHORTEST_ROOM_TIMEOUT)).await;
            let parents = self.registry().parents();
            if !parents.is_empty() {
                return ManagerError::NoRoom { id: claim.id.clone(), waited: begun.elapsed(), parents };
            }
        }
    }
}

/// The minimum interval between two checks for tools that hold places.
const SHORTEST_ROOM_TIMEOUT: Duration = Duration::from_millis(1);
