"""`GET /api/hooks`: what was delivered, received and recovered, hour by hour."""

from __future__ import annotations

from tests.app.control_plane import READ_ONLY, Plane
from tests.clocks import ManualClock
from tests.http.asgi_client import serving
from towline.db import database_for
from towline.forges.delivery_log import HOUR_US, HourCounts, hour_of
from towline.inbox.lost_deliveries import HookHours


async def test_hours_of_watched_hooks_are_shown(sql_url: str) -> None:
    """Oldest first, within the time that is asked for, to whoever may read."""
    clock = ManualClock()
    plane = Plane(database_for(sql_url, clock), clock)
    this_hour = hour_of(clock.now_us())
    counts = [HourCounts(this_hour - age * HOUR_US, 10, 8, age) for age in (100, 2, 0)]
    await HookHours(plane.database).record("acme/app:7", counts)
    async with serving(plane.app()) as client:
        stranger = await client.get("/api/hooks")
        shown = await client.get("/api/hooks", headers={"x-api-key": READ_ONLY})
        too_far = await client.get("/api/hooks?hours=0", headers={"x-api-key": READ_ONLY})
    await plane.database.aclose()
    assert (stranger.status_code, too_far.status_code) == (401, 422)
    items = shown.json()["items"]
    assert [(item["hook"], item["delivered"], item["recovered"]) for item in items] == [
        ("acme/app:7", 10, 2),
        ("acme/app:7", 10, 0),
    ]
    assert items[0]["hour"] < items[1]["hour"]
