"""A delivery's job: its events are read again, in order, and handed on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.samples import GUID, SIGNERS, slack_headers
from tests.inbox.arrivals import Desk, check, comment
from towline.events import CheckChanged, Commented, Event
from towline.inbox.dispatch import DeliveryHandler, Track, events_of_stored, payload_of
from towline.inbox.model import Arrival, Stored
from towline.jobs.model import OWN_QUEUE, Backoff, JobRecord, NewJob
from towline.jobs.runner import Crew, WorkRules
from towline_once.db.statement import Database
from towline_once.errors import Definitive, Transient

SHA = "a" * 40


class Tracker:
    """Remembers what it was told, and raises what it was given to raise."""

    def __init__(self, *troubles: Exception) -> None:
        self.told: list[tuple[str, Event]] = []
        self._troubles = list(troubles)

    async def __call__(self, stored: Stored, events: Sequence[Event]) -> None:
        if self._troubles:
            raise self._troubles.pop(0)
        self.told += [(stored.delivery_id, event) for event in events]


@pytest.fixture
def desk(database: Database, clock: ManualClock) -> Desk:
    return Desk(database, clock)


@pytest.fixture
def work(desk: Desk, clock: ManualClock) -> Callable[..., Any]:
    """Runs what is due, as a worker would; the jobs as they stand then."""

    async def run(track: Track) -> list[JobRecord]:
        rules = WorkRules("me", 60.0, 600.0, Backoff(30_000_000, 600_000_000), 2)
        crew = Crew(desk.jobs, {"delivery": DeliveryHandler(desk.inbox, track)}, clock, rules)
        for job in await desk.begin():
            await crew.run(job, clock.monotonic())
        await crew.drain(0)
        return await desk.jobs.listing(None, "", 100)

    return run


async def test_events_are_handed_on_in_order(desk: Desk, work: Any) -> None:
    """All deliveries of a shared job, as they came; the result says what they were about."""
    for number in range(5):
        await desk.github("check_run", check(SHA, f"check {number}"), f"guid-{number}")
    track = Tracker()
    (job,) = await work(track)
    assert (job.state, job.passengers) == ("done", 5)
    assert [
        (guid, event.name) for guid, event in track.told if isinstance(event, CheckChanged)
    ] == [(f"guid-{number}", f"check {number}") for number in range(5)]
    about = {"kind": "check_changed", "repo": "acme/app", "head_sha": SHA, "conclusion": "failure"}
    assert json.loads(job.result) == {
        "events": [{"delivery_id": f"guid-{number}"} | about for number in range(5)]
    }


async def test_a_delivery_of_no_interest_is_done(desk: Desk, work: Any) -> None:
    """An event that nobody reads is stored, acknowledged, and ends with nothing told."""
    await desk.github("star", {"action": "created"}, "guid")
    track = Tracker()
    (job,) = await work(track)
    assert (job.state, json.loads(job.result), track.told) == ("done", {"events": []}, [])


async def test_trouble_is_tried_again(desk: Desk, work: Any, clock: ManualClock) -> None:
    """A tracker that cannot just now is told once more later; each order then counts once."""
    await desk.github("issue_comment", comment("/rebuild"), "guid")
    track = Tracker(Transient("the store is away"))
    (job,) = await work(track)
    assert (job.state, job.attempts, job.error) == ("queued", 1, "the store is away")
    clock.advance(61)
    (job,) = await work(track)
    assert (job.state, job.attempts) == ("done", 2)
    ((_, event),) = track.told
    assert isinstance(event, Commented)
    assert (event.body, event.number) == ("/rebuild", 7)


async def test_a_definitive_refusal_ends_it(desk: Desk, work: Any) -> None:
    """It is dead at once, with the reason, and can be looked at."""
    await desk.github("issue_comment", comment("/rebuild"), "guid")
    (job,) = await work(Tracker(Definitive("this repository is not towed")))
    assert (job.state, job.attempts, job.error) == ("dead", 1, "this repository is not towed")


@pytest.mark.parametrize("body", [b"", b"no JSON", b"{", b'{"a":1,"a":2}'])
async def test_a_body_that_cannot_be_read_is_no_endless_retry(
    desk: Desk, work: Any, body: bytes
) -> None:
    """What lies in the store is not going to change: dead at once, and it says why."""
    job = NewJob("job_1", OWN_QUEUE, "delivery")
    await desk.inbox.take(Arrival("github:g", "g", "github", "push", None, body, job))
    (ended,) = await work(Tracker())
    assert (ended.state, ended.attempts) == ("dead", 1)
    assert "the stored body cannot be read" in ended.error


async def test_json_that_is_no_object_tells_nothing(desk: Desk, work: Any) -> None:
    """Stored by an older version, say: it ends well."""
    job = NewJob("job_1", OWN_QUEUE, "delivery")
    body = b"[1]"
    await desk.inbox.take(Arrival("github:g", "g", "github", "push", None, body, job))
    (ended,) = await work(Tracker())
    assert (ended.state, json.loads(ended.result)) == ("done", {"events": []})


async def test_a_source_that_is_no_more(desk: Desk, work: Any) -> None:
    """Deliveries of a source that this version does not know are done, and tell nothing."""
    job = NewJob("job_1", OWN_QUEUE, "delivery")
    body = b"{}"
    await desk.inbox.take(Arrival("svn:1", "1", "svn", "commit", None, body, job))
    (ended,) = await work(Tracker())
    assert ended.state == "done"


PAYLOADS: dict[str, Any] = {
    "ci": {"repo": "o/n", "run_id": 1, "status": "failed", "head_sha": SHA, "provider": "drone"},
    "gitlab": {
        "object_kind": "push",
        "ref": "refs/heads/x",
        "before": SHA,
        "after": "b" * 40,
        "project": {"path_with_namespace": "o/n"},
    },
    "jenkins": {
        "name": "app",
        "build": {
            "number": 1,
            "phase": "COMPLETED",
            "status": "FAILURE",
            "scm": {"url": "https://git.example/o/n.git", "commit": SHA},
        },
    },
    "jira": {"webhookEvent": "jira:issue_created", "issue": {"key": "A-1"}},
    "scheduler": {"schedule_id": "a", "execution_time": "2024-12-19T00:00:00Z"},
    "slack": {
        "type": "event_callback",
        "team_id": "T",
        "event_id": "E",
        "event": {"type": "app_mention", "user": "U", "text": "<@B> rebuild", "channel": "C"},
    },
    "github": check(SHA),
}


@pytest.mark.parametrize("source", sorted(PAYLOADS))
async def test_every_source_is_read_again_as_it_came(
    desk: Desk, clock: ManualClock, source: str
) -> None:
    """The events after the store are those before it, and there are some."""
    body = json.dumps(PAYLOADS[source]).encode()
    headers = SIGNERS[source](body) | {"x-github-event": "check_run"}
    if source == "slack":
        headers = slack_headers(body, at=clock.now_us() / 1e6)
    heard: list[Event] = []

    async def track(stored: Stored, events: Sequence[Event]) -> None:
        heard.extend(events)

    receipt = await desk.ingest.take_in(source, headers, body)
    (stored,) = await desk.inbox.of_job(receipt.job_id or "")
    assert payload_of(stored) == PAYLOADS[source]
    (claimed,) = await desk.begin()
    result = await DeliveryHandler(desk.inbox, track)(claimed)
    assert tuple(heard) == events_of_stored(stored)
    assert [told["kind"] for told in result["events"]] == [event.kind for event in heard]
    assert len(heard) == 1
    assert GUID in receipt.delivery_id or source not in ("github", "gitlab")
