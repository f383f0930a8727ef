//! The streams of AG-UI, for clients of protocol version 1.0 and of version 0.0.59 of the npm packages.
//!
//! Except for the routes, this module does no input or output. [`AgUiInput::intent`] reads a posted request and the
//! session's snapshot, and returns the commands to perform. A [`AgUiStream`] takes the snapshot and the events of a
//! session, and returns the events of the protocol.

mod frame;
mod interrupts;
mod messages;
mod request;
pub(super) mod routes;
mod runs;
mod stream;

#[cfg(test)]
mod tests;

pub(crate) use frame::AgUiFrame;
pub(crate) use request::AgUiInput;
pub(super) use runs::AgUiRecentRuns;
pub(crate) use stream::{AgUiRequestedRun, AgUiRunToStream, AgUiStream};

/// The type of the activity messages that show the progress of a tool.
const PROGRESS: &str = "omni.progress";

/// The type of the activity messages that show a file created by the model.
const FILE: &str = "omni.file";

/// The version of the protocol that the client reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AgUiVersion {
    /// Version 0.0.59 of the npm packages. It refuses an outcome other than `success` and `interrupt`, and results with
    /// parts.
    #[default]
    V0,
    /// Protocol 1.0.
    V1,
}

impl AgUiVersion {
    /// Returns the level of a request that declares this version of the protocol. Version 0.0.59 of the packages
    /// declares none.
    pub(crate) fn of(declared: Option<&str>) -> Self {
        if declared.is_some() { Self::V1 } else { Self::V0 }
    }

    fn has_result_parts(self) -> bool {
        self == Self::V1
    }
}
