# A tool that runs only if the user allows it.
from agents import Agent, Runner, function_tool


@function_tool(needs_approval=True)
def delete_file(path: str) -> str:
    """Deletes a file."""
    return f"{path} is gone"


agent = Agent(name="Files", tools=[delete_file])
result = Runner.run_sync(agent, "Please use delete_file for `notes.txt`.")
while result.interruptions:
    state = result.to_state()
    for call in result.interruptions:
        print(f"{call.name} {call.arguments}: type yes to allow it")
        state.approve(call) if input() == "yes" else state.reject(call)
    result = Runner.run_sync(agent, state)
print(result.final_output)
