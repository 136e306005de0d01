"""What the routes of the tow work with."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Depends, Request

from towline.coordination.breaker_board import BreakerBoard
from towline.core.sweep_policy import TowPolicy
from towline.flow.bridge import Bridge
from towline.flow.reconcile import Reconciler
from towline.ports.pulls import PullStore
from towline.web.auth import Principal
from towline.web.control_access import Needs


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
