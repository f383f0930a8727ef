//! Tools of an MCP server, with the feature `rmcp` of rig and `transport-child-process` of rmcp.

use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};
use rig::tool::{rmcp::McpClientHandler, server::ToolServer};
use rmcp::model::{ClientCapabilities, ClientInfo, Implementation};
use rmcp::transport::TokioChildProcess;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut command = tokio::process::Command::new(arguments.next().ok_or("name the command")?);
    command.args(arguments);
    let tools = ToolServer::new().run();
    let client = ClientInfo::new(ClientCapabilities::default(), Implementation::from_build_env());
    let handler = McpClientHandler::new(client, tools.clone());
    let _service = handler.connect(TokioChildProcess::new(command)?).await?;
    let model = OpenAI::from_env()?.completion(GPT_5_2);
    let agent = AgentBuilder::new(model).tool_server_handle(tools).build();
    let response = agent.prompt("Call the tool echo with the message \"Hello!\".").max_turns(3).await?;
    println!("{}", response.output());
    Ok(())
}
