# A value of a type instead of text.
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput


class Cities(BaseModel):
    names: list[str]


agent = Agent("openai:gpt-5", output_type=NativeOutput(Cities))
print(", ".join(agent.run_sync("Which Norwegian cities have a fjord?").output.names))
