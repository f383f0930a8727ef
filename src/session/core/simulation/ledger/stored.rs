//! Compares the content of the store with everything that had to be stored.

use std::sync::Arc;

use super::{
    super::{
        Check, ensure,
        vault::{Content, Vault, content, same_but_title},
    },
    Ledger,
};
use crate::{
    message::{Message, Role},
    store::TitleBy,
    tree::Node,
};

impl Ledger {
    /// Returns the latest moment whose content is in the store, if there is one. There is none while the store contains
    /// only the new conversation, because a conversation is created without its tree.
    pub(super) fn moment_of(&self, vault: &Vault) -> Check<Option<usize>> {
        let Some(stored) = &vault.stored else {
            return Ok(None);
        };
        let content = content(stored)?;
        Ok(self.moments.iter().rposition(|moment| is_as(moment, &content, vault)))
    }

    /// Checks that the session wanted to store exactly this content at some moment, and that the session can continue
    /// from this content.
    pub(in crate::session::core::simulation) fn check_stored(&self, vault: &Vault) -> Check {
        let Some(stored) = vault.stored.as_ref().filter(|_| !vault.is_foreign) else {
            return Ok(());
        };
        let stored = content(stored)?;
        let tree = &stored.0;
        let with_tree = |once: &Content| (tree.clone(), once.1.clone(), stored.2.clone());
        let created =
            tree.is_empty() && self.moments.iter().any(|once| is_as(&with_tree(once), &stored, vault));
        let mut states = self.moments.iter().chain(&self.acked_content);
        let is_part = self.is_part(tree) && states.any(|once| is_as(&with_tree(once), &stored, vault));
        let begun_with = self.acked_content.as_ref().is_some_and(|begun| is_as(begun, &stored, vault));
        // A state that becomes due after an erasure is written later than the erasure. Until then, the store has the
        // tree after the erasure and the previous state.
        let known_state = self.acked_content.as_ref().is_some_and(|once| {
            let mut kept = with_tree(once);
            let stays = *tree == once.0 || kept.1.title_by == TitleBy::Person;
            kept.1.title.take_if(|_| !stays);
            is_as(&kept, &stored, vault)
        });
        let is_erased = known_state && self.moments.iter().any(|once| once.0 == *tree);
        let known =
            created || is_erased || begun_with || is_part && self.divided || self.moment_of(vault)?.is_some();
        ensure!(known, "the session never wanted to store this tree:\n{tree}");
        let own = |message: &&Arc<Message>| message.compaction.is_none();
        let end = tree.iter().rev().map(Node::message).find(own);
        let bare = end.is_some_and(|end| end.role == Role::User && end.tool_results().next().is_none());
        ensure!(!bare, "the stored path ends at a prompt without a response:\n{tree}");
        Ok(())
    }

    /// Checks that everything is stored at the end of the schedule, when the store works again.
    pub(in crate::session::core::simulation) fn check_end(&self, vault: &Vault) -> Check {
        if self.lost || !self.touched {
            return Ok(());
        }
        ensure!(self.tickets.is_empty(), "a caller still waits");
        ensure!(self.open.is_none(), "a write is still in flight");
        let knows_title = vault.stored.as_ref().map(|stored| stored.version)
            == self.acked.as_ref().map(|acked| acked.version);
        let stored = vault.stored.as_ref().map(content).transpose()?;
        let is_there = stored.as_ref().is_some_and(|stored| {
            if knows_title { stored == self.now() } else { is_as(self.now(), stored, vault) }
        });
        ensure!(vault.is_foreign || is_there, "{stored:?}, not {:?}", self.now());
        Ok(())
    }
}

/// Returns whether the stored content is the content of this moment. If another writer has changed the title or the
/// labels, both and the usage ledger are ignored.
fn is_as(moment: &Content, stored: &Content, vault: &Vault) -> bool {
    if vault.is_retitled { same_but_title(moment, stored) } else { moment == stored }
}
