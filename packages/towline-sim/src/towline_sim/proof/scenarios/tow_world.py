"""The world that the tow's scene is played in: repositories, bots, people, and their webhooks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

import orjson

from towline.config import Settings
from towline.pulls.budgets import Strategy
from towline.pulls.lifecycle import State
from towline_sim.actors.base import Habit
from towline_sim.actors.bots import ApproverBot, AutomergeBot, PolicyBot, Ruling
from towline_sim.actors.ci import Ci, Fate, LaterCheck
from towline_sim.actors.jenkins import Jenkins
from towline_sim.actors.people import Person
from towline_sim.github.entities import Emitted, Protection, Pull, WorldRefusal
from towline_sim.github.webhooks import payload_of
from towline_sim.github.world import World
from towline_sim.in_process import ROOT
from towline_sim.proof.fault_schedule import MESSAGES
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import WORLD, SimHandle, on_node
from towline_sim.proof.scenarios.tow_effects import OURS, Key, Ledger
from towline_sim.proof.scenarios.tow_people import People
from towline_sim.proof.store import START_US

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
"""Often absent, and faster than the answer to whoever woke it."""


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
        """Somebody pushes to the base again and again, and branches must be up to date."""
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
        """Fixes are proposed, bases move on, and somebody orders this and that."""
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
        """Somebody who does not see the approval."""
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
