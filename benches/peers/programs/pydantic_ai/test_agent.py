# A test of an agent without a model: `pytest test_agent.py`.
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

agent = Agent("openai:gpt-5", instructions="Be brief.", defer_model_check=True)


@agent.tool_plain
def clock() -> str:
    """Returns the time."""
    return "12:00"


def test_question_about_the_time_uses_the_clock():
    script, requests = [ToolCallPart("clock"), TextPart("It is noon.")], []

    def model(messages, info):
        requests.append((messages, info))
        return ModelResponse([script.pop(0)])

    assert agent.run_sync("What time is it?", model=FunctionModel(model)).output == "It is noon."
    messages, info = requests[1]
    assert info.instructions == "Be brief."
    assert messages[-1].parts[0].content == "12:00"
