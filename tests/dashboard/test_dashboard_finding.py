"""Filters and pages over many rows: everything is found, once, in one order, without a scan."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator

import pytest

from tests.app.control_plane import KEY
from tests.dashboard.dashboard_plane import DashboardPlane, Visitor, dashboard_on, visiting
from towline.dashboard.fleet import ORDER
from towline.dashboard.queries import Place, Sought, SqlInsights, row_for, statement_for
from towline.jobs.model import OWN_QUEUE, NewJob
from towline_once.db.sqlite import path_of

HOUR_US = 3_600_000_000
REF = re.compile(r'data-ref="([^"]+)"')
NEXT = re.compile(r'<nav class="pager"[^>]*>.*href="([^"]+)">(?:Next page|Older)</a></nav>')


@pytest.fixture
async def plane(sql_url: str) -> AsyncIterator[DashboardPlane]:
    """Each SQL backend in turn."""
    async with dashboard_on(sql_url) as opened:
        yield opened


@pytest.fixture
async def visitor(plane: DashboardPlane) -> AsyncIterator[Visitor]:
    """Somebody who may do everything."""
    async with visiting(plane, KEY) as opened:
        yield opened


async def every_page(visitor: Visitor, address: str) -> list[str]:
    """What all pages of a filter show, in their order."""
    found: list[str] = []
    where: str | None = address
    for _ in range(40):
        if where is None:
            return found
        text = await visitor.get(where)
        found += REF.findall(text)
        more = NEXT.search(text)
        where = f"/ui/{more[1].replace('&amp;', '&')}" if more else None
    raise AssertionError("the pages have no end")


async def a_fleet(plane: DashboardPlane) -> None:
    """Three hundred in two repositories and five states, with equal times among them."""
    now_us = plane.clock.now_us()
    states = ("MERGED", "CHECKS_FAILED", "NEEDS_INTERVENTION", "APPROVED", "CLOSED")
    await plane.fill(
        [
            (f"octo-org/{'app' if n % 2 else 'web'}", n, "github", f"Bump part {n % 7}",
             states[n % 5], now_us - n // 3 * 60_000_000, now_us)
            for n in range(1, 301)
        ]
    )  # fmt: skip


async def test_every_filter_finds_all_and_each_once(
    plane: DashboardPlane, visitor: Visitor
) -> None:
    """Page after page, whether an index answers or what it holds is looked through."""
    await a_fleet(plane)
    numbers = range(1, 301)
    expected = {
        "?state=MERGED": [n for n in numbers if n % 5 == 0],
        "?state=APPROVED": [n for n in numbers if n % 5 == 3],
        "?repo=octo-org/app": [n for n in numbers if n % 2],
        "?search=part+3": [n for n in numbers if n % 7 == 3],
        "?search=web%23120": [120],
        "?search=part+3&state=CLOSED": [n for n in numbers if n % 7 == 3 and n % 5 == 4],
        "?stale=no&state=MERGED": [n for n in numbers if n % 5 == 0],
        "?search=100%25": [],
    }
    for address, wanted in expected.items():
        shown = await every_page(visitor, f"/ui/{address}")
        assert sorted(int(ref.rpartition("#")[2]) for ref in shown) == wanted, address


async def test_stale_and_in_time_share_the_fleet(plane: DashboardPlane, visitor: Visitor) -> None:
    """Each is in one of both, also where a filter goes another way to find it."""
    await a_fleet(plane)
    for beside in ("", "&repo=octo-org/web", "&search=part"):
        late = await every_page(visitor, f"/ui/?stale=yes{beside}")
        good = await every_page(visitor, f"/ui/?stale=no{beside}")
        everyone = 150 if "repo" in beside else 300
        assert late
        assert len({*late, *good}) == len(late) + len(good) == everyone


async def test_the_order_is_that_of_the_board(plane: DashboardPlane) -> None:
    """What needs a person first; in a state the longest first, of those that ended the newest."""
    await a_fleet(plane)
    for sought in (Sought(), Sought(search="part")):
        found = await plane.insights.find(sought, ORDER, None, 400)
        keys = [
            (ORDER.index(one.state),
             -one.since_us if one.state in ("MERGED", "CLOSED") else one.since_us)
            for one in found
        ]  # fmt: skip
        assert len(found) == 300
        assert keys == sorted(keys)


async def test_a_rule_is_that_of_the_state_now(plane: DashboardPlane, visitor: Visitor) -> None:
    """A diagnosis that is older than the state is not what a filter finds."""
    since = plane.clock.now_us() / 1e6
    told = {"rule": "merge_conflict", "reason": "a conflict", "next_action": "REBUILD"}
    await plane.tow("octo-org/app", 1, state="CHECKS_FAILED", diagnosis={**told, "at": since + 1})
    await plane.tow("octo-org/app", 2, state="CHECKS_FAILED", diagnosis={**told, "at": since - 9})
    await plane.tow("octo-org/app", 3, state="MERGED", diagnosis={**told, "at": since + 1})
    assert await every_page(visitor, "/ui/?rule=merge_conflict") == ["octo-org/app#1"]
    assert await every_page(visitor, "/ui/?rule=branch_behind") == []


@pytest.mark.parametrize("cursor", ["x", "1 2 3", "1 2 x octo-org/app"])
async def test_a_cursor_that_no_page_gave(visitor: Visitor, cursor: str) -> None:
    """It is refused, and not taken for the first page."""
    await visitor.get(f"/ui/?state=CREATED&cursor={cursor}", 422)


async def test_lists_go_on_where_a_look_ended(plane: DashboardPlane) -> None:
    """A filter that looks through few at a time still finds everything, page after page."""
    insights = SqlInsights(plane.database, most_looked_at=10)
    for n in range(45):
        await plane.receive(f"delivery-{n:02d}")
    for state in (None, "queued"):
        found, before = [], ""
        for _ in range(20):
            page = await insights.jobs(state, {"kind": "DELIV"}, before, 7)
            found += [one.id for one in page.rows]
            if page.last is None:
                break
            before = page.last
        assert len(found) == len(set(found)) == 45
        assert found == sorted(found, reverse=True)
    keys, after = [], None
    for _ in range(20):
        taken = await insights.deliveries({"source": "Hub"}, after, 7)
        keys += [one.key for one in taken.rows]
        if taken.last is None:
            break
        after = taken.last
    assert len(keys) == len(set(keys)) == 45
    assert (await insights.deliveries({"repo": "no/such"}, None, 7)).rows == []


async def test_jobs_by_state(plane: DashboardPlane) -> None:
    """Each state by itself, without what only the job's own page shows."""
    await plane.receive("delivery-1")
    await plane.work("dead", error="it broke", reason="failed")
    await plane.jobs.enqueue(NewJob("job_z", OWN_QUEUE, "fix", params="{}"))
    for state, ids in (("dead", 1), ("queued", 1), ("running", 0), ("done", 0), (None, 2)):
        page = await plane.insights.jobs(state, {}, "", 9)  # type: ignore[arg-type]
        assert (len(page.rows), page.last) == (ids, None), state
        assert all(one.params is None for one in page.rows)


async def test_the_forgotten_still_count(plane: DashboardPlane, visitor: Visitor) -> None:
    """Records are kept for a day; a month's health has them all the same, and once."""
    nothing: dict[str, object] = {}
    remedied = [("REMEDIATION_REBUILD", nothing), ("CHECKS_PASSED", nothing)]
    day = 24 * 3600
    for n, ago in enumerate((3 * day, 3 * day, 10 * day, 60)):
        record = await plane.tow("octo-org/app", n + 1, ago=ago, events=remedied)
        await plane.tow(
            "octo-org/app", n + 1, state="MERGED", ago=ago, created_us=record.created_us - HOUR_US,
            last_remediation_us=1, expires_us=None if ago == 60 else 1,
        )  # fmt: skip
    assert (await plane.pulls.prune(100)).rows == 3
    shown = {days: await visitor.get(f"/ui/health?days={days}") for days in ("1", "7", "30")}
    merged = {days: re.findall(r"<b>([\d,]+)</b><span>merged", shown[days])[0] for days in shown}
    assert merged == {"1": "1", "7": "3", "30": "4"}
    assert "(4 of 4)" in shown["30"]
    assert "Ended per day" in shown["30"]
    assert await visitor.get("/ui/health?days=9") != ""


async def test_a_search_on_sqlite_reads_no_records(sqlite_url: str) -> None:
    """The index answers for what is looked for, and the records of the page alone are read."""
    if sqlite3.sqlite_version_info < (3, 41):
        pytest.skip("this SQLite reads records where an index of expressions would do")
    async with dashboard_on(sqlite_url):
        database = sqlite3.connect(path_of(sqlite_url))
        for filters in ({"search"}, {"rule"}, {"search", "state", "rule"}, {"repo", "rule"}):
            statement = statement_for("sqlite", frozenset(filters), ORDER)
            row = row_for(Sought("a", "CREATED", "b", "c"), Place(-1, 0, "", 0), 9)
            asked = f"EXPLAIN QUERY PLAN {statement.for_sqlite(1)}"
            plan = [step[3] for step in database.execute(asked, (0, *row))]
            assert any("r USING COVERING INDEX towline_prs_sought" in step for step in plan), plan
        database.close()
