"""`towline doctor`: what is well, what is not, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from towline.cli.pulls import Config, Json, print_json

if TYPE_CHECKING:
    from towline.doctor.checks import Report

_Bundle = Annotated[
    Path | None,
    typer.Option("--bundle", help="Also write a .tar.gz or .zip for a bug report, no secrets."),
]
_Seconds = Annotated[
    float,
    typer.Option("--timeout", min=0.1, max=60, help="Seconds that a server has to answer."),
]


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    bundle: _Bundle = None, timeout: _Seconds = 5.0, config: Config = None, json: Json = False
) -> None:
    """Check settings, stores, forge, webhooks, clock and tools; say how to fix each problem."""
    import asyncio

    if bundle is not None:
        from towline.doctor.bundle import kind_of

        kind_of(bundle)
    report = asyncio.run(_examined(config, bundle, timeout))
    if json:
        print_json(report.as_data() | {"bundle": None if bundle is None else str(bundle)})
    else:
        from towline.cli.doctor_text import show_report

        show_report(report.findings, bundle)
    if report.failed:
        raise typer.Exit(1)


async def _examined(config: Path | None, bundle: Path | None, seconds: float) -> Report:
    import asyncio

    from towline.doctor.checks import check_up

    with _progress() as progress:
        report = await check_up(config, seconds, progress.start, progress.ended)
        if bundle is not None:
            from towline.doctor.bundle import write_bundle

            # A reading that is still held up counts here as well, so the whole has its deadline.
            async with asyncio.timeout(60 + 10 * seconds):
                await write_bundle(report, bundle, seconds)
    return report


class _Progress:
    """A bar on a terminal; silence elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self.bar.add_task("Checking", total=None)

    def start(self, total: int) -> None:
        self.bar.update(self._task, total=total)

    def ended(self, check: str) -> None:
        self.bar.update(self._task, advance=1, description=f"Checked {check}")


@contextmanager
def _progress() -> Iterator[_Progress]:
    progress = _Progress()
    with progress.bar:
        yield progress
