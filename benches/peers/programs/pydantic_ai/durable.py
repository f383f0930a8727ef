# An approval that waits in a file. The first run asks and ends. The second run approves and continues.
import sys
from pathlib import Path
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.conversation import ConversationTypeAdapter

agent = Agent("openai:gpt-5", output_type=[str, DeferredToolRequests])


@agent.tool_plain(requires_approval=True)
def send_euros(to: str, euros: int) -> str:
    """Sends euros."""
    return f"{to} got {euros}"


file = Path(sys.argv[1])
if file.exists():
    conversation = ConversationTypeAdapter.validate_json(file.read_bytes())
    approved = conversation.deferred_tool_requests.build_results(approve_all=True)
    result = agent.run_sync(conversation=conversation, deferred_tool_results=approved)
    print(result.output)
else:
    result = agent.run_sync('Please send_euros 20 to "Ann".')
    for call in result.output.approvals:
        print(f"{call.tool_name} {call.args} waits")
file.write_bytes(ConversationTypeAdapter.dump_json(result.conversation))
