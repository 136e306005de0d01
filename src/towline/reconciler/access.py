"""What the routes of the reconciler work with: with it, all that the routes of the tow need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from towline.commands.access import CommandRoutes
from towline.reconciler.sweep import Reconciler
from towline_once.coordination.breaker_registry import BreakerBoard


@dataclass(frozen=True)
class Tow(CommandRoutes):
    """What it takes to sweep, and to look at breakers."""

    sweeper: Reconciler
    breakers: BreakerBoard


def tow_of(request: Request) -> Tow:
    tow: Tow = request.app.state.tow
    return tow


TheTow = Annotated[Tow, Depends(tow_of)]
