//! The requests of a client.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::future::BoxFuture;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use tokio_util::sync::CancellationToken;

use super::{
    ServerInfo,
    ask::AskCall,
    caller::{McpCaller, RefusalText},
    tools,
};
use crate::{panics::contained_async, run::PromptId};

/// Returns the sender of a request.
pub(super) type McpCallerLookup =
    dyn Fn(&RequestContext<RoleServer>) -> Result<Arc<McpCaller>, ErrorData> + Send + Sync;

/// The server of one connection.
pub(super) struct McpServerHandler {
    info: Arc<ServerInfo>,
    callers: Arc<McpCallerLookup>,
    /// Cancelled when the connection has ended.
    gone: CancellationToken,
    /// The prefix of the prompt ids of this connection.
    own: String,
    sent: AtomicU64,
}

impl McpServerHandler {
    pub(super) fn new(info: Arc<ServerInfo>, callers: Arc<McpCallerLookup>, gone: CancellationToken) -> Self {
        let own = format!("mcp-{:016x}-", rand::random::<u64>());
        Self { info, callers, gone, own, sent: AtomicU64::new(0) }
    }

    async fn perform(
        &self,
        caller: &McpCaller,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, RefusalText> {
        // A client must be able to stop its runs, even if no further call is allowed.
        let _permit = if request.name == "stop" { None } else { Some((caller.permit)()?) };
        let operation: BoxFuture<'_, Result<CallToolResult, RefusalText>> = match &*request.name {
            "ask" => {
                let prompt = format!("{}{}", self.own, self.sent.fetch_add(1, Ordering::Relaxed));
                let ask = AskCall { caller, context, gone: &self.gone };
                return ask.perform(request, PromptId::new(prompt)).await;
            }
            "list" => Box::pin(tools::list(caller, request.arguments.unwrap_or_default())),
            "read" => Box::pin(tools::read(caller, request.arguments.unwrap_or_default())),
            _ => Box::pin(tools::stop(caller, request.arguments.unwrap_or_default())),
        };
        let cancelled = || Err("the call was cancelled".to_owned());
        tokio::select! {
            biased;
            () = self.gone.cancelled() => cancelled(),
            () = context.ct.cancelled() => cancelled(),
            result = operation => result.map(Into::into),
        }
    }
}

impl ServerHandler for McpServerHandler {
    fn get_info(&self) -> ServerConfig {
        let ServerInfo { name, version, instructions } = &*self.info;
        let config = ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new(name, version));
        match instructions {
            Some(text) => config.with_instructions(text),
            None => config,
        }
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if self.get_tool(&request.name).is_none() {
            let names: Vec<_> = tools::all().into_iter().map(|tool| tool.name).collect();
            let why = format!("there is no tool with this name; the tools are {}", names.join(", "));
            return Err(ErrorData::invalid_params(why, None));
        }
        let caller = (self.callers)(&context)?;
        let performed = contained_async(self.perform(&caller, request, &context)).await;
        let performed = performed.unwrap_or_else(|panic| {
            tracing::error!(panic, "a call of an MCP client panicked");
            Err("the server failed".to_owned())
        });
        Ok(performed.unwrap_or_else(|why| CallToolResult::error(vec![ContentBlock::text(why)]).into()))
    }
}
