"""Finds pull requests whose webhooks were lost, at either end of their lives, and successors.

A sweep does not look at those that wait for a person. So it is here that they are found to be
merged or closed, where the webhook that reported it was lost.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from towline.forges.base import Forge
from towline.forges.snapshot import PullRef, Snapshot
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.store import Change, Changed, Filter, PullStore
from towline_once.errors import Rejected, Unavailable

REPLACES = "REPLACES_PULL"
REPLACED = "REPLACED_BY_PULL"
_PAGE = 200
_AT_A_TIME = 25
_log = logging.getLogger("towline.tow")


class Discovered(NamedTuple):
    repos: int
    found: int
    """Taken under tow."""
    linked: int
    trouble: str | None = None


class Discoverer:
    """`observe` takes one under tow if it is to be towed: the tracker's."""

    def __init__(
        self,
        store: PullStore,
        forges: Mapping[str, Forge],
        observe: Callable[[PullRef, Snapshot], Awaitable[Changed]],
        repos: Mapping[str, Collection[str]] | None = None,
        correct: Callable[[PullRef, Snapshot], Awaitable[Changed]] | None = None,
    ) -> None:
        """`repos` are those to look at besides the ones that have pull requests, by forge.

        `correct` brings a record in line with what was seen: the tracker's.
        """
        self._store = store
        self._forges = forges
        self._observe = observe
        self._repos = repos or {}
        self._correct = correct

    async def discover(self) -> Discovered:
        """Trouble with one repository does not keep from the next; an outage does."""
        found = looked = 0
        trouble: str | None = None
        for name, forge in self._forges.items():
            repos = {*await self._store.repos(name), *self._repos.get(name, ())}
            for repo in sorted(repos):
                try:
                    found += await self._in_repo(forge, repo)
                    looked += 1
                except Rejected as refused:
                    trouble = str(refused)
                    _log.warning("repo_not_listed", extra={"repo": repo, "error": trouble})
                except Unavailable as outage:
                    trouble = str(outage)
                    _log.warning("discovery_ended error=%s", trouble)
                    break
        return Discovered(looked, found, await self.link(), trouble)

    async def _in_repo(self, forge: Forge, repo: str) -> int:
        """A listing has no checks and reviews, so what is new is looked at once more."""
        listed = await forge.open_pulls(repo)
        unknown = [
            sight.ref
            for sight in listed
            if await self._store.read(sight.ref.repo, sight.ref.number) is None
        ]
        found = 0
        for ref, sight in (await _looked_at(forge, unknown)).items():
            found += (await self._observe(ref, sight)).applied
        if self._correct is not None:
            waiting = await self._waiting_for_a_person(repo)
            ended = waiting - {sight.ref for sight in listed}
            for ref, sight in (await _looked_at(forge, sorted(ended))).items():
                await self._correct(ref, sight)
        return found

    async def _waiting_for_a_person(self, repo: str) -> set[PullRef]:
        refs: set[PullRef] = set()
        after = ""
        while True:
            wanted = Filter(repo=repo, state="NEEDS_INTERVENTION")
            page = await self._store.listing(wanted, after, _PAGE)
            refs.update(record.ref for record in page)
            if len(page) < _PAGE:
                return refs
            after = str(page[-1].ref)

    # ------------------------------------------------------------------ links

    async def link(self) -> int:
        """Closed ones that a fresh one was asked for, and the one that came of it."""
        linked = 0
        after = ""
        while True:
            page = await self._store.listing(Filter(state="CLOSED"), after, _PAGE)
            for old in page:
                linked += await self._link(old)
            if len(page) < _PAGE:
                return linked
            after = str(page[-1].ref)

    async def _link(self, old: PullRecord) -> bool:
        replaced = old.remediation_action == "close_and_reopen" and old.substatus == "REPLACED"
        if not replaced or old.replaced_by is not None or old.vulnerability_id is None:
            return False
        same = Filter(repo=old.ref.repo, vulnerability_id=old.vulnerability_id)
        found = await self._store.listing(same, str(old.ref), _PAGE)
        new = next((one for one in found if one.replaces in (None, old.ref.number)), None)
        if new is None:
            return False
        await self._store.change(new.ref, _linking(REPLACES, "replaces", old.ref.number))
        await self._store.change(old.ref, _linking(REPLACED, "replaced_by", new.ref.number))
        return True


async def _looked_at(forge: Forge, refs: Sequence[PullRef]) -> dict[PullRef, Snapshot]:
    sights: dict[PullRef, Snapshot] = {}
    for at in range(0, len(refs), _AT_A_TIME):
        sights |= await forge.look(refs[at : at + _AT_A_TIME])
    return sights


def _linking(
    event_type: str, field: str, number: int
) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None:
            return None
        key = f"{field} {number}"
        event = PullEvent(event_type, "reconciler", now_us, {"number": number}, key=key)
        linked = (
            record._replace(replaces=number)
            if field == "replaces"
            else record._replace(replaced_by=number)
        )
        return Change(linked, [event])

    return decide
