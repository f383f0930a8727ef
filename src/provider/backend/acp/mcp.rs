use std::{fmt, path::PathBuf};

use agent_client_protocol_schema::v1::{
    EnvVariable, HttpHeader, McpCapabilities, McpServer as Wire, McpServerHttp, McpServerSse, McpServerStdio,
};

use crate::provider::backend::BackendError;

/// A server of the Model Context Protocol, whose tools the agent can use.
#[derive(Clone)]
pub struct McpServer(Wire);

impl McpServer {
    /// Creates a server that the agent starts as a program. The program's path should be absolute.
    pub fn program(
        name: impl Into<String>,
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self(Wire::Stdio(McpServerStdio::new(name, program).args(arguments)))
    }

    /// Creates a server that is reached over HTTP. Not every agent supports this transport.
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self(Wire::Http(McpServerHttp::new(name, url)))
    }

    /// Creates a server that is reached with server-sent events, the older transport. Not every agent supports this
    /// transport.
    pub fn sse(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self(Wire::Sse(McpServerSse::new(name, url)))
    }

    /// Returns the same server with this secret: a variable of the program's environment, or a header of each request.
    pub fn with_secret(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        match &mut self.0 {
            Wire::Stdio(server) => server.env.push(EnvVariable::new(name, value)),
            Wire::Http(server) => server.headers.push(HttpHeader::new(name, value)),
            Wire::Sse(server) => server.headers.push(HttpHeader::new(name, value)),
            _ => {}
        }
        self
    }

    fn name(&self) -> &str {
        match &self.0 {
            Wire::Stdio(server) => &server.name,
            Wire::Http(server) => &server.name,
            Wire::Sse(server) => &server.name,
            _ => "",
        }
    }

    /// Returns the server in the form that is sent to the agent. Fails if the agent does not support the server's
    /// transport.
    pub(super) fn wire(&self, can: &McpCapabilities) -> Result<Wire, BackendError> {
        let way = match &self.0 {
            Wire::Http(_) if !can.http => "HTTP",
            Wire::Sse(_) if !can.sse => "server-sent events",
            _ => return Ok(self.0.clone()),
        };
        let name = self.name();
        Err(BackendError::Unsupported(format!(
            "this agent can't reach the MCP server `{name}`: it does not support {way}"
        )))
    }
}

/// Shows only the name, since the rest may contain secrets.
impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("McpServer").field(&self.name()).finish()
    }
}
