"""The audit log as a file: whole lines, in order, within its size, whoever writes and whatever."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from towline.observability.audit import AuditFile
from towline_once.metrics import Audit

ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from towline.observability.audit import AuditFile
audit = AuditFile(sys.argv[1], max_bytes=int(sys.argv[3]), keep_files=100)
print("ready", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[4])):
    audit("EVENT", writer=sys.argv[2], n=n, padding="x" * (n % 50))
audit.close(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audit(path: Path) -> Iterator[AuditFile]:
    sink = AuditFile(path)
    yield sink
    sink.close()


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lost() -> float:
    return REGISTRY.get_sample_value("towline_audit_lost_total") or 0.0


def test_a_line_for_each_event(path: Path) -> None:
    """Time, event and fields, in the order of the calls; nobody else may read it."""
    moment = 1_700_000_000_123_456
    sink: Audit = AuditFile(path, now_us=lambda: moment)
    sink("IDEMPOTENCY_HIT", key_prefix="abc", n=1)
    sink("OTHER", at="never", path=Path("x"))
    assert isinstance(sink, AuditFile)
    sink.close()
    at = "2023-11-14T22:13:20.123456Z"
    assert read(path) == [
        {"at": at, "event": "IDEMPOTENCY_HIT", "key_prefix": "abc", "n": 1},
        {"at": at, "event": "OTHER", "path": "x"},
    ]
    assert path.stat().st_mode & 0o077 == 0


def test_closed_and_opened_again(path: Path) -> None:
    """What comes after the end is written as well, behind what was there."""
    first, second = AuditFile(path), AuditFile(path)
    for n, sink in enumerate([first, second, second, first]):
        sink("EVENT", n=n)
        sink.close()
        sink.close()
    assert [line["n"] for line in read(path)] == [0, 1, 2, 3]


def test_rotated_by_size(path: Path) -> None:
    """No file is larger than allowed, and only so many older ones stay, the newest first."""
    sink = AuditFile(path, max_bytes=200, keep_files=2)
    for n in range(20):
        sink("EVENT", n=n)
    sink.close()
    files = [path, path.with_name("audit.jsonl.1"), path.with_name("audit.jsonl.2")]
    assert sorted(path.parent.glob("audit.jsonl*")) == [*files, path.with_name("audit.jsonl.lock")]
    assert all(file.stat().st_size <= 200 for file in files)
    kept = [line["n"] for file in reversed(files) for line in read(file)]
    assert kept == list(range(20))[-len(kept) :]
    assert len(kept) >= 5


def test_a_line_larger_than_a_file(path: Path) -> None:
    """It gets a file of its own, whole."""
    sink = AuditFile(path, max_bytes=100, keep_files=5)
    for size in (1, 500, 1):
        sink("EVENT", padding="x" * size)
    sink.close()
    names = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]
    sizes = [len(line["padding"]) for name in names for line in read(path.with_name(name))]
    assert sizes == [1, 500, 1]


@pytest.mark.parametrize("max_bytes", [10_000_000, 3_000])
def test_several_processes(path: Path, max_bytes: int) -> None:
    """Lines of four writers do not mix and none is lost, also while the file is rotated."""
    writers = [start_writer(path, str(name), max_bytes, 300) for name in range(4)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.communicate("go\n", timeout=60)
        assert writer.returncode == 0
    files = [file for file in path.parent.iterdir() if not file.name.endswith(".lock")]
    lines = [line for file in files for line in read(file)]
    assert sorted((line["writer"], line["n"]) for line in lines) == sorted(
        (str(name), n) for name in range(4) for n in range(300)
    )
    assert (len(files) > 1) == (max_bytes == 3_000)


def start_writer(path: Path, name: str, max_bytes: int, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(max_bytes), str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_waits_at_exit_is_written(path: Path) -> None:
    """A process that ends without closing its sink loses nothing."""
    script = (
        "import sys; from towline.observability.audit import AuditFile; "
        "AuditFile(sys.argv[1])('LAST')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", script, str(path)], env=environment, check=True)
    assert [line["event"] for line in read(path)] == ["LAST"]


def test_a_full_disk_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised; the events are counted, and one line tells why."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no full disk to offer")
    before = lost()
    sink = AuditFile("/dev/full")
    for n in range(10):
        sink("EVENT", n=n)
    sink.close()
    assert lost() == before + 10
    [record] = caplog.records
    assert (record.levelno, "No space left" in record.getMessage()) == (logging.ERROR, True)


def test_it_goes_on_when_the_trouble_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that is missing loses events until it is there; each trouble is logged once."""
    path = tmp_path / "later" / "audit.jsonl"
    sink = AuditFile(path)
    for _ in range(2):
        sink("LOST")
        sink("LOST")
        sink.close()
        path.parent.mkdir()
        sink("KEPT")
        sink.close()
        assert [line["event"] for line in read(path)] == ["KEPT"]
        path.unlink()
        path.parent.rmdir()
    assert len(caplog.records) == 2


def test_a_file_that_was_taken_away(path: Path, audit: AuditFile) -> None:
    """Whoever rotates the log by other means finds a new file afterwards."""
    audit("BEFORE")
    audit.close()
    path.rename(path.with_name("elsewhere"))
    audit("AFTER")
    audit.close()
    assert [line["event"] for line in read(path)] == ["AFTER"]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("odd", ["\ud800", 2**70, float("nan"), b"bytes", {"a": {1, 2}}, object()])
def test_odd_values_are_written_somehow(path: Path, audit: AuditFile, odd: Any) -> None:
    """A field that JSON does not know costs neither the event nor the caller."""
    audit("ODD", odd=odd)
    audit.close()
    assert [line["event"] for line in read(path)] == ["ODD"]


def test_what_cannot_be_written_at_all(path: Path, audit: AuditFile) -> None:
    """The caller does not notice, and the next event is written."""
    before = lost()
    audit("NEVER", odd=Unprintable())
    audit("NEXT")
    audit.close()
    assert [line["event"] for line in read(path)] == ["NEXT"]
    assert lost() == before + 1


def test_a_stuck_disk_holds_nobody_up(tmp_path: Path) -> None:
    """Events beyond what may wait are dropped and counted; the calls return at once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    before = lost()
    sink = AuditFile(pipe)
    started = time.monotonic()
    for n in range(10_500):
        sink("EVENT", n=n)
    took = time.monotonic() - started
    assert 490 <= lost() - before <= 500
    assert took < 5
    drain = threading.Thread(target=pipe.read_bytes)
    drain.start()
    sink.close(30)
    drain.join(30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_writes_as_well(path: Path) -> None:
    """A child that inherited the sink has a writer of its own."""
    script = """
import os, sys
from towline.observability.audit import AuditFile
sink = AuditFile(sys.argv[1])
sink("PARENT")
child = os.fork()
if child == 0:
    sink("CHILD")
    sink.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
sink.close()
sys.exit(status)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "ignore", "-c", script, str(path)]
    subprocess.run(command, env=environment, check=True, timeout=60)
    assert {line["event"] for line in read(path)} == {"PARENT", "CHILD"}
