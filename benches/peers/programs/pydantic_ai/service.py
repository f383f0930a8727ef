# A web service with a login, in which each user sees only the own conversations: `uvicorn service:app`.
import secrets
from typing import Annotated
from fastapi import Body, Depends, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import InMemoryConversationStore

app, agent, store = FastAPI(), Agent("openai:gpt-5"), InMemoryConversationStore()
PASSWORDS, tokens = {"ann": "fjord", "ben": "ocean"}, {}


@app.post("/login")
def login(user: Annotated[str, Body()], password: Annotated[str, Body()]) -> str:
    if PASSWORDS.get(user) != password:
        raise HTTPException(401)
    token = secrets.token_hex(16)
    tokens[token] = user
    return token


def logged_in(given: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    if given.credentials not in tokens:
        raise HTTPException(401)
    return tokens[given.credentials]


User = Annotated[str, Depends(logged_in)]


async def own(id: str, user: User) -> Conversation:
    conversation = await store.load(id, scope=user)
    if conversation is None:
        raise HTTPException(404)
    return conversation


Own = Annotated[Conversation, Depends(own)]


@app.post("/conversations")
async def create(user: User) -> str:
    conversation = Conversation()
    await store.save(conversation, scope=user)
    return conversation.conversation_id


@app.get("/conversations")
async def listed(user: User) -> list[str]:
    return [record.conversation_id for record in await store.list_conversations(scope=user)]


@app.get("/conversations/{id}")
def messages(conversation: Own):
    return ModelMessagesTypeAdapter.dump_python(conversation.messages, mode="json")


@app.post("/conversations/{id}")
def prompt(conversation: Own, user: User, text: Annotated[str, Body(embed=True)]) -> StreamingResponse:
    async def answer():
        async with agent.run_stream_events(text, conversation=conversation) as events:
            async for event in events:
                match event:
                    case PartStartEvent(part=TextPart(piece)) | PartDeltaEvent(delta=TextPartDelta(piece)):
                        yield piece
            await store.save(events.result, scope=user)

    return StreamingResponse(answer(), media_type="text/plain")
