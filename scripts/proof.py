"""Run everything in its full size: what `make test` has only a part of, for lack of time.

`make proof` runs all of it, one step after the other, and goes on after one that failed. Each step
shows how far it is; at the end there is a line for each, and the exit code is 1 if any failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent


class Step(NamedTuple):
    """A command; the lines that match `tells` are its result."""

    name: str
    command: list[str]
    tells: str
    environment: Mapping[str, str]


class Result(NamedTuple):
    step: Step
    code: int
    seconds: float
    told: list[str]

    def line(self) -> str:
        state = "passed" if self.code == 0 else "FAILED"
        told = "; ".join(self.told) or "it said nothing of its result"
        return f"proof: {self.step.name}: {state} in {self.seconds:.0f} s: {told}"


def steps(seeds: int, requests: int, minutes: float, processes: int) -> list[Step]:
    pytest = [sys.executable, "-m", "pytest"]
    summary = r"^.*\b\d+ (?:passed|failed|error).* in .*$"
    full = {"TOWLINE_TEST_FULL": "1"}
    simulate = [str(BIN / "towline"), "simulate"]
    return [
        Step("gate", [*pytest, "tests/proof", "-m", "full_size"], summary, full),
        Step("seeds", [*simulate, "--seeds", str(seeds)], r"^(?:.*\d commits; .*|.*violat.*)$", {}),
        Step(
            "hypothesis",
            [
                *(*pytest, "--numprocesses", str(processes), "--timeout", "3600"),
                *("--ignore", "tests/proof", "-m", "hypothesis or full_size"),
            ],
            summary,
            full,
        ),
        Step(
            "schemathesis",
            [*pytest, "tests/openapi/test_schemathesis.py"],
            rf"^schemathesis: .*$|{summary}",
            {"TOWLINE_TEST_SCHEMATHESIS_CASES": str(requests)},
        ),
        Step(
            "chaos",
            [sys.executable, "-m", "tests.chaos", "--minutes", str(minutes)],
            r"^seed .*$|^\d+ faults: .*$|^\d+ violations$",
            {},
        ),
    ]


def run(step: Step) -> Result:
    """What it prints is shown as it comes."""
    began = time.monotonic()
    said = bytearray()
    environment = {**os.environ, "COLUMNS": "160", "PYTHONUNBUFFERED": "1", **step.environment}
    with subprocess.Popen(
        step.command, cwd=ROOT, env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while some := os.read(process.stdout.fileno(), 65_536):
            said += some
            sys.stdout.buffer.write(some)
            sys.stdout.flush()
    told = re.findall(step.tells, said.decode(errors="replace"), re.MULTILINE)
    return Result(step, process.returncode, time.monotonic() - began, told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="which steps; all if none is named")
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=8.0, help="of chaos")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    every = steps(given.seeds, given.requests, given.minutes, given.processes)
    if unknown := set(given.names) - {step.name for step in every}:
        parser.error(f"no step is called {', '.join(sorted(unknown))}")
    wanted = [step for step in every if not given.names or step.name in given.names]
    results = []
    for place, step in enumerate(wanted, 1):
        print(f"proof: {place} of {len(wanted)}: {step.name}", flush=True)
        results.append(run(step))
        print(results[-1].line(), flush=True)
    print()
    for result in results:
        print(result.line())
    return int(any(result.code for result in results))


if __name__ == "__main__":
    sys.exit(main())
