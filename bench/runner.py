"""Runs the samples: contenders in turn, every other round backwards.

The machine's speed drifts. Who is compared stands side by side in a suite's list, and who came
first in one round comes last in the next, so that a drift does not favour either.

Each sample is a fresh process with an empty folder, an empty database and an empty Redis. The
servers are private to the run, and nothing but them and the samples is ever signalled.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.figures import Sample
from bench.machine import CpuWatch, wait_until_quiet
from bench.plan import Contender, Suite
from bench.sample import MARK
from tests.servers import PostgresServer, RedisServer, redis_command

ROOT = Path(__file__).resolve().parent.parent

_PATIENCE_SECONDS = 5.0
_LARGER = ("large", "larger", "largest")
"""What databases are called that a sample makes beside its own."""
_LONGEST_FOLDER = 50


class Stage:
    """The folder and the servers of one run; servers start when first needed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="towline-bench-"))
        self._postgres: PostgresServer | None = None
        self._redis: RedisServer | None = None
        self._serial = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in (self._postgres, self._redis):
            if server is not None:
                server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        return [server.pid for server in (self._postgres, self._redis) if server is not None]

    def prepare(self, suite: Suite) -> None:
        """Start what the suite needs, so that no sample waits for it."""
        if self._postgres is None and any(one.needs("postgres") for one in suite.contenders):
            self._postgres = PostgresServer().start()
        if self._redis is None and any(one.needs("redis") for one in suite.contenders):
            self._redis = RedisServer().start()

    def run(self, suite: Suite, contender: Contender, quick: bool) -> tuple[dict[str, float], str]:
        """The metrics of one sample, or what it said when it failed."""
        name = f"sample{next(self._serial)}"
        folder = self.folder / name
        folder.mkdir()
        command = [sys.executable, "-m", "bench.sample", suite.name, contender.name]
        command += ["--folder", str(folder), *(["--quick"] if quick else [])]
        if contender.needs("postgres") and self._postgres is not None:
            command += ["--postgres", self._postgres.create_database(name)]
        if contender.needs("redis") and self._redis is not None:
            redis_command(self._redis.url, "FLUSHALL")
            command += ["--redis", self._redis.url]
        try:
            return _metrics_of(command, self._environment(), suite.sample_seconds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if contender.needs("postgres") and self._postgres is not None:
                for database in (name, *(f"{name}_{larger}" for larger in _LARGER)):
                    self._postgres.drop_database(database)

    def _environment(self) -> dict[str, str]:
        """Temporary files go with the stage, unless names of sockets in there would be too long."""
        fits = len(str(self.folder)) <= _LONGEST_FOLDER
        return os.environ | ({"TMPDIR": str(self.folder)} if fits else {})


def _metrics_of(
    command: Sequence[str], environment: dict[str, str], seconds: float
) -> tuple[dict[str, float], str]:
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return {}, f"no result within {seconds:g} s"
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK)), ""
    return {}, "\n".join((done.stdout + done.stderr).splitlines()[-12:]) or "no output"


def samples(stage: Stage, suite: Suite, rounds: int, quick: bool) -> Iterator[Sample]:
    """All samples of a suite, as they come."""
    stage.prepare(suite)
    for number in range(rounds):
        for contender in in_turn(suite.contenders, number):
            yield _take(stage, suite, contender, number, quick)


def in_turn(contenders: Sequence[Contender], number: int) -> list[Contender]:
    """Their order in a round: rotated after every two, and turned around in the second."""
    shift = number // 2 % len(contenders)
    order = [*contenders[shift:], *contenders[:shift]]
    return order[::-1] if number % 2 else order


def _take(stage: Stage, suite: Suite, contender: Contender, number: int, quick: bool) -> Sample:
    if not quick:
        wait_until_quiet(stage.pids, _PATIENCE_SECONDS)
    watch = CpuWatch(stage.pids)
    metrics, error = stage.run(suite, contender, quick)
    return Sample(contender.name, number, metrics, round(watch.other(), 3), error)
