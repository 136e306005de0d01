"""What a forge sends: pull requests that were opened, a third of the deliveries twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.e2e.senders import Parcel, signed
from tests.hosts.fleet import AUTHOR

_REPOS = 40


def openings(count: int) -> list[Parcel]:
    """Each of a pull request of its own, so that each has a job and a record of its own."""
    return [_opening(number) for number in range(1, count + 1)]


def _opening(number: int) -> Parcel:
    repo = {"full_name": f"octo-org/app-{number % _REPOS}"}
    author = {"login": AUTHOR, "id": 1, "type": "Bot"}
    pull = {
        "number": number,
        "state": "open",
        "title": f"Bump a dependency, the {number}th",
        "user": author,
        "head": {"ref": f"dependabot/{number}", "sha": f"{number:040x}", "repo": repo},
        "base": {"ref": "main", "sha": "b" * 40, "repo": repo},
    }
    payload = {"action": "opened", "number": number, "pull_request": pull}
    whole = {**payload, "repository": repo, "sender": author}
    return signed(f"opening-{number:05d}", "pull_request", whole)


class Drip:
    """Gives out parcels at a steady rate, and more of them at once when told to.

    The last ones are kept back until they are asked for, so that the load does not end before.
    """

    def __init__(self, parcels: Sequence[Parcel], each_second: float, kept_back: int) -> None:
        self._left = iter(parcels)
        self._pause = 1 / each_second
        self._due = asyncio.Semaphore(0)
        self._allowed = len(parcels) - kept_back
        self._kept_back = kept_back
        self._over = False

    async def following(self) -> Parcel | None:
        if not self._over:
            await self._due.acquire()
        parcel = next(self._left, None)
        if parcel is None:
            self._over = True
            self._due.release()  # the next one who waits learns of it as well
        return parcel

    def burst(self, count: int) -> None:
        for _ in range(min(count, self._allowed)):
            self._allowed -= 1
            self._due.release()

    def give_the_rest(self) -> None:
        """One more than there are: whoever gets nothing tells the others."""
        self._allowed += self._kept_back + 1

    async def run(self) -> None:
        while not self._over:
            self.burst(1)
            await asyncio.sleep(self._pause)
