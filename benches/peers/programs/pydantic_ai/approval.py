# A tool that runs only if the user allows it.
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import HandleDeferredToolCalls


def ask(_, requests: DeferredToolRequests):
    approvals = {}
    for call in requests.approvals:
        print(f"{call.tool_name} {call.args}: type yes to allow it")
        approvals[call.tool_call_id] = input() == "yes"
    return requests.build_results(approvals=approvals)


agent = Agent("openai:gpt-5", capabilities=[HandleDeferredToolCalls(ask)])


@agent.tool_plain(requires_approval=True)
def delete_file(path: str) -> str:
    """Deletes a file."""
    return f"{path} is gone"


print(agent.run_sync("Please use delete_file for `notes.txt`.").output)
