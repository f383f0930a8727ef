"""A client built on the official Python implementation. Its arguments are the scenario and the agent's command."""

import asyncio
import os
import sys

from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process, text_block
from acp.schema import AllowedOutcome, DeniedOutcome, Implementation, RequestPermissionResponse

cwd = os.getcwd()


class Editor:
    """The editor's side: keeps all updates, and decides on questions."""

    def __init__(self):
        self.updates = {}
        self.decisions = []
        self.questions = []
        self.changed = asyncio.Condition()

    def on_connect(self, conn):
        pass

    async def session_update(self, session_id, update, **_):
        async with self.changed:
            self.updates.setdefault(session_id, []).append(update)
            self.changed.notify_all()

    async def request_permission(self, session_id, tool_call, options, **_):
        async with self.changed:
            self.questions.append(tool_call)
            self.changed.notify_all()
        if not self.decisions:
            # The turn is cancelled while the question waits.
            await asyncio.sleep(0.1)
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        option = self.decisions.pop(0)
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option))

    async def ext_notification(self, method, params):
        pass

    def of(self, session, kind):
        return [update for update in self.updates.get(session, []) if update.session_update == kind]

    def texts(self, session, kind="agent_message_chunk"):
        return "".join(update.content.text for update in self.of(session, kind))

    async def until(self, fits):
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(fits), 20)


def equal(got, wanted):
    assert got == wanted, f"{got!r} is not {wanted!r}"


async def fails(work, code):
    try:
        await work
    except RequestError as error:
        equal(error.code, code)
        return
    raise AssertionError("this must fail")


async def scenario_all(agent, editor):
    initialized = await agent.initialize(
        protocol_version=PROTOCOL_VERSION, client_info=Implementation(name="python", version="1")
    )
    equal(initialized.agent_info.name, "served")
    session = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id

    async def prompt(session, text):
        return (await agent.prompt(session_id=session, prompt=[text_block(text)])).stop_reason

    async def say(session, text):
        editor.updates.pop(session, None)
        equal(await prompt(session, text), "end_turn")
        return editor.texts(session)

    # Prompts and tools.
    equal(await say(session, "Hello"), "You said: Hello")
    equal(await say(session, "Look"), "Seen.")
    call = editor.of(session, "tool_call")[0]
    equal((call.title, call.raw_input), ("list_files", {"in": "."}))
    done = editor.of(session, "tool_call_update")[-1]
    equal((done.tool_call_id, done.status), (call.tool_call_id, "completed"))

    # Permissions, several at once.
    editor.decisions += ["allow"]
    equal(await say(session, "Delete"), "Deleted.")
    editor.questions.clear()
    editor.decisions += ["allow", "reject"]
    equal(await say(session, "Delete both"), "Deleted. Kept.")
    equal([question.raw_input["in"] for question in editor.questions], ["x", "y"])

    # Cancel, during text and during a question.
    for text, begun in [
        ("Go on for ever", lambda: editor.texts(session) == "And on"),
        ("Delete", lambda: editor.questions != []),
    ]:
        editor.updates.pop(session, None)
        editor.questions.clear()
        turn = asyncio.ensure_future(prompt(session, text))
        await editor.until(begun)
        await agent.cancel(session_id=session)
        equal(await turn, "cancelled")
    equal(await prompt(session, "Run out"), "max_tokens")
    await fails(prompt(session, "Fail"), -32603)
    await fails(prompt("nobody", "Hello"), -32002)

    # The choice of the model.
    options = await agent.set_config_option(config_id="model", session_id=session, value="big:scripted")
    equal(options.config_options[0].current_value, "big:scripted")
    equal(await say(session, "Which model?"), "big")

    # Two sessions at once.
    other = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id
    turn = asyncio.ensure_future(prompt(other, "Go on for ever"))
    await editor.until(lambda: editor.texts(other) == "And on")
    equal(await say(session, "The word is heron"), "You said: The word is heron")
    await agent.cancel(session_id=other)
    equal(await turn, "cancelled")

    # List, close, resume, load.
    listed = await agent.list_sessions(cwd=cwd)
    equal({entry.session_id for entry in listed.sessions}, {session, other})
    await agent.close_session(session_id=session)
    await agent.resume_session(cwd=cwd, session_id=session, mcp_servers=[])
    equal(await say(session, "Which word?"), "heron")
    await agent.close_session(session_id=session)
    editor.updates.pop(session, None)
    await agent.load_session(cwd=cwd, session_id=session, mcp_servers=[])
    shown = editor.texts(session, "user_message_chunk")
    assert shown.startswith("Hello") and shown.endswith("Which word?"), shown
    equal(await say(session, "Which word?"), "heron")


async def scenario_die(agent, editor):
    await agent.initialize(protocol_version=PROTOCOL_VERSION)
    session = (await agent.new_session(cwd=cwd, mcp_servers=[])).session_id
    turn = asyncio.ensure_future(
        agent.prompt(session_id=session, prompt=[text_block("Look, then go on for ever")])
    )
    await editor.until(lambda: editor.texts(session) == "And on")
    print("begun", flush=True)
    await turn


async def main():
    name, command, *arguments = sys.argv[1:]
    editor = Editor()
    scenario = {"all": scenario_all, "die": scenario_die}[name]
    async with spawn_agent_process(editor, command, *arguments, env=dict(os.environ), cwd=cwd) as (agent, _):
        await scenario(agent, editor)
    print("passed")


asyncio.run(main())
