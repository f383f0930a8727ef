# A conversation with branches in SQLite, with pydantic-ai-harness. A run can start from the end of another.
import asyncio
import sys
from pydantic_ai import Agent
from pydantic_ai_harness import StepPersistence
from pydantic_ai_harness.step_persistence import SqliteStepStore, fork_run


async def main():
    store = SqliteStepStore(database=sys.argv[1])
    agent = Agent("openai:gpt-5", capabilities=[StepPersistence(store=store)])
    lisbon = await agent.run("Plan a weekend in Lisbon.", conversation_id="lisbon")

    await agent.run("Plan a weekend in Lisbon.", conversation_id="lisbon")
    await agent.run("Plan a weekend in Porto.", conversation_id="lisbon")
    history = await fork_run(store, run_id=lisbon.run_id)
    await agent.run("What does it cost?", message_history=history, conversation_id="lisbon")

    for run in await store.list_runs(conversation_id="lisbon"):
        snapshot = await store.latest_snapshot(run_id=run.run_id)
        print(run.run_id, [message.parts[0].content for message in snapshot.messages])


asyncio.run(main())
