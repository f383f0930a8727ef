# A value of a type instead of text.
from agents import Agent, Runner
from pydantic import BaseModel


class Cities(BaseModel):
    names: list[str]


agent = Agent(name="Cities", output_type=Cities)
print(", ".join(Runner.run_sync(agent, "Which Norwegian cities have a fjord?").final_output.names))
