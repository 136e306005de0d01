"""Reads many pull requests at once: pages of them, filtered, and those that are stale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from towline.pulls.http_models import Story, current_diagnosis
from towline.pulls.lifecycle import STATES, TERMINAL, State
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.staleness import is_stale
from towline.pulls.store import Filter, PullStore, StaleKey
from towline_once.errors import Conflict, Rejected

MOST_STALE: Final = 5_000
_MOST_SCANNED: Final = 5_000
_MOST_RANKED: Final = 1_000_000
_ANY_TIME_US: Final = 2**62
"""Later than any clock: no pull request is left out because another clock was ahead."""
_AT_A_TIME: Final = 500
_EVENTS_AT_A_TIME: Final = 1_000
MOST_EVENTS: Final = 10_000


class NoSuchRepo(Rejected):
    """No repository under tow has this bare name."""


class Ambiguous(Conflict):
    """Several repositories have this bare name."""

    def __init__(self, name: str, candidates: list[str]) -> None:
        super().__init__(f"{name} is in several places: {', '.join(candidates)}; say which")
        self.candidates = candidates


class BadCursor(Rejected):
    """A cursor that no page gave out."""


class Wanted(NamedTuple):
    """All that is given must hold. `rule` is that of the reconciler's diagnosis."""

    repo: str | None = None
    state: State | None = None
    stale: bool | None = None
    rule: str | None = None
    search: str | None = None


class Slice(NamedTuple):
    records: list[PullRecord]
    next: str | None


async def full_name(pulls: PullStore, name: str) -> str:
    """The repository that OWNER/NAME, or a bare name which is unique, stands for."""
    if "/" in name:
        return name
    candidates = sorted(await pulls.named(name))
    if len(candidates) > 1:
        raise Ambiguous(name, candidates)
    if not candidates:
        raise NoSuchRepo(f"no repository under tow is called {name}; write OWNER/NAME")
    return candidates[0]


async def story_of(pulls: PullStore, record: PullRecord) -> Story:
    """Its log, as far as it is worth showing, and what its vulnerability has seen."""
    vulnerability = record.vulnerability_id
    reopened = await pulls.reopened(vulnerability) if vulnerability else 0
    events: list[PullEvent] = []
    while len(events) < MOST_EVENTS:
        last = events[-1].id if events else 0
        page = await pulls.events(record.ref.repo, record.ref.number, last, _EVENTS_AT_A_TIME)
        events += page
        if len(page) < _EVENTS_AT_A_TIME:
            return Story(events, False, reopened)
    return Story(events, True, reopened)


class Fleet:
    """`now_us` is the time by which staleness is told."""

    def __init__(self, pulls: PullStore, policy: TowPolicy, now_us: int) -> None:
        self._pulls = pulls
        self._policy = policy
        self._now = now_us / 1e6

    def is_stale(self, record: PullRecord) -> bool:
        thresholds = self._policy.of(record.ref.repo).thresholds
        return is_stale(record.state, record.since_us / 1e6, self._now, thresholds)

    async def page(self, wanted: Wanted, cursor: str, most: int) -> Slice:
        """By repository and number; short where the filters leave little of much."""
        wanted = await self._with_full_name(wanted)
        if wanted.stale:
            after = _place_of(cursor) if cursor else ("", 0)
            found = [one for one in await self._all_stale(wanted) if _place(one) > after]
            return _cut(sorted(found, key=_place), most, lambda one: str(one.ref))
        if cursor:
            _place_of(cursor)
        return await self._scanned(wanted, cursor, most)

    async def stale(self, wanted: Wanted, cursor: str, most: int) -> tuple[Slice, list[PullRecord]]:
        """A page, the longest stale first, and all of them."""
        found = await self._all_stale(await self._with_full_name(wanted))
        found.sort(key=_age)
        after = _age_of(cursor) if cursor else (-1, "", 0)
        rest = [one for one in found if _age(one) > after]
        return _cut(rest, most, lambda one: f"{one.since_us}-{one.ref}"), found

    async def by_urgency(self, wanted: Wanted, most: int, *, ended: bool) -> Slice:
        """Those that need a person first, then the stale ones, then the rest that is alive, each
        the longest waiting first; `ended` adds those that are merged or closed, by their names."""
        wanted = await self._with_full_name(wanted)
        asked = STATES if wanted.state is None else (wanted.state,)
        alive = [state for state in asked if state not in TERMINAL]
        keys = await self._pulls.stale_keys(dict.fromkeys(alive, 0.0), _MOST_RANKED, _ANY_TIME_US)
        ranked = [place[2:] for place in sorted(self._ranked(keys, wanted))[: most + 1]]
        found = await self._pulls.read_all(ranked)
        if (ended or wanted.state in TERMINAL) and not wanted.stale:
            found += await self._ended(wanted, most + 1 - len(found))
        return _cut(found, most, lambda one: str(one.ref))

    def _ranked(
        self, keys: Iterable[StaleKey], wanted: Wanted
    ) -> Iterator[tuple[int, int, str, int]]:
        for _, repo, number, state, since_us in keys:
            late = is_stale(state, since_us / 1e6, self._now, self._policy.of(repo).thresholds)
            if wanted.repo in (None, repo) and (late or not wanted.stale):
                rank = 0 if state == "NEEDS_INTERVENTION" else 1 if late else 2
                yield rank, since_us, repo, number

    async def _ended(self, wanted: Wanted, most: int) -> list[PullRecord]:
        found: list[PullRecord] = []
        rows: Sequence[PullRecord] = ()
        by_store = Filter(wanted.repo, wanted.state)
        while len(found) < most:
            after = str(rows[-1].ref) if rows else ""
            rows = await self._pulls.listing(by_store, after, _AT_A_TIME)
            found += [one for one in rows if one.state in TERMINAL]
            if len(rows) < _AT_A_TIME:
                break
        return found[:most]

    async def _with_full_name(self, wanted: Wanted) -> Wanted:
        if wanted.repo is None:
            return wanted
        return wanted._replace(repo=await full_name(self._pulls, wanted.repo))

    async def _all_stale(self, wanted: Wanted) -> list[PullRecord]:
        found = await self._pulls.stale(self._policy.shortest_thresholds(), MOST_STALE)
        return [one for one in found if self.is_stale(one) and _fits(one, wanted)]

    async def _scanned(self, wanted: Wanted, cursor: str, most: int) -> Slice:
        by_store = Filter(wanted.repo, wanted.state, None, wanted.search)
        at_once = min(most + 1, _AT_A_TIME) if wanted[2:4] == (None, None) else _AT_A_TIME
        found: list[PullRecord] = []
        scanned = 0
        while scanned < _MOST_SCANNED:
            rows = await self._pulls.listing(by_store, cursor, at_once)
            found += [one for one in rows if self._passes(one, wanted)]
            if len(found) > most or len(rows) < at_once:
                return _cut(found, most, lambda one: str(one.ref))
            scanned += len(rows)
            cursor = str(rows[-1].ref)
        return Slice(found, cursor)

    def _passes(self, record: PullRecord, wanted: Wanted) -> bool:
        return (wanted.stale is None or self.is_stale(record) == wanted.stale) and (
            wanted.rule is None or rule_of(record) == wanted.rule
        )


def rule_of(record: PullRecord) -> object:
    diagnosis = current_diagnosis(record)
    return diagnosis.get("rule") if diagnosis is not None else None


def _fits(record: PullRecord, wanted: Wanted) -> bool:
    """What the store's own filters say, of records that came another way."""
    if wanted.repo not in (None, record.ref.repo) or wanted.state not in (None, record.state):
        return False
    if wanted.rule not in (None, rule_of(record)):
        return False
    texts: Iterable[str] = (record.title, record.head_ref or "", record.ref.repo)
    return wanted.search is None or any(
        wanted.search.casefold() in text.casefold() for text in texts
    )


def _cut(found: list[PullRecord], most: int, cursor_of: Callable[[PullRecord], str]) -> Slice:
    page = found[:most]
    return Slice(page, cursor_of(page[-1]) if len(found) > most else None)


def _place(record: PullRecord) -> tuple[str, int]:
    return record.ref.repo, record.ref.number


def _place_of(cursor: str) -> tuple[str, int]:
    repo, _, number = cursor.rpartition("#")
    if not repo or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise BadCursor("the cursor is `next` of the page before, as it stands")
    return repo, int(number)


def _age(record: PullRecord) -> tuple[int, str, int]:
    return record.since_us, *_place(record)


def _age_of(cursor: str) -> tuple[int, str, int]:
    since, _, rest = cursor.partition("-")
    if not since.isascii() or not since.isdigit() or len(since) > 18:
        raise BadCursor("the cursor is `next` of the page before, as it stands")
    return int(since), *_place_of(rest)
