"""`towline demo`: what it promises to show is really seen, and it starts and ends in good order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from towline.cli.serve import bound
from towline_once.errors import Rejected
from towline_sim.demo.clock import DemoClock
from towline_sim.demo.harness import demo_in
from towline_sim.demo.run import run
from towline_sim.demo.sights import SCENES

LINK = re.compile(r"http://127\.0\.0\.1:\d+/ui/demo/enter/\S+")
LONG_ENOUGH = 110.0
PATIENCE = 60


class HandClock:
    """Stands still but for what it is moved by."""

    now = 1_000.0

    def now_us(self) -> int:
        return int(self.now * 1e6)

    def shift_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "towline", "demo", "--no-browser", *arguments]


@pytest.mark.slow
async def test_within_two_minutes_all_is_seen(tmp_path: Path) -> None:
    """One heals, one needs a person, the breaker trips and recovers, by the tow's own work."""
    with bound("127.0.0.1", 0) as listening:
        async with demo_in(tmp_path, listening, 150) as demo, asyncio.timeout(LONG_ENOUGH):
            while not demo.scenes.has(*SCENES):
                assert not demo.ended.done(), demo.ended.exception()
                await asyncio.sleep(0.1)
            events = [
                event.event_type
                for ref in [await _healed(demo.scenes.first["healed"].what)]
                for event in await demo.service.pulls.events(*ref)
            ]
    made = [one for one in events if one.startswith("REMEDIATION_") and "OUTCOME" not in one]
    assert made
    assert "ESCALATED_NEEDS_INTERVENTION" not in events
    assert any(one in events for one in ("MERGE_SUCCEEDED", "PR_MERGED"))


async def _healed(what: str) -> tuple[str, int]:
    repo, _, number = what.partition(":")[0].partition("#")
    return repo, int(number)


@pytest.mark.slow
def test_it_ends_by_itself() -> None:
    """`--for` bounds it: it says where to look and what was seen, and leaves nothing behind."""
    done = subprocess.run(
        command("--port", "0", "--for", "4", "--speed", "120"),
        capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert LINK.search(done.stdout)
    assert "Seen in " in done.stdout
    assert "taken under tow: first after" in done.stdout
    assert len(done.stdout.splitlines()) < 15


def test_a_signal_ends_it_cleanly(tmp_path: Path) -> None:
    """Ctrl-C is the way out: exit 0, no traceback, and its folder is gone."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command("--port", "0"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while not LINK.search(process.stdout.readline()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complained) == (0, "")
    assert "Seen in " in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((0, 0.0, None), "--speed is a number from 1 to 600, not 0"),
        ((0, float("nan"), None), "--speed is a number from 1 to 600, not nan"),
        ((70_000, 60.0, None), "--port is a number from 0 to 65535, not 70000"),
        ((0, 60.0, 0.0), "--for is a number of seconds above 0 and up to 86400, not 0"),
    ],
)
def test_bad_arguments(given: tuple[int, float, float | None], complaint: str) -> None:
    """One line says what is wrong and what is allowed."""
    port, speed, seconds = given
    with pytest.raises(Rejected, match=f"^{re.escape(complaint)}$"):
        run(port, speed, False, seconds)


def test_a_port_that_is_taken() -> None:
    """A port that was asked for is not exchanged for another."""
    with bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command("--port", str(port)),
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


def test_the_clock_goes_faster_and_stands_still() -> None:
    """Stored time follows the speed without a jump; deadlines keep to real seconds."""
    real = HandClock()
    clock = DemoClock(real, 60)
    began, since = clock.now_us(), clock.monotonic()
    real.advance(1)
    assert clock.now_us() - began == 60_000_000
    clock.set_speed(0)
    real.advance(5)
    assert clock.now_us() - began == 60_000_000
    clock.set_speed(120)
    real.advance(1)
    assert clock.now_us() - began == 180_000_000
    assert clock.monotonic() - since == pytest.approx(7)
