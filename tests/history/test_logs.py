"""The logs of all pull requests, read in pages and put together again."""

from __future__ import annotations

from tests.pulls.tow_plane import tow_plane_on
from towline.pulls.store import Logged, LogPlace, whole_logs

_OPENED = ("PR_OPENED", {"to": "CREATED"})
_RUNS = ("CHECKS_STARTED", {"to": "CHECKS_RUNNING"})


async def test_pages_hold_each_line_once(sql_url: str) -> None:
    """By repository, number and place in its log, however small the pages are."""
    async with tow_plane_on(sql_url) as plane:
        for repo, number in (("octo-org/app", 2), ("octo-org/app", 10), ("octo-org/web", 1)):
            await plane.tow(repo, number, events=[_OPENED, _RUNS, _RUNS])
        for most in (1, 2, 100):
            read: list[Logged] = []
            place = LogPlace()
            while page := await plane.pulls.log(place, most):
                assert len(page) <= most
                read += page
                place = LogPlace(read[-1].repo, read[-1].number, read[-1].event.id)
            told = [(line.repo, line.number, line.event.id) for line in read]
            assert told == sorted(set(told))
            assert len(told) == 9


async def test_logs_of_one_repository(sql_url: str) -> None:
    """Whole logs, and none of the others."""
    async with tow_plane_on(sql_url) as plane:
        for repo in ("octo-org/a", "octo-org/app", "octo-org/b"):
            await plane.tow(repo, 1, events=[_OPENED, _RUNS])
        (only,) = [log async for log in whole_logs(plane.pulls, "octo-org/app")]
        assert [event.event_type for event in only] == ["PR_OPENED", "CHECKS_STARTED"]
        assert len([log async for log in whole_logs(plane.pulls)]) == 3
