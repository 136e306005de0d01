"""Ingest: verify, dedup, throttle and enqueue, and what the sender is told."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY

from tests.clocks import ManualClock
from tests.forges.samples import SECRET, github_headers, shared_headers, slack_headers
from tests.inbox.arrivals import Desk, check, comment
from towline.forges.delivery import BadSignature, Malformed, NoSecret
from towline.inbox.dispatch import payload_of
from towline.inbox.ingest import Receipt, new_job_id, storable
from towline.integrations.scheduler import tick
from towline_once.db.statement import Database

SHA = "a" * 40
PING = b'{"zen": "x"}'
REPOSITORY: dict[str, Any] = {"repository": {"full_name": "acme/app"}}


@pytest.fixture
def desk(database: Database, clock: ManualClock) -> Desk:
    return Desk(database, clock)


async def test_a_delivery_becomes_a_job(desk: Desk) -> None:
    """What was sent is stored as it came, and its job says of what repository it is."""
    receipt = await desk.github("check_run", check(SHA), "guid")
    job = await desk.job_of(receipt)
    assert receipt == Receipt("accepted", "guid", job.id, "check_run")
    assert (job.kind, job.queue, job.repo, job.state) == (
        "delivery",
        "towline",
        "acme/app",
        "queued",
    )
    assert (job.subject, job.max_attempts) == (f"github:acme/app@{SHA}", 3)
    (stored,) = await desk.inbox.of_job(job.id)
    assert (stored.key, stored.event_name) == ("github:12:guid", "check_run")
    assert payload_of(stored) == check(SHA)
    assert desk.rung == [job.id]


async def test_a_duplicate_wakes_nobody(desk: Desk) -> None:
    """The second of two is told of the first one's job; nothing is rung for it or audited."""
    first = await desk.github("ping", PING, "guid")
    second = await desk.github("ping", PING, "guid")
    assert second == first._replace(status="duplicate_ignored")
    assert desk.rung == [first.job_id]
    assert desk.audited == []


async def test_one_id_with_two_bodies_is_told(desk: Desk) -> None:
    """The first one counts; that there was another is audited, with no more than prefixes."""
    await desk.github("ping", PING, "guid-of-a-delivery")
    second = await desk.github("ping", b'{"zen": "y"}', "guid-of-a-delivery")
    assert second.status == "duplicate_ignored"
    (line,) = desk.audited
    assert line["event"] == "IDEMPOTENCY_KEY_COLLISION"
    assert (line["source"], line["key_prefix"]) == ("github", "github:12:guid-…")
    assert len(line["new_hash_prefix"]) == 8


async def test_two_hooks_may_share_an_id(desk: Desk) -> None:
    """Another hook sends another payload under the GUID of the first: both count."""
    for hook in ("1", "2"):
        headers = github_headers(PING) | {"x-github-hook-id": hook}
        receipt = await desk.ingest.take_in("github", headers, PING)
        assert receipt.status == "accepted"


async def test_nothing_is_claimed_for_who_knows_no_secret(desk: Desk) -> None:
    """A forgery leaves no trace, so that the genuine delivery of that id still counts."""
    forged = github_headers(PING, secret="guessed")
    with pytest.raises(BadSignature):
        await desk.ingest.take_in("github", forged, PING)
    assert await desk.inbox.listing(2**62, 10) == []
    genuine = await desk.ingest.take_in("github", github_headers(PING), PING)
    assert genuine.status == "accepted"


async def test_what_was_read_from_the_sender_needs_no_signature(desk: Desk) -> None:
    """A delivery recovered from GitHub's log is known to be genuine; the webhook is its twin."""
    headers = {"x-github-delivery": "guid", "x-github-event": "ping", "x-github-hook-id": "12"}
    with pytest.raises(BadSignature):
        await desk.ingest.take_in("github", headers, PING)
    recovered = await desk.ingest.take_in("github", headers, PING, verified=True)
    assert recovered.status == "accepted"
    assert (await desk.github("ping", PING, "guid")).status == "duplicate_ignored"


async def test_a_source_that_nobody_set_up_lets_nobody_in(
    database: Database, clock: ManualClock
) -> None:
    """Without a sender in the settings there is no secret to know."""
    desk = Desk(database, clock, secrets=None)
    with pytest.raises(NoSecret):
        await desk.ingest.take_in("github", github_headers(PING), PING)


async def test_a_challenge_is_answered_and_forgotten(desk: Desk) -> None:
    """Slack's verification has its whole answer, and no job."""
    body = b'{"type": "url_verification", "challenge": "abc"}'
    receipt = await desk.ingest.take_in("slack", slack_headers(body, at=time.time()), body)
    assert (receipt.status, receipt.reply, receipt.job_id) == ("answered", b"abc", None)
    assert (await desk.inbox.listing(2**62, 10), desk.rung) == ([], [])


async def test_a_person_goes_first(desk: Desk) -> None:
    """A comment that came last is begun first."""
    await desk.github("check_run", check(SHA), "1")
    await desk.github("ping", PING, "2")
    ordered = await desk.github("issue_comment", comment("/rebuild"), "3")
    assert (await desk.begin())[0].id == ordered.job_id


async def test_waiting_deliveries_of_one_commit_share_a_job(desk: Desk) -> None:
    """However many arrive at once; those of another commit have another job."""
    many = [desk.github("check_run", check(SHA, f"{n}"), f"{n}") for n in range(30)]
    receipts = await asyncio.gather(*many)
    other = await desk.github("check_run", check("b" * 40), "other")
    (shared_job,) = {receipt.job_id for receipt in receipts}
    assert other.job_id != shared_job
    assert (await desk.job_of(receipts[0])).passengers == 30


async def test_comments_never_share(desk: Desk) -> None:
    """Two orders are two orders, also in the same words at the same place."""
    receipts = [
        await desk.github("issue_comment", comment("/rebuild", number), str(number))
        for number in (1, 2)
    ]
    assert len({receipt.job_id for receipt in receipts}) == 2


async def test_over_the_rate_the_run_waits(database: Database, clock: ManualClock) -> None:
    """Told so; the work on the delivery itself waits for nothing."""
    desk = Desk(database, clock, repo_rate=2)
    receipts = [
        await desk.github("check_run", check(SHA[n:] + "b" * n, run=n), f"{n}") for n in range(4)
    ]
    assert [receipt.status for receipt in receipts] == ["accepted"] * 2 + ["throttled_delayed"] * 2
    assert desk.rung == [receipt.job_id for receipt in receipts]
    assert len(await desk.begin()) == 4


async def test_what_starts_no_run_is_not_counted_by_the_rate(
    database: Database, clock: ManualClock
) -> None:
    """Green checks, failures of pull requests and of other repositories, and what people ask."""
    desk = Desk(database, clock, repo_rate=1)
    told = [check(SHA, run=n) for n in range(5)]
    told[0]["check_run"]["conclusion"] = "success"
    told[1]["check_run"]["check_suite"] = {"head_branch": "towline/fix-1"}
    told[2]["check_run"]["check_suite"] = {"head_branch": "a-feature"}
    told[3]["repository"] = {"full_name": "acme/not-fixed"}
    for n, payload in enumerate(told):
        assert (await desk.github("check_run", payload, f"{n}")).status == "accepted"
    assert (await desk.github("check_run", check(SHA, run=9), "9")).status == "throttled_delayed"
    for n in range(3):
        asked = await desk.github("issue_comment", comment("/copilot mend it", n), f"asked {n}")
        assert asked.status == "accepted"


async def test_a_delivery_that_was_put_off_and_is_sent_again(
    database: Database, clock: ManualClock
) -> None:
    """Its sender comes back before its time: it is a duplicate, and there is one job for it."""
    desk = Desk(database, clock, flood=1)
    counter = "towline_pipeline_throttled_total"
    before = REGISTRY.get_sample_value(counter, {"source": "github"}) or 0.0
    await desk.github("issue_comment", comment("x", 1), "first")
    late = await desk.github("issue_comment", comment("x", 2), "late")
    again = [await desk.github("issue_comment", comment("x", 2), "late") for _ in range(3)]
    assert late.status == "throttled_delayed"
    assert {(one.status, one.job_id) for one in again} == {("duplicate_ignored", late.job_id)}
    assert REGISTRY.get_sample_value(counter, {"source": "github"}) == before + 1
    assert len(await desk.jobs.listing(None, "", 10)) == 2
    clock.advance(61)
    assert late.job_id in {job.id for job in await desk.begin()}


async def test_a_flood_lets_people_through(database: Database, clock: ManualClock) -> None:
    """A command and a review go ahead of a bot's comments, and of comments without a command."""
    desk = Desk(database, clock, flood=1)
    await desk.github("ping", {"zen": "x"} | REPOSITORY, "0")
    by_bot = comment("/why", 1)
    by_bot["comment"]["user"] = {"login": "a[bot]", "type": "Bot"}
    for n, payload in enumerate([by_bot, comment("why?", 2)]):
        late = await desk.github("issue_comment", payload, f"late {n}")
        assert late.status == "throttled_delayed"
    pull = {"number": 7, "state": "open", "head": {"sha": SHA, "ref": "fix"}}
    review = {"id": 3, "state": "changes_requested", "body": "", "user": {"login": "kim"}}
    objection = {"action": "submitted", "review": review, "pull_request": pull} | REPOSITORY
    for event, payload in [("pull_request_review", objection), ("issue_comment", comment("/why"))]:
        said = await desk.github(event, payload, event)
        assert said.status == "accepted"
        assert (await desk.job_of(said)).priority > 0


@pytest.mark.parametrize(
    "body",
    [
        b'{"repo": "o/n", "run_id": 1, "status": "ok", "n": %d}' % 10**60,
        b' \n{"repo": "o/n", "run_id": 1, "status": "ok", "n": %d}' % 10**60,
        b' {"repo": "o/n", "run_id": 1, "status": "ok", "n": 1.5, "text": "\xc3\xbc\\u0000"}',
    ],
)
async def test_the_payload_is_kept_exactly(desk: Desk, body: bytes) -> None:
    """Numbers of any size, odd characters, blanks around: what is read again is what was sent."""
    receipt = await desk.ingest.take_in("ci", shared_headers(body), body, provider="drone")
    (stored,) = await desk.inbox.of_job(receipt.job_id or "")
    assert payload_of(stored) == json.loads(body)


async def test_what_cannot_be_stored_is_refused(desk: Desk) -> None:
    """An id or a name with NUL or half a character is the sender's mistake, not ours."""
    assert storable("ü:1") == "ü:1"
    for text in ("a\0b", "\ud800"):
        with pytest.raises(Malformed):
            storable(text)
    body = b'{"repo": "o/n", "run_id": 1, "status": "x", "event": "a\\u0000b"}'
    receipt = await desk.ingest.take_in("ci", shared_headers(body), body, provider="drone")
    assert (receipt.status, receipt.event_name) == ("accepted", "run")


async def test_our_own_ticks_come_in_the_same_way(desk: Desk) -> None:
    """A schedule's tick needs no signature, and is the same tick as that of a scheduler outside."""
    first = await desk.ingest.take(tick("daily", datetime(2024, 12, 19, tzinfo=UTC)))
    body = b'{"schedule_id": "daily", "execution_time": "2024-12-19T00:00:00Z"}'
    second = await desk.ingest.take_in("scheduler", shared_headers(body), body)
    assert (first.status, second.status) == ("accepted", "duplicate_ignored")
    assert first.job_id == second.job_id


async def test_each_delivery_is_counted_and_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """By source and by what became of it, with the ids by which it can be found."""

    def counted(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, {"source": "github", **labels}) or 0.0

    before = counted("towline_deliveries_total", status="accepted")
    ignored = counted("towline_webhook_deduped_total")
    caplog.set_level(logging.DEBUG, "towline.ingest")
    receipt, _ = [await desk.github("check_run", check(SHA), "guid") for _ in range(2)]
    assert counted("towline_deliveries_total", status="accepted") == before + 1
    assert counted("towline_webhook_deduped_total") == ignored + 1
    lines = [record for record in caplog.records if record.name == "towline.ingest"]
    assert [line.getMessage() for line in lines] == ["delivery_accepted", "delivery_duplicate"]
    for line in lines:
        said = line.__dict__
        assert (said["delivery_id"], said["repo"]) == ("guid", "acme/app")
        assert said["job_id"] == receipt.job_id
    assert SECRET not in caplog.text


def test_job_ids_grow_with_time() -> None:
    """A later one sorts after an earlier one, and no two are the same."""
    clock = ManualClock()
    first = [new_job_id(clock) for _ in range(100)]
    clock.advance(1)
    later = new_job_id(clock)
    assert Counter(first).most_common(1)[0][1] == 1
    assert max(first) < later
