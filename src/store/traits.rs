use std::time::Duration;

#[cfg(doc)]
use super::{Change, Commit, Store, Stored};
use crate::setters::setters;

/// The optional parts that a store supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a part that a store may lack")]
#[non_exhaustive]
pub struct StoreTraits {
    /// Whether the store keeps a usage ledger, which consists of the rows in [`Commit::usage`]. If it does not,
    /// sessions send no rows.
    pub usage: bool,
    /// Whether the store supports [`Change::Erase`].
    pub erase: bool,
    /// Whether the store keeps records of turns in flight ([`Commit::with_turn`]), which it returns as
    /// [`Stored::turn`]. If it does not, sessions write no records.
    ///
    /// A store that keeps records must have [leases](Store::acquire), or be used by one process at a time. Otherwise
    /// two processes would continue the same turn.
    pub turns: bool,
    /// Whether the store keeps schedules ([`Change::Schedule`]). A store that keeps them must have
    /// [leases](Store::acquire), or be used by one process at a time. Otherwise two processes would send the same prompt.
    pub schedules: bool,
    /// Whether the store supports [searches](Store::search), if its indexes were created.
    pub search: bool,
    /// Whether lists can be filtered by labels.
    pub labels: bool,
    /// The duration of a lease without renewal. `None` if the store relies on versions alone. Managers choose the
    /// interval of their [sweep](crate::manager::Sweep) by it.
    pub lease: Option<Duration>,
}

setters!(StoreTraits: with_usage(usage: bool), with_erase(erase: bool), with_turns(turns: bool),
    with_schedules(schedules: bool),
    with_search(search: bool), with_labels(labels: bool), with_lease(lease: some Duration));
