"""Litestar: check, parse, store, answer."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Request, Response, post

from bench.doors.checking import genuine, parsed
from bench.doors.stores import store


@post("/hook", status_code=202)
async def hook(request: Request[Any, Any, Any]) -> Response[dict[str, str] | None]:
    body = await request.body()
    if not genuine(body, request.headers.get("x-hub-signature-256")):
        return Response(None, status_code=401)
    event = parsed(body)
    await store().put(request.headers["x-github-delivery"], body)
    return Response({"ok": event["repository"]["full_name"]})


app = Litestar([hook], openapi_config=None)
