"""`towline demo`: its options; what it runs is loaded when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from towline.cli.stopping import end_at_once_when_stopped


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    port: Annotated[int | None, typer.Option(help="The port; 0 for any free one.")] = None,
    speed: Annotated[float, typer.Option(help="Clock speed, as a multiple of real time.")] = 60.0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the dashboard in a browser.")
    ] = True,
    seconds: Annotated[
        float | None, typer.Option("--for", help="Stop after this many seconds.")
    ] = None,
) -> None:
    """Watch the real service tow a simulated fleet, an hour a minute; needs no account."""
    end_at_once_when_stopped()
    from towline_sim.demo.run import run

    run(port, speed, browser, seconds)
