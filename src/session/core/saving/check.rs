//! The invariants of saving.

use super::SaveTracker;
use crate::tree::Tree;

impl SaveTracker {
    pub(in crate::session::core) fn check(&self, stable: &Tree) -> Result<(), String> {
        let of_stored = self.stored.as_ref().map(|stored| stable.changes_since(stored));
        if let Some(None) = of_stored {
            return Err("the tree to store does not extend the stored tree".into());
        }
        if let (Some(attempt), Some(stored)) = (&self.attempt, &self.stored)
            && self.version.is_some()
            && attempt.tree.changes_since(stored).is_none()
        {
            return Err("the write in flight does not build on the stored tree".into());
        }
        if self.safe > self.wanted {
            return Err("more changes are saved than were made".into());
        }
        if self.safe < self.wanted && self.attempt.is_none() && self.loss.is_none() {
            return Err("changes are unsaved, and no write is due".into());
        }
        let nodes = self.stored.as_ref().map_or(0, |stored| stable.len() - stored.len());
        if (nodes == 0) != (self.unsaved == 0) {
            return Err(format!("{nodes} nodes are unsaved, with {} bytes", self.unsaved));
        }
        let bytes: usize = self.portions.iter().map(|portion| portion.bytes).sum();
        if bytes != self.unsaved {
            return Err(format!("{} bytes are unsaved, and {bytes} in portions", self.unsaved));
        }
        if let Some(last) = self.portions.back()
            && (last.head, last.nodes) != (stable.head(), stable.len())
        {
            return Err("the portions do not lead to the tree".into());
        }
        if self.attempt.as_ref().is_some_and(|attempt| attempt.portions > self.portions.len()) {
            return Err("the write in flight has portions that are not unsaved".into());
        }
        Ok(())
    }
}
