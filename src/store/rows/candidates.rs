//! The choice of the conversations from which a query for a page of a filtered list is answered.

/// If at most this many conversations have a label of the filter, all of them are read, and those that match are
/// sorted. Otherwise, the conversations are read in the order of the list until the page is full.
pub(in crate::store) const SORTED: i64 = 5000;

/// If a filter has several labels, they are first counted up to this bound. Only if none of them is that rare, they are
/// counted up to the bound of the caller. So a frequent label costs little if another label is rare.
pub(in crate::store) const RARE: i64 = 250;

/// The number of conversations that are examined first in the order of the list. If they do not fill the page, the
/// candidates are chosen with [`MANY`].
pub(in crate::store) const WALKED: i64 = 5000;

/// If the first [`WALKED`] conversations of the list do not fill the page, and at most this many conversations have a
/// label of the filter, all conversations with this label are read. So a page is found soon, even if all conversations
/// with the label are old.
pub(in crate::store) const MANY: i64 = 50_000;

/// The conversations from which a query takes a page.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) enum Candidates<'f> {
    /// All conversations with this label, by its name and its value.
    Labelled(&'f str, &'f str),
    /// The conversations in the order of the list. If there is a bound, only the conversations up to it are examined.
    /// In SQLite, the bound is the time of the last update of a conversation. In PostgreSQL, it is a number of
    /// conversations.
    Listed(Option<i64>),
}
