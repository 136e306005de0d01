"""Which of the jobs that are due may start, when a repository may have only so many at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A job that is due; `repo` is None where no limit applies."""

    job_id: str
    repo: str | None


class Allotment(NamedTuple):
    starting: list[tuple[str, int | None]]
    """Job ids, each with the number of the slot it takes in its repository."""
    held: list[str]
    """Job ids whose repository has no slot left."""


def allot(
    candidates: Iterable[Candidate], taken: Sequence[tuple[str, int]], limit: int
) -> Allotment:
    """Give each job the lowest number that is free; numbers from 1, at most `limit` in use."""
    used: dict[str, set[int]] = {}
    for busy, slot in taken:
        used.setdefault(busy, set()).add(slot)
    allotment = Allotment([], [])
    for job_id, repo in candidates:
        if repo is None:
            allotment.starting.append((job_id, None))
            continue
        numbers = used.setdefault(repo, set())
        if len(numbers) >= limit:
            allotment.held.append(job_id)
            continue
        free = next(number for number in range(1, limit + 1) if number not in numbers)
        numbers.add(free)
        allotment.starting.append((job_id, free))
    return allotment
