"""The run: mail and faults at once, then calm, and a look at everything that is left."""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.faults import storm
from tests.chaos.mail import Mail
from tests.chaos.visitors import Visitors
from tests.chaos.world import Kept, World, world_of
from tests.e2e.senders import Crowd, Parcel, endless_parcels
from tests.jobs.celery_world import alongside

PATIENCE = 240.0
"""For a parcel to be taken, and for a process to be up again."""
_DOORS_PACE, _DOORS_SENDERS = (0.02, 0.1), 6
_SMALL_PACE, _SMALL_SENDERS = (0.1, 0.3), 2
_FIRST_PULLS = 12
_SHOWN = 20
_BREAKDOWN = re.compile(
    r"^Traceback|^towline: unforeseen .*$|"
    r"^.*\"event\":\"(?:job_crashed|chore_failed|worker_error|celery_failed).*$",
    re.MULTILINE,
)

Tell = Callable[[str], None]


@dataclass
class Summary:
    seed: int
    logs: Path
    seconds: float = 0.0
    calm_seconds: float = 0.0
    """From the end of the storm to the end of the last job."""
    sent: int = 0
    deliveries: int = 0
    pulls: int = 0
    questions: int = 0
    sorry: int = 0
    """Questions whose answer is that they could not be answered."""
    moves: int = 0
    disk: str = ""
    ends: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ended_alone: Counter[str] = field(default_factory=Counter)
    said_again_after_sleep: int = 0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        def counted(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"

        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s; full disk by {self.disk}",
            f"at rest {self.calm_seconds:.0f} s after the storm",
            f"{self.sent} webhooks sent, {self.deliveries} deliveries: {counted(self.ends)}",
            f"{self.pulls} pull requests, {self.moves} moves of jobs",
            f"{self.questions} questions, {self.sorry} of them answered with a regret",
            f"{self.faults.total()} faults: {counted(self.faults)}",
            f"ended by themselves: {counted(self.ended_alone)}",
            f"dead letters: {counted(self.dead)}",
            f"answers given again by who slept meanwhile: {self.said_again_after_sleep}",
            f"{len(self.violations)} violations",
            *self.violations[:_SHOWN],
        ]
        if self.violations:
            lines.append(f"to run it again: --seed {self.seed}; the logs are in {self.logs}")
        return lines


class Run:
    """One storm in one world."""

    def __init__(self, world: World, summary: Summary, tell: Tell) -> None:
        self._world = world
        self._summary = summary
        self._tell = tell
        self._look = ledger.Watch(world.database_url, world.town)
        doors, small = world.doors, world.cottage
        self._crowd = Crowd(lambda: world.ports(doors), PATIENCE)
        self._small_crowd = Crowd(lambda: world.ports(small), PATIENCE)
        self._mail = self._mail_of("mail", self._news, _DOORS_PACE)
        supply = endless_parcels(world.seed)
        self._small_mail = self._mail_of(
            "small mail", lambda over: None if over else next(supply), _SMALL_PACE
        )
        self._visitors = [
            Visitors("PostgreSQL", world.far("postgres", world.database_url), alone=True),
            Visitors("Redis", world.far("redis", world.redis.url), alone=False),
        ]

    def _mail_of(
        self, name: str, fresh: Callable[[bool], Parcel | None], pace: tuple[float, float]
    ) -> Mail:
        dice = random.Random(f"{name} {self._world.seed}")
        return Mail(dice, fresh, pace, lambda: self._look.unfinished)

    def _news(self, over: bool) -> Parcel | None:
        town = self._world.town
        while not town.news and not over:
            town.happen()
        return town.parcel() if town.news else None

    # ------------------------------------------------------------------ the storm

    async def go(self, seconds: float) -> None:
        world = self._world
        await ledger.watch(world.database_url)
        for _ in range(_FIRST_PULLS):
            world.town.open()
        async with AsyncExitStack() as house:
            for work in (*(one.keep for one in world.kept), self._look.run):
                await house.enter_async_context(alongside(work))
            self._tell("starting")
            await self._all_up()
            async with asyncio.TaskGroup() as group:
                sending = [
                    group.create_task(self._crowd.send_from(self._mail.following, _DOORS_SENDERS)),
                    group.create_task(
                        self._small_crowd.send_from(self._small_mail.following, _SMALL_SENDERS)
                    ),
                    *(group.create_task(one.run()) for one in self._visitors),
                ]
                async with alongside(lambda: self._progress(seconds)):
                    await storm(world, seconds, self._worked)
                ended = time.monotonic()
                self._mail.over = self._small_mail.over = True
                for visitors in self._visitors:
                    visitors.over.set()
                self._tell("the storm is over; waiting for the last to be taken")
                await asyncio.wait(sending, timeout=PATIENCE)
            await self._calm()
            self._summary.calm_seconds = time.monotonic() - ended
            await self._stop()
        await self._check()

    def _worked(self) -> tuple[int, int]:
        return self._crowd.sent, self._look.moves

    async def _all_up(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while not all(map(_is_up, self._world.kept)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def _progress(self, seconds: float) -> None:
        began = time.monotonic()
        while True:
            self._tell(
                f"{time.monotonic() - began:.0f} of {seconds:.0f} s, {self._crowd.sent} sent, "
                f"{self._look.unfinished} jobs left, {self._world.faults.total()} faults"
            )
            await asyncio.sleep(1)

    async def _calm(self) -> None:
        """Everybody is up, and all work comes to its end."""
        world, wrong = self._world, self._summary.violations
        await self._all_up()
        self._tell("waiting until all jobs have ended")
        if not await ledger.until_quiet(self._look):
            wrong.append(f"stuck: {self._look.unfinished} jobs do not end")
        if not await ledger.small_until_quiet(world.small_url):
            wrong.append("stuck: jobs on the small disk do not end")

    async def _stop(self) -> None:
        """In good order, as an operator does it."""
        self._tell("stopping")
        codes = await asyncio.gather(*(one.stop() for one in self._world.kept))
        for one, code in zip(self._world.kept, codes, strict=True):
            if code != 0:
                self._summary.violations.append(
                    f"{one.name} ended with {code} when it was told to stop"
                )

    # ------------------------------------------------------------------ the end

    async def _check(self) -> None:
        world, summary, town = self._world, self._summary, self._world.town
        url, wrong = world.database_url, summary.violations
        for place, mail, crowd in (
            (url, self._mail, self._crowd),
            (world.small_url, self._small_mail, self._small_crowd),
        ):
            stood = await ledger.deliveries(place, mail.unique, crowd)
            summary.ends += stood.ends
            wrong += stood.violations
            summary.sent += crowd.sent
        naps = [nap for one in world.hands for nap in one.naps]
        wrong += await ledger.moves(url)
        wrong += await ledger.effects(url, town, naps)
        for visitors in self._visitors:
            wrong += visitors.violations()
        for one in world.kept:
            wrong += breakdowns(one.name, world.folder)
        summary.said_again_after_sleep = len(ledger.doubled(town.answers(), naps)[1])
        summary.deliveries = summary.ends.total()
        summary.pulls, summary.questions = len(town.pulls), town.asked.total()
        summary.sorry = len({one.mark for one in town.answers() if one.failed})
        summary.moves = self._look.moves
        summary.dead = await ledger.dead_letters(url)


def _is_up(one: Kept) -> bool:
    return one.is_up and not one.hands_on.locked()


def breakdowns(name: str, folder: Path) -> list[str]:
    """Tracebacks and what nobody foresaw in a log: whatever fails is told in one clear line."""
    said = (folder / f"{name}.log").read_text(errors="replace")
    return [f"{name} broke down: {found[0][:300]}" for found in _BREAKDOWN.finditer(said)]


def _noted(tell: Tell, folder: Path) -> Tell:
    """What is told on a terminal is kept with the logs."""

    def both(line: str) -> None:
        with (folder / "run.log").open("a") as log:
            log.write(f"{datetime.now(UTC):%H:%M:%S} {line}\n")
        tell(line)

    return both


async def chaos(seed: int, seconds: float, tell: Tell = lambda line: None) -> Summary:
    """A storm of so many seconds, and the calm after it. The logs are kept if it goes wrong."""
    folder = Path(tempfile.mkdtemp(prefix=f"towline-chaos-{seed}-"))
    summary = Summary(seed, folder)
    began = time.monotonic()
    try:
        async with world_of(seed, folder, seconds) as world:
            summary.disk, summary.faults = world.disk.kind, world.faults
            await Run(world, summary, _noted(tell, folder)).go(seconds)
            summary.ended_alone = Counter(
                {one.name: len(one.ended_alone) for one in world.kept if one.ended_alone}
            )
    except Exception as error:
        summary.violations.append(f"the run itself broke off: {error!r}")
        with (folder / "run.log").open("a") as log:
            traceback.print_exc(file=log)
    summary.seconds = time.monotonic() - began
    return summary
