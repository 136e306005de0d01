"""`towline bench`: the benchmarks of a checkout, which are no part of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from towline_once.errors import Rejected

_Suites = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SUITE]...", help="The suites to run; by default all."),
]
_Quick = Annotated[bool, typer.Option("--quick", help="Take short samples, and write no page.")]
_Rounds = Annotated[
    int | None, typer.Option("--rounds", min=1, help="Measurements of each contender.")
]
_Samples = Annotated[
    Path | None, typer.Option("--samples", help="Also write the samples to this file.")
]


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    suites: _Suites = None, quick: _Quick = False, rounds: _Rounds = None, samples: _Samples = None
) -> None:
    """Measure Towline beside raw drivers and peers; needs a checkout, takes many minutes."""
    folder = _checkout()
    if folder is None:
        raise Rejected(
            "the benchmarks are in the source, not in the package: run `make bench` in a checkout"
        )
    words = [*(suites or []), *(["--quick"] if quick else [])]
    words += ["--rounds", str(rounds)] if rounds is not None else []
    words += ["--json", os.path.abspath(samples)] if samples is not None else []
    ran = subprocess.run([sys.executable, "-m", "bench", *words], cwd=folder, check=False)  # noqa: S603 - our own program, with checked words
    raise typer.Exit(ran.returncode)


def _checkout() -> Path | None:
    """The checkout that we stand in, if we do."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "bench" / "__main__.py").is_file() and (folder / "src" / "towline").is_dir():
            return folder
    return None
