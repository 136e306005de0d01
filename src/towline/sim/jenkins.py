"""A small simulated Jenkins: a queue, executors, and builds that take their time.

It is driven by a clock and knows nothing of HTTP. When a build ends, `on_end` is told, so that
the world which the commit lives in can be given its status.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from towline.ports.clock import Clock

_FORGET_US: Final = 300 * 1_000_000


@dataclass
class SimJenkinsJob:
    """`outcomes` are the results of its next builds, in order; after them each is SUCCESS."""

    path: str
    parameters: tuple[str, ...] = ()
    """Those that it declares: Jenkins drops all others."""
    duration_seconds: float = 60.0
    buildable: bool = True
    outcomes: list[str] = field(default_factory=list)
    log: str = "Started by user\nFinished\n"
    builds: list[SimBuild] = field(default_factory=list)
    """Oldest first."""


@dataclass
class SimItem:
    id: int
    job: SimJenkinsJob
    parameters: Mapping[str, str]
    queued_us: int
    build: SimBuild | None = None
    left_us: int | None = None
    cancelled: bool = False


@dataclass
class SimBuild:
    job: SimJenkinsJob
    number: int
    parameters: Mapping[str, str]
    queue_id: int
    started_us: int
    ends_us: int
    log: str
    result: str | None = None


class JenkinsWorld:
    """`stuck` keeps everything in the queue, as agents that are offline do."""

    def __init__(
        self,
        clock: Clock,
        *,
        executors: int = 2,
        quiet_seconds: float = 0.0,
        on_end: Callable[[SimBuild], None] | None = None,
    ) -> None:
        self.clock = clock
        self.executors = executors
        self.quiet_us = int(quiet_seconds * 1e6)
        self.on_end = on_end
        self.stuck = False
        self.jobs: dict[str, SimJenkinsJob] = {}
        self.items: dict[int, SimItem] = {}
        self._running: list[SimBuild] = []
        self._reached_us = clock.now_us()

    def add_job(self, path: str, *parameters: str, duration_seconds: float = 60) -> SimJenkinsJob:
        job = SimJenkinsJob(path, parameters, duration_seconds)
        self.jobs[path] = job
        return job

    @property
    def queue(self) -> list[SimItem]:
        return [item for item in self.items.values() if item.left_us is None]

    def ask(self, job: SimJenkinsJob, parameters: Mapping[str, str]) -> SimItem:
        """Queue a build; one that waits with the same parameters already is the same."""
        self.settle()
        kept = {name: value for name, value in parameters.items() if name in job.parameters}
        for item in self.queue:
            if item.job is job and item.parameters == kept:
                return item
        item = SimItem(len(self.items) + 1, job, kept, self.clock.now_us())
        self.items[item.id] = item
        return item

    def cancel(self, item: SimItem) -> None:
        item.cancelled, item.left_us = True, self.clock.now_us()

    def abort(self, build: SimBuild) -> None:
        self._end(build, "ABORTED", self.clock.now_us())

    def item(self, number: int) -> SimItem | None:
        """None also for one that left the queue five minutes ago."""
        item = self.items.get(number)
        if item is None or item.left_us is None:
            return item
        return item if self.clock.now_us() - item.left_us < _FORGET_US else None

    def next_due_us(self) -> int | None:
        """When `settle` has something to do next; None while nothing will happen by itself."""
        due = [build.ends_us for build in self._running]
        if not self.stuck and len(self._running) < self.executors:
            due += [item.queued_us + self.quiet_us for item in self.queue[:1]]
        return min(due, default=None)

    def settle(self) -> None:
        """Let everything happen that is due by now, in the order of its time."""
        now = self.clock.now_us()
        while True:
            self._start_what_can(now)
            ending = min(self._running, key=lambda build: build.ends_us, default=None)
            if ending is None or ending.ends_us > now:
                break
            outcomes = ending.job.outcomes
            self._end(ending, outcomes.pop(0) if outcomes else "SUCCESS", ending.ends_us)
        self._reached_us = now

    def _start_what_can(self, now: int) -> None:
        for item in self.queue:
            at_us = max(item.queued_us + self.quiet_us, self._reached_us)
            if self.stuck or len(self._running) >= self.executors or at_us > now:
                break
            self._start(item, at_us)

    def _start(self, item: SimItem, at_us: int) -> None:
        job = item.job
        item.left_us = at_us
        item.build = SimBuild(
            job=job,
            number=len(job.builds) + 1,
            parameters=item.parameters,
            queue_id=item.id,
            started_us=at_us,
            ends_us=at_us + int(job.duration_seconds * 1e6),
            log=job.log,
        )
        job.builds.append(item.build)
        self._running.append(item.build)

    def _end(self, build: SimBuild, result: str, at_us: int) -> None:
        build.result = result
        self._running.remove(build)
        self._reached_us = max(self._reached_us, at_us)
        if self.on_end is not None:
            self.on_end(build)
