"""`towline demo`: the real service tows a simulated fleet, an hour a minute."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import tempfile
import webbrowser
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.status import Status
from rich.text import Text

from towline_once.errors import Rejected
from towline_sim.demo.clock import FASTEST, SLOWEST
from towline_sim.demo.harness import HOST

if TYPE_CHECKING:  # they load the whole service, which takes its time
    from towline_sim.demo.harness import Demo
    from towline_sim.demo.sights import Scenes

USUAL_PORT: Final = 8788
_LONGEST_SECONDS: Final = 86_400.0
_SHOW_SECONDS: Final = 0.5
_HIGHEST_PORT: Final = 65_535


def run(port: int | None, speed: float, browser: bool, seconds: float | None) -> None:
    """`seconds` is after how long it ends by itself; None for never."""
    _check(port, speed, seconds)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="towline-demo-") as name:
        with _status(console, "starting …"):
            from towline.cli.serve import loop_factory
        with _listening(port) as listening:
            _log_to(Path(name) / "towline.log")
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(_play(console, Path(name), listening, speed, browser, seconds))
            logging.shutdown()


def _check(port: int | None, speed: float, seconds: float | None) -> None:
    if port is not None and not 0 <= port <= _HIGHEST_PORT:
        raise Rejected(f"--port is a number from 0 to {_HIGHEST_PORT}, not {port}")
    if not SLOWEST <= speed <= FASTEST:
        raise Rejected(f"--speed is a number from {SLOWEST:g} to {FASTEST:g}, not {speed:g}")
    if seconds is not None and not 0 < seconds <= _LONGEST_SECONDS:
        allowed = f"above 0 and up to {_LONGEST_SECONDS:g}"
        raise Rejected(f"--for is a number of seconds {allowed}, not {seconds:g}")


def _listening(port: int | None) -> socket.socket:
    """The usual port, or any free one where that is taken and none was asked for."""
    from towline.cli.serve import bound

    if port is not None:
        return bound(HOST, port)
    try:
        return bound(HOST, USUAL_PORT)
    except Rejected:
        return bound(HOST, 0)


def _log_to(file: Path) -> None:
    """The terminal is for the show; the log is there to be read as long as the demo lasts."""
    logging.basicConfig(filename=file, level=logging.WARNING, force=True)


async def _play(
    console: Console,
    folder: Path,
    listening: socket.socket,
    speed: float,
    browser: bool,
    seconds: float | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        with _status(console, "starting …"):
            from towline_sim.demo.harness import demo_in

            demo = await stack.enter_async_context(demo_in(folder, listening, speed))
        _welcome(console, demo, speed)
        if browser and console.is_terminal:
            loop.run_in_executor(None, _open_browser, demo.link)
        await _show(console, demo, stop, seconds)
        with _status(console, "ending …"):
            await stack.aclose()
    _sum_up(console, demo.scenes)


def _status(console: Console, text: str | Text) -> AbstractContextManager[Status | None]:
    return console.status(text) if console.is_terminal else contextlib.nullcontext()


def _welcome(console: Console, demo: Demo, speed: float) -> None:
    console.print("[bold]Towline[/] tows a simulated fleet: no account, no network, nothing kept.")
    console.print(f"  dashboard  {demo.link}", soft_wrap=True)
    console.print(f"  API key    {demo.key}", soft_wrap=True)
    console.print(f"  time       {speed:g} times as fast as yours; Ctrl-C ends it")
    sys.stdout.flush()


def _open_browser(address: str) -> None:
    """Only one with a window: a text browser would take the terminal from us."""
    with contextlib.suppress(webbrowser.Error, OSError):
        found = webbrowser.get()
        if type(found) is not webbrowser.GenericBrowser:
            found.open(address)


async def _show(console: Console, demo: Demo, stop: asyncio.Event, seconds: float | None) -> None:
    """Until it is stopped, its time is up, or something went wrong."""
    stopping = asyncio.create_task(stop.wait())
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    told = 0
    try:
        with _status(console, _line(demo)) as shown:
            while not stopping.done() and not demo.ended.done():
                left = None if deadline is None else deadline - asyncio.get_running_loop().time()
                if left is not None and left <= 0:
                    return
                if shown is not None:
                    told = _tell(console, demo.scenes, told)
                    shown.update(_line(demo))
                pause = _SHOW_SECONDS if left is None else min(_SHOW_SECONDS, left)
                await asyncio.wait(
                    {stopping, demo.ended}, timeout=pause, return_when="FIRST_COMPLETED"
                )
    finally:
        stopping.cancel()
    if demo.ended.done():
        demo.ended.result()


def _line(demo: Demo) -> Text:
    seen = demo.scenes
    line = Text.assemble(
        f"{seen.under_tow} under tow · ",
        (f"{seen.merged} merged", "green"),
        " · ",
        (f"{seen.healed} healed", "green"),
        " · ",
        (f"{seen.escalated} escalated", "yellow"),
        " · breaker ",
        (seen.breaker, "green" if seen.breaker == "closed" else "bold red"),
    )
    if demo.clock.speed == 0:
        line.append(" · paused", "bold")
    return line


def _tell(console: Console, seen: Scenes, told: int) -> int:
    """What is new among the firsts; how many have been told then."""
    firsts = list(seen.first.items())
    for scene, first in firsts[told:]:
        console.print(f"  [dim]{first.seconds:5.1f} s[/]  [bold]{scene}[/]  {first.what}")
    return len(firsts)


def _sum_up(console: Console, seen: Scenes) -> None:
    console.print(
        f"Seen in {seen.seconds:.0f} s: {seen.merged} merged, {seen.healed} healed, "
        f"{seen.escalated} escalated, breaker tripped {seen.trips} and recovered "
        f"{seen.recoveries} times.",
        soft_wrap=True,
    )
    if console.is_terminal:
        return
    from towline_sim.demo.sights import SCENES

    for scene in SCENES:
        first = seen.first.get(scene)
        told = f"first after {first.seconds:.1f} s, {first.what}" if first else "not seen"
        console.print(f"  {scene}: {told}", soft_wrap=True)
