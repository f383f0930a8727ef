//! The settings of a client, as its builder collects them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::PathBuf,
    time::Duration,
};

use rmcp::model::ProtocolVersion;

use super::{McpError, connection::LONGEST, secret::Secrets};
use crate::text::clip;

/// Everything that a client needs to connect, and to connect again.
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) transport: Transport,
    pub(super) version: Option<ProtocolVersion>,
    pub(super) secrets: Secrets,
    pub(super) connect_limit: Duration,
    pub(super) idle_limit: Duration,
    pub(super) total_limit: Duration,
    pub(super) selection: Selection,
}

impl Settings {
    pub(super) fn is_program(&self) -> bool {
        matches!(self.transport, Transport::Program(_))
    }

    /// Returns the error for an invalid setting. Secrets in the reason are replaced.
    pub(super) fn misconfigured(&self, reason: String) -> McpError {
        McpError::Misconfigured { server: self.name.clone(), reason: self.secrets.removed(reason) }
    }

    /// Returns the error for a connection that has ended. `reason` is a suffix for its text.
    pub(super) fn lost(&self, reason: String) -> McpError {
        McpError::Lost { server: self.name.clone(), reason: self.secrets.removed(reason) }
    }

    /// Returns the error for a server that can't be reached. Secrets in the reason are replaced.
    pub(super) fn unreachable(&self, reason: String) -> McpError {
        McpError::Unreachable { server: self.name.clone(), reason: self.secrets.removed(reason) }
    }

    /// Returns the error for an answer that is invalid or refuses the request.
    pub(super) fn refused(&self, reason: &str) -> McpError {
        let reason = self.secrets.removed(clip(reason, LONGEST).into_owned());
        McpError::Refused { server: self.name.clone(), reason }
    }

    /// Returns the error for a request that requires another authorization, with the scope and the challenge that the
    /// server names.
    pub(super) fn unauthorized(&self, scope: Option<&str>, challenge: Option<&str>) -> McpError {
        let clean = |text: &str| self.secrets.removed(clip(text, LONGEST).into_owned());
        let (scope, challenge) = (scope.map(clean), challenge.map(clean));
        McpError::Unauthorized { server: self.name.clone(), scope, challenge }
    }

    /// Returns the error for a server that did not answer within the limit.
    pub(super) fn timed_out(&self, limit: Duration) -> McpError {
        McpError::TimedOut { server: self.name.clone(), limit }
    }
}

pub(super) enum Transport {
    Program(ProgramStart),
    Http(HttpTarget),
}

#[derive(Default)]
pub(super) struct ProgramStart {
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, String)>,
    pub(super) folder: Option<PathBuf>,
}

#[derive(Default)]
pub(super) struct HttpTarget {
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    #[cfg(feature = "mcp-auth")]
    pub(super) tokens: Option<std::sync::Arc<dyn super::TokenStore>>,
}

/// The tools that are offered, identified by the names that the server uses.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// The only tools that are offered. `None` offers all.
    pub(super) allowed: Option<BTreeSet<String>>,
    pub(super) renamed: BTreeMap<String, String>,
    pub(super) approved: BTreeSet<String>,
    pub(super) approve_all: bool,
    /// Whether the hints of the server decide whether a call may be repeated.
    pub(super) trusts_hints: bool,
}
