"""Generic CI: the documented payload, and ids that join retries and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.forges.samples import NOW, SECRET, shared_headers
from towline.events import CheckChanged
from towline.forges.delivery import BadSignature, Delivery, Malformed
from towline.integrations import generic_ci
from towline_once import keys

RUN = {
    "repo": "o/n",
    "run_id": 77,
    "attempt": 1,
    "conclusion": "failure",
    "job_id": "j",
    "logs_url": "https://ci.example/77/log",
    "head_sha": "a" * 40,
    "pr": 7,
    "name": "tests",
    "branch": "fix",
    "summary": "two tests failed",
}
HASHED = ("provider", "repo", "run_id", "attempt", "conclusion", "job_id", "logs_url")


def receive(payload: Any, provider: str | None = "circleci", **more: str) -> Delivery:
    raw = json.dumps(payload).encode()
    headers = shared_headers(raw) | {k.replace("_", "-"): v for k, v in more.items()}
    return generic_ci.receive(headers, raw, [SECRET], NOW, provider=provider)


def check(payload: Any) -> CheckChanged:
    (event,) = receive(payload).events
    assert isinstance(event, CheckChanged)
    return event


def test_documented_payload() -> None:
    """Every member finds its place."""
    event = check(RUN | {"url": "https://ci.example/77", "occurred_at": "2023-11-14T22:13:20Z"})
    assert (event.repo, event.head_sha, event.pr_numbers) == ("o/n", "a" * 40, (7,))
    assert (event.status, event.conclusion) == ("completed", "failure")
    assert (event.name, event.app, event.branch) == ("tests", "circleci", "fix")
    assert (event.run_id, event.attempt, event.job_id) == ("77", 1, "j")
    assert (event.url, event.logs_url) == ("https://ci.example/77", "https://ci.example/77/log")
    assert (event.summary, event.occurred_at) == ("two tests failed", NOW)


def test_fallback_id_joins_retries() -> None:
    """The same run, attempt and end is one delivery, whatever else the payload says."""
    first = receive(RUN)
    assert first.key == receive(RUN | {"summary": "other", "head_sha": "b" * 40}).key
    assert first.key == receive(RUN | {"run_id": "77", "attempt": "1"}).key
    assert first.key == keys.Ci("circleci", first.delivery_id)
    assert len(first.delivery_id) == 64


def test_fallback_id_tells_runs_apart() -> None:
    """Each of the seven parts makes another delivery; a missing one is not an empty one."""
    others: list[Any] = [
        RUN,
        RUN | {"repo": "o/m"},
        RUN | {"run_id": 78},
        RUN | {"run_id": None},
        RUN | {"attempt": 2},
        RUN | {"conclusion": "success"},
        RUN | {"job_id": "k"},
        RUN | {"job_id": None},
        RUN | {"logs_url": "https://ci.example/78/log"},
    ]
    found = [receive(other).delivery_id for other in others]
    found.append(receive(RUN, provider="buildkite").delivery_id)
    assert len(set(found)) == len(found)


texts = st.text('a1,"[]:\\', min_size=1, max_size=4)
lists = st.tuples(texts, *[st.none() | texts] * 5)


@given(st.lists(lists, min_size=2, max_size=2, unique=True))
@example([("p", "1", "11", None, None, None), ("p", "11", "1", None, None, None)])
@example([("p", "1", None, "a", None, None), ("p", "1", None, None, "a", None)])
@example([("p", "1", "a,", "b", None, None), ("p", "1", "a", ",b", None, None)])
def test_no_two_lists_share_an_id(two: list[tuple[str, ...]]) -> None:
    """Moving a character from one part to the next is another id."""
    names = ("run_id", "attempt", "conclusion", "job_id", "logs_url")
    runs: list[Any] = [dict(zip(names, one[1:], strict=True)) | {"repo": "o/n"} for one in two]
    found = {generic_ci.fallback_id(one[0], run) for one, run in zip(two, runs, strict=True)}
    assert len(found) == 2


def test_explicit_key_wins() -> None:
    """An idempotency key names the delivery; a request id, which proxies make up, does not."""
    for name in ["idempotency_key", "x_idempotency_key"]:
        assert str(receive(RUN, **{name: "k-1"}).key) == "ci:circleci:k-1"
    assert receive(RUN, x_request_id="r-1").key == receive(RUN).key


def test_provider() -> None:
    """The route's provider wins; without a route the payload must name one."""
    assert receive(RUN | {"provider": "other"}).key == receive(RUN).key
    assert str(receive(RUN | {"provider": "p:q"}, provider=None).key).startswith("ci:p%3Aq:")
    for wrong in [None, "", "ä", "x" * 256]:
        with pytest.raises(Malformed, match="provider"):
            receive(RUN | {"provider": None}, provider=wrong)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"conclusion": "Passed"}, ("completed", "success")),
        ({"conclusion": "timed-out"}, ("completed", "timed_out")),
        ({"conclusion": "aborted"}, ("completed", "cancelled")),
        ({"conclusion": "who knows"}, ("completed", "action_required")),
        ({"conclusion": None, "status": "running"}, ("in_progress", "pending")),
        ({"conclusion": None, "status": "queued"}, ("queued", "pending")),
        ({"conclusion": None, "status": "failed"}, ("completed", "failure")),
        ({"conclusion": "success", "status": "completed"}, ("completed", "success")),
        ({"conclusion": "success", "status": "running"}, ("in_progress", "pending")),
    ],
)
def test_outcomes(told: Any, expected: tuple[str, str]) -> None:
    """The usual words are understood, with status and conclusion in one member or in two."""
    event = check(RUN | told)
    assert (event.status, event.conclusion) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"repo": None},
        {"repo": "name"},
        {"repo": ["o", "n"]},
        {"run_id": None, "job_id": None, "logs_url": None},
        {"run_id": True, "job_id": {}, "logs_url": 1.5},
        {"conclusion": None},
    ],
)
def test_what_cannot_be_told_apart_is_refused(change: Any) -> None:
    """A payload that could be taken for another run's is a 400 which says what is missing."""
    with pytest.raises(Malformed, match="must"):
        receive(RUN | change)


def test_what_was_checked_must_be_told() -> None:
    """Without commit and pull request there is nothing to track; either is enough."""
    assert receive(RUN | {"head_sha": None, "pr": None}).events == ()
    assert check(RUN | {"head_sha": None}).pr_numbers == (7,)
    assert check(RUN | {"pr": None}).head_sha == "a" * 40


@pytest.mark.parametrize(
    "repo", ["https://github.com/o/n.git", "git@github.com:o/n.git", "ssh://git@host:22/o/n"]
)
def test_repositories_may_be_urls(repo: str) -> None:
    """What a CI calls its repository is often the address that it clones."""
    assert receive(RUN | {"repo": repo}).repo == "o/n"


def test_signature() -> None:
    """Tampered and unsigned payloads are refused."""
    raw = json.dumps(RUN).encode()
    for headers, body in [(shared_headers(raw), raw + b" "), ({}, raw)]:
        with pytest.raises(BadSignature):
            generic_ci.receive(headers, body, [SECRET], NOW, provider="p")


def test_every_hashed_part_is_documented() -> None:
    """The reference lists the seven parts of the fallback id."""
    page = Path(__file__).parents[2] / "docs/reference/sources.md"
    text = page.read_text(encoding="utf-8")
    assert all(f"`{part}`" in text for part in HASHED)
