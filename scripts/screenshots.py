"""Makes the screenshots of the docs: a simulated fleet lives for half a day, then is looked at.

Run it from the root of the repository: `PYTHONPATH=. .venv/bin/python scripts/screenshots.py`.
It needs a Chromium on the PATH, and writes docs/images/dashboard-*.png.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright

from tests.app.control_plane import KEY
from tests.browser.chromium import executable
from tests.dashboard.dashboard_plane import DashboardPlane, dashboard_on
from tests.http.asgi_client import serving
from tests.reconciler.tow_rig import AUTHOR, CHECKS, Rig, policy
from towline.fix.model import Errand, StageRecord
from towline.forges.delivery_log import HourCounts
from towline.inbox.lost_deliveries import HookHours
from towline.inbox.model import Arrival
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.observability.audit import AuditFile
from towline.pulls.store import Filter
from towline.remediation.breakers import GLOBAL, breaker_of_check
from towline_sim.actors.base import Habit
from towline_sim.actors.bots import ApproverBot, AutomergeBot, PolicyBot
from towline_sim.actors.ci import Ci
from towline_sim.github.fault_dice import HookFaults

IMAGES = Path("docs/images")
REPOS = ("octo-org/app", "octo-org/billing-service", "octo-org/web-storefront", "octo-org/infra")
LIBRARIES = (
    ("requests", "2.31.0", "2.32.4", "CVE-2024-35195"),
    ("urllib3", "2.0.7", "2.5.0", "CVE-2025-50181"),
    ("jinja2", "3.1.3", "3.1.6", "CVE-2025-27516"),
    ("pillow", "10.2.0", "10.3.0", "CVE-2024-28219"),
    ("cryptography", "42.0.2", "42.0.4", "CVE-2024-26130"),
    ("django", "4.2.10", "4.2.16", "CVE-2024-45230"),
    ("aiohttp", "3.9.3", "3.9.4", "CVE-2024-27306"),
    ("werkzeug", "3.0.1", "3.0.6", "CVE-2024-49767"),
    ("certifi", "2023.7.22", "2024.7.4", "CVE-2024-39689"),
    ("idna", "3.6", "3.7", "CVE-2024-3651"),
    ("tornado", "6.4", "6.4.2", "CVE-2024-52804"),
    ("setuptools", "69.0", "78.1.1", "CVE-2025-47273"),
)
HOURS = 14
STEPS_AN_HOUR = 6


class Fleet:
    """A world with its cast, towed by the real tow over the plane's database."""

    def __init__(self, plane: DashboardPlane) -> None:
        self.dice = random.Random(5)
        self.rig = plane.rig = Rig(
            plane.database, plane.clock, policy(), HookFaults(lose=0.07), repos=REPOS, seed=3
        )
        world = self.rig.world
        chances: Any = {"pass": 62, "transient": 20, "persistent": 7, "flaky": 8, "hang": 2}
        Ci(world, jobs=CHECKS, chances=chances, lasts=(240.0, 1500.0))
        rulings: Any = {"pass": 86, "sod": 7, "other": 4, "stuck": 3}
        bot = Habit(delay=(30.0, 240.0), miss=0.12)
        PolicyBot(world, needs=CHECKS, chances=rulings, habit=bot, takes=(60.0, 600.0))
        ApproverBot(world, habit=bot)
        AutomergeBot(world, needs=(*CHECKS, "policy-bot"), habit=bot)
        self.opened = 0

    def open_one(self) -> None:
        repo = self.dice.choice(REPOS)
        library, old, new, cve = LIBRARIES[self.opened % len(LIBRARIES)]
        self.opened += 1
        branch = f"dependabot/pip/{library}-{new}-{cve.lower()}-{self.opened}"
        world = self.rig.world
        world.create_ref(repo, f"refs/heads/{branch}", world.branch(repo, "main"), AUTHOR)
        path = "app.txt" if self.dice.random() < 0.12 else f"pins/{library}-{self.opened}.txt"
        world.write_files(
            repo, branch, {path: f"{library}=={new} {self.opened}\n".encode()}, "Bump", AUTHOR
        )
        title = f"Bump {library} from {old} to {new}"
        world.open_pull(repo, head=branch, base="main", title=title, by=AUTHOR)

    async def live(self) -> None:
        steps = HOURS * STEPS_AN_HOUR
        for step in range(steps):
            for _ in range(self.dice.choice((0, 1, 1, 2)) if step < steps - 6 else 4):
                self.open_one()
            await self.rig.pass_time(3600 / STEPS_AN_HOUR)
            await self.rig.sweep()
            await self.rig.work()
            if step % 12 == 11 and step < steps - 6:
                await self.order_something()
        await self.rig.pass_time(1500)

    async def order_something(self) -> None:
        """A person helps one that waits."""
        stuck = await self.rig.pulls.listing(Filter(state="NEEDS_INTERVENTION"), "", 5)
        for record in stuck[:1]:
            await self.rig.bridge.order(
                record.ref.repo, record.ref.number, "/rebuild", source="admin-api",
                requested_by="octocat",
            )  # fmt: skip
            await self.rig.work()


async def furnish(plane: DashboardPlane, folder: Path) -> None:
    """What the simulation does not bring: webhooks by the hour, an inbox, runs, a breaker."""
    dice = random.Random(7)
    hour_us = 3_600_000_000
    now_us = plane.clock.now_us()
    counts = []
    for back in range(23, -1, -1):
        told, lost = dice.randint(40, 130), dice.choice((0, 0, 1, 2, 9 if back == 6 else 3))
        counts.append(
            HourCounts(now_us - now_us % hour_us - back * hour_us, told, told - lost, lost)
        )
    await HookHours(plane.database).record("github:octo-org:1", counts)
    for place in range(70):
        name = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        event = dice.choice(("check_run", "check_suite", "pull_request", "status", "workflow_run"))
        body = json.dumps({"action": "completed", "repository": {"full_name": REPOS[place % 4]}})
        job = NewJob(f"job_{place:04d}_{name[:8]}", OWN_QUEUE, "delivery", repo=REPOS[place % 4])
        await plane.inbox.take(
            Arrival(f"github:{name}", name, "github", event, REPOS[place % 4], body.encode(), job)
        )
    await plane.work("done")
    for name in (GLOBAL, breaker_of_check("build")):
        listed = plane.board.open(name)
        for good in (True, False, False, False, False, False):
            permit = await listed.admit()
            if permit is not None:
                await (permit.succeeded() if good and name == GLOBAL else permit.failed())
        if name == GLOBAL:
            await plane.board.reset(name, "operator")
    await furnish_runs(plane)
    plane.audit_file = folder / "audit.jsonl"
    audit = AuditFile(plane.audit_file, now_us=plane.clock.now_us)
    audit("SIGNED_IN", by="operator", key="settings:operator", address="127.0.0.1")
    for number in range(1, 9):
        audit(
            "COMMAND_ORDERED", by="octocat", command="/rebuild", repo="octo-org/app", number=number
        )
    audit("BREAKERS_RESET", by="operator", key="settings:operator", names=[GLOBAL])
    audit.close()


DIFF = """--- a/requirements.txt
+++ b/requirements.txt
@@ -4,5 +4,5 @@
 fastapi==0.121.0
-requests==2.31.0
+requests==2.32.4
 uvicorn==0.38.0
"""


async def furnish_runs(plane: DashboardPlane) -> None:
    for place, (library, old, new, cve) in enumerate(LIBRARIES[:7]):
        key = f"{place:032x}"
        errand = Errand(
            cause="vulnerability", forge="github", repo=REPOS[place % 4], base_ref="main",
            title=f"Bump {library} from {old} to {new}", vulnerability_id=cve,
        )  # fmt: skip
        job = NewJob(f"job_fix_{key}", OWN_QUEUE, "fix", repo=REPOS[place % 4])
        await plane.runs.get_or_create(key, f"event {key}", errand, f"towline/{cve.lower()}", job)
        begun = await plane.runs.begin(key, 3)
        assert begun is not None
        blocked = place % 3 == 2
        for stage in ("PLAN", "PATCH", "SAFETY", "SCANS", "VALIDATION", "PR"):
            refused = blocked and stage == "SCANS"
            output: dict[str, object] = {"diff": DIFF} if stage == "PATCH" else {"fixer": "bump"}
            await plane.runs.record(
                key, begun.token,
                StageRecord(
                    stage, 1, "refused" if refused else "passed", "d",
                    "bandit found a new issue: B602 subprocess with shell=True" if refused else "",
                    output, f"{stage.lower()} of {library}\n", plane.clock.now_us(), 3.2,
                ),
            )  # fmt: skip
            if refused:
                break
        if not blocked:
            await plane.runs.opened(key, begun.token, 40 + place, f"https://forge.example/{place}")
        reason = "scan refused: bandit B602" if blocked else None
        await plane.runs.finish(key, begun.token, "blocked" if blocked else "done", reason)


async def pages_of(plane: DashboardPlane) -> dict[str, str]:
    """The page to show of each kind; the pull request with the most to tell."""
    records = await plane.pulls.listing(Filter(), "", 400)
    told = {one.ref: len(await plane.pulls.events(one.ref.repo, one.ref.number)) for one in records}
    alive = [one for one in records if one.state not in ("MERGED", "CLOSED")]
    chosen = max(
        alive,
        key=lambda one: (
            sum(one.lifetime.values()) > 1,
            one.state == "NEEDS_INTERVENTION",
            told[one.ref],
        ),
    )
    return {
        "fleet": "/ui/",
        "pull": f"/ui/pr/{chosen.ref.repo}/{chosen.ref.number}",
        "health": "/ui/health",
        "inbox": "/ui/inbox",
        "jobs": "/ui/jobs",
        "runs": "/ui/runs",
        "run": f"/ui/runs/{2:032x}",
        "audit": "/ui/audit",
    }


LOOKS: dict[str, dict[str, Any]] = {
    "": {"color_scheme": "light"},
    "-dark": {"color_scheme": "dark"},
    "-phone": {"color_scheme": "light"},
}
TALL = ("fleet", "pull", "health")
ALSO = {"-dark": ("fleet",), "-phone": ("fleet", "pull")}


async def shoot(browser: Browser, base: str, pages: dict[str, str], where: Path) -> None:
    for suffix, look in LOOKS.items():
        context = await browser.new_context(base_url=base, **look)
        page = await context.new_page()
        await page.goto("/ui/sign-in")
        await page.set_viewport_size({"width": 1440, "height": 640})
        if not suffix:
            await page.screenshot(path=where / "dashboard-sign-in.png")
        await page.fill("#key", KEY)
        await page.click("button.primary")
        for name, path in pages.items():
            if suffix and name not in ALSO[suffix]:
                continue
            wide = {"width": 1440, "height": 880 if name in TALL else 640}
            await page.set_viewport_size(
                {"width": 360, "height": 740} if suffix == "-phone" else wide  # type: ignore[arg-type]
            )
            await page.goto(path)
            await page.wait_for_timeout(2600 if name in TALL else 200)
            await page.screenshot(path=where / f"dashboard-{name}{suffix}.png")
        await context.close()


async def main() -> None:
    program = executable()
    if program is None:
        sys.exit("no Chromium on the PATH: chromium, chromium-browser or google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        async with dashboard_on(f"sqlite:///{folder}/towline.db") as plane:
            fleet = Fleet(plane)
            await fleet.live()
            await furnish(plane, Path(folder))
            pages = await pages_of(plane)
            async with serving(plane.app()) as client, async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=program)
                where = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
                await shoot(browser, str(client.base_url), pages, where)
                await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
