"""The world that the tow is played in: repositories, bots, people, and what really arrived there.

`tow` plays in it, and `tow_invariants` watches it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final, TypeAlias, TypeVar

import orjson

from towline.config import Settings
from towline.events import CheckChanged
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.snapshot import PullRef
from towline.integrations.ci import CiUnavailable
from towline.pulls.budgets import Strategy
from towline.pulls.lifecycle import State
from towline.remediation.strategies import CLOSING_TEXT
from towline_once.db.sqlite import run_statement
from towline_once.db.statement import Script, play
from towline_once.errors import Unavailable
from towline_sim.actors.base import Habit
from towline_sim.actors.bots import ApproverBot, AutomergeBot, PolicyBot, Ruling
from towline_sim.actors.ci import Ci, Fate, LaterCheck
from towline_sim.actors.jenkins import Jenkins, JenkinsBuild
from towline_sim.actors.people import Person
from towline_sim.github.entities import Emitted, Protection, Pull, WorkflowRun, WorldRefusal
from towline_sim.github.webhooks import payload_of
from towline_sim.github.world import World
from towline_sim.in_process import ROOT
from towline_sim.proof.fault_schedule import MESSAGES, RARE
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import WORLD, SimHandle, on_node
from towline_sim.proof.store import START_US, SimDatabase, SimServer
from towline_sim.proof.wire import Wire

# ----------------------------------------------------------------------
# What really arrived at the simulated world, counted there: nobody's belief.

Key: TypeAlias = tuple[str, int]
OURS: Final = "towline[bot]"
_LABELS: Final[Mapping[str, Strategy]] = {
    "recheck-policy": "retrigger_policy_bot",
    "automerge": "retrigger_automerge_bot",
}
_WORDS: Final[Mapping[str, Strategy]] = {
    "/policy": "retrigger_policy_bot",
    "/approve": "retrigger_approver_bot",
}
_DISPATCHES: Final[Mapping[str, Strategy]] = {
    "policy": "retrigger_sod_check",
    "approval": "retrigger_approver_bot",
    "merge": "retrigger_automerge_bot",
}


def _nobody(key: Key, strategy: Strategy) -> None:
    return None


class Ledger:
    """`made` counts our actions by pull request and strategy; the rest is what became of them.

    `arrived` is called with each of our actions, when it is counted.
    """

    def __init__(
        self,
        world: World,
        jenkins: Jenkins,
        arrived: Callable[[Key, Strategy], None] = _nobody,
    ) -> None:
        self.world = world
        self.made: Counter[tuple[Key, Strategy]] = Counter()
        self.last_made: dict[tuple[Key, Strategy], float] = {}
        self.opened: dict[Key, float] = {}
        self.heads: dict[Key, list[str]] = {}
        """The heads of each, one after the other."""
        self.ended: dict[Key, float] = {}
        self.ended_by: dict[Key, str] = {}
        self.merges: Counter[Key] = Counter()
        self.closed_in_conflict: dict[Key, bool] = {}
        self.said_to_close: set[Key] = set()
        """Those on which we wrote that we close them."""
        self._arrived = arrived
        world.subscribe(self._hear)
        self._watch(jenkins)

    def _watch(self, jenkins: Jenkins) -> None:
        build = jenkins.build

        def counted(job: str, parameters: Mapping[str, str]) -> JenkinsBuild:
            asked = build(job, parameters)
            self._count((asked.repo, asked.pull), "rebuild")
            return asked

        jenkins.build = counted  # type: ignore[method-assign]
        rerun = self.world.rerun

        def rerun_by(repo: str, run_id: int, by: str, *, failed_only: bool = False) -> WorkflowRun:
            """Who asks is not told: a run has the name of whoever began it."""
            run = rerun(repo, run_id, by, failed_only=failed_only)
            for pull in self.world.pulls_of(repo, run.head_sha) if by == OURS else ():
                self._count((pull.repo, pull.number), "rebuild")
            return run

        self.world.rerun = rerun_by  # type: ignore[method-assign]

    def _count(self, key: Key, strategy: Strategy) -> None:
        self.made[key, strategy] += 1
        self.last_made[key, strategy] = self.world.now
        self._arrived(key, strategy)

    def _hear(self, told: Emitted) -> None:
        if told.name == "pull_request" and told.pull is not None:
            self._of_pull(told, (told.pull.repo, told.pull.number))
        if told.sender.login != OURS:
            return
        said = told.comment.body if told.comment is not None else ""
        if CLOSING_TEXT in said and told.pull is not None:
            self.said_to_close.add((told.pull.repo, told.pull.number))
        for key, strategy in self._ours(told):
            self._count(key, strategy)

    def _of_pull(self, told: Emitted, key: Key) -> None:
        pull = told.pull
        if pull is not None and told.action in ("opened", "synchronize"):
            self.heads.setdefault(key, []).append(pull.head_sha)
        if told.action == "opened":
            self.opened[key] = told.at
        elif told.action == "closed" and pull is not None:
            self.ended[key] = told.at
            self.ended_by[key] = told.sender.login
            self.merges[key] += pull.merged
            if not pull.merged:
                self.closed_in_conflict[key] = self.world.conflicts(pull)

    def _ours(self, told: Emitted) -> list[tuple[Key, Strategy]]:
        about = None if told.pull is None else (told.pull.repo, told.pull.number)
        if told.name == "workflow_run":
            return []
        if told.name == "check_suite" and told.action == "rerequested" and told.suite is not None:
            return self._of_commit(told, told.suite.head_sha, "rebuild")
        if told.name == "status" and told.status is not None:
            return self._of_commit(told, told.status.sha, "retrigger_approver_bot")
        if told.name == "repository_dispatch":
            return self._of_dispatch(told)
        found = self._of_words(told)
        return [] if about is None or found is None else [(about, found)]

    def _of_words(self, told: Emitted) -> Strategy | None:
        if told.name == "pull_request" and told.action == "labeled" and told.label is not None:
            return _LABELS.get(told.label.name)
        if told.name == "issue_comment" and told.action == "created" and told.comment is not None:
            return _WORDS.get((told.comment.body.split() or [""])[0])
        if told.name == "pull_request" and told.action == "synchronize":
            return "branch_update"
        if told.name == "pull_request" and told.action == "closed" and told.pull is not None:
            return "retrigger_automerge_bot" if told.pull.merged else "close_and_reopen"
        return None

    def _of_commit(self, told: Emitted, sha: str, strategy: Strategy) -> list[tuple[Key, Strategy]]:
        pulls = self.world.pulls_of(told.repo.full_name, sha)
        return [((pull.repo, pull.number), strategy) for pull in pulls]

    def _of_dispatch(self, told: Emitted) -> list[tuple[Key, Strategy]]:
        payload: Mapping[str, Any] = told.dispatch_payload or {}
        key = (told.repo.full_name, int(payload["number"]))
        return [(key, _DISPATCHES[told.dispatch_type or ""])]


# ----------------------------------------------------------------------
# Those who act in between: people and bots that do not wait for anybody.
#
# Some answer when they are called, some order the same thing once more, some do by hand what nobody
# answered us, and some propose what is proposed already. Each seed has some of them.

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


# ----------------------------------------------------------------------
# The world that the tow's scene is played in: repositories, bots, people, and their webhooks.

AUTHOR: Final = "dependabot[bot]"
PERSON: Final = "octocat"
PLAIN, JENKINS = "octo-org/app", "octo-org/pay"
REPOS: Final = (PLAIN, JENKINS)
CHECK, BUILD, POLICY = "build", "jenkins/build", "policy-bot"
LATER: Final = "licence"
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {PLAIN: (CHECK,), JENKINS: (BUILD,)}
SWEEP_SECONDS: Final = 20.0
VERIFY_SECONDS: Final = 40.0
COOLDOWN_SECONDS: Final = 40.0
THRESHOLDS: Final[Mapping[State, float]] = {
    "CREATED": 30, "CHECKS_RUNNING": 45, "CHECKS_PASSED": 25, "CHECKS_FAILED": 20,
    "POLICY_EVALUATING": 30, "POLICY_PASSED": 20, "POLICY_FAILED": 20, "APPROVED": 20,
    "MERGING": 20,
}  # fmt: skip
BUDGETS: Final[Mapping[Strategy, int]] = {
    "rebuild": 2, "branch_update": 1, "retrigger_policy_bot": 2, "retrigger_approver_bot": 1,
    "retrigger_automerge_bot": 1, "retrigger_sod_check": 1, "close_and_reopen": 1,
}  # fmt: skip
HEARD: Final = frozenset(
    {"pull_request", "pull_request_review", "issue_comment", "check_run", "check_suite", "status"}
)
"""What the hooks are for."""
COMMANDS: Final = (
    "/rebuild", "/recheck-policy", "/recheck-sod", "/recheck-approval", "/merge", "/merge",
    "/update-branch", "/close-and-reopen", "/cancel", "/why",
)  # fmt: skip
_CI: Final[Mapping[Fate, float]] = {
    "pass": 0.45, "flaky": 0.2, "transient": 0.15, "persistent": 0.1, "hang": 0.05, "never": 0.05
}  # fmt: skip
_FLAKY: Final[Mapping[Fate, float]] = {"flaky": 0.8, "pass": 0.2}
_RULINGS: Final[Mapping[Ruling, float]] = {
    "pass": 0.7, "sod": 0.12, "sod_for_good": 0.06, "other": 0.06, "stuck": 0.06
}  # fmt: skip
_BUSY_TIMES: Final = 3
_ALL_COUNT: Final = 0.4
_BURSTS: Final = 0.5
_OVERTAKEN: Final = 0.4
_OVERTAKEN_SECONDS: Final = (0.0, 8.0)
"""How often, and by how much, checks overtake what opens a pull request or moves its head."""
_ABSENT: Final = Habit(delay=(0.5, 6.0), miss=0.3, miss_poke=0.15)
_EAGER: Final = Habit(delay=(0.0, 1.0), miss=0.4, miss_poke=0.05)
"""Often absent, and faster than the answer to the caller that woke it."""


@cache
def settings(*, observe: bool, all_count: bool) -> Settings:
    """As an operator writes them, with minutes for hours.

    With `all_count` none of the checks is named as required: all that a head has must pass.
    """
    return Settings.model_validate(
        {
            "tow": {"authors": [AUTHOR], "own_logins": [OURS], "repos": list(REPOS)},
            "reconciler": {
                "observe_only": observe,
                "every_seconds": SWEEP_SECONDS,
                "verify_seconds": VERIFY_SECONDS,
                "discover_seconds": 45.0,
                "breaker": {
                    "window_seconds": 200,
                    "minimum": 1,
                    "cooldown_seconds": COOLDOWN_SECONDS,
                },
            },
            "staleness": {state.lower(): seconds for state, seconds in THRESHOLDS.items()},
            "budgets": dict(BUDGETS),
            "jenkins": {"url": "https://jenkins.example"},
            "commands": {"rate_per_minute": 30},
            "signals": {"required": [] if all_count else list(REQUIRED[PLAIN])},
            "triggers": {
                "rebuild": {"kind": "rerun_failed"},
                "policy": {"kind": "label", "label": "recheck-policy"},
                "sod": {"kind": "dispatch", "event_type": "policy"},
                "approver": {"kind": "comment", "text": "/approve"},
                "merge": {"kind": "native"},
            },
            "repo": {
                JENKINS: {
                    "signals": {"required": list(REQUIRED[JENKINS])},
                    "triggers": {
                        "rebuild": {"kind": "jenkins", "job": "{repo}/PR-{number}"},
                        "policy": {"kind": "comment", "text": "/policy"},
                        "approver": {"kind": "status", "context": POLICY},
                        "merge": {"kind": "label", "label": "automerge"},
                    },
                }
            },
        }
    )


def _local(kind: type[Any], repo: str) -> Callable[..., Any]:
    """An actor that minds only this repository."""

    def hear(self: Any, told: Emitted) -> None:
        if told.repo.full_name == repo:
            kind.hear(self, told)

    return type(f"Local{kind.__name__}", (kind,), {"hear": hear})


class TowWorld:
    """`deliver` is given each webhook that arrives; `arrived` hears of each action of ours."""

    def __init__(
        self,
        stage: Stage,
        seconds: float,
        deliver: Callable[[str, str, bytes], None],
        arrived: Callable[[Key, Strategy], None],
    ) -> None:
        self._stage = stage
        self._deliver = deliver
        self._seconds = seconds
        self._armed: SimHandle | None = None
        self.busy = stage.dice.random() < 0.3
        """A person pushes to the base again and again, and branches must be up to date."""
        dice = random.Random(f"later {stage.seed}")  # noqa: S311  the same again
        self.all_count = dice.random() < _ALL_COUNT
        """Checks of other Apps begin and fail after the first ones, told in any order."""
        self.world = World(now=START_US / 1e6, seed=stage.seed)
        self.world.unordered = self.all_count
        self._late = random.Random(f"opened late {stage.seed}")  # noqa: S311  the same again
        self._bursts = self.all_count and self._late.random() < _BURSTS
        self.repos = REPOS if stage.dice.random() < 0.5 else (stage.dice.choice(REPOS),)
        for repo in self.repos:
            self.world.create_repo(repo, {"app.txt": b"one\n", "NOTES.md": b"\n"})
            self.world.set_permission(repo, AUTHOR, "write")
        self.jenkins = self._cast()
        self.ledger = Ledger(self.world, self.jenkins, arrived)
        self.world.subscribe(self._hear)
        self.people = People(self.world, stage.seed, seconds, (PERSON, AUTHOR), self.open_fix)
        self._people_come()

    # ------------------------------------------------------------------ the cast

    def _cast(self) -> Jenkins:
        world, quick = self.world, Habit(delay=(0.5, 4.0))
        eager = self._stage.dice.random() < 0.3
        habit, takes = (_EAGER, (0.2, 2.0)) if eager else (_ABSENT, (1.0, 8.0))
        fates = _FLAKY if self.busy else _CI
        if PLAIN in self.repos:
            _local(Ci, PLAIN)(world, jobs=(CHECK,), chances=fates, lasts=(3.0, 20.0), habit=quick)
        if self.all_count and PLAIN in self.repos:
            later = _local(LaterCheck, PLAIN)
            later(world, name=LATER, begins=(1.0, 60.0), lasts=(0.0, 20.0))
        jenkins: Jenkins = _local(Jenkins, JENKINS)(
            world, context=BUILD, chances=fates, lasts=(3.0, 20.0), habit=quick
        )
        for repo in self.repos:
            needs = REQUIRED[repo]
            _local(PolicyBot, repo)(world, needs=needs, chances=_RULINGS, habit=habit, takes=takes)
            _local(ApproverBot, repo)(world, habit=habit)
            _local(AutomergeBot, repo)(world, needs=(*needs, POLICY), habit=habit)
            rules = Protection(
                required_checks=(*needs, POLICY), required_approvals=1, up_to_date=self.busy
            )
            world.protect(repo, "main", rules)
        return jenkins

    def _people_come(self) -> None:
        """Fixes are proposed, bases move on, and people give commands."""
        dice, spread = self._stage.dice, self._seconds
        proposed = dice.randint(2, 4)
        self._stage.prs += proposed
        branches = []
        for place in range(proposed):
            repo, key = dice.choice(self.repos), f"CVE-2024-{10000 + place}"
            opens = partial(self.open_fix, repo, key, f"fix/{key}", shared=dice.random() < 0.4)
            self.world.after(dice.uniform(0, spread * 0.4), opens)
            branches.append((repo, f"fix/{key}"))
        self.people.come(self.repos, branches)
        if dice.random() < 0.5:
            self.world.subscribe(self._asks_for_what_is_there)
        for repo in self.repos:
            person = Person(self.world, PERSON, repo)
            if self.busy:
                until = self.world.now + _BUSY_TIMES * spread
                person.keeps_pushing("main", "NOTES.md", every=(20.0, 50.0), until=until)
            if dice.random() < 0.3:
                person.closes(dice.randint(1, 3), after=dice.uniform(30, spread))
            if dice.random() < 0.3:
                pusher = Person(self.world, dice.choice((PERSON, AUTHOR)), repo)
                branch = f"fix/CVE-2024-{10000 + dice.randrange(proposed)}"
                after = dice.uniform(40, spread)
                pusher.pushes(branch, {"more.txt": b"more\n"}, "Go on", after=after)
            for _ in range(dice.choice((0, 0, 1, 2, 4))):
                number, after = dice.randint(1, 3), dice.uniform(10, spread)
                person.comments(number, dice.choice(COMMANDS), after=after)

    def _asks_for_what_is_there(self, told: Emitted) -> None:
        """A person who does not see the approval."""
        if told.review is None or told.review.state != "APPROVED":
            return
        after = self._stage.dice.uniform(17, 30)
        person = Person(self.world, PERSON, told.review.repo)
        person.comments(told.review.number, "/recheck-approval", after=after)

    def open_fix(self, repo: str, key: str, branch: str, shared: bool) -> None:
        """Two that change the shared file conflict."""
        world, path = self.world, "app.txt" if shared else f"{key}.txt"
        world.create_ref(repo, f"refs/heads/{branch}", world.branch(repo, "main"), AUTHOR)
        world.write_files(repo, branch, {path: f"{branch}\n".encode()}, f"Fix {key}", AUTHOR)
        world.open_pull(repo, head=branch, base="main", title=f"Fix {key}", by=AUTHOR)

    def open_replacement(self, repo: str, key: str, number: int) -> None:
        """What the fix pipeline does; a second try finds what the first one made."""
        try:
            self.open_fix(repo, key, f"fix/{key}-instead-of-{number}", shared=True)
        except WorldRefusal:
            return

    def pulls(self) -> list[Pull]:
        return [pull for repo in self.repos for pull in self.world.pulls(repo, state="all")]

    # ------------------------------------------------------------------ time

    @property
    def now(self) -> float:
        return START_US / 1e6 + self._stage.loop.time()

    def go_on(self) -> None:
        """Whatever is due by now happens; then it is known when to come back."""
        self.world.run_until(self.now)
        due = self.world.next_due()
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        if due is not None:
            at = due - START_US / 1e6
            self._armed = on_node(WORLD, self._stage.loop.call_at, at, self.go_on)

    # ------------------------------------------------------------------ webhooks

    def _hear(self, told: Emitted) -> None:
        if told.name not in HEARD:
            return
        stage = self._stage
        delay, copies = 0.2, 1
        for place in (f"hook {told.name}", f"hooks of {told.repo.full_name}"):
            fault = stage.weather.at(WORLD, place, MESSAGES)
            if fault is None:
                continue
            stage.tell(WORLD, f"{place}: {fault.kind} {fault.seconds:.3f}")
            if fault.kind == "request lost":
                return
            copies += fault.kind == "twice"
            delay += fault.seconds * 4
        if self.all_count and told.name == "pull_request" and self._late.random() < _OVERTAKEN:
            delay += self._late.uniform(*_OVERTAKEN_SECONDS)
        body = orjson.dumps(payload_of(self.world, ROOT, told))
        for copy in range(copies):
            at = stage.loop.time() + delay * (1 + copy)
            if self._bursts:  # several of one pull request are then worked on at the same time
                at = float(math.ceil(at))
            on_node(
                WORLD, stage.loop.call_at, at, self._deliver, f"hook-{told.seq}", told.name, body
            )


# ----------------------------------------------------------------------
# What a node of the tow's scene reaches beyond its store, each over a wire of its own.

T = TypeVar("T")
_BUSY_SECONDS: Final = 20.0
_CHANGE: Final = "_changing"
_SELDOM: Final = frozenset({"_marked"})
"""Who changes something seldom."""
_SLOW: Final = (0.0, 0.3, 0.7)
"""How often an answer takes its time; a seed has one of these."""
_ANSWER_SECONDS: Final = (0.1, 2.5)


def forge_trouble(text: str) -> ForgeUnavailable:
    """What a forge refuses at once it will take later: a rate limit."""
    return ForgeUnavailable(text, _BUSY_SECONDS if "refused" in text else 0.0)


def ci_trouble(text: str) -> CiUnavailable:
    return CiUnavailable(text)


class Wired:
    """Calls the part on its other end, in the world's time, with all that may befall a call.

    In some seeds answers take their time, and webhooks tell of what was done before it is answered.
    """

    def __init__(self, part: Any, wire: Wire, town: TowWorld, seed: int) -> None:
        self._part = part
        self._wire = wire
        self._town = town
        self._dice = random.Random(f"answers {seed} {wire.node}")  # noqa: S311  the same again
        self._slow = _SLOW[random.Random(f"slow {seed}").randrange(len(_SLOW))]  # noqa: S311
        self.name = getattr(part, "name", "")

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **named: Any) -> Any:
            people, place = self._town.people, _called(name, args)
            try:
                answer = await self._wire.call(place, lambda: self._at_once(name, args, named))
            except Unavailable:
                people.not_answered(name, args)
                raise
            meanwhile = name == "failure_log" and people.act_meanwhile(*args[:2])
            if meanwhile or (self._slow and self._dice.random() < self._slow):
                await asyncio.sleep(self._dice.uniform(*_ANSWER_SECONDS))
            return answer

        return call

    async def _at_once(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._town.go_on()
        try:
            return await getattr(self._part, name)(*args, **named)
        finally:
            self._town.go_on()


def _called(name: str, args: tuple[Any, ...]) -> str:
    """The name of a call; to close, and to say so, are seldom called."""
    closing = name == "close" or (name == "comment" and args[1] == CLOSING_TEXT)
    return f"{RARE} close: {name}" if closing else name


class Chat:
    """Where people read what they are told; `told` counts each text by its last line."""

    def __init__(self, heard: Callable[[str], None]) -> None:
        self.told: Counter[str] = Counter()
        self._heard = heard

    async def notify(self, title: str, text: str) -> None:
        line = text.splitlines()[-1]
        self.told[line] += 1
        self._heard(line)


class ReadCommitted(SimDatabase):
    """As PostgreSQL does it: until a transaction writes, others write between its reads."""

    def __init__(self, stage: Stage, wire: Wire, clock: Any, mailbox: Any) -> None:
        super().__init__(stage.server, wire, clock, mailbox)
        self._dice = random.Random(f"reads {stage.seed} {wire.node}")  # noqa: S311  the same again

    async def transact(self, script: Callable[[], Script[T]]) -> T:
        if _CHANGE not in script.__code__.co_names:
            return await super().transact(script)
        return await self._wire.call(_place_of(script), lambda: self._changed(script()))

    async def _changed(self, steps: Script[T]) -> T:
        server: SimServer = self._server
        try:
            statement, rows = next(steps)
            while not statement.writes:
                read = run_statement(server.db, server.clock, statement, rows)
                if self._dice.random() < 0.3:
                    await asyncio.sleep(self._dice.choice((0.0, 0.001, 0.05)))
                statement, rows = steps.send(read)
        except StopIteration as end:
            done: T = end.value
            return done
        first = statement, rows

        def rest() -> Script[T]:
            written = yield first
            while True:
                try:
                    step = steps.send(written)
                except StopIteration as end:
                    value: T = end.value
                    return value
                written = yield step

        return server.transact(lambda run: play(rest(), run))


def _place_of(script: Callable[[], Any]) -> str:
    """By who decides, so that one kind of change may fare worse than the others."""
    names, cells = script.__code__.co_freevars, script.__closure__ or ()
    decide = next((cell for name, cell in zip(names, cells, strict=True) if name == "decide"), None)
    if decide is None:
        return _CHANGE
    name = decide.cell_contents.__qualname__.split(".<locals>")[0]
    return f"{_CHANGE} {RARE} {name}" if name in _SELDOM else f"{_CHANGE} {name}"
