"""`towline sim`: a GitHub of one's own to try things against."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from towline_once.errors import Rejected
from towline_sim.http import simulator_server

if TYPE_CHECKING:
    from towline_sim.github.server import GitHubSim

_REPO = "demo/app"
_AN_HOUR = 3600.0
_FASTEST = 100_000.0

_Port = Annotated[int, typer.Option(help="The port; 0 for any free one.")]
_Token = Annotated[
    str | None, typer.Option(help="The API token; one is made and shown if not given.")
]
_Host = Annotated[str, typer.Option(help="The address to listen on.")]
_Speed = Annotated[float, typer.Option(help="Clock speed, as a multiple of real time.")]
_Seed = Annotated[int, typer.Option(help="The random seed: the same seed gives the same run.")]
_Actors = Annotated[
    bool, typer.Option(help="CI, policy, approver and merge bots at work, and a protected main.")
]

group = typer.Typer(help="A simulated GitHub.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="sim")


@group.callback()
def _group() -> None:
    """A simulated GitHub."""


@group.command("serve")
def serve(
    port: _Port = 8790,
    token: _Token = None,
    host: _Host = "127.0.0.1",
    speed: _Speed = 1.0,
    seed: _Seed = 0,
    actors: _Actors = False,
) -> None:
    """Serve a GitHub with the repository demo/app: REST, GraphQL, git and webhooks."""
    if not 0 <= port <= 65535:
        raise Rejected(f"--port is a number from 0 to 65535, not {port}")
    if not 0 < speed <= _FASTEST:
        raise Rejected(f"--speed is a number above 0 and up to {_FASTEST:.0f}, not {speed:g}")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip()):
        raise Rejected("--token is made of visible ASCII characters, and is not empty")
    given = token or f"ghp_{secrets.token_hex(18)}"
    listening = _bound(host, port)
    with listening:
        _say(listening, None if token else given)
        asyncio.run(_serve(listening, given, speed, seed, actors))


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise Rejected(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _say(listening: socket.socket, made_token: str | None) -> None:
    shown = f"; its token is {made_token}" if made_token else ""
    line = f"GitHub simulator listens on {_address(listening)} with {_REPO}{shown}"
    print(line, file=sys.stderr, flush=True)


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(
    listening: socket.socket, token: str, speed: float, seed: int, actors: bool
) -> None:
    sim = _simulator(token, speed, seed, actors)
    sim.webhooks.root = _address(listening)
    server = simulator_server(sim)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    driver = loop.create_task(sim.run(speed))
    driver.add_done_callback(lambda _: stop())
    try:
        await server.serve(sockets=[listening])
    finally:
        driver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await driver
        await sim.aclose()


def _simulator(token: str, speed: float, seed: int, actors: bool) -> GitHubSim:
    from towline_once.clock import SystemClock
    from towline_sim.actors.scenario import Customs, Town
    from towline_sim.clock import SpedClock
    from towline_sim.github.server import GitHubSim
    from towline_sim.github.world import World

    clock = SpedClock(SystemClock(), speed)
    # The repository is not new: its branches have settled.
    since = clock.now_us() / 1e6 - _AN_HOUR
    if actors:
        world = Town(seed, Customs(repo=_REPO), since).world
    else:
        world = World(since, seed)
        world.create_repo(_REPO, {"README.md": b"# app\n"})
    return GitHubSim(world, clock, token)
