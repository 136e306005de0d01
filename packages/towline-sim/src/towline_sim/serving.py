"""How a simulator is served over HTTP."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uvicorn

    from towline_once.asgi.messages import App

_GRACE_SECONDS = 3


def simulator_server(sim: App) -> uvicorn.Server:
    """A server that leaves the Date header to the simulator, whose time is its own."""
    import uvicorn

    config = uvicorn.Config(
        sim,
        lifespan="off",
        ws="none",
        access_log=False,
        server_header=False,
        date_header=False,
        log_level="critical",
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server
