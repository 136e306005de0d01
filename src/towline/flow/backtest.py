"""The recorded history, read in batches and lived through again, pull request by pull request.

No more than one batch of logs is in memory. Three readings are made: what the log tells of sweeps
and of the world, what it tells of sweeps that were kept from acting, and the comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from towline.core.backtest import Comparison, Experience
from towline.core.backtest_history import History, history_of_log
from towline.core.backtest_replay import Choice, Learned, Terms, recorded, replay, traces_of
from towline.core.backtest_sweeps import Sweep, Sweeps, Weather, regular_sweeps, sweeps_of
from towline.core.lifecycle import State
from towline.core.snapshot import PullRef
from towline.core.sweep_policy import TowPolicy
from towline.core.tune import Tally, waits_of
from towline.ports.pulls import LogPlace, PullEvent, PullStore

_LINES: Final = 5_000
_PULLS: Final = 500
_MOST_LINES_OF_ONE: Final = 20_000
_AFTERWARDS_US: Final = 7 * 24 * 3600 * 1_000_000
"""What a more patient policy puts off may end after the history does."""


class Wanted(NamedTuple):
    """Which part of the history; `since_us` is the earliest opening."""

    repo: str | None = None
    since_us: int = 0


class Ruling(NamedTuple):
    """A policy, and how often the sweep comes."""

    policy: TowPolicy
    every_seconds: float = 300.0


class Past(NamedTuple):
    """A pull request's history, and the state that its record has by now."""

    history: History
    state: State


async def histories(store: PullStore, wanted: Wanted) -> AsyncIterator[Past]:
    """All that are wanted, by repository and number."""
    batch: list[tuple[str, int, list[PullEvent]]] = []
    async for repo, number, events in _logs(store, wanted.repo):
        if events[0].at_us >= wanted.since_us:
            batch.append((repo, number, events))
        if len(batch) >= _PULLS:
            for past in await _known(store, batch):
                yield past
            batch = []
    for past in await _known(store, batch):
        yield past


async def _logs(
    store: PullStore, repo: str | None
) -> AsyncIterator[tuple[str, int, list[PullEvent]]]:
    """Each log is put together from the pages that it is spread over."""
    place = LogPlace(repo, 0, 0) if repo else LogPlace()
    events: list[PullEvent] = []
    while page := await store.log(place, _LINES, repo):
        for line in page:
            if (line.repo, line.number) != place[:2] and events:
                yield place.repo, place.number, events
                events = []
            place = LogPlace(line.repo, line.number, line.event.id)
            if len(events) < _MOST_LINES_OF_ONE:
                events.append(line.event)
    if events:
        yield place.repo, place.number, events


async def _known(store: PullStore, batch: Sequence[tuple[str, int, list[PullEvent]]]) -> list[Past]:
    """One that was forgotten meanwhile is left out."""
    records = await store.read_all([(repo, number) for repo, number, _ in batch])
    states = {(record.ref.repo, record.ref.number): record for record in records}
    found = []
    for repo, number, events in batch:
        record = states.get((repo, number))
        if record is not None:
            ref = PullRef(record.ref.forge, repo, number)
            found.append(Past(history_of_log(ref, events), record.state))
    return found


async def waits(store: PullStore, wanted: Wanted, now_us: int) -> tuple[Tally, int]:
    """How long states lasted, and in how many pull requests."""
    tally, pulls = Tally(), 0
    async for past in histories(store, wanted):
        if past.history.steps:
            tally.add(waits_of(past.history, now_us))
            pulls += 1
    return tally, pulls


@dataclass(slots=True)
class _Read:
    """What the first reading leaves."""

    traces: set[int] = field(default_factory=set)
    first_us: int = 2**62
    last_us: int = 0
    experience: Experience = field(default_factory=Experience)
    tallies: dict[str, Tally] = field(default_factory=dict)
    closings: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def add(self, history: History, ruling: Ruling) -> None:
        last_us = history.steps[-1].at_us
        self.traces.update(traces_of(history, ruling.policy.of(history.ref.repo)))
        self.first_us = min(self.first_us, history.opened_us)
        self.last_us = max(self.last_us, last_us)
        self.experience.add(history)
        for at_us in closings_of(recorded(history)) if history.vulnerability_id else ():
            known = self.closings.setdefault(history.vulnerability_id or "", [])
            known.append((history.ref.repo, at_us))
        self.tallies.setdefault(history.ref.repo, Tally()).add(waits_of(history, last_us))


class _World:
    """What the history tells of sweeps and of the world; it judges no policy."""

    def __init__(self, read: _Read, before: Ruling, after: Ruling) -> None:
        self.end_us = max(read.first_us, read.last_us)
        span = (read.first_us, self.end_us + _AFTERWARDS_US)
        self.before, self.after = before, after
        self.experience = read.experience
        self.weather = Weather()
        self.usual = {repo: tally.usual_us() for repo, tally in read.tallies.items()}
        self.sweeps = Sweeps(sweeps_of(read.traces, *span, before.every_seconds))
        self.sweeps_after = self.sweeps
        if after.every_seconds != before.every_seconds:
            self.sweeps_after = Sweeps(regular_sweeps(*span, after.every_seconds))

    def as_recorded(self, history: History, reopened: Sequence[int]) -> Terms:
        return self._terms(history, self.before, self.sweeps, reopened)

    def under_the_same(self, history: History, reopened: Sequence[int], learned: Learned) -> Terms:
        terms = self.as_recorded(history, reopened)
        return replace(terms, learned=learned, closed=self._closed(history, learned))

    def under_the_other(self, history: History, reopened: Sequence[int], learned: Learned) -> Terms:
        terms = self._terms(history, self.after, self.sweeps_after, reopened)
        closed = self._closed(history, learned)
        usual = self.usual.get(history.ref.repo, {})
        return replace(terms, learned=learned, closed=closed, usual_us=usual)

    def _closed(self, history: History, learned: Learned) -> Callable[[Sweep], bool]:
        """By the sweep that was the last at that time."""

        def closed(sweep: Sweep) -> bool:
            then = self.sweeps.last_before(sweep.first_us)
            if then is None:
                return False
            return then.first_us in learned.held or self.weather.closed(history.ref.repo, then)

        return closed

    def _terms(
        self, history: History, ruling: Ruling, sweeps: Sweeps, reopened: Sequence[int]
    ) -> Terms:
        return Terms(
            policy=ruling.policy.of(history.ref.repo),
            sweeps=sweeps,
            heal_unlisted=ruling.policy.heal_unlisted,
            verify_us=int(ruling.policy.verify_seconds * 1e6),
            reopened=reopened,
            end_us=self.end_us,
        )


class _Closings:
    """When pull requests for a vulnerability were closed for another, in all repositories.

    Under the other policy, those of the same repository are as they were replayed so far.
    """

    def __init__(self, known: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self._known = known
        self._passed: Counter[tuple[str, str]] = Counter()
        self._replayed: dict[tuple[str, str], list[int]] = {}

    def recorded(self, history: History) -> list[int]:
        return [at_us for _, at_us in self._known.get(history.vulnerability_id or "", ())]

    def other(self, history: History) -> list[int]:
        known = self._known.get(history.vulnerability_id or "", ())
        elsewhere = [at_us for repo, at_us in known if repo != history.ref.repo]
        return elsewhere + self._replayed.get(_subject(history), [])

    def replaces_nothing(self, history: History) -> bool:
        subject = _subject(history)
        return self._passed[subject] > len(self._replayed.get(subject, ()))

    def add(self, history: History, before: Sequence[Choice], after: Sequence[Choice]) -> None:
        if history.vulnerability_id is not None:
            self._passed[_subject(history)] += len(closings_of(before))
            self._replayed.setdefault(_subject(history), []).extend(closings_of(after))


def _subject(history: History) -> tuple[str, str]:
    return history.ref.repo, history.vulnerability_id or ""


def closings_of(choices: Sequence[Choice]) -> list[int]:
    """The last one, if it was tried several times."""
    return [choice.at_us for choice in choices if choice.what == "close_and_reopen"][-1:]


async def compared(
    store: PullStore,
    before: Ruling,
    after: Ruling,
    wanted: Wanted,
) -> Comparison:
    """`before` is the policy that the history was made under, `after` the one that is tried."""
    read = _Read()
    async for history, _ in histories(store, wanted):
        if history.steps:
            read.add(history, before)
    world = _World(read, before, after)
    closings = _Closings(read.closings)
    async for history, _ in histories(store, wanted):
        if history.steps:
            terms = world.as_recorded(history, closings.recorded(history))
            learned = replay(history, terms).learned
            world.weather.tell(history.ref.repo, learned.held, learned.helped)
    comparison = Comparison()
    async for past in histories(store, wanted):
        if past.history.steps:
            _compare(past, world, closings, comparison)
        else:
            comparison.unread += 1
    return comparison


def _compare(past: Past, world: _World, closings: _Closings, comparison: Comparison) -> None:
    history, reopened = past.history, closings.recorded(past.history)
    learned = replay(history, world.as_recorded(history, reopened)).learned
    before = replay(history, world.under_the_same(history, reopened, learned))
    done = recorded(history)
    comparison.tell_faith(history, before, done, past.state, learned)
    if closings.replaces_nothing(history):
        comparison.add_absent(history, before)
        closings.add(history, done, ())
        return
    terms = world.under_the_other(history, closings.other(history), learned)
    after = replay(history, terms)
    tried = after.tried
    share = None if tried is None else world.experience.share(history.ref.repo, tried)
    comparison.add(history, before, after, share)
    closings.add(history, done, after.choices)
