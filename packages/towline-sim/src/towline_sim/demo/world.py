"""The demo's simulated world: three repositories, a bot that bumps, and all that goes wrong.

Times are seconds of the demo. The script sees to it that there is something to see: a first crowd
in which some must heal and some need a person, then a wave that meets an outage of Jenkins.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from towline_sim.actors.base import Habit
from towline_sim.actors.scenario import AUTHOR, JENKINS, SHARED_FILE, Customs, Town
from towline_sim.demo.clock import USUAL_SPEED, DemoClock
from towline_sim.github.entities import Pull, WorldRefusal
from towline_sim.github.fault_dice import HookFaults, Outage
from towline_sim.github.webhooks import HookDice
from towline_sim.jenkins import JenkinsWorld, SimBuild

REPOS: Final = ("octo-org/storefront", "octo-org/billing", "octo-org/infra")
JOB: Final = "fleet/build"
PERSON: Final = "octocat"
PARAMETERS: Final = ("REPO", "SHA", "PR_NUMBER", "TOWLINE_INTENT")

Fate: TypeAlias = Literal["chance", "fine", "flaky_build", "broken_test", "conflict"]
MINUTE: Final = 60.0
FIRST: Final[tuple[Fate, ...]] = (
    *(
        "fine",
        "flaky_build",
        "broken_test",
        "conflict",
        "conflict",
        "flaky_build",
        "fine",
        "chance",
    ),
    *("conflict", "conflict", "flaky_build", "broken_test"),
)
CROWD: Final = 26
CROWD_MINUTES: Final = 6.0
WAVE: Final = 14
WAVE_AT: Final = 30.0
OUTAGE_AT: Final = 33.0
OUTAGE_MINUTES: Final = 21.0
MOST_MINUTES: Final = 60.0
"""So much longer it lasts at most, if no person notices."""
OUTAGE_EVERY: Final = 150.0
NEXT_EVERY: Final = (60.0, 130.0)
FEW_OPEN: Final = 24
MOST_OPEN: Final = 80
_HURRY: Final = 0.6
USUAL_HOOKS: Final = HookFaults(lose=0.04, duplicate=0.03, reorder=0.04)
BAD_HOOKS: Final = HookFaults(lose=0.6, duplicate=0.1, reorder=0.2)
USUAL_APPROVER: Final = Habit(delay=(20.0, 120.0), miss=0.08)
NO_APPROVER: Final = Habit(miss=1.0, miss_poke=1.0)
_BOT: Final = Habit(delay=(20.0, 120.0), miss=0.06)
_FOR_EVER: Final = 1e12
_LINES: Final = ("alpha", "beta", "gamma")
_PINS: Final = 360
"""So many different files are changed, more than are open at a time: the trees stay small."""
_REMEMBERED: Final = 360 * MINUTE
"""For how long the forge remembers a pull request that ended: the demo may run for days."""
_BUMPS: Final = (
    ("requests", "2.31.0", "2.32.4"),
    ("urllib3", "2.0.7", "2.5.0"),
    ("jinja2", "3.1.3", "3.1.6"),
    ("pillow", "10.2.0", "10.3.0"),
    ("cryptography", "42.0.2", "42.0.4"),
    ("django", "4.2.10", "4.2.16"),
    ("aiohttp", "3.9.3", "3.9.4"),
    ("werkzeug", "3.0.1", "3.0.6"),
    ("certifi", "2023.7.22", "2024.7.4"),
    ("idna", "3.6", "3.7"),
    ("tornado", "6.4", "6.4.2"),
    ("setuptools", "69.0", "78.1.1"),
)


def _customs() -> Customs:
    return Customs(
        repo=REPOS[0],
        ci={"pass": 94, "persistent": 4, "hang": 2},
        jenkins={"pass": 82, "transient": 12, "flaky": 6},
        rulings={"pass": 90, "sod": 5, "other": 3, "stuck": 2},
        policy=_BOT,
        approver=USUAL_APPROVER,
        automerge=_BOT,
    )


@dataclass
class _Bump:
    """What the bot wants in; the same one comes again if its pull request is closed for good."""

    number: int
    library: str
    title: str
    line: str | None = None
    times: int = field(default=0)


class DemoWorld:
    """`hooks` are the dice of webhooks; `builds` is what Jenkins is asked for over HTTP."""

    def __init__(self, clock: DemoClock, seed: int = 0) -> None:
        self.clock = clock
        self.town = Town(seed, _customs(), clock.now_us() / 1e6)
        for name in REPOS[1:]:
            self.town.add_repo(name)
        self.town.ci.lasts, self.town.jenkins.lasts = (150.0, 600.0), (180.0, 780.0)
        for name in REPOS:
            self.town.world.set_permission(name, PERSON, "write")
        self.world = self.town.world
        self.hooks = HookDice(USUAL_HOOKS, seed)
        self.trips: Callable[[], int] = lambda: 0
        """How often a breaker has tripped."""
        self.builds = JenkinsWorld(clock, executors=6, on_end=self._report)
        self.builds.add_job(JOB, *PARAMETERS, duration_seconds=90)
        self._dice = random.Random(seed)  # noqa: S311  the demo is much the same each time
        self._opened: Counter[str] = Counter()
        self._bumps: dict[tuple[str, int], _Bump] = {}
        self._made = 0
        self._lines = 0

    # ------------------------------------------------------------------ the script

    def begin(self) -> None:
        """Let the script run, from now on."""
        self.world.run_until(self.clock.now_us() / 1e6)
        for place in range(CROWD):
            fate: Fate = FIRST[place] if place < len(FIRST) else "chance"
            at = 0.0 if place < len(FIRST) else place / CROWD * CROWD_MINUTES * MINUTE
            self.world.after(at, lambda fate=fate: self.open(fate))  # type: ignore[misc]
        self._keep_opening()
        self._outage_comes(WAVE_AT)
        self._person_comes()
        self._forget()

    def _forget(self) -> None:
        self.world.forget_ended(self.world.now - _REMEMBERED)
        self.world.after(30 * MINUTE, self._forget)

    def _keep_opening(self) -> None:
        """Where time goes faster than usual they come less often, or the machine is swamped."""

        def again() -> None:
            self.open("chance")
            least, most = NEXT_EVERY
            crowding = max(1.0, self.clock.speed / USUAL_SPEED)
            crowding *= _HURRY if len(self._open_pulls()) < FEW_OPEN else 1.0
            self.world.after_some((least * crowding, most * crowding), again)

        self.world.after(CROWD_MINUTES * MINUTE, again)

    def _outage_comes(self, wave_at: float) -> None:
        """A wave is being built when Jenkins goes down: all of it fails."""
        for place in range(WAVE):
            self.world.after((wave_at + place / WAVE * 2) * MINUTE, lambda: self.open("fine"))

        def begins() -> None:
            self.set_jenkins(down=True)
            before = self.trips()
            self.world.after(
                OUTAGE_MINUTES * MINUTE, lambda: self._outage_goes(before, MOST_MINUTES)
            )
            self._outage_comes(OUTAGE_EVERY)

        self.world.after((wave_at + OUTAGE_AT - WAVE_AT) * MINUTE, begins)

    def _outage_goes(self, before: int, minutes_left: float) -> None:
        """When a person has noticed: on a slow machine that takes longer by the demo's clock."""
        if self.trips() > before or minutes_left <= 0 or not self.jenkins_down:
            self.set_jenkins(down=False)
        else:
            self.world.after(MINUTE, lambda: self._outage_goes(before, minutes_left - 1))

    def _person_comes(self) -> None:
        """Now and then a person looks after what has been open for too long."""

        def again() -> None:
            for pull in self._open_pulls():
                age = self.world.now - pull.created_at
                if age > 170 * MINUTE:
                    self._attempt(lambda pull=pull: self._close(pull))  # type: ignore[misc]
                elif 80 * MINUTE < age <= 90 * MINUTE:
                    self._attempt(lambda pull=pull: self._repair(pull))  # type: ignore[misc]
            self.world.after(10 * MINUTE, again)

        self.world.after(30 * MINUTE, again)

    def _repair(self, pull: Pull) -> None:
        change = {f"repairs/{pull.number}.txt": b"repaired by hand\n"}
        self.world.write_files(pull.repo, pull.head_ref, change, "Repair the build", PERSON)

    def _close(self, pull: Pull) -> None:
        self.world.edit_pull(pull.repo, pull.number, PERSON, state="closed")

    # ------------------------------------------------------------------ pull requests

    def open(self, fate: Fate) -> None:
        if len(self._open_pulls()) >= MOST_OPEN:
            return
        library, old, new = _BUMPS[self._made % len(_BUMPS)]
        repo = REPOS[self._made % len(REPOS)]
        self._made += 1
        bump = _Bump(self._made, library, f"Bump {library} from {old} to {new}")
        if fate == "conflict":  # two after each other want the same line
            repo, bump.line = REPOS[self._lines // 2 % len(REPOS)], _LINES[self._lines // 2 % 3]
            self._lines += 1
        self._propose(repo, bump, fate)

    def again(self, repo: str, number: int) -> bool:
        """What was closed for its conflict is proposed anew, on what main is now."""
        bump = self._bumps.get((repo, number))
        if bump is None:
            return False
        bump.times += 1
        self._propose(repo, bump, "fine")
        return True

    def _propose(self, repo: str, bump: _Bump, fate: Fate) -> None:
        key = (repo, self._opened[repo] + 1)
        if fate != "chance":
            self.town.ci.fated.given[key] = "persistent" if fate == "broken_test" else "pass"
            self.town.jenkins.fated.given[key] = "transient" if fate == "flaky_build" else "pass"
        branch = f"dependabot/pip/{bump.library}-cve-2099-{10_000 + bump.number}"
        branch += f"-{bump.times}" if bump.times else ""
        tip = self.world.branch(repo, "main")
        self.world.create_ref(repo, f"refs/heads/{branch}", tip, AUTHOR)
        self.world.write_files(repo, branch, self._changes(repo, tip, bump), bump.title, AUTHOR)
        pull = self.world.open_pull(repo, head=branch, base="main", title=bump.title, by=AUTHOR)
        self._opened[repo] = pull.number
        self._bumps[repo, pull.number] = bump

    def _changes(self, repo: str, tip: str, bump: _Bump) -> dict[str, bytes | None]:
        if bump.line is None:
            path = f"pins/{bump.library}/{bump.number % _PINS}.txt"
            return {path: f"{bump.title}\n{bump.number}\n".encode()}
        pinned = self.world.objects.content(self.world.files(repo, tip)[SHARED_FILE])
        lines = [
            f"{bump.line}=={bump.number}.{bump.times}" if one.startswith(bump.line) else one
            for one in pinned.decode().splitlines()
        ]
        return {SHARED_FILE: ("\n".join(lines) + "\n").encode()}

    def make_conflict(self) -> None:
        """A person pushes to main what the youngest pull request also adds, otherwise."""
        young = max(self._open_pulls(), key=lambda pull: pull.created_at, default=None)
        if young is None:
            return
        theirs = [one.path for one in self.world.pull_files(young.repo, young.number)]
        change: dict[str, bytes | None] = dict.fromkeys(theirs, b"done by hand\n")
        self._attempt(lambda: self.world.write_files(young.repo, "main", change, "By hand", PERSON))

    def _open_pulls(self) -> list[Pull]:
        return [pull for repo in REPOS for pull in self.world.pulls(repo, state="open")]

    def _attempt(self, action: Callable[[], object]) -> None:
        """What the forge refuses is not done."""
        with contextlib.suppress(WorldRefusal):
            action()

    # ------------------------------------------------------------------ Jenkins

    @property
    def jenkins_down(self) -> bool:
        return self.town.jenkins.down

    def set_jenkins(self, *, down: bool) -> None:
        self.town.jenkins.outages = (Outage(self.world.now, _FOR_EVER),) if down else ()

    def _report(self, build: SimBuild) -> None:
        """As Jenkins tells GitHub of a build that it was asked for."""
        self.world.run_until(self.clock.now_us() / 1e6)
        failed = self.jenkins_down or build.result != "SUCCESS"
        words = "Build timed out: no agent answered" if failed else "Build finished"
        given = build.parameters
        self._attempt(
            lambda: self.world.set_status(
                given["REPO"],
                given["SHA"],
                JENKINS,
                "failure" if failed else "success",
                "jenkins[bot]",
                description=words,
            )
        )
