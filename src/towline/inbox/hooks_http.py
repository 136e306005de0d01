"""`/api/hooks`: what the forge says it delivered, beside what came in and what was fetched."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from towline.http.access import Reader
from towline.http.models import moment
from towline.http.problem_docs import documented
from towline.inbox.access import TheControl

router = APIRouter(prefix="/api", responses=documented(401, 403, 422, 503))

Hours = Annotated[int, Query(ge=1, le=24 * 90, description="How many hours back.")]


class HookHourView(BaseModel):
    """`delivered` by the forge, of which `received` as webhooks and `recovered` from its log."""

    hook: str
    hour: datetime
    delivered: int
    received: int
    recovered: int


class HookHoursView(BaseModel):
    items: list[HookHourView]


@router.get("/hooks", tags=["inbox"])
async def list_hook_hours(control: TheControl, _: Reader, hours: Hours = 72) -> HookHoursView:
    """Watched hooks, hour by hour, oldest first."""
    since_us = control.clock.now_us() - hours * 3_600_000_000
    found = await control.hours.hours(None, since_us)
    return HookHoursView(
        items=[
            HookHourView(
                hook=one.hook,
                hour=moment(one.hour_us),
                delivered=one.delivered,
                received=one.received,
                recovered=one.recovered,
            )
            for one in found
        ]
    )
