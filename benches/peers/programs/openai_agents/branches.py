# A conversation with branches in a SQLite file. A branch is a copy of the items before its first question.
import asyncio
import sys
from agents import Agent, Runner
from agents.extensions.memory import AdvancedSQLiteSession


async def main():
    agent = Agent(name="Travel")
    session = AdvancedSQLiteSession(session_id="lisbon", db_path=sys.argv[1], create_tables=True)
    await Runner.run(agent, "Plan a weekend in Lisbon.", session=session)

    await session.create_branch_from_turn(1, "again")
    await Runner.run(agent, "Plan a weekend in Lisbon.", session=session)
    await session.create_branch_from_turn(1, "porto")
    await Runner.run(agent, "Plan a weekend in Porto.", session=session)
    await session.switch_to_branch("main")
    await Runner.run(agent, "What does it cost?", session=session)

    for branch in await session.list_branches():
        items = await session.get_items(branch_id=branch["branch_id"])
        print(branch["branch_id"], [item["content"] for item in items])


asyncio.run(main())
