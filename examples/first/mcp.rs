//! Tools of an MCP server:
//! `cargo run --example first_mcp --features mcp -- npx -y @modelcontextprotocol/server-everything`.

mod model;

use omni_agent::{Agent, mcp::McpClient, tool::ToolSet};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut command = std::env::args().skip(1);
    let program = command.next().ok_or("name the command of an MCP server")?;
    let server = McpClient::stdio(program).args(command).name("server").connect().await?;
    let tools = ToolSet::new().extended(server.tools().await?.tools)?;
    let agent = Agent::builder().model(model::pick()).tools(tools).start().await?;
    println!("{}", agent.ask("Call the tool server__echo with the message \"Hello!\".").await?.text());
    Ok(())
}
