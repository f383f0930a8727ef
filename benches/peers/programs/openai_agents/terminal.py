# A chat with a tool, in the terminal chat of the library.
import asyncio
from agents import Agent, function_tool, run_demo_loop


@function_tool
def weather(city: str) -> str:
    """Tells the weather."""
    return f"Sun in {city}."


asyncio.run(run_demo_loop(Agent(name="Chat", tools=[weather])))
