# An approval that waits in a file. The first run asks and ends. The second run approves and continues.
import asyncio
import sys
from pathlib import Path
from agents import Agent, Runner, RunState, function_tool


@function_tool(needs_approval=True)
def send_euros(to: str, euros: int) -> str:
    """Sends euros."""
    return f"{to} got {euros}"


async def main():
    agent, file = Agent(name="Bank", tools=[send_euros]), Path(sys.argv[1])
    if file.exists():
        state = await RunState.from_string(agent, file.read_text())
        for call in state.get_interruptions():
            state.approve(call)
        print((await Runner.run(agent, state)).final_output)
        file.unlink()
    else:
        result = await Runner.run(agent, 'Please send_euros 20 to "Ann".')
        for call in result.interruptions:
            print(f"{call.name} {call.arguments} waits")
        file.write_text(result.to_state().to_string())


asyncio.run(main())
