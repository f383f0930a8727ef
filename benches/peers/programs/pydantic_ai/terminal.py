# A chat with a tool, in the terminal chat of the library.
from pydantic_ai import Agent

agent = Agent("openai:gpt-5")


@agent.tool_plain
def weather(city: str) -> str:
    """Tells the weather."""
    return f"Sun in {city}."


agent.to_cli_sync()
