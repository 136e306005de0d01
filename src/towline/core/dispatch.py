"""Which of the jobs that are due may start, when a repository may have only so many at a time.

Fix runs and audits take minutes. They have slots of their own, with negative numbers, so that no
delivery and no command of a person waits until a fix run ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

SLOW: Final = frozenset({"fix", "audit"})
"""Kinds of jobs."""


class Candidate(NamedTuple):
    """A job that is due; `repo` is None where no limit applies."""

    job_id: str
    repo: str | None
    slow: bool = False


class Allotment(NamedTuple):
    starting: list[tuple[str, int | None]]
    """Job ids, each with the number of the slot it takes in its repository."""
    held: list[str]
    """Job ids whose repository has no slot left."""


def allot(
    candidates: Iterable[Candidate], taken: Sequence[tuple[str, int]], limit: int
) -> Allotment:
    """Give each job the lowest number that is free; numbers from 1, at most `limit` in use.

    The same for slow jobs, with numbers from -1 downwards.
    """
    used: dict[tuple[str, bool], set[int]] = {}
    for busy, slot in taken:
        used.setdefault((busy, slot < 0), set()).add(abs(slot))
    allotment = Allotment([], [])
    for job_id, repo, slow in candidates:
        if repo is None:
            allotment.starting.append((job_id, None))
            continue
        numbers = used.setdefault((repo, slow), set())
        if len(numbers) >= limit:
            allotment.held.append(job_id)
            continue
        free = next(number for number in range(1, limit + 1) if number not in numbers)
        numbers.add(free)
        allotment.starting.append((job_id, -free if slow else free))
    return allotment
