"""Who acts in the world besides the forge: what they all have in common.

An actor listens to what the forge tells, and does something about it later, by its own dice. It
may miss what it was told, as real bots do, and it can be poked: by a label that is put on, a
comment, a dispatch, or a status that is set once more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from towline_sim.github.entities import PASSING, Emitted, Pull, WorldRefusal
from towline_sim.github.fault_dice import Seconds
from towline_sim.github.world import World

_NUMBER_NAMES: Final = ("number", "pr_number", "pull_number", "pull_request", "pr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How fast an actor acts, and how often it misses what it was told, or a poke."""

    delay: Seconds = (5.0, 40.0)
    miss: float = 0.0
    miss_poke: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Poke:
    """What wakes an actor; any of them does."""

    label: str | None = None
    comment: str | None = None
    dispatch: str | None = None
    status: str | None = None
    """A context that is set to success again."""


class Actor:
    """`login` is who it acts as."""

    def __init__(self, world: World, login: str, habit: Habit | None = None) -> None:
        self.world = world
        self.login = login
        self.habit = habit or Habit()
        self.missed = 0
        self.dice = random.Random(world.random.getrandbits(64))  # noqa: S311  seeded by the world
        world.subscribe(self.hear)

    def hear(self, told: Emitted) -> None:
        """Only schedules."""

    def later(self, action: Callable[[], None], delay: Seconds | None = None) -> None:
        """What the forge refuses by then is not done, without a message, as with real bots."""
        wait = self.dice.uniform(*(delay or self.habit.delay))
        self.world.after(wait, lambda: self._attempt(action))

    def misses(self, *, poked: bool = False) -> bool:
        missed = self.dice.random() < (self.habit.miss_poke if poked else self.habit.miss)
        self.missed += missed
        return missed

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except WorldRefusal as refusal:
            self.refused(refusal)

    def refused(self, refusal: WorldRefusal) -> None:
        """What it was not allowed to do."""

    def current(self, pull: Pull) -> Pull | None:
        """The pull request now, if it is open and has the same head."""
        now = self.world.known_pull(pull.repo, pull.number)
        return now if now.state == "open" and now.head_sha == pull.head_sha else None


def pulls_about(world: World, told: Emitted) -> list[Pull]:
    """The open pull requests that an event is about, by its own word or by the commit."""
    if told.pull is not None:
        now = world.known_pull(told.pull.repo, told.pull.number)
        return [now] if now.state == "open" else []
    sha = _commit_of(told)
    return [] if sha is None else world.pulls_of(told.repo.full_name, sha)


def _commit_of(told: Emitted) -> str | None:
    if told.status is not None:
        return told.status.sha
    if told.run is not None:
        return told.run.head_sha
    return told.suite.head_sha if told.suite is not None else None


def poked(world: World, told: Emitted, poke: Poke, seen: set[tuple[str, str]]) -> list[Pull]:
    """The pull requests for which this event is a poke.

    `seen` keeps the statuses that were there before: the first success is news, not a poke.
    """
    if told.name == "pull_request" and told.action == "labeled" and told.label is not None:
        return pulls_about(world, told) if told.label.name == poke.label else []
    if told.name == "issue_comment" and told.action == "created" and told.comment is not None:
        words = told.comment.body.split()
        return pulls_about(world, told) if words[:1] == [poke.comment] else []
    if told.name == "repository_dispatch" and told.dispatch_type == poke.dispatch:
        return _named(world, told.repo.full_name, told.dispatch_payload or {})
    if told.name == "status" and told.status is not None and told.status.context == poke.status:
        mark = (told.status.sha, told.status.state)
        again = mark in seen and told.status.state == "success"
        seen.add(mark)
        return pulls_about(world, told) if again else []
    return []


def _named(world: World, repo: str, payload: Mapping[str, object]) -> list[Pull]:
    for name in _NUMBER_NAMES:
        number = payload.get(name)
        if isinstance(number, int | str) and str(number).isdigit():
            try:
                pull = world.known_pull(repo, int(number))
            except WorldRefusal:
                return []
            return [pull] if pull.state == "open" else []
    return []


def all_pass(world: World, pull: Pull, needed: Iterable[str]) -> bool:
    verdicts = world.verdicts(pull.repo, pull.head_sha)
    return all(verdicts.get(name) in PASSING for name in needed)
