"""Computes when a cron expression is due next, in UTC. Pure; `schedules` calls it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cronsim import CronSim, CronSimError

from towline_once.errors import Rejected

_SHOWN: Final = 100


class Turn(NamedTuple):
    """The tick that is due, if any, and when the next one will be."""

    due: datetime | None
    next_run: datetime


def check(name: str, expression: str) -> None:
    """Refuse an expression that cannot be read, or that never comes true."""
    shown = repr(expression[:_SHOWN])
    try:
        next(CronSim(expression, datetime(2024, 1, 1, tzinfo=UTC)))
    except (CronSimError, ValueError) as error:  # also of a number with thousands of digits
        raise Rejected(f"schedule {name}: {shown} is no cron expression: {error}") from None
    except StopIteration:
        raise Rejected(f"schedule {name}: {shown} never comes true") from None


def first_after(expression: str, now: datetime) -> datetime:
    return next(CronSim(expression, now))


def turn(expression: str, next_run: datetime, now: datetime) -> Turn:
    """Ticks that were missed while no process ran become one: the latest of them."""
    if next_run > now:
        return Turn(None, next_run)
    latest = next_run
    for tick in CronSim(expression, now + timedelta(seconds=1), reverse=True):
        if tick <= now:
            latest = max(tick, next_run)
            break
    return Turn(latest, first_after(expression, now))
