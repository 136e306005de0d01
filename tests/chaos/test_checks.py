"""The checks of the chaos run find what they are for: each wrong thing is put there by hand."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import ledger
from tests.chaos.run import breakdowns
from tests.chaos.small_disk import SmallDisk
from tests.chaos.town import OURS, Answer, Place, Town
from tests.chaos.visitors import Visitors
from tests.e2e.ledger import looking_at
from tests.e2e.senders import Crowd, Parcel
from tests.servers import psql
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.jobs.store import JobStore

HERE = Place("octo-org/app-0", 1)
NAP = (100.0, 108.0)


@pytest.mark.parametrize(
    ("moves", "found"),
    [
        (["running', token = '5", "done"], 0),
        (["running', token = '5", "queued", "running', token = '6", "done"], 0),
        (["running', token = '5", "done", "queued"], 1),
        (["running', token = '5", "running', token = '6"], 1),
        (["running', token = '5", "queued", "running', token = '4"], 1),
        (["running', token = '5", "queued", "running"], 1),
        (["running', token = '5", "done', token = '6"], 1),
        (["running', token = '5", "done", "dead"], 2),
    ],
)
async def test_moves(postgres_url: str, moves: list[str], found: int) -> None:
    """A job that is claimed under an old token, or leaves its end, is noticed at once."""
    await ledger.watch(postgres_url)
    async with looking_at(postgres_url) as database:
        await JobStore(database).enqueue(NewJob("job_1", OWN_QUEUE, "effect"))
    for state in moves:
        psql(postgres_url, f"UPDATE towline_jobs SET state = '{state}'")
    assert len(await ledger.moves(postgres_url)) == found


async def test_deliveries(sqlite_url: str) -> None:
    """One that was accepted and is not there, one accepted twice, an answer of another kind."""
    crowd = Crowd(list)
    crowd.answers = {"a": Counter(accepted=1), "b": Counter(accepted=2)}
    crowd.surprises[500] += 1
    sent = [Parcel("a", b""), Parcel("b", b""), Parcel("never answered", b"")]
    stood = await ledger.deliveries(sqlite_url, sent, crowd)
    assert sorted(stood.violations) == [
        "1 senders were answered 500",
        "a was accepted and is lost",
        "b was accepted 2 times",
        "b was accepted and is lost",
    ]


@pytest.mark.parametrize(
    ("times", "wrong", "slept"),
    [
        ([90.0], 0, 0),
        ([104.0, 104.5], 1, 0),
        ([104.0, 108.1], 0, 1),
        ([90.0, 108.1], 1, 0),
        ([112.0, 113.0], 1, 0),
    ],
)
def test_answers(times: list[float], wrong: int, slept: int) -> None:
    """A second answer is excused only if the first was given while a worker slept."""
    answers = [Answer(HERE, "why:1", at) for at in times]
    found = ledger.doubled(answers, [NAP])
    assert (len(found[0]), len(found[1])) == (wrong, slept)


@pytest.mark.parametrize(
    ("comments", "found"),
    [
        ([], ["1 questions, 0 received", "1 questions, 0 answered"]),
        (["It waits. <!-- towline:why:1 -->"], ["1 questions, 0 received"]),
        (
            ["It could not be carried out. <!-- towline:why:1 -->"],
            ["1 told that it failed, 0 did"],
        ),
        (
            ["It waits. <!-- towline:why:1 -->", "It waits. <!-- towline:why:2 -->"],
            ["1 questions, 0 received", "1 questions, 2 answered"],
        ),
    ],
)
async def test_effects(postgres_url: str, comments: list[str], found: list[str]) -> None:
    """A pull request that was not taken up, and a question without its one answer, are missed."""
    await ledger.watch(postgres_url)
    town = Town(random.Random(1))
    town.open()
    (place,) = town.pulls
    town.asked[place] += 1
    for comment in comments:
        town.world.comment(*place, OURS, comment)
    wrong = await ledger.effects(postgres_url, town, [])
    assert [one.partition(": ")[2] or one.rpartition(") ")[2] for one in wrong] == [
        "was taken up 0 times",
        *found,
    ]


async def test_tokens() -> None:
    """A lock whose tokens went back, and one that nobody ever got."""
    visitors = Visitors("Redis", "memory://", alone=False)
    assert visitors.violations() == ["nobody ever got the lock in Redis"]
    visitors.tokens = [1, 2, 2, 5, 4, 6]
    assert len(visitors.violations()) == 2


@pytest.mark.parametrize("mounted", [True, False])
def test_the_disk_is_full_and_then_it_is_not(tmp_path: Path, mounted: bool) -> None:
    """By a mount, or by a limit on a running process: it cannot write, and goes on afterwards."""
    with SmallDisk(tmp_path / "small", 2, may_mount=mounted) as disk:
        if mounted and disk.kind != "tmpfs":
            pytest.skip("mounting is not allowed here")
        child = [sys.executable, "-c", _WRITER, str(disk.folder / "file")]
        with subprocess.Popen(
            child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            said = []
            acts: list[Callable[[], None]] = [
                lambda: None,
                lambda: disk.fill(writer.pid),
                disk.free,
            ]
            for act in acts:
                act()
                writer.stdin.write("on\n")
                said.append(writer.stdout.readline().strip())
            writer.stdin.close()
    assert said == ["written", "refused", "written"]


_WRITER = """
import sys
with open(sys.argv[1], "ab", buffering=0) as file:
    for line in sys.stdin:
        try:
            written = file.write(bytes(5000)) == 5000
        except OSError:
            written = False
        print("written" if written else "refused", flush=True)
"""


def test_breakdowns_are_found_in_a_log(tmp_path: Path) -> None:
    """A traceback, and the one line of an error that nobody foresaw; but no refusal."""
    lines = ["towline: cannot listen", "Traceback (most recent call last):"]
    lines.append("towline: unforeseen KeyError: 'x' (work.py:1); …")
    (tmp_path / "worker-1.log").write_text("\n".join(lines), encoding="utf-8")
    found = breakdowns("worker-1", tmp_path)
    assert [one.partition(" broke down: ")[2] for one in found] == ["Traceback", lines[2]]
