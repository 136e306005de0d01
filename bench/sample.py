"""One sample: `python -m bench.sample SUITE CONTENDER` prints the metrics as one line of JSON.

It is a process of its own, so that no contender inherits another's caches, threads or garbage.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import logging
from pathlib import Path
from typing import Any

from bench.loops import loop_factory
from bench.plan import Bench, Metrics
from bench.suites import SUITES

MARK = "metrics: "


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sample", description=__doc__)
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("contender")
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder to work in")
    parser.add_argument("--postgres", default="", help="URL of an empty database")
    parser.add_argument("--redis", default="", help="URL of an empty Redis")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    contender = SUITES[asked.suite].contender(asked.contender)
    bench = Bench(asked.folder, asked.postgres, asked.redis, asked.quick)
    print(MARK + json.dumps(measure(contender.run, bench)), flush=True)


def measure(run: Any, bench: Bench) -> Metrics:
    """Every coroutine runs under uvloop, whichever side it is on."""
    if not inspect.iscoroutinefunction(run):
        metrics: Metrics = run(bench)
        return metrics
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return dict(runner.run(run(bench)))


if __name__ == "__main__":
    main()
