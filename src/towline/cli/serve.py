"""`towline serve`: the service behind uvicorn, on one address or on two, until it is told to stop.

The first signal stops it gently: connections end, jobs finish or are given back, the leader's
lease passes on. A second one ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
import sys
from collections.abc import Callable
from math import inf
from pathlib import Path

import uvicorn
from pydantic import ValidationError

from towline.app.service import Service
from towline.config import ServeSettings, Settings, load
from towline.http.uvicorn_protocol import Edge, EdgeLimits, SilentConnection, connections_for
from towline.observability import logs
from towline_once.asgi.messages import App
from towline_once.errors import Rejected

_GRACE_SECONDS = 10
_MOST_FILES = 65_536
_FILES_FOR_THE_REST = 256
_WATCH_SECONDS = 0.5


def run(config: Path | None, host: str | None, port: int | None) -> None:
    settings = _with_address(load(config), host, port)
    logs.configure(settings.log.format, settings.log.level)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(settings))


def _with_address(settings: Settings, host: str | None, port: int | None) -> Settings:
    given = {"host": host, "port": port}
    address = {name: value for name, value in given.items() if value is not None}
    try:
        serve = ServeSettings.model_validate({**settings.serve.model_dump(), **address})
    except ValidationError:
        raise Rejected(f"--port is a number from 0 to 65535, not {port}") from None
    return settings.model_copy(update={"serve": serve})


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, where it is to be had."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(settings: Settings) -> None:
    from towline.app.web import apps_of  # a worker has no use for a web framework

    service = Service(settings)
    sockets = _sockets(settings.serve)
    try:
        await service.open()
        await service.warn_of_other_secrets()
        made = await _first_key(service, sockets[-1])
        service.start(serving=True)
        data, control = apps_of(service)
        http = guarded(service)
        servers = [server_of(data, http)]
        if settings.serve.control_port is not None:
            servers.append(server_of(control, http))
        _say(sockets, made)
        await _until_stopped(service, servers, sockets)
    finally:
        await service.close()
        for one in sockets:
            one.close()


async def _first_key(service: Service, control: socket.socket) -> str | None:
    """Only at an address of this machine alone, where no other machine can read or use it."""
    if ipaddress.ip_address(control.getsockname()[0]).is_loopback:
        return await service.keyring.ensure_one()
    if not await service.keyring.has_one():
        raise Rejected(
            "there is no API key yet: make one with `towline keys create --scope admin` "
            "before you listen on an address that others can reach"
        )
    return None


def _sockets(serve: ServeSettings) -> list[socket.socket]:
    wanted = [(serve.host, serve.port)]
    if serve.control_port is not None:
        wanted.append((serve.control_host, serve.control_port))
    return [bound(host, port) for host, port in wanted]


def bound(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        raise Rejected(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def guarded(service: Service) -> type[SilentConnection]:
    """The protocol of all ports of this process: they share one budget."""
    settings = service.settings
    limits = EdgeLimits(
        settings.serve.head_timeout_seconds,
        settings.ingest.body_timeout_seconds,
        settings.ingest.max_inflight_bytes,
        _room_for_connections(),
    )
    return connections_for(Edge(limits, service.hosts()))


def _room_for_connections() -> float:
    """As many as the system lets this process open, but for what everything else needs.

    The usual soft limit of 1,024 is for programs that use select(); the hard one is what counts.
    """
    try:
        import resource
    except ImportError:  # on Windows, which has no such limit
        return inf
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(soft - _FILES_FOR_THE_REST, soft // 2) if soft > 0 else inf


def server_of(app: App, http: type[SilentConnection]) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=http,
        lifespan="off",
        access_log=False,
        server_header=False,
        log_config=None,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server


def _say(sockets: list[socket.socket], made_key: str | None) -> None:
    for name, one in zip(("Towline", "control plane"), sockets, strict=False):
        print(f"{name} listens on {shown_address(one)}", file=sys.stderr, flush=True)
    if made_key is not None:
        print(f"API key (admin), shown this once: {made_key}", file=sys.stderr, flush=True)


def shown_address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _until_stopped(
    service: Service, servers: list[uvicorn.Server], sockets: list[socket.socket]
) -> None:
    """Serve until a signal, or until a part of the service that should never end has ended."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stopped() -> None:
        for server in servers:
            server.force_exit = server.should_exit
            server.should_exit = True
        service.farewell.say()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped)
    serving = [
        loop.create_task(server.serve(sockets=[one]))
        for server, one in zip(servers, sockets, strict=True)
    ]
    while not stop.is_set() and not service.failures():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_SECONDS):
                await stop.wait()
    stopped()
    await asyncio.gather(*serving)
    for error in service.failures():
        raise error
