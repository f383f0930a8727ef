//! Deliberate faults of the environment. The simulator must detect each of them.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Effects do not wait for their records.
    GatesRemoved,
    /// A record stays although its turn has ended.
    RecordKept,
    /// A record's number of kept messages is ignored.
    KeepIgnored,
    /// A record does not replace the record of an earlier turn.
    OlderTurnKept,
    /// A repeated call has another idempotency key.
    KeyChanged,
    /// Replies do not wait for their records.
    RepliesEarly,
    /// The replies to the owner of the history wait for their records.
    OwnerHeld,
    /// The end of a run has no prompts.
    OutcomesLost,
    /// A record lacks the results of tools.
    ResultMissing,
    /// A recorded pause is restored as one that was reported.
    PauseReported,
}

impl Fault {
    pub(crate) const ALL: [Self; 10] = [
        Self::GatesRemoved,
        Self::RecordKept,
        Self::KeepIgnored,
        Self::OlderTurnKept,
        Self::KeyChanged,
        Self::RepliesEarly,
        Self::OwnerHeld,
        Self::OutcomesLost,
        Self::ResultMissing,
        Self::PauseReported,
    ];
}
