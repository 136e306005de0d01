"""What the routes of the tow work with."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from towline.commands.service import Bridge
from towline.http.access import Needs
from towline.http.auth import Principal
from towline.pulls.policy import TowPolicy
from towline.pulls.store import PullStore
from towline.reconciler.sweep import Reconciler
from towline_once.coordination.breaker_registry import BreakerBoard


class Tow(NamedTuple):
    """The collaborators of these routes."""

    pulls: PullStore
    orders: Bridge
    sweeper: Reconciler
    breakers: BreakerBoard
    policy: TowPolicy


def tow_of(request: Request) -> Tow:
    tow: Tow = request.app.state.tow
    return tow


TheTow = Annotated[Tow, Depends(tow_of)]
Admin = Annotated[Principal, Depends(Needs("admin"))]
