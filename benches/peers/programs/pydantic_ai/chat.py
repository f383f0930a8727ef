# A chat with a tool.
import asyncio
import sys
from pydantic_ai import Agent, AgentRunResultEvent, FunctionToolCallEvent
from pydantic_ai import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

agent = Agent("openai:gpt-5")


@agent.tool_plain
def weather(city: str) -> str:
    """Tells the weather."""
    return f"Sun in {city}."


async def main():
    conversation = None
    for line in sys.stdin:
        async with agent.run_stream_events(line, conversation=conversation) as events:
            async for event in events:
                match event:
                    case PartStartEvent(part=TextPart(text)) | PartDeltaEvent(delta=TextPartDelta(text)):
                        print(text, end="", flush=True)
                    case FunctionToolCallEvent(part):
                        print(f"[{part.tool_name} {part.args}]")
                    case AgentRunResultEvent(result):
                        print()
                        conversation = result.conversation


asyncio.run(main())
