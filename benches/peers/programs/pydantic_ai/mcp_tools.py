# Tools of an MCP server: `python mcp_tools.py npx -y @modelcontextprotocol/server-everything`.
import sys
from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

server = MCPToolset(StdioTransport(sys.argv[1], sys.argv[2:]))
agent = Agent("openai:gpt-5", toolsets=[server])
print(agent.run_sync('Call the tool echo with the message "Hello!".').output)
