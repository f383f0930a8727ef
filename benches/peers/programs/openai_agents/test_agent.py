# A test of an agent without a model: `pytest test_agent.py`.
from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def clock() -> str:
    """Returns the time."""
    return "12:00"


agent = Agent(name="Time", instructions="Be brief.", tools=[clock])


def test_question_about_the_time_uses_the_clock():
    call = function_call("clock", "{}", call_id="call-1")
    model = ScriptedModel([[call], [assistant_message("It is noon.")]])
    result = Runner.run_sync(agent, "What time is it?", run_config=RunConfig(model=model))
    assert result.final_output == "It is noon."
    assert model.last_call.system_instructions == "Be brief."
    assert model.last_call.input[-1]["output"] == "12:00"
