# A provider for another service, without streaming. It uses the tool `clock`, then answers with its result.
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models import Model


class Service(Model):
    model_name = "some-model"
    system = "service"

    async def request(self, messages, model_settings, model_request_parameters):
        # A real provider sends the messages, the settings and the tools to its service.
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse([TextPart(f"It is {last.content}.")])
        return ModelResponse([ToolCallPart("clock", {})])


agent = Agent(Service())


@agent.tool_plain
def clock() -> str:
    """Returns the time."""
    return "12:00"


print(agent.run_sync("What time is it?").output)
