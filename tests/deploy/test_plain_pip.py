"""The distributions as a user installs them: with plain pip, from a checkout, in an empty place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_pages import ROOT, shown

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MOST_DISTRIBUTIONS = 8
MOST_MEGABYTES = 20
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence", "wheel")
"""What a new virtual environment has by itself."""
README = "packages/towline-once/README.md"
LIBRARY_ALONE = """
import asyncio, importlib.util, sys
from towline_once import Dedup, Idempotency, Locks

async def main(url):
    async with Idempotency.open(url) as idem:
        first = await idem.process("api:shop:1", "acme", {"n": 1}, lambda: "made")
        again = await idem.process("api:shop:1", "acme", {"n": 1}, lambda: "never")
    async with Locks.open(url) as locks, locks.acquire("door", ttl_seconds=30) as lease:
        lease.check()
    async with Dedup.open(url) as dedup:
        seen = [await dedup.first_time("news"), await dedup.first_time("news")]
    print(first.processed, again.processed, again.result, seen)

for url in ("memory://", "sqlite:///once.db"):
    asyncio.run(main(url))
print(sorted(name for name in sys.modules if name.split(".")[0] in ("towline", "towline_sim")))
print(importlib.util.find_spec("towline"))
"""
WORKED = "True False made [True, False]\n"


class Place:
    """An empty virtual environment, and a folder outside the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
        self.site = next((folder / "venv" / "lib").glob("python3*/site-packages"))

    def install(self, *what: str) -> None:
        paths = [str(ROOT / one) for one in what]
        done = self.run("python", "-m", "pip", "install", "--quiet", *paths)
        assert done.returncode == 0, done.stderr

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(self.bin / program), *arguments], self.folder)

    def distributions(self) -> list[str]:
        listed = self.run("python", "-m", "pip", "list", "--format=json").stdout
        return [one["name"] for one in json.loads(listed) if one["name"] not in TOOLS]

    def megabytes(self) -> float:
        parts = [part for part in self.site.iterdir() if not part.name.startswith(TOOLS)]
        return sum(size for part in parts for size in sizes(part)) / 1e6


def sizes(part: Path) -> Iterator[int]:
    for path in (part, *part.rglob("*")):
        if path.is_file():
            yield path.stat().st_size


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment = clean | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Skips where there is no package index: plain pip fetches the build tool from one."""
    place = Place(tmp_path)
    tried = place.run("python", "-m", "pip", "download", "--quiet", "--no-deps", "hatchling")
    if tried.returncode != 0:
        pytest.skip("plain pip reaches no package index here")
    return place


def test_the_library_alone(place: Place) -> None:
    """It is small, works on memory and SQLite, and neither has nor needs the product."""
    place.install("packages/towline-once")
    assert "towline-once" in place.distributions()
    assert len(place.distributions()) <= MOST_DISTRIBUTIONS
    assert place.megabytes() <= MOST_MEGABYTES
    done = place.run("python", "-c", LIBRARY_ALONE)
    assert done.stdout == f"{WORKED}{WORKED}[]\nNone\n", done.stderr
    told = place.run("once", "db", "sql", "sqlite:///once.db")
    assert told.stdout.startswith("-- Nothing to do"), told.stderr
    (program,) = shown(README, "python")
    (printed,) = shown(README, "text")
    done = place.run("python", "-c", program.replace("once.db", "readme.db"))
    assert done.stdout == printed, done.stderr


def test_the_product(place: Place) -> None:
    """It has the library's names and its own command; the demo says what else to install."""
    place.install("packages/towline-once", ".")
    assert {"towline", "towline-once"} <= set(place.distributions())
    assert "towline-sim" not in place.distributions()
    same = "import towline, towline_once; print(towline.Locks is towline_once.Locks)"
    assert place.run("python", "-c", same).stdout == "True\n"
    assert place.run("towline", "--help").returncode == 0
    for words in (["demo"], ["sim", "serve"], ["simulate", "--seeds", "1"]):
        told = place.run("towline", *words)
        assert told.returncode != 0
        assert told.stdout == ""
        (line,) = told.stderr.splitlines()
        assert "pip install ./packages/towline-sim" in line
