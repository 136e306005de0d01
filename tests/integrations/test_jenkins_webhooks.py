"""Jenkins: phases become checks, and each phase of each build has one key."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.forges.samples import NOW, SECRET, Sample, each, listed, shared_headers
from towline.events import CheckChanged
from towline.forges.delivery import BadSignature, Delivery, Malformed
from towline.integrations.jenkins import webhooks as jenkins
from towline_once import keys

SAMPLES = listed("jenkins/*.json")
BUILD = {
    "full_url": "https://ci.example/job/app/job/PR-7/18/",
    "number": 18,
    "phase": "COMPLETED",
    "status": "FAILURE",
    "timestamp": 1_700_000_000_123,
    "scm": {"url": "git@github.com:o/n.git", "branch": "origin/fix", "commit": "a" * 40},
}
JOB = {"name": "PR-7", "url": "job/app/job/PR-7/"}


def receive(build: Any, **job: Any) -> Delivery:
    raw = json.dumps(JOB | {"build": build} | job).encode()
    return jenkins.receive(shared_headers(raw), raw, [SECRET], NOW)


def check(build: Any, **job: Any) -> CheckChanged:
    (event,) = receive(build, **job).events
    assert isinstance(event, CheckChanged)
    return event


@each(SAMPLES)
def test_real_notification(sample: Sample) -> None:
    """Repository, commit, branch, outcome and page are those of the raw JSON."""
    delivery = jenkins.receive(shared_headers(sample.raw), sample.raw, [SECRET], NOW)
    build = sample.json["build"]
    assert delivery.repo == "evgeny-goldin/asgard"
    (event,) = delivery.events
    assert isinstance(event, CheckChanged)
    assert event.head_sha == build["scm"]["commit"]
    assert (event.status, event.conclusion) == ("completed", build["status"].lower())
    assert (event.branch, event.run_id) == ("master", str(build["number"]))
    assert event.url == build["full_url"]
    assert keys.parse(str(delivery.key)) == delivery.key
    assert delivery.key == keys.Jenkins("http://localhost:8080/job/asgard", 18, "COMPLETED:SUCCESS")
    with pytest.raises(BadSignature):
        jenkins.receive(shared_headers(sample.raw), sample.raw + b" ", [SECRET], NOW)
    with pytest.raises(BadSignature):
        jenkins.receive({}, sample.raw, [SECRET], NOW)


@pytest.mark.parametrize(
    ("phase", "status", "expected"),
    [
        ("QUEUED", None, ("queued", "pending")),
        ("STARTED", None, ("in_progress", "pending")),
        ("STARTED", "FAILURE", ("in_progress", "pending")),
        ("COMPLETED", "SUCCESS", ("completed", "success")),
        ("FINALIZED", "SUCCESS", ("completed", "success")),
        ("FINALIZED", "UNSTABLE", ("completed", "failure")),
        ("FINALIZED", "ABORTED", ("completed", "cancelled")),
        ("FINALIZED", "NOT_BUILT", ("completed", "skipped")),
        ("FINALIZED", "NEW WORD", ("completed", "action_required")),
        ("FINALIZED", None, ("completed", "action_required")),
    ],
)
def test_phases(phase: str, status: str | None, expected: tuple[str, str]) -> None:
    """A build that ended has its outcome, one that has not is pending."""
    event = check(BUILD | {"phase": phase, "status": status})
    assert (event.status, event.conclusion) == expected
    assert event.occurred_at == pytest.approx(1_700_000_000.123)


@pytest.mark.parametrize("phase", ["NONE", "SOMETHING"])
def test_other_phases_say_nothing(phase: str) -> None:
    """A notification that a job sends of its own accord is taken in, and is no check."""
    assert receive(BUILD | {"phase": phase}).events == ()


def test_one_key_for_each_phase_of_each_build() -> None:
    """Phase, outcome, build, job, controller and queue item tell deliveries apart."""
    others: list[Any] = [
        {},
        {"phase": "FINALIZED"},
        {"status": "SUCCESS"},
        {"number": 19},
        {"full_url": "https://ci2.example/job/app/job/PR-7/18/"},
        {"full_url": "https://ci.example/job/app/job/PR-8/18/"},
        {"full_url": None},
        {"queue_id": 5},
        {"queue_id": 6},
    ]
    found = [receive(BUILD | other).key for other in others]
    assert len(set(map(str, found))) == len(others)
    assert all(keys.parse(str(key)) == key for key in found)
    assert receive(BUILD).key == receive(BUILD | {"timestamp": 5}).key


def test_long_job_urls_are_hashed() -> None:
    """The key stays short enough to be stored, however deep the folders are."""
    deep = [f"https://ci.example/{'job/f/' * 200}{end}/18/" for end in "ab"]
    found = [str(receive(BUILD | {"full_url": url}).key) for url in deep]
    assert found[0] != found[1]
    assert max(map(len, found)) < 400


@pytest.mark.parametrize(
    ("job", "parameters", "number", "sha"),
    [
        ("job/app/job/PR-7/", {}, (7,), "a" * 40),
        ("job/app/job/PR-7-merge/", {}, (7,), "a" * 40),
        ("job/app/job/PR-0/", {}, (), "a" * 40),
        ("job/app/job/main/", {}, (), "a" * 40),
        ("job/app/", {"ghprbPullId": "12", "ghprbActualCommit": "b" * 40}, (12,), "b" * 40),
        ("job/app/", {"CHANGE_ID": "13"}, (13,), "a" * 40),
        ("job/app/", {"CHANGE_ID": "x", "ghprbActualCommit": ""}, (), "a" * 40),
    ],
)
def test_pull_requests(job: str, parameters: Any, number: tuple[int, ...], sha: str) -> None:
    """The number is that of the plugins' parameters, or of the branch's job."""
    event = check(BUILD | {"parameters": parameters}, url=job)
    assert (event.pr_numbers, event.head_sha, event.repo) == (number, sha, "o/n")


def test_a_build_without_its_source_is_still_told() -> None:
    """Without a repository the build is known by its page, which we may have started."""
    event = check({k: v for k, v in BUILD.items() if k != "scm"})
    assert (event.repo, event.head_sha) == (None, None)
    assert event.url == BUILD["full_url"]


def test_the_log_shows_its_end() -> None:
    """Where a log comes along, its last lines are kept: they name the failure."""
    event = check(BUILD | {"log": "x" * 9999 + "Connection reset"})
    assert event.summary.endswith("Connection reset")
    assert len(event.summary) <= 2000


def test_the_plugins_own_way_to_authenticate() -> None:
    """A password in the endpoint's URL, which the plugin sends as Basic, is a secret."""
    raw = json.dumps(JOB | {"build": BUILD}).encode()
    basic = base64.b64encode(f"jenkins:{SECRET}".encode()).decode()
    assert jenkins.receive({"authorization": f"Basic {basic}"}, raw, [SECRET], NOW).events


@pytest.mark.parametrize("change", [{"number": None}, {"number": []}, {"phase": None}])
def test_without_an_id_it_is_refused(change: Any) -> None:
    """A notification that does not say of which build's phase it is cannot be deduplicated."""
    with pytest.raises(Malformed):
        receive(BUILD | change)
    with pytest.raises(Malformed):
        receive(BUILD | {"full_url": None}, name=None, url="/")
