"""The recorded history, read in batches and lived through again, pull request by pull request.

No more than one batch of logs is in memory, and of each pull request its state and what was learned
of it, if anything. Three readings are made: what the log tells of sweeps
and of the world, what it tells of sweeps that were kept from acting, and the comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from towline.core.backtest import Comparison, Experience
from towline.core.backtest_history import History, history_of_log
from towline.core.backtest_outages import Outages
from towline.core.backtest_replay import replay, traces_of
from towline.core.backtest_sweeps import Sweep, Sweeps, Weather, regular_sweeps, sweeps_of
from towline.core.backtest_terms import Choice, Learned, Terms, recorded
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
_NOTHING_LEARNED: Final = Learned()


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


class Standing(NamedTuple):
    """What a record has that its log does not."""

    forge: str
    state: State


Standings: TypeAlias = dict[tuple[str, int], Standing]


async def histories(
    store: PullStore, wanted: Wanted, standings: Standings | None = None
) -> AsyncIterator[Past]:
    """All that are wanted, by repository and number; `standings` are read but once."""
    known: Standings = {} if standings is None else standings
    batch: list[tuple[str, int, list[PullEvent]]] = []
    async for repo, number, events in _logs(store, wanted.repo):
        if events[0].at_us >= wanted.since_us:
            batch.append((repo, number, events))
        if len(batch) >= _PULLS:
            for past in await _known(store, batch, known):
                yield past
            batch = []
    for past in await _known(store, batch, known):
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


async def _known(
    store: PullStore,
    batch: Sequence[tuple[str, int, list[PullEvent]]],
    known: Standings,
) -> list[Past]:
    """One that is forgotten is left out."""
    unknown = [(repo, number) for repo, number, _ in batch if (repo, number) not in known]
    for record in await store.read_all(unknown) if unknown else ():
        known[record.ref.repo, record.ref.number] = Standing(record.ref.forge, record.state)
    found = []
    for repo, number, events in batch:
        standing = known.get((repo, number))
        if standing is not None:
            ref = PullRef(standing.forge, repo, number)
            found.append(Past(history_of_log(ref, events), standing.state))
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
    outages: Outages = field(default_factory=Outages)
    tallies: dict[str, Tally] = field(default_factory=dict)
    closings: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    def add(self, history: History, ruling: Ruling) -> None:
        last_us = history.steps[-1].at_us
        self.traces.update(traces_of(history, ruling.policy.of(history.ref.repo)))
        self.first_us = min(self.first_us, history.opened_us)
        self.last_us = max(self.last_us, last_us)
        self.experience.add(history)
        self.outages.add(history)
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
        self.outages = read.outages
        self.weather = Weather()
        self._learned: dict[PullRef, Learned] = {}
        self.usual = {repo: tally.usual_us() for repo, tally in read.tallies.items()}
        self.sweeps = Sweeps(sweeps_of(read.traces, *span, before.every_seconds))
        self.sweeps_after = self.sweeps
        if after.every_seconds != before.every_seconds:
            self.sweeps_after = Sweeps(regular_sweeps(*span, after.every_seconds))

    def as_recorded(self, history: History, reopened: Sequence[int]) -> Terms:
        return self._terms(history, self.before, self.sweeps, reopened)

    def learn(self, history: History, reopened: Sequence[int]) -> None:
        """What holds one back holds back others; what is plain is not kept."""
        learned = replay(history, self.as_recorded(history, reopened)).learned
        self.weather.tell(history.ref.repo, learned.held, learned.helped)
        if learned != _NOTHING_LEARNED:
            self._learned[history.ref] = learned

    def learned(self, history: History) -> Learned:
        return self._learned.get(history.ref, _NOTHING_LEARNED)

    def under_the_same(self, history: History, reopened: Sequence[int], learned: Learned) -> Terms:
        terms = self.as_recorded(history, reopened)
        return replace(terms, learned=learned, closed=self._closed(history, learned))

    def under_the_other(self, history: History, reopened: Sequence[int], learned: Learned) -> Terms:
        terms = self._terms(history, self.after, self.sweeps_after, reopened)
        closed = self._closed(history, learned)
        usual = self.usual.get(history.ref.repo, {})
        in_vain = partial(self.outages.cover, history.ref.forge)
        return replace(terms, learned=learned, closed=closed, usual_us=usual, in_vain=in_vain)

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
    read, standings = _Read(), Standings()
    async for history, _ in histories(store, wanted, standings):
        if history.steps:
            read.add(history, before)
    world = _World(read, before, after)
    closings = _Closings(read.closings)
    async for history, _ in histories(store, wanted, standings):
        if history.steps:
            world.learn(history, closings.recorded(history))
    comparison = Comparison()
    async for past in histories(store, wanted, standings):
        if past.history.steps:
            _compare(past, world, closings, comparison)
        else:
            comparison.unread += 1
    return comparison


def _compare(past: Past, world: _World, closings: _Closings, comparison: Comparison) -> None:
    history, reopened = past.history, closings.recorded(past.history)
    learned = world.learned(history)
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
