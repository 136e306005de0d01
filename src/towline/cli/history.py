"""What the commands on the recorded history share: which part of it, and the store it is in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from towline.cli.database import opened_database
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.pulls.store import PullStore

Repo = Annotated[str | None, typer.Option("--repo", help="Only the history of OWNER/NAME.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="Only those opened since: 36h, 7d, 2w or 2026-03-01[T12:00]."),
]
_AGO: Final = re.compile(r"([1-9][0-9]{0,5})([hdw])")
_HOURS: Final = {"h": 1, "d": 24, "w": 168}


def since_us(text: str | None, now_us: int) -> int:
    if text is None:
        return 0
    if (ago := _AGO.fullmatch(text)) is not None:
        return now_us - int(ago[1]) * _HOURS[ago[2]] * 3_600_000_000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Rejected(
            f"--since is 36h, 7d, 2w or a date such as 2026-03-01, not {text[:50]!a}"
        ) from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1e6)


@asynccontextmanager
async def opened_history(loaded: Any) -> AsyncIterator[tuple[PullStore, int]]:
    from towline.pulls.store import PullStore

    async with opened_database(loaded) as (_, database, clock):
        yield PullStore(database), clock.now_us()


async def repo_named(pulls: PullStore, name: str | None) -> str | None:
    from towline.pulls.fleet import full_name

    return None if name is None else await full_name(pulls, name)
