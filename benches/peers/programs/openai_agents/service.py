# A web service with a login, in which each user sees only the own conversations: `uvicorn service:app`.
import secrets
from typing import Annotated
from agents import Agent, Runner, SQLiteSession
from fastapi import Body, Depends, FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

app, agent = FastAPI(), Agent(name="Chat")
PASSWORDS, tokens, conversations = {"ann": "fjord", "ben": "ocean"}, {}, {}


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


def own(id: str, user: User) -> SQLiteSession:
    session = conversations.get((user, id))
    if session is None:
        raise HTTPException(404)
    return session


Own = Annotated[SQLiteSession, Depends(own)]


@app.post("/conversations")
def create(user: User) -> str:
    id = secrets.token_hex(8)
    conversations[user, id] = SQLiteSession(id)
    return id


@app.get("/conversations")
def listed(user: User) -> list[str]:
    return [id for owner, id in conversations if owner == user]


@app.get("/conversations/{id}")
async def messages(session: Own):
    return await session.get_items()


@app.post("/conversations/{id}")
def prompt(session: Own, text: Annotated[str, Body(embed=True)]) -> StreamingResponse:
    async def answer():
        async for event in Runner.run_streamed(agent, text, session=session).stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                yield event.data.delta

    return StreamingResponse(answer(), media_type="text/plain")
