"""Pull requests towed over HTTP, from their opening to their end, and healed where they stick."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.tow_over_http import (
    HOUR,
    MINUTE,
    REBUILD_IN_ACTIONS,
    REPO,
    Place,
    of_type,
    place_on,
    told,
    towing,
    used,
)
from tests.http.front_door import until
from towline.remediation.strategies import CLOSING_TEXT
from towline_sim.actors.base import Habit
from towline_sim.actors.bots import Ruling
from towline_sim.actors.ci import Fate
from towline_sim.actors.scenario import AUTHOR, Customs

DAY_US = 24 * 3600 * 1_000_000
TO_MERGED = ["POLICY_STARTED", "POLICY_PASSED", "APPROVAL_GRANTED", "MERGE_SUCCEEDED"]


async def swept(place: Place, minutes: float) -> Any:
    """Nothing happens for so long, then a sweep; what it decided about the only pull request."""
    await place.pass_time(minutes * MINUTE)
    report = await place.tow.sweep()
    assert report["trouble"] is None, report
    (decision,) = report["decisions"]
    return decision


async def test_all_goes_well(sql_url: str) -> None:
    """Section 16 step by step; a day after its end the pull request is forgotten."""
    async with place_on(sql_url) as place:
        async with place.serving() as tow:
            pull = await place.open_fix("CVE-2024-1001")
            for state, event in [
                ("CREATED", "PR_OPENED"),
                ("CHECKS_RUNNING", "CHECKS_STARTED"),
                ("CHECKS_PASSED", "CHECKS_PASSED"),
                ("POLICY_EVALUATING", "POLICY_STARTED"),
                ("POLICY_PASSED", "POLICY_PASSED"),
                ("APPROVED", "APPROVAL_GRANTED"),
                ("MERGED", "MERGE_SUCCEEDED"),
            ]:
                seen = await place.until(pull.number, state)
                assert (told(seen)[-1], seen["stale"], used(seen)) == (event, False, {})
            seen = await tow.status(pull.number)
            assert place.pull(pull.number).merged_by == place.town.world.user("automerge-bot[bot]")
            assert seen["vulnerability_id"] == "CVE-2024-1001"
            record = await tow.service.pulls.read(REPO, pull.number)
            assert record is not None
            assert record.expires_us == record.since_us + DAY_US
            assert (await tow.sweep())["stale"] == 0
            await place.pass_time(23.9 * HOUR)
            assert (await tow.status(pull.number))["state"] == "MERGED"
            await place.pass_time(0.2 * HOUR)
        async with place.serving(by_hand=False) as tow:

            async def is_forgotten() -> bool:
                answer = await tow.client.get(f"/api/pr/{REPO}/{pull.number}/status")
                return answer.status_code == 404

            await until(is_forgotten, "the pull request is forgotten")
        assert place.notices() == []


@pytest.mark.parametrize("where", ["jenkins", "ci"])
async def test_a_transient_failure_heals(where: str, sql_url: str) -> None:
    """Section 17: it fails, half an hour passes, one rebuild, its count starts anew, merged."""
    chances: dict[Fate, float] = {"transient": 1.0}
    customs = Customs(jenkins=chances) if where == "jenkins" else Customs(ci=chances)
    triggers = {} if where == "jenkins" else {"rebuild": REBUILD_IN_ACTIONS}
    async with towing(sql_url, customs, triggers=triggers) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        seen = await place.until(number, "CHECKS_FAILED")
        assert told(seen) == ["PR_OPENED", "CHECKS_STARTED", "CHECKS_FAILED"]
        await place.pass_time(29 * MINUTE)
        assert (await place.tow.sweep())["stale"] == 0
        decision = await swept(place, 2)
        assert (decision["state"], decision["action"]) == ("CHECKS_FAILED", "RETRY_CHECKS")
        assert decision["budget_left"] == 3
        seen = await place.tow.status(number)
        assert (seen["state"], used(seen)) == ("CHECKS_RUNNING", {"rebuild": 1})
        (rebuild,) = of_type(seen, "REMEDIATION_REBUILD")
        assert (rebuild["source"], rebuild["payload"]["attempt"]) == ("reconciler", 1)
        assert seen["last_remediation_at"] is not None
        assert (await place.tow.sweep())["stale"] == 0
        seen = await place.until(number, "CHECKS_PASSED")
        assert used(seen) == {}
        seen = await place.until(number, "MERGED")
        assert told(seen)[-4:] == TO_MERGED
        assert len(of_type(seen, "REMEDIATION_REBUILD")) == 1
        assert len(place.asked_to_build()) == (where == "jenkins")
        assert place.notices() == []


@pytest.mark.parametrize(
    ("silent", "stuck_in", "minutes", "action", "event", "strategy"),
    [
        ("policy", "CHECKS_PASSED", 31, "RETRIGGER_POLICY_BOT", "REMEDIATION_RETRIGGER_POLICY",
         "retrigger_policy_bot"),
        ("approver", "POLICY_PASSED", 16, "RETRIGGER_APPROVER_BOT",
         "REMEDIATION_RETRIGGER_APPROVER", "retrigger_approver_bot"),
        ("automerge", "APPROVED", 11, "RETRIGGER_MERGE", "REMEDIATION_RETRIGGER_MERGE",
         "retrigger_automerge_bot"),
    ],
)  # fmt: skip
async def test_a_silent_bot_is_woken(
    silent: str, stuck_in: str, minutes: float, action: str, event: str, strategy: str,
    sqlite_url: str,
) -> None:  # fmt: skip
    """Each bot that misses its event is poked once, as configured, and goes on from there."""
    deaf: dict[str, Any] = {silent: Habit(miss=1.0)}
    async with towing(sqlite_url, Customs(**deaf)) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        seen = await place.until(number, stuck_in)
        decision = await swept(place, minutes)
        assert (decision["state"], decision["action"]) == (stuck_in, action)
        seen = await place.tow.status(number)
        assert len(of_type(seen, event)) == 1
        assert seen["retry_counts"][strategy]["used"] == 1
        seen = await place.until(number, "MERGED")
        assert (len(of_type(seen, event)), used(seen)) == (1, {})


async def test_a_bot_that_stays_silent_is_handed_to_a_person(sqlite_url: str) -> None:
    """Two pokes, as budgeted, each after its time; then one escalation that tells of both."""
    deaf = Customs(approver=Habit(miss=1.0, miss_poke=1.0))
    async with towing(sqlite_url, deaf) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        await place.until(number, "POLICY_PASSED")
        for tries in (1, 2):
            decision = await swept(place, 21)
            assert decision["action"] == "RETRIGGER_APPROVER_BOT"
            seen = await place.tow.status(number)
            assert used(seen) == {"retrigger_approver_bot": tries}
            assert seen["state"] == "POLICY_PASSED"
        decision = await swept(place, 21)
        budget = "Retry budget exhausted for retrigger_approver_bot (2/2)"
        assert (decision["action"], decision["reason"]) == ("NEEDS_INTERVENTION", budget)
        await place.quiet()
        (notice,) = place.notices()
        assert notice["message"].count("REMEDIATION_RETRIGGER_APPROVER by reconciler") == 2


async def test_a_passing_sod_failure_is_retried_once(sqlite_url: str) -> None:
    """Separation of duties that was only out of sync passes when it is looked at again."""
    async with towing(sqlite_url, Customs(rulings={"sod": 1.0})) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        seen = await place.until(number, "POLICY_FAILED")
        assert seen["substatus"] == "SOD_FAILURE"
        assert (await swept(place, 31))["action"] == "RETRIGGER_SOD_CHECK"
        seen = await place.until(number, "MERGED")
        assert len(of_type(seen, "REMEDIATION_RETRIGGER_SOD")) == 1


@pytest.mark.parametrize(
    ("ruling", "substatus", "retries"),
    [("sod_for_good", "SOD_FAILURE", 1), ("other", "OTHER_POLICY_FAILURE", 0),
     ("build", "BUILD_FAILURE", 0)],
)  # fmt: skip
async def test_a_policy_failure_is_handed_to_a_person(
    ruling: Ruling, substatus: str, retries: int, sqlite_url: str
) -> None:
    """Separation of duties gets its one retry first; any other policy none."""
    async with towing(sqlite_url, Customs(rulings={ruling: 1.0})) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        seen = await place.until(number, "POLICY_FAILED")
        assert seen["substatus"] == substatus
        for _ in range(retries):
            assert (await swept(place, 31))["action"] == "RETRIGGER_SOD_CHECK"
            await place.until(number, "POLICY_FAILED")
        assert (await swept(place, 31))["action"] == "NEEDS_INTERVENTION"
        await place.quiet()
        seen = await place.tow.status(number)
        assert len(of_type(seen, "REMEDIATION_RETRIGGER_SOD")) == retries
        assert seen["state"] == "NEEDS_INTERVENTION"
        assert len(place.notices()) == 1


async def test_a_persistent_failure_is_handed_to_a_person(sql_url: str) -> None:
    """No retry, one notification and one comment with all that a person needs; then nothing."""
    async with towing(sql_url, Customs(ci={"persistent": 1.0})) as place:
        number = (await place.open_fix("CVE-2024-1001")).number
        seen = await place.until(number, "CHECKS_FAILED")
        assert seen["substatus"] == "PERSISTENT"
        assert (await swept(place, 31))["action"] == "NEEDS_INTERVENTION"
        for _ in range(3):
            await place.pass_time(HOUR)
            assert (await place.tow.sweep())["stale"] == 0
        seen = await place.tow.status(number)
        assert seen["state"] == "NEEDS_INTERVENTION"
        assert len(of_type(seen, "ESCALATED_NEEDS_INTERVENTION")) == 1
        assert not any(event.startswith("REMEDIATION") for event in told(seen))
        (notice,), (comment,) = place.notices(), place.comments(number)
        for text in (notice["message"], comment):
            for part in (f"/{REPO}/pull/{number}", REPO, "CVE-2024-1001", "CHECKS_FAILED"):
                assert part in text


async def test_a_person_takes_an_escalated_one_back(sqlite_url: str) -> None:
    """A person's push sends it back to its checks, and it goes its way."""
    async with towing(sqlite_url, Customs(ci={"persistent": 1.0})) as place:
        pull = await place.open_fix("CVE-2024-1001")
        await place.until(pull.number, "CHECKS_FAILED")
        await swept(place, 31)
        world = place.town.world
        world.set_permission(REPO, "octocat", "write")
        world.write_files(REPO, pull.head_ref, {"fix.txt": b"right\n"}, "Repair it", "octocat")
        await place.until(pull.number, "CHECKS_RUNNING")
        await place.until(pull.number, "MERGED")


async def test_a_branch_that_is_behind_is_updated(sql_url: str) -> None:
    """The base is merged into the head, checks run anew, and it is merged."""
    customs = Customs(up_to_date=True, automerge=Habit(delay=(300.0, 301.0)))
    async with towing(sql_url, customs) as place:
        pull = await place.open_fix("CVE-2024-1001")
        await place.until(pull.number, "APPROVED")
        place.town.world.write_files(REPO, "main", {"NEWS": b"news\n"}, "News", AUTHOR)
        decision = await swept(place, 11)
        assert decision["action"] == "UPDATE_BRANCH"
        seen = await place.tow.status(pull.number)
        assert seen["state"] == "CHECKS_RUNNING"
        (update,) = of_type(seen, "REMEDIATION_BRANCH_UPDATE")
        assert update["source"] == "reconciler"
        assert place.pull(pull.number).head_sha != pull.head_sha
        seen = await place.until(pull.number, "MERGED")
        assert (len(of_type(seen, "REMEDIATION_BRANCH_UPDATE")), used(seen)) == (1, {})


async def test_a_conflict_is_closed_for_a_fresh_one(sql_url: str) -> None:
    """One fix is asked for, and people are told that nobody opens it here; a second is theirs."""
    customs = Customs(approver=Habit(miss=1.0))
    async with towing(sql_url, customs) as place:
        first = await place.open_fix("CVE-2024-1001", line="alpha")
        await place.until(first.number, "POLICY_PASSED")
        clash(place, b"alpha==7\n")
        assert (await swept(place, 16))["action"] == "CLOSE_AND_REOPEN"
        seen = await place.tow.status(first.number)
        assert (seen["state"], seen["substatus"]) == ("CLOSED", "REPLACED")
        assert place.pull(first.number).state == "closed"
        (comment,) = place.comments(first.number)
        assert comment.startswith(CLOSING_TEXT)
        assert f"not set up for {REPO} (`fix.repos`)" in comment
        outcome = of_type(seen, "REMEDIATION_OUTCOME")[-1]["payload"]
        assert outcome["detail"].endswith("is not in fix.repos")
        await place.quiet()
        assert [notice["title"] for notice in place.notices()] == [
            f"{REPO}#{first.number} was closed for a fresh one, and needs a person to open it"
        ]
        asked = [job.params or "" for job in await place.tow.jobs("fix")]
        (fix,) = [params for params in asked if '"replaces"' in params]
        assert '"vulnerability_id":"CVE-2024-1001"' in fix
        place.town.world.delete_ref(REPO, f"refs/heads/{first.head_ref}", AUTHOR)
        second = await place.open_fix("CVE-2024-1001", line="alpha")
        await place.until(second.number, "POLICY_PASSED")
        clash(place, b"alpha==8\n")
        decision = await swept(place, 16)
        assert decision["action"] == "NEEDS_INTERVENTION"
        assert decision["reason"].startswith("Retry budget exhausted for close_and_reopen")
        await place.quiet()
        assert place.pull(second.number).state == "open"
        assert [job.params or "" for job in await place.tow.jobs("fix")] == asked
        assert len(place.notices()) == 2


def clash(place: Place, line: bytes) -> None:
    """The base changes the line that the pull request changes."""
    files = {"requirements.txt": line + b"beta==1\ngamma==1\n"}
    place.town.world.write_files(REPO, "main", files, "Elsewhere", AUTHOR)
