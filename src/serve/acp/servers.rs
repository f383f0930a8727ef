//! The MCP servers that a client names.

use std::{path::Path, sync::Arc};

use agent_client_protocol_schema::v1::{Error, McpServer};

use crate::tool::Tool;
#[cfg(feature = "mcp")]
use crate::{error_chain, mcp::McpClient};

/// The connected servers and their tools.
#[derive(Clone, Default)]
pub(super) struct Servers {
    pub(super) tools: Vec<Arc<dyn Tool>>,
    #[cfg(feature = "mcp")]
    pub(super) clients: Vec<McpClient>,
}

/// Returns the name of a server.
fn name(server: &McpServer) -> &str {
    match server {
        McpServer::Stdio(server) => &server.name,
        McpServer::Http(server) => &server.name,
        McpServer::Sse(server) => &server.name,
        _ => "?",
    }
}

/// Connects to the servers, all at the same time.
#[cfg(feature = "mcp")]
pub(super) async fn connect(servers: Vec<McpServer>, folder: &Path) -> Result<Servers, Error> {
    let connected = servers.into_iter().map(async |server| {
        let name = name(&server).to_owned();
        let builder = match server {
            McpServer::Stdio(server) => {
                let client = McpClient::stdio(server.command).args(server.args).folder(folder);
                server
                    .env
                    .into_iter()
                    .fold(client, |client, variable| client.env(variable.name, variable.value))
            }
            McpServer::Http(server) => {
                let client = McpClient::http(server.url);
                let headers = server.headers.into_iter();
                headers.fold(client, |client, header| client.header(header.name, header.value))
            }
            _ => return Err(refused(&name, "its transport is not supported; use stdio or HTTP")),
        };
        // The editor's user has not approved any of these tools, so each use needs an approval.
        let client = builder.name(name.clone()).approve_all().connect().await;
        let client = client.map_err(|error| refused(&name, &error_chain(&error)))?;
        let tools = client.tools().await.map_err(|error| refused(&name, &error_chain(&error)))?;
        for tool in tools.skipped {
            tracing::warn!(server = name, tool = tool.name, "a tool can't be used: {}", tool.reason);
        }
        Ok((client, tools.tools))
    });
    let mut all = Servers::default();
    for (client, tools) in futures_util::future::try_join_all(connected).await? {
        all.clients.push(client);
        all.tools.extend(tools);
    }
    Ok(all)
}

#[cfg(not(feature = "mcp"))]
#[allow(clippy::unused_async, reason = "as with the feature")]
pub(super) async fn connect(servers: Vec<McpServer>, _: &Path) -> Result<Servers, Error> {
    match servers.first() {
        None => Ok(Servers::default()),
        Some(server) => Err(refused(name(server), "the agent was built without the feature `mcp`")),
    }
}

fn refused(name: &str, why: &str) -> Error {
    let advice = "correct the server's settings or remove the server";
    Error::invalid_params().data(format!("the MCP server {name:?} can't be used: {why}; {advice}"))
}
