"""What a person does at the dashboard, with a real browser over the real app and store."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.app.control_plane import READ_ONLY
from tests.browser.accessibility import grave_faults
from tests.browser.conftest import DEADLINE_MS, Desk
from tests.dashboard.dashboard_plane import DashboardPlane
from towline.fix.model import Errand
from towline.forges.snapshot import PullRef
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.store import Change
from towline.remediation.breakers import GLOBAL

pytestmark = pytest.mark.slow
HOUR = 3600.0
REF = PullRef("github", "octo-org/app", 7)


async def furnished(plane: DashboardPlane) -> None:
    """Pull requests, a delivery that failed, a run that is blocked, a breaker that is open."""
    opened, failed = ("PR_OPENED", {"to": "CREATED"}), ("CHECKS_FAILED", {"to": "CHECKS_FAILED"})
    await plane.tow(
        "octo-org/app", 7, state="CHECKS_FAILED", substatus="TRANSIENT", title="Bump alpha",
        ago=HOUR, events=[opened, failed],
    )  # fmt: skip
    await plane.tow("octo-org/web", 8, state="APPROVED", title="Bump beta")
    await plane.tow("octo-org/web", 9, state="MERGED", title="Bump gamma")
    await plane.receive("delivery-1")
    await plane.work("dead", error="it broke", reason="failed")
    listed = plane.board.open(GLOBAL)
    for _ in range(6):
        permit = await listed.admit()
        if permit is not None:
            await permit.failed()
    errand = Errand(
        cause="failure", forge="github", repo="octo-org/app", base_ref="main", title="Fix"
    )
    job = NewJob("job_r1", OWN_QUEUE, "fix")
    await plane.runs.get_or_create("r1", "event", errand, "towline/fix", job)
    begun = await plane.runs.begin("r1", 3)
    assert begun is not None
    await plane.runs.finish("r1", begun.token, "blocked", "a scan refused it")


async def moves(plane: DashboardPlane, state: str) -> None:
    """Somebody else changes it, as a webhook does."""

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        assert record is not None
        event = PullEvent(state, "github-webhook", now_us, {"to": state}, key=f"to {state}")
        moved = record._replace(state=state, since_us=now_us)  # type: ignore[arg-type]
        return Change(moved, [event])

    assert (await plane.pulls.change(REF, decide)).applied


async def is_live(page: Page) -> None:
    """It listens, and has fetched what changed since it was loaded."""
    await page.wait_for_selector("body[data-refreshed]", timeout=DEADLINE_MS)


async def test_watching_the_fleet_live(desk: Desk) -> None:
    """A card goes from one column to the next without anybody touching the page."""
    await furnished(desk.plane)
    page = await desk.signed_in()
    await is_live(page)
    failed = page.locator("section[aria-labelledby=of-CHECKS_FAILED]")
    await expect(failed.locator("[data-ref='octo-org/app#7']")).to_be_visible()
    await moves(desk.plane, "CHECKS_PASSED")
    passed = page.locator("section[aria-labelledby=of-CHECKS_PASSED]")
    await expect(passed.locator("[data-ref='octo-org/app#7']")).to_be_visible(timeout=DEADLINE_MS)
    await expect(failed).to_have_count(0)
    await expect(page.locator("#live-text")).to_have_text("live")


async def test_filtering_and_ordering_a_rebuild(desk: Desk) -> None:
    """Filter, open, send /rebuild; the queue has it with the name of who sent it."""
    await furnished(desk.plane)
    page = await desk.signed_in()
    await page.fill("input[name=search]", "alpha")
    await page.click("form.filters button")
    await expect(page.locator(".card")).to_have_count(1)
    await page.click(".card a")
    await expect(page.locator("h1")).to_contain_text("Bump alpha")
    await expect(page.locator("svg.life")).to_be_visible()
    await page.click("#do-rebuild")
    await expect(page.locator(".note")).to_contain_text("The command is queued")
    [job] = [one for one in await desk.plane.jobs.listing(None, "", 9) if one.kind == "command"]
    assert '"requested_by":"operator"' in (job.params or "")
    assert '"command":"/rebuild"' in (job.params or "")


async def test_a_filter_acts_while_one_types(desk: Desk) -> None:
    """What fits is put in place, the address follows, and going back shows what was before."""
    await furnished(desk.plane)
    page = await desk.signed_in()
    await expect(page.locator(".card")).to_have_count(3)
    await page.fill("input[name=search]", "beta")
    await expect(page.locator(".card")).to_have_count(1)
    await expect(page.locator("[data-ref='octo-org/web#8']")).to_be_visible()
    assert "search=beta" in page.url
    await expect(page.locator("#clear a")).to_be_visible()
    await page.select_option("select[name=state]", "MERGED")
    await expect(page.locator("#found")).to_contain_text("Nothing fits these filters")
    await page.go_back()
    await expect(page.locator(".card")).to_have_count(1)


async def test_a_pull_request_changes_under_ones_eyes(desk: Desk) -> None:
    """Its page follows; then /rebuild is no longer to be had, and a forced one is refused."""
    await furnished(desk.plane)
    page = await desk.signed_in()
    await page.goto("/ui/pr/octo-org/app/7")
    await is_live(page)
    await expect(page.locator("#do-rebuild")).to_be_enabled()
    await moves(desk.plane, "CHECKS_RUNNING")
    await expect(page.locator("#do-rebuild")).to_be_disabled(timeout=DEADLINE_MS)
    await expect(page.locator("#head .badge")).to_have_text("Checks running")
    answer = await page.evaluate(
        """async () => {
          const form = document.querySelector("#do-rebuild").form;
          const body = new URLSearchParams(new FormData(form));
          const sent = await fetch(form.action, {method: "POST", body});
          return [sent.status, await sent.text()];
        }"""
    )
    assert answer[0] == 409
    assert "<code>not_now</code>" in answer[1]
    assert [one for one in desk.complaints if "409" in one]
    desk.complaints.clear()


async def test_resetting_the_breaker(desk: Desk) -> None:
    """Who may, closes it by hand, and the audit says who it was."""
    await furnished(desk.plane)
    viewer = await desk.signed_in(READ_ONLY)
    await viewer.goto("/ui/health")
    await expect(viewer.locator("#breakers button")).to_be_disabled()
    page = await desk.signed_in()
    await page.goto("/ui/health")
    await expect(page.locator("#breakers .p-bad")).to_have_text("Open")
    await page.click("#breakers button")
    await expect(page.locator("#breakers .p-good")).to_have_text("Closed")
    assert [one["by"] for one in desk.plane.audited if one["event"] == "BREAKERS_RESET"] == [
        "operator"
    ]


async def test_redelivering_and_unblocking(desk: Desk) -> None:
    """A delivery that was given up runs again, and so does a run."""
    await furnished(desk.plane)
    page = await desk.signed_in()
    await page.click("nav >> text=Inbox")
    await page.click("text=delivery-1")
    await page.click("#redeliver")
    await expect(page.locator(".note")).to_contain_text("queued again")
    await expect(page.locator("#redeliver")).to_be_disabled()
    await page.click("nav >> text=Runs")
    await page.click("table a")
    await page.click("#unblock")
    await expect(page.locator(".note")).to_contain_text("unblocked")
    await expect(page.locator("#unblock")).to_be_disabled()
    run = await desk.plane.runs.read("r1")
    assert run is not None
    assert (run.state, run.unblocked_by) == ("waiting", "operator")


PAGES = (
    *("/ui/", "/ui/?state=CHECKS_FAILED", "/ui/pr/octo-org/app/7", "/ui/health", "/ui/inbox"),
    *("/ui/health?days=30", "/ui/inbox/delivery-1", "/ui/jobs", "/ui/jobs/job_r1", "/ui/runs"),
    *("/ui/runs/r1", "/ui/audit", "/ui/nowhere"),
)


async def test_without_javascript(desk: Desk) -> None:
    """Every page reads, forms work, and the fleet refreshes itself."""
    await furnished(desk.plane)
    page = await desk.signed_in(java_script_enabled=False)
    for path in PAGES:
        await page.goto(path)
        await expect(page.locator("h1")).to_be_visible()
    await page.goto("/ui/")
    assert 'http-equiv="refresh" content="30"' in await page.content()
    await page.click("[data-ref='octo-org/app#7'] a")
    await page.click("#do-rebuild")
    await expect(page.locator(".note")).to_contain_text("The command is queued")
    await page.click("text=Sign out")
    await expect(page.locator(".note")).to_have_text("You are signed out.")
    desk.complaints = [one for one in desk.complaints if "404" not in one]


async def test_no_serious_fault_for_assistive_technology(desk: Desk) -> None:
    """axe-core finds none, on any page, in light and in dark."""
    await furnished(desk.plane)
    for scheme in ("light", "dark"):
        door = await (await desk.context(color_scheme=scheme)).new_page()
        await door.goto("/ui/sign-in")
        assert not await grave_faults(door), scheme
        page = await desk.signed_in(color_scheme=scheme)
        for path in PAGES:
            await page.goto(path)
            found = await grave_faults(page)
            assert not found, (scheme, path, found)
    desk.complaints = [one for one in desk.complaints if "404" not in one]


async def test_on_a_phone_nothing_sticks_out(desk: Desk) -> None:
    """At 360 pixels no page is wider than the screen."""
    await furnished(desk.plane)
    page = await desk.signed_in(viewport={"width": 360, "height": 740})
    for path in PAGES:
        await page.goto(path)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, (path, wide)
    desk.complaints = [one for one in desk.complaints if "404" not in one]


async def test_the_keyboard_is_enough(desk: Desk) -> None:
    """The first stop skips to the content, and what has the focus shows it."""
    await furnished(desk.plane)
    page = await desk.signed_in()
    await page.goto("/ui/")
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    await page.keyboard.press("Enter")
    await expect(page.locator("#main")).to_be_focused()
