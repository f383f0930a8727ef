# An agent that uses two other agents as tools.
from pydantic_ai import Agent

poet_agent = Agent("openai:gpt-5", instructions="Write four lines that rhyme.")
critic_agent = Agent("openai:gpt-5", instructions="Name one strength and one flaw.")
lead = Agent("openai:gpt-5", instructions="Publish only what the critic has seen.")


@lead.tool_plain
async def poet(input: str) -> str:
    """Writes a poem."""
    print(f"[poet {input}]")
    return (await poet_agent.run(input)).output


@lead.tool_plain
async def critic(input: str) -> str:
    """Reviews a poem."""
    print(f"[critic {input}]")
    return (await critic_agent.run(input)).output


print(lead.run_sync("Ask the poet for a poem on rain, then ask the critic about it.").output)
