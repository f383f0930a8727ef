# A chat with a tool.
import asyncio
import sys
from agents import Agent, Runner, SQLiteSession, function_tool


@function_tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"Sun in {city}."


async def main():
    agent, session = Agent(name="Chat", tools=[weather]), SQLiteSession("chat")
    for line in sys.stdin:
        async for event in Runner.run_streamed(agent, line, session=session).stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                print(event.data.delta, end="", flush=True)
            elif event.type == "run_item_stream_event" and event.name == "tool_called":
                print(f"[{event.item.raw_item.name} {event.item.raw_item.arguments}]")
        print()


asyncio.run(main())
