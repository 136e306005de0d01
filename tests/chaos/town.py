"""What is written about in the storm: a town of pull requests, whose forge is one of the ledgers.

People ask `/why`, and each question has to be answered once, by a comment with its own mark; where
that could not be done, the comment says so. The forge is the simulated one over HTTP, on the real
clock. Its news is what the webhooks tell of.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

from tests.e2e.senders import Parcel, signed
from tests.hook_world import TOKEN
from towline_once.clock import SystemClock
from towline_sim.actors.scenario import AUTHOR
from towline_sim.github.entities import Comment, Emitted
from towline_sim.github.limits import Limits
from towline_sim.github.server import GitHubSim
from towline_sim.github.webhooks import payload_of
from towline_sim.github.world import World

OURS = "towline-bot"
PERSON = "octocat"
REPOS = tuple(f"octo-org/app-{number}" for number in range(6))
_ROOT = "http://127.0.0.1"
_TALKED_ABOUT = 60
_FAILED = "could not be carried out"
_MARK = re.compile(r"<!-- towline:(why:\S+) -->")


class Place(NamedTuple):
    repo: str
    number: int


class Answer(NamedTuple):
    """A comment of ours to a question."""

    place: Place
    mark: str
    at: float
    failed: bool = False
    """It only says that there is no answer."""


class Town:
    """Where people ask no more often than `asks_every` seconds.

    Each question is two writes at the forge, a reaction and an answer, and GitHub's limits, which
    a worker keeps from its side, are one a second and 500 an hour.
    """

    def __init__(self, dice: random.Random, asks_every: float = 0.0) -> None:
        self._dice = dice
        self._asks_every = asks_every
        self._asked_at = 0.0
        self.world = World(time.time(), dice.randrange(1 << 30))
        for repo in REPOS:
            self.world.create_repo(repo, {"README.md": b"# app\n"})
            self.world.set_permission(repo, AUTHOR, "write")
            self.world.set_permission(repo, PERSON, "write")
        self.sim = GitHubSim(self.world, SystemClock(), TOKEN, login=OURS, limits=Limits.none())
        self.news: deque[Emitted] = deque()
        self.world.subscribe(self.news.append)
        self.pulls: list[Place] = []
        self.asked: Counter[Place] = Counter()
        self.known: frozenset[Place] = frozenset()
        """Under tow, as the store says: only there is a question answered."""

    def happen(self) -> None:
        """One thing that somebody does; it is in the news afterwards."""
        self.world.run_until(time.time())
        deeds: list[Callable[[], None]] = [self._check, self._talk, self._review, self._ask]
        deed = self._dice.choices(deeds, [45, 10, 10, 35])[0]
        if not self.pulls or self._dice.random() < 0.05:
            deed = self.open
        deed()

    def open(self) -> None:
        repo, number = self._dice.choice(REPOS), len(self.pulls)
        branch = f"towline/fix-{number}"
        self.world.create_ref(repo, f"refs/heads/{branch}", self.world.branch(repo, "main"), AUTHOR)
        self.world.write_files(repo, branch, {f"fix-{number}.txt": b"fixed\n"}, "Fix", AUTHOR)
        pull = self.world.open_pull(repo, head=branch, base="main", title="Fix it", by=AUTHOR)
        self.pulls.append(Place(repo, pull.number))

    def _one(self) -> Place:
        return self._dice.choice(self.pulls[-_TALKED_ABOUT:])

    def _check(self) -> None:
        repo, number = self._one()
        sha = self.world.pull(repo, number).head_sha
        name = self._dice.choice(["build", "test"])
        ended = self._dice.choice([True, True, False])
        conclusion = self._dice.choice(["success", "failure"]) if ended else None
        self.world.create_run(repo, sha, name, "ci", conclusion=conclusion)  # type: ignore[arg-type]

    def _talk(self) -> None:
        self.world.comment(*self._one(), PERSON, "It works for me.")

    def _review(self) -> None:
        self.world.review(*self._one(), PERSON, "COMMENT", "Looks fine.")

    def _ask(self) -> None:
        asked = [place for place in self.pulls[-_TALKED_ABOUT:] if place in self.known]
        if not asked or time.monotonic() < self._asked_at + self._asks_every:
            self._check()
            return
        self._asked_at = time.monotonic()
        place = self._dice.choice(asked)
        self.world.comment(*place, PERSON, "/why")
        self.asked[place] += 1

    def parcel(self) -> Parcel:
        """The next piece of news, as its webhook."""
        told = self.news.popleft()
        return signed(f"news-{told.seq:07d}", told.name, payload_of(self.world, _ROOT, told))

    def answers(self) -> list[Answer]:
        return [
            Answer(place, mark[1], comment.created_at, _FAILED in comment.body)
            for place in self.pulls
            for comment in self._ours(place)
            if (mark := _MARK.search(comment.body))
        ]

    def _ours(self, place: Place) -> list[Comment]:
        said = self.world.comments(*place)
        return [comment for comment in said if comment.author.login == OURS]
