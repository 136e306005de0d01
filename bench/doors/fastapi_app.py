"""FastAPI as its documentation teaches it: a model of the body, headers as parameters."""

from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel

from bench.doors.checking import genuine
from bench.doors.stores import store

app = FastAPI()


class Repository(BaseModel):
    id: int
    full_name: str
    private: bool


class Person(BaseModel):
    name: str
    email: str


class Commit(BaseModel):
    id: str
    message: str
    timestamp: str
    author: Person


class Push(BaseModel):
    ref: str
    before: str
    after: str
    repository: Repository
    commits: list[Commit]


@app.post("/hook", status_code=202)
async def hook(
    request: Request,
    push: Push,
    x_hub_signature_256: Annotated[str, Header()],
    x_github_delivery: Annotated[str, Header()],
) -> dict[str, str]:
    body = await request.body()
    if not genuine(body, x_hub_signature_256):
        raise HTTPException(401)
    await store().put(x_github_delivery, body)
    return {"ok": push.repository.full_name}
