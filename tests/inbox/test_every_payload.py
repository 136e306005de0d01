"""Every real payload over real HTTP, signed as its sender signs and sent twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

import httpx2
import pytest

from tests.clocks import ManualClock
from tests.forges.samples import DATA, SECRET, Sample, indexed, listed, needs_data
from tests.http.front_door import (
    FORM,
    FrontDoor,
    Knock,
    events_told,
    front_door,
    github,
    gitlab,
    shared,
    slack,
)
from towline.forges.delivery import Delivery
from towline.inbox.dispatch import events_of_stored
from towline.inbox.sources import SOURCES

pytestmark = [needs_data, pytest.mark.timeout(110)]

PLENTY = {"repo_flood_per_minute": 100_000}
IN_SUMMARY = ("repo", "number", "pr_numbers", "head_sha", "conclusion", "action")


class Case(NamedTuple):
    name: str
    knock: Knock
    accepted: int
    """The status of the first answer."""

    def read(self) -> Delivery:
        """What its source makes of it."""
        source = self.knock.path.split("/")[2]
        return SOURCES[source].receive(self.knock.headers, self.knock.body, [SECRET], time.time())


def unique(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()


def of_slack(sample: Sample) -> Case:
    """Events are sent as JSON, what people do as forms; many samples share an id."""
    payload = sample.json
    for member in ("event_id", "trigger_id"):
        if payload.get(member):
            payload[member] = unique(sample.name)
    raw = json.dumps(payload).encode()
    if payload["type"] in ("event_callback", "url_verification"):
        return Case(sample.name, slack(raw), 202)
    return Case(sample.name, slack(urlencode({"payload": raw}).encode(), FORM), 200)


def cases() -> Iterator[Case]:
    for sample in indexed("github-webhooks", "event"):
        yield Case(sample.name, github(sample.event, sample.raw, unique(sample.name)), 202)
    for sample in indexed("gitlab-webhooks", "kind"):
        yield Case(sample.name, gitlab(sample.raw, unique(sample.name)), 202)
    for sample in listed("jira-webhooks/*/*.json"):
        identifier = {"x_atlassian_webhook_identifier": unique(sample.name)}
        yield Case(sample.name, shared("jira", sample.raw, **identifier), 202)
    for sample in listed("jenkins/*.json"):
        yield Case(sample.name, shared("jenkins", sample.raw), 202)
    for sample in listed("slack/bolt-payloads/*.json"):
        yield of_slack(sample)
    for sample in listed("slack/bolt_slash_command_body.txt"):
        yield Case(sample.name, slack(sample.raw.strip(), FORM), 200)


async def twice(door: FrontDoor, case: Case) -> tuple[httpx2.Response, httpx2.Response]:
    """Both at once, as a sender that is impatient."""
    first, second = await asyncio.gather(door.post(case.knock), door.post(case.knock))
    return first, second


def check_answers(case: Case, answers: tuple[httpx2.Response, httpx2.Response]) -> None:
    said = sorted((answer.json()["status"], answer.status_code) for answer in answers)
    assert said == [("accepted", case.accepted), ("duplicate_ignored", 200)], case.name
    first, second = (answer.json() for answer in answers)
    assert first["delivery_id"] == second["delivery_id"] == case.read().delivery_id, case.name
    assert first["job_id"] == second["job_id"], case.name


async def check_events(door: FrontDoor, case: Case, told: list[dict[str, Any]]) -> None:
    """Read again from the store they are the same, and the job's result has them."""
    delivery = case.read()
    found = await door.service.inbox.find(delivery.delivery_id)
    (stored,) = [one for one in found if one.source == delivery.source]
    assert (stored.key, stored.copies, stored.repo) == (str(delivery.key), 1, delivery.repo)
    assert events_of_stored(stored) == delivery.events, case.name
    expected = [
        {"kind": event.kind}
        | {n: v for n in IN_SUMMARY if (v := getattr(event, n, None)) not in (None, ())}
        for event in delivery.events
    ]
    assert told == json.loads(json.dumps(expected)), case.name


async def test_each_is_accepted_once_and_ignored_once(sql_url: str) -> None:
    """No answer is a 5xx, every job ends done, and what it says is what the payload says."""
    everything = list(cases())
    challenges = [case for case in everything if case.read().reply is not None]
    rest = [case for case in everything if case not in challenges]
    assert (len(challenges), len(rest)) == (1, 145 + 60 + 13 + 1 + 43)
    async with front_door(sql_url, working=True, ingest=PLENTY) as door:
        for answer in await twice(door, challenges[0]):
            assert (answer.status_code, answer.content) == (200, challenges[0].read().reply)
            assert answer.headers["content-type"] == "text/plain"
        for case, answers in zip(
            rest, await asyncio.gather(*(twice(door, case) for case in rest)), strict=True
        ):
            check_answers(case, answers)
        jobs = await door.finished()
        assert Counter(job.state for job in jobs) == {"done": len(jobs)}
        assert sum(job.passengers for job in jobs) == len(rest)
        told = events_told(jobs)
        for case in rest:
            await check_events(door, case, told.get(case.read().delivery_id, []))
        assert len(await door.inbox()) == len(rest)


def named_in(event: str, payload: Any) -> dict[str, Any]:
    """What a GitHub payload says of itself, read without our readers."""
    said = {"repo": payload["repository"]["full_name"]}
    if event == "pull_request":
        pull = payload["pull_request"]
        return said | {"number": pull["number"], "head_sha": pull["head"]["sha"].lower()}
    check = payload[event]
    again = payload["action"] == "rerequested"  # the old verdict is still shown, and means nothing
    ended = check["status"] == "completed" and not again
    outcome = check["conclusion"] if ended else "pending"
    if outcome == "finished":  # in one sample; GitHub has no such word, so it is never a pass
        outcome = "action_required"
    return said | {"head_sha": check["head_sha"], "conclusion": outcome}


async def test_repository_pull_request_commit_and_outcome(postgres_url: str) -> None:
    """What GitHub's payloads name is in the results of their jobs, word for word."""
    kinds = ("pull_request", "check_run", "check_suite", "workflow_run", "workflow_job")
    samples = [one for one in indexed("github-webhooks", "event") if one.event in kinds]
    sent = {unique(sample.name): sample for sample in samples}
    async with front_door(postgres_url, working=True, ingest=PLENTY) as door:
        await asyncio.gather(*(door.post(github(s.event, s.raw, i)) for i, s in sent.items()))
        told = events_told(await door.finished())
    compared = 0
    for delivery_id, sample in sent.items():
        try:
            named = named_in(sample.event, sample.json)
        except (KeyError, TypeError):
            continue  # trimmed by the project that it was taken from
        (event,) = told[delivery_id]
        assert {name: event.get(name) for name in named} == named, sample.name
        compared += 1
    assert compared > 50


async def test_the_official_vector_of_slack(sqlite_url: str) -> None:
    """The signature that Slack publishes is accepted at its time, once; today it is too old."""
    vector = json.loads((DATA / "slack/official_signature_vector.json").read_bytes())
    headers = {
        "content-type": FORM,
        "x-slack-request-timestamp": vector["timestamp"],
        "x-slack-signature": vector["signature"],
    }
    knock = Knock("/webhooks/slack", vector["body"].encode(), headers)
    then = ManualClock()
    then.advance(float(vector["timestamp"]) - time.time())
    secrets = {"webhook_secrets": [vector["signing_secret"]]}
    async with front_door(sqlite_url, clock=then, slack=secrets) as door:
        answers = [(await door.post(knock)).json()["status"] for _ in range(2)]
        assert answers == ["accepted", "duplicate_ignored"]
        then.advance(301)
        late = await door.post(knock)
        assert (late.status_code, late.json()["code"]) == (401, "outside_window")
