"""One lock, several processes: hand-over in order, and what a paused holder can still do."""

from __future__ import annotations

from pathlib import Path

from tests.processes.crew import Crew
from tests.processes.fence import Fence
from tests.processes.lock_queue import until_queued
from towline import Locks

TTL = 2.0
PROCESSES = 4
VISITS = 12


async def test_a_paused_holder_loses_its_lock_and_is_fenced_off(
    shared_url: str, crew: Crew, tmp_path: Path
) -> None:
    """Its successor has a larger token; when it wakes, its body ends and its write is refused."""
    fence = tmp_path / "fence.db"
    settings = {"url": shared_url, "fence": str(fence), "ttl": TTL}
    paused = crew.start("lock_holder", **settings, name="old")
    old = paused.hear("holding")
    paused.pause()
    successor = crew.start("lock_holder", **settings, name="new")
    new = successor.hear("holding")
    assert new["token"] > old["token"]
    assert old["accepted"]
    assert new["accepted"]
    paused.resume()
    assert paused.hear("leaving")["lost"]
    assert not paused.hear("lease lost")["accepted"]
    assert Fence(str(fence)).value() == "new"
    successor.tell("release")
    assert not successor.hear("leaving")["lost"]
    successor.hear("released")


async def test_processes_are_served_in_the_order_in_which_they_came(
    shared_url: str, crew: Crew, tmp_path: Path
) -> None:
    """Each waiter is in another process; the lock goes from one to the next without a poll."""
    visits, inside = tmp_path / "visits", str(tmp_path / "inside")
    async with Locks.open(shared_url) as locks, locks.acquire("repo", ttl_seconds=60):
        children = []
        for number in range(PROCESSES):
            child = crew.start(
                "lock_visitor", url=shared_url, visits=str(visits), inside=inside,
                times=1, name=str(number),
            )  # fmt: skip
            child.hear("ready")
            child.tell("go")
            await until_queued(shared_url, "repo", number + 1)
            children.append(child)
    for child in children:
        child.hear("done")
    assert [line.split()[1] for line in visits.read_text().splitlines()] == list("0123")


def test_processes_share_a_contended_lock(shared_url: str, crew: Crew, tmp_path: Path) -> None:
    """Never two inside at once, tokens in one strict order, and all are served to the end."""
    visits, inside = tmp_path / "visits", str(tmp_path / "inside")
    children = [
        crew.start(
            "lock_visitor", url=shared_url, visits=str(visits), inside=inside,
            times=VISITS, name=str(number),
        )
        for number in range(PROCESSES)
    ]  # fmt: skip
    for child in children:
        child.hear("ready")
    for child in children:
        child.tell("go")
    for child in children:
        child.hear("done")
    lines = [line.split() for line in visits.read_text().splitlines()]
    tokens = [int(token) for token, _ in lines]
    assert tokens == sorted(set(tokens))
    names = [name for _, name in lines]
    assert {name: names.count(name) for name in "0123"} == dict.fromkeys("0123", VISITS)
