//! The error of a client.

use std::time::Duration;

/// The advice for a server that requires authorization.
#[cfg(feature = "mcp-auth")]
const UNAUTHORIZED: &str = "log in with `McpLogin` and set its store with `tokens`, or set a token with \
                            `header(\"Authorization\", …)`";
#[cfg(not(feature = "mcp-auth"))]
const UNAUTHORIZED: &str = "set a token with `header(\"Authorization\", …)`, or enable the feature `mcp-auth` and log \
                            in with `McpLogin`";

/// A server of the Model Context Protocol could not be used.
///
/// The texts contain neither environment variables nor headers nor the query of the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// A setting of the client is invalid.
    #[error("the MCP server {server:?} can't be used: {reason}; correct the setting")]
    Misconfigured {
        /// The name of the server.
        server: String,
        /// The reason why the setting is invalid.
        reason: String,
    },
    /// The program did not start, or the server can't be reached.
    #[error("the MCP server {server:?} can't be reached: {reason}")]
    Unreachable {
        /// The name of the server.
        server: String,
        /// The reason why the server can't be reached.
        reason: String,
    },
    /// The server requires an authorization that the client does not have.
    #[error("the MCP server {server:?} requires authorization{}; {UNAUTHORIZED}", for_scope(.scope.as_deref()))]
    Unauthorized {
        /// The name of the server.
        server: String,
        /// The scope that the authorization lacks, if the server names it.
        scope: Option<String>,
        /// The header `WWW-Authenticate` with which the server refused the request, if there was one. `McpLogin` uses
        /// it to find the authorization server and the scope.
        challenge: Option<String>,
    },
    /// A login at the server failed (feature `mcp-auth`).
    #[cfg(feature = "mcp-auth")]
    #[error("the login at the MCP server {server:?} failed: {reason}; begin another login")]
    LoginFailed {
        /// The URL of the server, without user, query and fragment.
        server: String,
        /// The reason.
        reason: String,
    },
    /// The server did not answer in time.
    #[error("the MCP server {server:?} did not answer within {limit:?}")]
    TimedOut {
        /// The name of the server.
        server: String,
        /// The limit.
        limit: Duration,
    },
    /// The program ended three times within a minute and is not started again.
    #[error("the MCP server {server:?} ended three times within a minute and stays down; make a new client")]
    Down {
        /// The name of the server.
        server: String,
    },
    /// The connection ended before an answer arrived, so the server may have processed the request. Calls of a closed
    /// client fail with this error, too.
    #[error("the connection to the MCP server {server:?} ended before its answer arrived{reason}")]
    Lost {
        /// The name of the server.
        server: String,
        /// The details of the end, as far as they are known. May be empty.
        reason: String,
    },
    /// The server refused the request, or its answer is invalid.
    #[error("the MCP server {server:?} refused the request: {reason}")]
    Refused {
        /// The name of the server.
        server: String,
        /// The reason in the server's words, or the description of the invalid answer.
        reason: String,
    },
}

fn for_scope(scope: Option<&str>) -> String {
    scope.map_or_else(String::new, |scope| format!(" for the scope {scope:?}"))
}
