"""Starlette: check, parse, store, answer."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.doors.checking import genuine, parsed
from bench.doors.stores import store


async def hook(request: Request) -> Response:
    body = await request.body()
    if not genuine(body, request.headers.get("x-hub-signature-256")):
        return Response(status_code=401)
    event = parsed(body)
    await store().put(request.headers["x-github-delivery"], body)
    said = b'{"ok":"%b"}' % event["repository"]["full_name"].encode()
    return Response(said, status_code=202, media_type="application/json")


app = Starlette(routes=[Route("/hook", hook, methods=["POST"])])
