"""What a check-up found, as rows for people: what is not well has its fix beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer
from rich.text import Text

from towline.cli.listing import Column, coloured, show_rows
from towline.doctor.findings import Finding, tally

_FINDINGS: Final = (Column("verdict"), Column("check"), Column("found", folds=True))
_COLOURS: Final = {"ok": "green", "warning": "yellow", "failure": "bold red"}


def show_report(findings: Sequence[Finding], bundle: Path | None) -> None:
    show_rows(_FINDINGS, map(_row, findings))
    counts = tally(findings)
    warnings, failures = counts["warning"], counts["failure"]
    typer.echo(
        f"{counts['ok']} ok, {_counted(warnings, 'warning')}, {_counted(failures, 'failure')}"
    )
    if bundle is not None:
        typer.echo(f"The archive is {bundle}; secrets are taken out, but look before you send it")


def _row(finding: Finding) -> list[Text]:
    """In lines the columns stand below each other, too."""
    found = Text(finding.found)
    if finding.fix:
        found.append(f"  → {finding.fix}", style="bold")
    check = Text(f"{finding.check:9}")
    verdict = coloured(finding.verdict, _COLOURS)
    verdict.pad_right(8 - len(verdict))
    return [verdict, check, found]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
