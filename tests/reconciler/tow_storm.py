"""A storm: two hundred pull requests in four repositories, and everything that goes wrong there.

All dice follow from one seed, and time is only what the simulation lets pass.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tests.clocks import ManualClock
from tests.reconciler.tow_ledger import Ledger
from tests.reconciler.tow_rig import AUTHOR, BOTS, CHECKS, OURS, Rig
from towline.events import PullRequestChanged
from towline.jobs.model import Claimed
from towline.jobs.store import JobStore
from towline.pulls.discover import Discoverer
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.parking_store import Parking
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.pulls.signals import Poked, Signal, Signals, Towing, Trigger
from towline.pulls.tracker import Tracker
from towline.remediation.escalation import params_of
from towline_once.db.statement import Database
from towline_sim.actors.base import Habit
from towline_sim.actors.bots import ApproverBot, AutomergeBot, PolicyBot, Ruling
from towline_sim.actors.builds import WorldCi
from towline_sim.actors.ci import Ci, Fate
from towline_sim.actors.jenkins import Jenkins
from towline_sim.actors.people import Person
from towline_sim.github.entities import Emitted, Protection, WorldRefusal
from towline_sim.github.fault_dice import ApiFaults, FaultDice, HookFaults, Outage
from towline_sim.github.world import World

PLAIN, LABELS, JENKINS, STRICT = "octo-org/app", "octo-org/web", "octo-org/pay", "octo-org/docs"
REPOS: Final = (PLAIN, LABELS, JENKINS, STRICT)
BUILD: Final = "jenkins/build"
POLICY: Final = "policy-bot"
LOST: Final = HookFaults(lose=0.33, duplicate=0.1, reorder=1.0)
TURN: Final = 300.0
DISCOVER_EVERY: Final = 6
_OPENING_HOURS: Final = 3 * 3600.0
_CI: Final[Mapping[Fate, float]] = {
    "pass": 0.5, "flaky": 0.15, "transient": 0.15, "persistent": 0.1, "hang": 0.05, "never": 0.05
}  # fmt: skip
_RULINGS: Final[Mapping[Ruling, float]] = {
    "pass": 0.7, "sod": 0.1, "sod_for_good": 0.05, "build": 0.05, "other": 0.05, "stuck": 0.05
}  # fmt: skip
_ABSENT: Final = Habit(miss=0.2, miss_poke=0.15)
FOR_LABELS: Final[Mapping[Poked, Trigger]] = {
    "rebuild": Trigger(kind="rerequest_suite"),
    "policy": Trigger(kind="comment", text="/policy"),
    "sod": Trigger(kind="dispatch", event_type="policy"),
    "approver": Trigger(kind="dispatch", event_type="approval"),
    "merge": Trigger(kind="label", label="automerge"),
}
FOR_JENKINS: Final[Mapping[Poked, Trigger]] = {
    "rebuild": Trigger(kind="jenkins", job="{repo}/PR-{number}"),
    "policy": Trigger(kind="label", label="recheck-policy"),
    "sod": Trigger(kind="dispatch", event_type="policy"),
    "approver": Trigger(kind="status", context=POLICY),
    "merge": Trigger(kind="dispatch", event_type="merge"),
}


class StormClock(ManualClock):
    """No time but what was let pass; it ticks when it is read, so no two readings are one."""

    def __init__(self) -> None:
        super().__init__()
        self._ticks = 0

    def now_us(self) -> int:
        self._ticks += 1
        return 1_700_000_000_000_000 + self._ahead_us + self._ticks

    def monotonic(self) -> float:
        return self.now_us() / 1e6


class Killed(BaseException):
    """The process is gone."""


class Life:
    """A process that dies at one of its calls; from then on none of its calls does anything."""

    def __init__(self, dice: random.Random, chance: float) -> None:
        self.dice, self.chance = dice, chance
        self.dead = False

    def through(self, thing: Any) -> Any:
        return _Mortal(thing, self) if self.chance else thing

    def risk(self) -> None:
        if self.dead or self.dice.random() < self.chance:
            self.dead = True
            raise Killed


class _Mortal:
    def __init__(self, thing: Any, life: Life) -> None:
        self._thing, self._life = thing, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._risky(found) if asyncio.iscoroutinefunction(found) else found

    def _risky(self, call: Any) -> Any:
        async def called(*args: Any, **named: Any) -> Any:
            self._life.risk()
            answer = await call(*args, **named)
            self._life.risk()
            return answer

        return called


def local(kind: type[Any], *repos: str) -> Callable[..., Any]:
    """An actor that minds only these repositories."""

    def hear(self: Any, told: Emitted) -> None:
        if told.repo.full_name in repos:
            kind.hear(self, told)

    return type(f"Local{kind.__name__}", (kind,), {"hear": hear})


def storm_policy() -> TowPolicy:
    actions = Signals(required=CHECKS)
    announced = Signals(
        required=CHECKS,
        outcomes={"approved": (Signal(review_by="*"),), "merging": (Signal(label="merging"),)},
    )
    return TowPolicy(
        general=RepoPolicy(signals=actions, triggers=BOTS),
        repos={
            LABELS: RepoPolicy(signals=announced, triggers=FOR_LABELS),
            JENKINS: RepoPolicy(signals=Signals(required=(BUILD,)), triggers=FOR_JENKINS),
        },
        towing=Towing(authors=frozenset({AUTHOR})),
        own_logins=frozenset({OURS}),
    )


class Storm(Rig):
    """`died` counts the processes that came to an end; each time another one takes over."""

    def __init__(
        self,
        database: Database,
        clock: ManualClock,
        seed: int,
        pulls: int = 200,
        *,
        deadly: float = 0.0,
        hands: int = 4,
    ) -> None:
        """With one pair of `hands` the same seed is the same storm, to the last webhook."""
        faults = ApiFaults(error=0.03, lost_reply=0.03, limited=0.01, silent=0.01, slow=0.05)
        self.dice = random.Random(seed)
        self.deadly = deadly
        self.died = 0
        self.opened_heard: set[tuple[str, int]] = set()
        self.listed: list[tuple[float, float]] = []
        self.replaced: list[str] = []
        super().__init__(
            database,
            clock,
            policy=replace(storm_policy(), max_parallel=hands),
            hooks=LOST,
            faults=FaultDice(faults, seed),
            ci_of=self._ci,
            repos=REPOS,
            seed=seed,
        )
        self.forge_faults = self.forge.faults
        self.ledger = Ledger(self.world, self.jenkins)
        self._people_come()
        for place in range(pulls):
            self._opens(place)

    def start(self, through: Callable[[Any], Any] | None = None) -> None:
        self.life = Life(self.dice, self.deadly)
        give = through or self.life.through
        self.jobs = give(JobStore(self.database))
        super().start(give)
        tracker = Tracker(
            give(self.pulls), give(Parking(self.database)), self.policy.context, self._comment
        )
        self.discoverer = Discoverer(
            give(self.pulls), {"github": give(self.forge)}, tracker.observe, {"github": REPOS},
            tracker.correct,
        )  # fmt: skip

        async def heard(stored: Any, events: Any) -> None:
            await tracker(stored, events)
            for event in events:
                if isinstance(event, PullRequestChanged) and event.action == "opened":
                    self.opened_heard.add((event.repo, event.number))

        self.tracker: Any = heard

    # ------------------------------------------------------------------ the cast

    def _ci(self, world: World) -> WorldCi:
        if not hasattr(self, "jenkins"):
            self.jenkins: Jenkins = self._cast(world)
        return WorldCi(self.jenkins, self.faults)

    def _cast(self, world: World) -> Jenkins:
        actions = (PLAIN, LABELS, STRICT)
        local(Ci, *actions)(world, jobs=CHECKS, chances=_CI)
        down = world.now + 2 * 3600
        jenkins: Jenkins = local(Jenkins, JENKINS)(
            world, context=BUILD, chances=_CI, outages=(Outage(down, down + 2 * 3600),)
        )
        for repos, needs, as_check, announces in (
            ((PLAIN, STRICT), CHECKS, False, None),
            ((LABELS,), CHECKS, True, "merging"),
            ((JENKINS,), (BUILD,), False, None),
        ):
            local(PolicyBot, *repos)(
                world, needs=needs, as_check=as_check, chances=_RULINGS, habit=_ABSENT
            )
            local(ApproverBot, *repos)(world, habit=_ABSENT)
            local(AutomergeBot, *repos)(
                world, needs=(*needs, POLICY), announces=announces, habit=_ABSENT
            )
        for repo in REPOS:
            needs = (BUILD,) if repo == JENKINS else CHECKS
            rules = Protection(
                required_checks=(*needs, POLICY), required_approvals=1, up_to_date=repo == STRICT
            )
            world.protect(repo, "main", rules)
        return jenkins

    def _people_come(self) -> None:
        """Somebody closes one pull request in each repository, and writes to one base."""
        for repo in REPOS:
            person = Person(self.world, "octocat", repo)
            person.closes(self.dice.randint(1, 8), after=self.dice.uniform(1800, 4 * 3600))
            note = {"NOTES.md": b"hello\n"}
            person.pushes("main", note, "A note", after=self.dice.uniform(1800, 4 * 3600))

    def _opens(self, place: int) -> None:
        """The strict repository gets few: each merge there puts all others behind."""
        repo = STRICT if place % 20 == 0 else REPOS[place % 3]
        key = f"CVE-2024-{10000 + place}"
        after = self.dice.uniform(0, _OPENING_HOURS)
        self.world.after(after, lambda: self.open_fix(repo, key, f"fix/{key}", place % 8 == 1))

    def open_fix(self, repo: str, key: str, branch: str, shared: bool) -> None:
        world, path = self.world, "app.txt" if shared else f"{key}.txt"
        world.create_ref(repo, f"refs/heads/{branch}", world.branch(repo, "main"), AUTHOR)
        world.write_files(repo, branch, {path: f"{branch}\n".encode()}, f"Fix {key}", AUTHOR)
        world.open_pull(repo, head=branch, base="main", title=f"Fix {key}", by=AUTHOR)

    async def _fix(self, job: Claimed) -> None:
        """The fix pipeline: a fresh branch for the same vulnerability; a second try finds it."""
        params = params_of(job)
        self.replaced.append(job.id)
        key, number = params["vulnerability_id"], params["replaces"]
        try:
            self.open_fix(params["repo"], key, f"fix/{key}-instead-of-{number}", shared=True)
        except WorldRefusal:
            return

    # ------------------------------------------------------------------ the weather

    async def turn(self, place: int) -> None:
        """Five minutes, and whatever the process does then, as long as it lives."""
        try:
            await self.pass_time(TURN)
            if place % DISCOVER_EVERY == 0:
                await self._discover()
            await self.sweep()
            await self.jobs.reap(100)
            await self.work(500)
        except Killed:
            await self._bury()

    async def _discover(self) -> None:
        began = self.clock.now_us() / 1e6
        done = await self.discoverer.discover()
        if done.trouble is None:
            self.listed.append((began, self.clock.now_us() / 1e6))

    async def _bury(self) -> None:
        """What was under way beside it ends as it does, and somebody else takes over."""
        self.died += 1
        others = {one for one in asyncio.all_tasks() if one is not asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5)
        self.start()

    async def blow(self, most_turns: int = 260) -> bool:
        """Until all have ended and nothing is under way any more."""
        for place in range(most_turns):
            await self.turn(place)
            if place * TURN > _OPENING_HOURS + 3600 and await self._is_over():
                return True
        return False

    async def _is_over(self) -> bool:
        census = await self.pulls.census()
        ended = {*TERMINAL, "NEEDS_INTERVENTION"}
        if any(count for state, count in census.items() if state not in ended):
            return False
        still_open = [(repo, pull.number) for repo in REPOS for pull in self.world.pulls(repo)]
        return len(await self.pulls.read_all(still_open)) == len(still_open)

    async def calm(self) -> None:
        """The last webhooks arrive, and the last look round."""
        self.deadly = 0.0
        self.start()
        self.forge.faults = FaultDice()
        for place in range(3):
            await self.turn(place * DISCOVER_EVERY)
