# Tools of an MCP server: `python mcp_tools.py npx -y @modelcontextprotocol/server-everything`.
import asyncio
import sys
from agents import Agent, Runner
from agents.mcp import MCPServerStdio


async def main():
    async with MCPServerStdio({"command": sys.argv[1], "args": sys.argv[2:]}) as server:
        agent = Agent(name="Tools", mcp_servers=[server])
        print((await Runner.run(agent, 'Call the tool echo with the message "Hello!".')).final_output)


asyncio.run(main())
