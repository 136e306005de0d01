"""The pages over real HTTP and real stores: what they show, and that it is safe to show it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.app.control_plane import KEY
from tests.dashboard.dashboard_plane import DashboardPlane, Visitor, dashboard_on, visiting
from tests.pulls.pull_words import check
from towline.dashboard.audit import tail
from towline.fix.model import STAGES, Errand, StageRecord
from towline.forges.delivery_log import HourCounts
from towline.inbox.lost_deliveries import HookHours
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.pulls.parking_store import Parked, Parking

HOUR = 3600.0
NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
FORGE_LINK = re.compile(r'href="https://forge\.example/[^"]*" rel="noreferrer"')
ADDRESS = re.compile(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]+", re.IGNORECASE)
INLINE = re.compile(
    r"<script(?![^>]*\ssrc=)|\son[a-z]+=|\sstyle=|<style|javascript:", re.IGNORECASE
)


@pytest.fixture
async def plane(sql_url: str, tmp_path: Path) -> AsyncIterator[DashboardPlane]:
    """Each SQL backend in turn."""
    async with dashboard_on(sql_url) as opened:
        opened.audit_file = tmp_path / "audit.jsonl"
        yield opened


@pytest.fixture
async def visitor(plane: DashboardPlane) -> AsyncIterator[Visitor]:
    """Somebody who may do everything."""
    async with visiting(plane, KEY) as opened:
        yield opened


async def a_run(plane: DashboardPlane, key: str, title: str, *, blocked: bool) -> None:
    errand = Errand(
        cause="failure", forge="github", repo="octo-org/app", base_ref="main", title=title
    )
    job = NewJob(f"job_{key}", OWN_QUEUE, "fix", repo="octo-org/app")
    await plane.runs.get_or_create(key, f"event {key}", errand, f"towline/{key}", job)
    begun = await plane.runs.begin(key, 3)
    assert begun is not None
    stage = StageRecord(
        "PATCH", 1, "refused", "d", title, {"diff": f"+{title}\n-old"}, title, 1, 2.0
    )
    await plane.runs.record(key, begun.token, stage)
    if blocked:
        await plane.runs.finish(key, begun.token, "blocked", title)


async def test_what_is_wrong_here_is_on_the_health_page(
    plane: DashboardPlane, visitor: Visitor
) -> None:
    """A machine that cannot isolate, or does not have to; nothing if all is well."""
    assert 'id="troubles"' not in await visitor.get("/ui/health")
    plane.troubles = ('fix.sandbox is "none": <b>',)
    shown = await visitor.get("/ui/health")
    assert "fix.sandbox is &#34;none&#34;: &lt;b&gt;" in shown


async def test_a_run_s_page_warns(plane: DashboardPlane, visitor: Visitor) -> None:
    """That its commands were not isolated, once."""
    await a_run(plane, "warned", "title", blocked=False)
    begun = await plane.runs.begin("warned", 3)
    assert begun is not None
    told = {"warning": "nothing was isolated"}
    for stage in STAGES[1:4]:
        record = StageRecord(stage, 2, "passed", "d", "", told, "", 1, 2.0)
        await plane.runs.record("warned", begun.token, record)
    shown = await visitor.get("/ui/runs/warned")
    assert shown.count("<dt>Warning</dt>") == 1
    assert "nothing was isolated" in shown


async def everything(plane: DashboardPlane, text: str) -> None:
    """A bit of all that there is, with this text wherever somebody else may write."""
    diagnosis = {
        "rule": "checks_transient", "reason": text, "evidence": text, "next_action": "RETRY_CHECKS",
        "budget_left": 2, "otherwise": {"rule": "x", "action": "NO_ACTION", "reason": text,
        "evidence": text}, "outcome": "acted", "at": plane.clock.now_us() / 1e6,
    }  # fmt: skip
    await plane.tow(
        "octo-org/app", 7, title=text, author=text, head_ref=text, base_ref=text, substatus=text,
        state="CHECKS_FAILED", ago=HOUR, diagnosis=diagnosis, vulnerability_id=text,
        events=[("PR_OPENED", {"to": "CREATED", "title": text}),
                ("CHECKS_FAILED", {"from": "CHECKS_RUNNING", "to": "CHECKS_FAILED", "text": text}),
                ("REMEDIATION_REBUILD", {"by": text, "reason": text}),
                ("COMMAND_RECEIVED", {"command": text, "requested_by": text})],
    )  # fmt: skip
    await plane.receive("d1", payload={"text": text})
    await plane.work("dead", error=text, reason=text)
    await a_run(plane, "r1", text, blocked=True)
    lines = [{"at": "2026-01-01T00:00:00Z", "event": text, "by": text, "what": text}]
    assert plane.audit_file is not None
    plane.audit_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "broken{\n")


PAGES = (
    *("/ui/", "/ui/?state=CHECKS_FAILED", "/ui/?search=script", "/ui/?stale=yes", "/ui/health"),
    *("/ui/pr/octo-org/app/7", "/ui/pr/app/7", "/ui/inbox", "/ui/inbox/d1", "/ui/jobs"),
    *("/ui/jobs/job_7_d1", "/ui/runs", "/ui/runs/r1", "/ui/audit", "/ui/?repo=nowhere/at-all"),
)


async def test_hostile_text_is_only_text(plane: DashboardPlane, visitor: Visitor) -> None:
    """Titles, branches, logs and names of others appear escaped, on every page."""
    await everything(plane, NASTY)
    shown = 0
    for path in PAGES:
        text = await visitor.get(path)
        assert "<script>alert" not in text, path
        assert "<img src=x" not in text, path
        assert ">49" not in text, path
        assert not INLINE.search(re.sub(r"&[a-z#0-9]+;", "", text).replace("onerror=alert(2)", ""))
        shown += "&lt;script&gt;alert(1)" in text
    assert shown >= 9


async def test_nothing_comes_from_elsewhere(plane: DashboardPlane, visitor: Visitor) -> None:
    """No page names another host, but for links to the forge; a strict policy goes with each."""
    await everything(plane, "Bump a library")
    for path in (*PAGES, "/ui/sign-in", "/ui/no-such-page"):
        answer = await visitor.client.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        left = FORGE_LINK.sub("", answer.text)
        assert not ADDRESS.search(left), (path, ADDRESS.findall(left))
    style = await visitor.get("/ui/static/towline.css")
    script = await visitor.get("/ui/static/towline.js")
    assert not ADDRESS.search(style + script)
    assert "@import" not in style
    assert len(script.splitlines()) < 200


async def test_a_link_that_is_none_leads_nowhere(plane: DashboardPlane, visitor: Visitor) -> None:
    """Only a web address becomes a link."""
    await plane.tow("octo-org/app", 9, url="javascript:alert(1)")
    assert "javascript:" not in await visitor.get("/ui/pr/octo-org/app/9")


async def test_the_board_is_bounded(plane: DashboardPlane, visitor: Visitor) -> None:
    """Five thousand pull requests: a few cards of each state, all counted, well under 300 kB."""
    states = ("CREATED", "CHECKS_RUNNING", "CHECKS_FAILED", "APPROVED", "NEEDS_INTERVENTION")
    rows = [
        (f"octo-org/repository-with-a-long-name-{place % 50}", place, "github", f"Bump {'x' * 200}",
         states[place % len(states)], place, place)
        for place in range(1, 5001)
    ]  # fmt: skip
    await plane.fill(rows)
    text = await visitor.get("/ui/")
    assert len(text.encode()) < 300_000
    assert text.count('<li class="card') == 8 * len(states)
    assert text.count("992 more") == len(states)
    page = await visitor.get("/ui/?state=CREATED")
    assert page.count('<li class="card') == 60
    assert len(page.encode()) < 300_000
    found = re.search(r'href="(\?[^"]*cursor=[^"]*)">Next page', page)
    assert found is not None
    following = await visitor.get(f"/ui/{found[1].replace('&amp;', '&')}")
    refs = re.compile(r'data-ref="([^"]+)"')
    assert not set(refs.findall(page)) & set(refs.findall(following))


async def test_a_card_says_what_is_wrong(plane: DashboardPlane, visitor: Visitor) -> None:
    """Its diagnosis in a line, how long, and what is left of the budget."""
    await everything(plane, "not a code problem")
    text = await visitor.get("/ui/")
    for said in ("Not a code problem", "1 h", "stale", "Rebuild: 3 of 3 left"):
        assert said in text


async def test_filters_and_search(plane: DashboardPlane, visitor: Visitor) -> None:
    """By repository, state, staleness, rule and words."""
    await everything(plane, "Bump alpha")
    await plane.tow("octo-org/web", 8, title="Bump beta", state="APPROVED")
    for given, expected in {
        "repo=octo-org/web": {8}, "repo=web": {8}, "state=CHECKS_FAILED": {7}, "stale=yes": {7},
        "stale=no": {8}, "rule=checks_transient": {7}, "search=beta": {8}, "search=bump": {7, 8},
        "search=%25": set(), "state=nonsense": {7, 8}, "": {7, 8},
    }.items():  # fmt: skip
        text = await visitor.get(f"/ui/?{given}")
        assert {int(one) for one in re.findall(r'data-ref="[^"]+#(\d+)"', text)} == expected, given
    assert "Nothing fits these filters" in await visitor.get("/ui/?search=gamma")


async def test_a_pull_requests_page(plane: DashboardPlane, visitor: Visitor) -> None:
    """Picture and table, diagnosis, budgets, commands and log."""
    await everything(plane, "connection reset by peer")
    text = await visitor.get("/ui/pr/octo-org/app/7")
    for said in (
        '<svg class="life"', "connection reset by peer", "checks_transient", "Retry checks",
        "at the next sweep", '<meter min="0" max="3"', "Open at GitHub", "REMEDIATION_REBUILD",
    ):  # fmt: skip
        assert said in text, said
    assert text.count('<path class="pin remedy"') == 1
    assert text.count('<path class="pin command"') == 1
    assert not re.search(r'id="do-rebuild"[^>]* disabled', text)
    assert re.search(r'id="do-merge"[^>]* disabled', text)
    assert "Only in: Approved, Merging, Needs intervention." in text


async def test_the_log_is_paged(plane: DashboardPlane, visitor: Visitor) -> None:
    """Fifty at a time, the newest first, each once."""
    await plane.tow(
        "octo-org/app", 7, events=[("CHECKS_STARTED", {"detail": f"line {n}."}) for n in range(120)]
    )
    seen: list[str] = []
    for skip in (0, 50, 100):
        text = await visitor.get(f"/ui/pr/octo-org/app/7?skip={skip}")
        seen += re.findall(r"line \d+\.", text)
    assert seen == [f"line {n}." for n in reversed(range(120))]


async def test_health_counts(plane: DashboardPlane, visitor: Visitor) -> None:
    """What merged and how fast, what healed without a person, webhooks, jobs, reasons."""
    healed = [("REMEDIATION_REBUILD", {}), ("CHECKS_PASSED", {"to": "CHECKS_PASSED"})]
    asked = [("COMMAND_RECEIVED", {"command": "/rebuild"}), *healed]
    now_us = plane.clock.now_us()
    for number, events in enumerate((healed, asked, []), start=1):
        await plane.tow(
            "octo-org/app", number, state="MERGED", created_us=now_us - int(HOUR * 2e6),
            events=events, last_remediation_us=now_us if events else None,
        )  # fmt: skip
    await plane.tow("octo-org/app", 9, state="NEEDS_INTERVENTION")
    hour_us = now_us - now_us % 3_600_000_000
    await HookHours(plane.database).record("github:o/r:1", [HourCounts(hour_us, 10, 7, 2)])
    text = await visitor.get("/ui/health")
    assert re.search(r"<b>3</b><span>merged", text)
    assert "<b>2 h</b><span>median lead time" in text
    assert re.search(r"<b>33 %</b><span>healed without a person \(1 of 3\)", text)
    assert "7 received, 2 recovered, 1 missing" in text
    assert "not diagnosed yet" in text
    assert text.count("<svg") == 4


async def test_the_inbox_shows_which_delivery_waits(
    plane: DashboardPlane, visitor: Visitor
) -> None:
    """An event that came before its pull request is named, in the list and on its page."""
    await plane.receive("early", "late")
    (stored,) = await plane.inbox.find("early")
    await Parking(plane.database).park([Parked.of(stored, 0, check(), 7, None)])
    assert (await visitor.get("/ui/inbox")).count("waits for its pull request") == 1
    assert "before its pull request was recorded" in await visitor.get("/ui/inbox/early")
    assert "before its pull request was recorded" not in await visitor.get("/ui/inbox/late")


async def test_an_empty_house_says_what_to_do(visitor: Visitor) -> None:
    """Nothing is under tow, nothing came in: each page still reads."""
    assert "Nothing is under tow yet" in await visitor.get("/ui/")
    assert "Nothing was received yet" in await visitor.get("/ui/inbox")
    assert "There are no jobs" in await visitor.get("/ui/jobs")
    assert "Nothing was to be fixed yet" in await visitor.get("/ui/runs")
    assert "Nothing was recorded yet" in await visitor.get("/ui/audit")
    assert "Nothing to show yet" in await visitor.get("/ui/health")


async def test_what_is_not_there(plane: DashboardPlane, visitor: Visitor) -> None:
    """A friendly page with the problem's code, and never a traceback."""
    for path, code in {
        "/ui/pr/octo-org/app/99": "unknown_pull", "/ui/pr/nothing/1": "unknown_repo",
        "/ui/pr/octo-org/app/x": "not_found", "/ui/inbox/none": "not_found",
        "/ui/jobs/none": "not_found", "/ui/runs/none": "unknown_run", "/ui/nowhere": "not_found",
        "/ui/static/secret.py": "not_found", "/ui/static/..%2Fauth.py": "not_found",
    }.items():  # fmt: skip
        text = await visitor.get(path, 404)
        assert f"<code>{code}</code>" in text, path
        assert "Traceback" not in text
    assert "<code>invalid_request</code>" in await visitor.get("/ui/?stale=yes&cursor=bad", 422)
    answer = await visitor.client.post("/ui/health")
    assert answer.status_code == 405
    assert "<code>method_not_allowed</code>" in answer.text


async def test_an_error_nobody_expected(plane: DashboardPlane, visitor: Visitor) -> None:
    """The page says so, and the log has the rest."""
    await plane.spoil("octo-org/app", 7)
    text = await visitor.get("/ui/pr/octo-org/app/7", 500)
    assert "<code>internal_error</code>" in text
    assert "orjson" not in text
    assert "File" not in text


def test_the_docs_show_what_there_is() -> None:
    """Each screenshot in the guide exists, and is small enough for a page."""
    docs = Path(__file__).parents[2] / "docs"
    guide = (docs / "how-to" / "read-the-dashboard.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(\.\./images/([^)]+)\)", guide)
    assert len(shown) >= 3
    for name in shown:
        assert (docs / "images" / name).stat().st_size < 300_000


async def test_the_audit_file_is_read_from_its_end(tmp_path: Path) -> None:
    """The newest first, over the last rotation, and no more than is asked for."""
    path = tmp_path / "audit.jsonl"
    path.with_name("audit.jsonl.1").write_text('{"event": "one"}\n{"event": "two"}\n')
    path.write_text('{"event": "three"}\n[]\n{"event": "four"}\n')
    assert [one.event for one in tail(path)] == ["four", "three", "two", "one"]
    assert [one.event for one in tail(path, 25)] == ["four"]
    assert tail(tmp_path / "none") == []
