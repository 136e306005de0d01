"""The tow by several at once: services that share a database, ones that die, and the CLI."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.programs import PATIENCE, ROOT
from tests.e2e.tow_over_http import (
    HOUR,
    JENKINS_TOKEN,
    JENKINS_USER,
    JOB,
    MINUTE,
    REPO,
    Place,
    of_type,
    place_on,
    told,
)
from tests.hook_world import TOKEN
from tests.http.front_door import until
from towline_sim.actors.scenario import Customs

TRANSIENT = Customs(jenkins={"transient": 1.0})
FLEET = 6


@pytest.mark.slow
async def test_two_services_do_nothing_twice(postgres_url: str) -> None:
    """Each hears every webhook, both sweep at once: one build, one line of the log for each."""
    async with (
        place_on(postgres_url, TRANSIENT) as place,
        place.serving() as one,
        place.serving() as other,
    ):
        pulls = [await place.open_fix(f"CVE-2024-{1000 + n}") for n in range(FLEET)]
        await place.pass_time(45 * MINUTE)
        reports = await asyncio.gather(*(each.sweep() for each in (one, other, one, other)))
        assert {report["stale"] for report in reports} <= {0, FLEET}
        assert sum(report["acted"] for report in reports) == FLEET
        for pull in pulls:
            seen = await place.until(pull.number, "MERGED", within=2 * HOUR)
            assert len(of_type(seen, "REMEDIATION_REBUILD")) == 1
            for kind in ("PR_OPENED", "POLICY_PASSED", "APPROVAL_GRANTED", "MERGE_SUCCEEDED"):
                assert told(seen).count(kind) == 1, (kind, told(seen))
            assert not any(event["payload"].get("anomaly") for event in seen["events"])
        assert sorted(place.asked_to_build()) == [str(pull.number) for pull in pulls]


async def test_two_services_give_one_alarm(postgres_url: str) -> None:
    """Both find the same failure: one escalation, one comment, one message."""
    async with (
        place_on(postgres_url, Customs(ci={"persistent": 1.0})) as place,
        place.serving() as one,
        place.serving() as other,
    ):
        number = (await place.open_fix("CVE-2024-1001")).number
        await place.until(number, "CHECKS_FAILED")
        await place.pass_time(31 * MINUTE)
        reports = await asyncio.gather(*(each.sweep() for each in (one, other, one, other)))
        assert sum(report["escalated"] for report in reports) == 1
        await place.quiet()
        seen = await one.status(number)
        assert len(of_type(seen, "ESCALATED_NEEDS_INTERVENTION")) == 1
        assert (len(place.comments(number)), len(place.notices())) == (1, 1)


async def test_a_service_sweeps_by_itself(sqlite_url: str) -> None:
    """Started as `towline serve` starts it, it heals a transient failure without being asked."""
    often = {"every_seconds": 0.05}
    async with (
        place_on(sqlite_url, TRANSIENT) as place,
        place.serving(by_hand=False, reconciler=often) as tow,
    ):
        number = (await place.open_fix("CVE-2024-1001")).number
        await place.until(number, "CHECKS_FAILED")
        await place.pass_time(31 * MINUTE)

        async def is_helped() -> bool:
            return "REMEDIATION_REBUILD" in told(await tow.status(number))

        await until(is_helped, "a sweep has had it built again")
        seen = await place.until(number, "MERGED")
        assert len(of_type(seen, "REMEDIATION_REBUILD")) == 1


async def test_an_escalation_survives_its_service(sqlite_url: str) -> None:
    """It dies after it told people, before it noted that: a repeat has the same id, one comment."""
    async with place_on(sqlite_url, Customs(ci={"persistent": 1.0})) as place:
        reached, answers = asyncio.Event(), asyncio.Event()
        place.people.hold = hold_first(reached, answers)
        async with place.serving(worker={"drain_seconds": 0.01}) as tow:
            number = (await place.open_fix("CVE-2024-1001")).number
            await place.until(number, "CHECKS_FAILED")
            await place.pass_time(31 * MINUTE)
            await tow.sweep()
            async with asyncio.timeout(PATIENCE):
                await reached.wait()
        answers.set()
        async with place.serving() as tow:
            await place.quiet()
            seen = await tow.status(number)
            assert seen["state"] == "NEEDS_INTERVENTION"
            assert len(of_type(seen, "ESCALATION_SENT")) == 1
            await place.pass_time(HOUR)
        assert len(place.comments(number)) == 1
        ids = [notice["message"].rpartition("Escalation: ")[2] for notice in place.notices()]
        assert (len(ids), len(set(ids))) == (2, 1)


def hold_first(reached: asyncio.Event, answers: asyncio.Event) -> Any:
    """The first message is taken, and its sender waits for the answer."""

    async def hold() -> None:
        if not reached.is_set():
            reached.set()
            await answers.wait()

    return hold


# ---------------------------------------------------------------------- the command line

CONFIG = """\
database_url = "{database}"

[github]
api_url = "{forge}"
token = "{token}"

[jenkins]
url = "{jenkins}"
user = "{jenkins_user}"
token = "{jenkins_token}"

[tow]
authors = ["dependabot[bot]"]
own_logins = ["towline-bot"]

[signals]
required = ["build", "test", "jenkins/build"]
policy_checks = ["policy-bot"]

[triggers]
rebuild = {{ kind = "jenkins", job = "{job}" }}
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


class Shell:
    """Runs `towline` as a process of its own, with a settings file."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._folder = folder
        config = CONFIG.format(
            database=place.database_url, forge=place.forge_url, token=TOKEN, job=JOB,
            jenkins=place.jenkins_url, jenkins_user=JENKINS_USER, jenkins_token=JENKINS_TOKEN,
        )  # fmt: skip
        (folder / "towline.toml").write_text(config)

    async def __call__(self, *arguments: str) -> Ran:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TOWLINE_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "towline", *arguments,
            cwd=self._folder, env={**kept, "PYTHONPATH": str(ROOT / "src")},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())


@pytest.fixture
async def place(sqlite_url: str) -> AsyncIterator[Place]:
    """With one pull request that failed hours ago, and a service on the same file."""
    async with place_on(sqlite_url, TRANSIENT, ahead=-6 * HOUR) as made, made.serving():
        await made.open_fix("CVE-2024-1001")
        await made.until(1, "CHECKS_FAILED")
        made.clock.advance(-made.clock.shift_us() / 1e6)
        await made.quiet()
        yield made


@pytest.mark.slow
async def test_the_command_line_shows(place: Place, tmp_path: Path) -> None:
    """prs, pr and explain: text for people, JSON for programs."""
    towline = Shell(place, tmp_path)
    fleet = await towline("prs", "--stale")
    assert (fleet.code, f"{REPO}#1  CHECKS_FAILED" in fleet.out) == (0, True), fleet
    (item,) = (await towline("prs", "--json")).json["items"]
    assert (item["number"], item["state"], item["stale"]) == (1, "CHECKS_FAILED", True)
    status = (await towline("pr", f"{REPO}#1", "--json")).json
    assert told(status) == ["PR_OPENED", "CHECKS_STARTED", "CHECKS_FAILED"]
    assert "CHECKS_FAILED" in (await towline("pr", "app#1")).out
    explained = (await towline("explain", f"{REPO}#1", "--json")).json
    assert explained["diagnosis"]["next_action"] == "RETRY_CHECKS"
    assert "RETRY_CHECKS" in (await towline("explain", f"{REPO}#1")).out


@pytest.mark.slow
async def test_the_command_line_refuses(place: Place, tmp_path: Path) -> None:
    """One clear line, and an exit that is not zero."""
    towline = Shell(place, tmp_path)
    for arguments, complaint in [
        (("pr", f"{REPO}#99"), "is not towed"),
        (("explain", "nonsense"), "OWNER/NAME#NUMBER"),
        (("command", f"{REPO}#1", "/explode"), "there is no command"),
        (("command", f"{REPO}#1", "/merge"), "/merge does nothing in state CHECKS_FAILED"),
        (("prs", "--state", "lost"), "unknown state"),
        (("prs", "--config", "nowhere.toml"), "nowhere.toml"),
    ]:
        refused = await towline(*arguments)
        assert refused.code != 0, arguments
        assert complaint in refused.err, refused.err
        assert len(refused.err.strip().splitlines()) == 1, refused.err
        assert refused.out == ""


@pytest.mark.slow
async def test_the_command_line_acts(place: Place, tmp_path: Path) -> None:
    """A dry run does nothing, a sweep has it built; a command is carried out by the service."""
    towline = Shell(place, tmp_path)
    dry = (await towline("reconcile", "--dry-run", "--json")).json
    assert [one["action"] for one in dry["decisions"]] == ["RETRY_CHECKS"]
    assert (dry["dry_run"], dry["acted"], place.asked_to_build()) == (True, 0, [])
    swept = await towline("reconcile")
    assert (swept.code, "RETRY_CHECKS" in swept.out) == (0, True), swept
    assert "1 stale, 1 looked" in swept.err
    assert place.asked_to_build() == ["1"]
    refused = await towline("command", f"{REPO}#1", "/rebuild")
    assert (refused.code != 0, "CHECKS_RUNNING" in refused.err) == (True, True)
    ordered = (await towline("command", f"{REPO}#1", "/cancel", "--json")).json
    assert (ordered["command"], ordered["number"]) == ("/cancel", 1)
    await place.until(1, "CLOSED", within=5 * MINUTE)
    assert place.pull(1).state == "closed"
    assert "CLOSED" not in (await towline("prs")).out
    assert "CLOSED" in (await towline("prs", "--all")).out
