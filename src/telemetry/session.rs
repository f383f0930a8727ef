//! The spans of the work that a session and its manager do after turns: writes and titles. A write may contain the turns
//! of several runs, and a title is generated while the run continues. Therefore, these spans have no parent. They have
//! links to the runs instead.

use tracing::{Id, Level, Span};

use super::{Caller, TARGET, end_now, names};

/// The spans of a session's writes.
#[derive(Default)]
pub(crate) struct SaveTraces {
    /// The span of the next write. It is opened when the first of its turns is committed, and not when the write
    /// begins. Because the link to a run is recorded at once, the run's span can close before a slow store has saved
    /// the run.
    next: Option<Span>,
    /// The run to which `next` got its last link.
    linked: Option<Id>,
    /// The span of the write in flight and its repetitions.
    current: Option<Span>,
}

impl SaveTraces {
    /// Links the next write to the run whose turn it will save.
    pub(crate) fn committed(&mut self, run: &Caller, conversation: &str) {
        let Some(run) = run.id() else { return };
        let next = self.next.get_or_insert_with(|| {
            self.linked = None;
            tracing::span!(
                target: TARGET,
                parent: None,
                Level::INFO,
                "save",
                otel.name = "save",
                otel.kind = "internal",
                { names::CONVERSATION } = conversation,
            )
        });
        // A run can commit several turns, but the write needs only one link to the run.
        if self.linked.as_ref() != Some(&run) {
            next.follows_from(&run);
            self.linked = Some(run);
        }
    }

    /// Returns the span of a write of turns that now begins or is repeated.
    pub(crate) fn begin(&mut self) -> Option<&Span> {
        self.current = self.current.take().or_else(|| self.next.take());
        self.current.as_ref()
    }

    /// Closes the span of the write that succeeded.
    pub(crate) fn saved(&mut self) {
        self.current = None;
    }
}

impl Drop for SaveTraces {
    /// Ends the span of a write that is given up while it waits for its repetition.
    fn drop(&mut self) {
        self.current.iter().for_each(end_now);
    }
}

/// Opens the span of a generated title, with a link to the run whose turn caused the title.
pub(crate) fn title(run: &Caller, conversation: &str) -> Span {
    let span = tracing::span!(
        target: TARGET,
        parent: None,
        Level::INFO,
        "title",
        otel.name = "title",
        otel.kind = "internal",
        { names::CONVERSATION } = conversation,
    );
    span.follows_from(run.id());
    span
}
