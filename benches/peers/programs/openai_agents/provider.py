# A provider for another service, without streaming. It uses the tool `clock`, then answers with its result.
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class Service(Model):
    async def get_response(self, system_instructions, input, model_settings, tools, *_, **__):
        # A real provider sends the instructions, the input, the settings and the tools to its service.
        last = input[-1] if isinstance(input, list) else {}
        if last.get("type") == "function_call_output":
            text = ResponseOutputText(type="output_text", text=f"It is {last['output']}.", annotations=[])
            item = ResponseOutputMessage(
                type="message", id="message-1", role="assistant", status="completed", content=[text]
            )
        else:
            item = ResponseFunctionToolCall(
                type="function_call", call_id="call-1", name="clock", arguments="{}"
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


@function_tool
def clock() -> str:
    """Returns the time."""
    return "12:00"


agent = Agent(name="Time", model=Service(), tools=[clock])
print(Runner.run_sync(agent, "What time is it?").final_output)
