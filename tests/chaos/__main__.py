"""`python -m tests.chaos --minutes 60 --seed N`: the storm for a whole night's hour."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys

from tests.chaos.run import chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=None, help="decides which faults, and when")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    summary = asyncio.run(chaos(seed, given.minutes * 60, _progress))
    _progress("")
    sys.stdout.write("\n".join(summary.lines()) + "\n")
    if not summary.violations:
        shutil.rmtree(summary.logs, ignore_errors=True)
    return 1 if summary.violations else 0


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{line}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
