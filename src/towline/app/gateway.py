"""Which part of Towline answers a request.

Webhooks and the submit API are plain ASGI callables in front; a framework serves the rest. The
data plane may stand alone at an address that faces the internet: it then has nothing but them, the
two probes and its own OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from towline.inbox.http import PREFIX as HOOKS
from towline_once.asgi.messages import (
    App,
    Problem,
    Receive,
    Scope,
    Send,
    answer,
    json_messages,
    unforeseen,
)

MESH: Final = "/mesh/"
PROBES: Final = ("/healthz", "/readyz")
_DOCUMENT: Final = ("GET", "/openapi.json")


class Gateway:
    """`rest` answers whatever is neither a webhook nor a submission."""

    def __init__(self, hooks: App, mesh: App, rest: App) -> None:
        self._hooks = hooks
        self._mesh = mesh
        self.rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            try:
                if path.startswith(HOOKS):
                    await self._hooks(scope, receive, send)
                    return
                if path.startswith(MESH):
                    await self._mesh(scope, receive, send)
                    return
            except Exception:  # before the answer, which both of them send whole
                await answer(send, unforeseen(path).messages())
                return
        await self.rest(scope, receive, send)


class ProbesOnly:
    """What a data plane that stands alone has of the control plane."""

    def __init__(self, control: App, document: Mapping[str, Any]) -> None:
        self._control = control
        self.document = document

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) == _DOCUMENT:
            await answer(send, json_messages(200, self.document))
            return
        if scope["type"] == "http" and scope["path"] not in PROBES:
            problem = Problem(
                404, "not_found", "this address takes webhooks and mesh requests only"
            )
            await answer(send, problem.messages())
            return
        await self._control(scope, receive, send)
