"""`python -m tests.fuzz --seconds 60 [target …]`: search for inputs that break a parser.

What is found is kept in tests/fuzz/cases, where the gate plays it from then on.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.engine import Engine

CASES: Final = Path(__file__).parent / "cases"
ROOT: Final = Path(__file__).parents[2]
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units:\s*(\d+)|^#(\d+)\s", re.MULTILINE)
_RAISED: Final = re.compile(
    r"^(?:[\w.]*(?:Error|Exception)\b.*|\S+ ERROR: libFuzzer.*)$", re.MULTILINE
)


class Played(NamedTuple):
    executions: int
    findings: list[Path]
    said: str


def main() -> int:
    asked = _asked()
    if importlib.util.find_spec("atheris") is None:
        _say("atheris is not installed: `make fuzz` installs it, where there is a wheel for it")
        return 1
    _say("instrumenting Towline")
    engine = Engine()
    unknown = [name for name in asked.targets if name not in engine.targets]
    if unknown:
        _say(f"there is no target {unknown[0]}; there are {', '.join(engine.targets)}")
        return 1
    executions, findings = 0, 0
    began = time.monotonic()
    names = asked.targets or list(engine.targets)
    for place, name in enumerate(names, 1):
        played = _played(engine, name, asked.seconds)
        executions += played.executions
        findings += len(played.findings)
        _say(f"{place:3}/{len(names)} {name:26} {played.executions:9} executions  {_told(played)}")
    took = time.monotonic() - began
    _say(f"{len(names)} targets, {executions} executions, {findings} findings, {took:.0f} s")
    return 1 if findings else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("targets", nargs="*", metavar="target", help="all, if none is named")
    return parser.parse_args()


def _played(engine: Engine, name: str, seconds: int) -> Played:
    with tempfile.TemporaryDirectory(prefix="towline-fuzz-") as folder:
        corpus, broken, log = (Path(folder, part) for part in ("corpus", "broken", "log"))
        broken.mkdir()
        if (CASES / name).is_dir():
            shutil.copytree(CASES / name, corpus)
        code = engine.play(name, seconds, corpus, broken, log)
        found = [_kept(name, file) for file in sorted(broken.iterdir())]
        told = log.read_text(encoding="utf-8", errors="replace")
    if code and not found:
        raise SystemExit(f"{name} could not be played: {told[-2000:]}")
    counts = [int(first or second) for first, second in _EXECUTED.findall(told)]
    raised = _RAISED.findall(told)
    return Played(max(counts, default=0), found, raised[0][:160] if raised else "")


def _kept(name: str, file: Path) -> Path:
    """Under a name that two findings of one input share."""
    place = CASES / name / file.name[:16]
    place.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(file, place))


def _told(played: Played) -> str:
    if not played.findings:
        return "nothing found"
    kept = ", ".join(str(path.relative_to(ROOT)) for path in played.findings)
    return f"FOUND {played.said} (kept in {kept})"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
