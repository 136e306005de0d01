"""The machine: what it is, what runs on it, and how much of it others took during a sample."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from statistics import median

import psutil

from tests.servers import postgres_binary, redis_binary
from towline_once.db.sqlite_driver import version_text

PACKAGES = (
    "towline", "uvloop", "orjson", "aiosqlite", "asyncpg", "psycopg", "psycopg-pool",
    "hiredis", "redis", "python-redis-lock", "aws-lambda-powertools", "dbos", "limits", "celery",
    "dramatiq", "procrastinate", "uvicorn", "httptools", "starlette", "fastapi", "litestar",
)  # fmt: skip

_CPUS = psutil.cpu_count() or 1
_QUIET = 0.25
_GLANCE_SECONDS = 0.25


def description(folder: Path) -> dict[str, str]:
    """Facts without names: nothing here tells whose machine it is."""
    memory = psutil.virtual_memory().total / 2**30
    return {
        "processor": f"{_CPUS} × {_processor()}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "file system": _file_system(folder),
        "fdatasync of 4 KiB": f"{_sync_microseconds(folder):.0f} µs (median)",
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the mount that is nearest above the folder."""
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if folder.resolve().is_relative_to(mount.mountpoint)
    ]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"


def _sync_microseconds(folder: Path, times: int = 100) -> float:
    sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
    path = folder / "sync-probe"
    took = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(b"\0" * 4096)
            began = time.perf_counter()
            sync(file.fileno())
            took.append(time.perf_counter() - began)
    path.unlink()
    return median(took) * 1e6


def versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in PACKAGES if _installed(name)}
    servers = {
        "SQLite of Towline and the floor": version_text(),
        "PostgreSQL": _answer([postgres_binary("postgres"), "--version"], r"([\d.]+)"),
        "Redis": _answer([redis_binary(), "--version"], r"v=([\d.]+)"),
    }
    return servers | found


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _answer(command: list[str], pattern: str) -> str:
    said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    found = re.search(pattern, said)
    return found[1] if found else "unknown"


class CpuWatch:
    """Counts from its making on; `other` is the share that went to foreign processes."""

    def __init__(self, servers: Iterable[int]) -> None:
        self._servers = list(servers)
        self._began = time.monotonic()
        self._busy = _busy_seconds()
        self._ours = self._our_seconds()

    def other(self) -> float:
        busy = _busy_seconds() - self._busy
        ours = self._our_seconds() - self._ours
        return max(0.0, busy - ours) / (time.monotonic() - self._began) / _CPUS

    def _our_seconds(self) -> float:
        """This process, the children it has waited for, and the servers with their children."""
        total = sum(psutil.Process().cpu_times()[:4])
        for pid in self._servers:
            server = psutil.Process(pid)
            total += sum(server.cpu_times()[:4])
            for child in server.children(recursive=True):
                try:
                    total += sum(child.cpu_times()[:2])
                except psutil.NoSuchProcess:
                    continue
        return float(total)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq"))


def wait_until_quiet(servers: Iterable[int], patience: float) -> None:
    """Let others finish, but do not wait for ever."""
    pids = list(servers)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        watch = CpuWatch(pids)
        time.sleep(_GLANCE_SECONDS)
        if watch.other() < _QUIET:
            return
