"""Those who act in between: people and bots that do not wait for anybody.

Some answer when they are called, some order the same thing once more, some do by hand what nobody
answered us, and some propose what is proposed already. Each seed has some of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from towline.events import CheckChanged
from towline.forges.snapshot import PullRef
from towline.remediation.strategies import CLOSING_TEXT
from towline_sim.actors.people import Person
from towline_sim.github.entities import Emitted, Pull, WorldRefusal
from towline_sim.github.world import World
from towline_sim.proof.scenarios.tow_effects import OURS

_CALL: Final = "needs a person"
_ORDERS: Final = (
    "/rebuild", "/rebuild", "/recheck-policy", "/recheck-approval", "/merge", "/update-branch",
    "/close-and-reopen",
)  # fmt: skip
_ANSWERS: Final = ("bot", "bot", "push", "push", "approve", "close", "merge", "order", "nothing")
_MOST_CALLS: Final = 2
_FILE: Final = "app.txt"


class People:
    """`open_fix` proposes a fix in a repository, for a vulnerability, from a branch."""

    def __init__(
        self,
        world: World,
        seed: int,
        seconds: float,
        who: tuple[str, str],
        open_fix: Callable[..., None],
    ) -> None:
        self._world = world
        self._dice = random.Random(f"people {seed}")  # noqa: S311  the same again
        self._until = world.now + 1.2 * seconds
        self._seconds = seconds
        self._person, self._bot = who
        self._open_fix = open_fix
        chance = self._dice.random
        self._hasty, self._handy, self._answering = chance() < 0.35, chance() < 0.5, chance() < 0.6
        self._quarrelsome = chance() < 0.35
        self._twins = self._quarrelsome and chance() < 0.7
        self._pushes = 0
        self._called: Counter[tuple[str, int]] = Counter()
        self.twins: Counter[str] = Counter()
        """How many were proposed besides, by their titles."""
        world.subscribe(self._hear)

    def come(self, repos: Sequence[str], branches: Sequence[tuple[str, str]]) -> None:
        """`branches` are those that fixes come from, each with its repository."""
        dice, spread = self._dice, self._seconds
        if dice.random() < 0.25:
            self._pushes_in_a_row(*dice.choice(branches))
        for repo in repos if self._quarrelsome else ():
            for _ in range(3):
                lines = {_FILE: f"{dice.random()}\n".encode()}
                after = dice.uniform(30, spread)
                self._as_person(repo).pushes("main", lines, "Quarrel", after=after)
                self._world.after(after + 1.0, partial(self._tidies_up, repo))
        if self._twins:
            repo, branch = dice.choice(branches)
            self._world.after(dice.uniform(10, spread / 2), lambda: self._open_twin(repo, branch))

    def _tidies_up(self, repo: str) -> None:
        """What conflicts is closed by hand, at about the time when a sweep would."""
        for pull in self._world.pulls(repo):
            if self._handy and self._world.conflicts(pull) and self._dice.random() < 0.3:
                after = self._dice.uniform(15, 60)
                self._as_person(repo).closes(pull.number, after=after)

    def _open_twin(self, repo: str, branch: str) -> None:
        key = branch.rpartition("/")[2]
        self.twins[f"Fix {key}"] += 1
        self._open_fix(repo, key, f"bump/{key}", shared=True)

    def _pushes_in_a_row(self, repo: str, branch: str) -> None:
        """Faster than the hooks that tell of it."""
        dice = self._dice
        after, pusher = dice.uniform(20, 0.8 * self._seconds), self._as_person(repo)
        if dice.random() < 0.5:
            pusher = Person(self._world, self._bot, repo)
        for _ in range(dice.choice((2, 2, 3))):
            self._push(pusher, branch, after)
            after += dice.uniform(0.3, 3.0)

    # ------------------------------------------------------------------ what they hear

    def _hear(self, told: Emitted) -> None:
        if self._world.now > self._until:
            return
        if told.sender.login == OURS:
            for pull in self._about(told):
                self._heard_of_ours(told, pull)
        elif self._hasty and _failed(told) and self._dice.random() < 0.6:
            for pull in self._about(told):
                self._runs_it_again(told, pull)

    def _heard_of_ours(self, told: Emitted, pull: Pull) -> None:
        called = told.comment is not None and _CALL in told.comment.body
        if called and self._answering:
            self._answers(pull)
        elif self._hasty and self._dice.random() < 0.2:
            order, after = self._dice.choice(_ORDERS), self._dice.uniform(0.05, 8.0)
            self._as_person(pull.repo).comments(pull.number, order, after=after)

    def _answers(self, pull: Pull) -> None:
        """A person is needed: one comes, or a bot that was not meant."""
        dice, person = self._dice, self._as_person(pull.repo)
        self._called[pull.repo, pull.number] += 1
        if self._called[pull.repo, pull.number] > _MOST_CALLS:
            return
        after, does = dice.uniform(3, 40), dice.choice(_ANSWERS)
        if does == "bot":
            self._push(Person(self._world, self._bot, pull.repo), pull.head_ref, after)
        elif does == "push":
            self._push(person, pull.head_ref, after)
        elif does == "approve":
            person.approves(pull.number, after=after)
        elif does == "close":
            person.closes(pull.number, after=after)
        elif does == "merge":
            person.merges(pull.number, after=after)
        elif does == "order":
            person.comments(pull.number, dice.choice(_ORDERS), after=after)

    def _runs_it_again(self, told: Emitted, pull: Pull) -> None:
        """At about the time when a sweep would."""
        dice, world = self._dice, self._world
        after, run = dice.uniform(15, 45), told.run
        if run is None or dice.random() < 0.5:
            self._as_person(pull.repo).comments(pull.number, "/rebuild", after=after)
            return
        workflow = world.workflow_of(pull.repo, run.suite_id)
        if workflow is not None:
            again = partial(world.rerun, pull.repo, workflow.id, self._person, failed_only=True)
            self._later(after, again)

    def not_answered(self, name: str, args: tuple[Any, ...]) -> None:
        """Somebody whose browser works does what we asked for in vain."""
        ref = args[0] if args else None
        if not self._handy or not isinstance(ref, PullRef):
            return
        person, after = self._as_person(ref.repo), self._dice.uniform(0.5, 20.0)
        if name == "close" or (name == "comment" and args[1] == CLOSING_TEXT):
            person.closes(ref.number, after=after)
        elif name == "merge":
            person.merges(ref.number, after=after)
        elif name == "update_branch":
            self._later(
                after, partial(self._world.update_branch, ref.repo, ref.number, self._person)
            )

    def act_meanwhile(self, repo: str, check: CheckChanged) -> bool:
        """Somebody does something about a failure while we read its log."""
        dice, sha = self._dice, check.head_sha or ""
        pulls = self._world.pulls_of(repo, sha) if self._hasty and dice.random() < 0.7 else []
        for pull in pulls:
            after = dice.uniform(0.0, 1.0)
            self._push(self._as_person(repo), pull.head_ref, after)
        return bool(pulls)

    # ------------------------------------------------------------------ parts

    def _later(self, after: float, action: Callable[[], object]) -> None:
        def attempt() -> None:
            with suppress(WorldRefusal):
                action()

        self._world.after(after, attempt)

    def _push(self, pusher: Person, branch: str, after: float) -> None:
        self._pushes += 1
        pusher.pushes(branch, {f"more-{self._pushes}.txt": b"more\n"}, "Go on", after=after)

    def _as_person(self, repo: str) -> Person:
        return Person(self._world, self._person, repo)

    def _about(self, told: Emitted) -> list[Pull]:
        if told.pull is not None:
            return [told.pull]
        sha = None
        if told.run is not None:
            sha = told.run.head_sha
        elif told.status is not None:
            sha = told.status.sha
        elif told.workflow_run is not None:
            sha = told.workflow_run.head_sha
        return [] if sha is None else self._world.pulls_of(told.repo.full_name, sha)


def _failed(told: Emitted) -> bool:
    """CI's word that a build has failed."""
    if told.run is not None:
        return told.action == "completed" and told.run.conclusion == "failure"
    status = told.status
    return status is not None and status.state == "failure" and "build" in status.context
