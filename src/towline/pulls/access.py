"""What the routes about pull requests work with.

The application keeps one such object. Rooms that come later add to it what their own routes need
(`commands/access.py`, `reconciler/access.py`). Each route is given the part that its room knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from towline.http.access import Needs
from towline.http.auth import Principal
from towline.pulls.policy import TowPolicy
from towline.pulls.store import PullStore


@dataclass(frozen=True)
class PullRoutes:
    """What it takes to look at pull requests."""

    pulls: PullStore
    policy: TowPolicy


def pulls_of(request: Request) -> PullRoutes:
    tow: PullRoutes = request.app.state.tow
    return tow


ThePulls = Annotated[PullRoutes, Depends(pulls_of)]
Admin = Annotated[Principal, Depends(Needs("admin"))]
