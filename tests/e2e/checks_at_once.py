"""The webhooks of many pull requests at once: the eight of each arrive together, in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tests.e2e.ledger import looking_at, nothing_left
from tests.e2e.senders import Crowd, Parcel, signed
from towline_once.db.statement import Statement

AUTHOR: Final = "dependabot[bot]"
REPO: Final = "acme/app"
STATES: Final = Statement(
    "states",
    {"unused": "bigint"},
    "SELECT p.number, p.state FROM towline_prs p",
    writes=False,
)
GREEN: Final = frozenset(
    {"CHECKS_PASSED", "POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED", "APPROVED", "MERGING"}
)
_START: Final = datetime(2026, 11, 19, 9, tzinfo=UTC).timestamp()
_SENDERS: Final = 32


class Life(NamedTuple):
    """A pull request, its webhooks in the order of the forge, and the state that they end in."""

    number: int
    opening: Parcel
    checks: list[Parcel]
    end: str


def lives(count: int, seed: int) -> list[Life]:
    """A third each: all checks pass, one fails, one still runs. Each check has a suite or shares.

    In half of them the checks come from three Apps and begin one after the other.
    """
    dice = random.Random(seed)
    return [_life(number, dice) for number in range(1, count + 1)]


def _life(number: int, dice: random.Random) -> Life:
    head, end = f"{dice.getrandbits(160):040x}", ("pass", "fail", "run")[number % 3]
    apart, victim = dice.random() < 0.5, dice.randrange(3)
    told: list[tuple[str, dict[str, Any]]] = []
    runs = []
    for place in range(3):
        begun = 2 + (place * dice.randint(0, 9) if apart else 0)
        ended = begun + dice.randint(0, 9)
        suite = _suite(number, head, place if apart else 0)
        conclusion = "failure" if (end, place) == ("fail", victim) else "success"
        run = _run(number, head, place, suite, begun)
        told.append(("check_run", {"action": "created", "check_run": run}))
        done = {**run, "status": "completed", "conclusion": conclusion, "completed_at": _at(ended)}
        runs.append(conclusion)
        if (end, place) != ("run", victim):
            told.append(("check_run", {"action": "completed", "check_run": done}))
    first = _suite(number, head, 0)
    if not apart:
        told.append(("check_suite", {"action": "requested", "check_suite": first}))
    if not apart and end != "run":
        conclusion = "failure" if end == "fail" else "success"
        closed = {**first, "status": "completed", "conclusion": conclusion, "updated_at": _at(30)}
        told.append(("check_suite", {"action": "completed", "check_suite": closed}))
    state = {"pass": "CHECKS_PASSED", "fail": "CHECKS_FAILED", "run": "CHECKS_RUNNING"}[end]
    opened = ("pull_request", {"action": "opened", "pull_request": _pull(number, head)})
    opening, *checks = [
        _signed(f"{number}-{place}", event, payload)
        for place, (event, payload) in enumerate([opened, *told])
    ]
    return Life(number, opening, checks, state)


def _signed(delivery_id: str, event: str, payload: dict[str, Any]) -> Parcel:
    return signed(delivery_id, event, {**payload, "repository": {"full_name": REPO}})


def _at(second: int) -> str:
    return datetime.fromtimestamp(_START + second, UTC).isoformat().replace("+00:00", "Z")


def _pull(number: int, head: str) -> dict[str, Any]:
    return {
        "number": number,
        "state": "open",
        "title": f"Bump library {number}",
        "user": {"login": AUTHOR, "type": "Bot"},
        "head": {"ref": f"fix/{number}", "sha": head, "repo": {"full_name": REPO}},
        "base": {"ref": "main", "repo": {"full_name": REPO}},
        "updated_at": _at(0),
        "labels": [],
    }


def _suite(number: int, head: str, place: int) -> dict[str, Any]:
    return {
        "id": number * 100 + place,
        "head_sha": head,
        "status": "queued",
        "conclusion": None,
        "updated_at": _at(1),
        "app": {"slug": f"ci-{place}"},
        "pull_requests": [{"number": number}],
    }


def _run(number: int, head: str, place: int, suite: dict[str, Any], begun: int) -> dict[str, Any]:
    return {
        "id": number * 100 + 10 + place,
        "name": ("build", "lint", "licence")[place],
        "head_sha": head,
        "status": "in_progress",
        "conclusion": None,
        "started_at": _at(begun),
        "completed_at": None,
        "check_suite": {"id": suite["id"]},
        "app": suite["app"],
        "pull_requests": [{"number": number}],
    }


def shuffled(parcels: Sequence[Parcel], seed: int) -> list[Parcel]:
    """All of each pull request close together, so that several are under way at the same time."""
    dice = random.Random(seed)
    places = [(place + dice.uniform(0, 24), parcel) for place, parcel in enumerate(parcels)]
    return [parcel for _, parcel in sorted(places, key=lambda one: one[0])]


async def told(url: str, port: int, parcels: Sequence[Parcel]) -> dict[int, str]:
    """Send them at once, wait until each was applied; the states that stand there then."""
    crowd = Crowd(lambda: [port])
    await crowd.send(parcels, at_a_time=_SENDERS)
    assert not crowd.surprises
    async with looking_at(url) as database:
        await nothing_left(database)
        rows = await database.run(STATES, [(0,)])
    return {int(row[0]): str(row[1]) for row in rows}


class Count(NamedTuple):
    """How many ended where; `false_green` are those past their checks though one is not green."""

    right: int
    false_green: int
    created: int
    other: int


def counted(lives: Sequence[Life], states: dict[int, str]) -> Count:
    found = [(life.end, states.get(life.number, "unknown")) for life in lives]
    return Count(
        right=sum(end == state for end, state in found),
        false_green=sum(state in GREEN and end != "CHECKS_PASSED" for end, state in found),
        created=sum(state == "CREATED" for _, state in found),
        other=sum(end != state and state != "CREATED" for end, state in found),
    )
