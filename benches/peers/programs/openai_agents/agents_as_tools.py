# An agent that uses two other agents as tools.
import asyncio
from agents import Agent, Runner


async def main():
    poet = Agent(name="Poet", instructions="Write four lines that rhyme.")
    critic = Agent(name="Critic", instructions="Name one strength and one flaw.")
    tools = [poet.as_tool("poet", "Writes a poem."), critic.as_tool("critic", "Reviews a poem.")]
    lead = Agent(name="Lead", instructions="Publish only what the critic has seen.", tools=tools)
    result = Runner.run_streamed(lead, "Ask the poet for a poem on rain, then ask the critic about it.")
    async for event in result.stream_events():
        if event.type == "run_item_stream_event" and event.name == "tool_called":
            print(f"[{event.item.raw_item.name} {event.item.raw_item.arguments}]")
    print(result.final_output)


asyncio.run(main())
