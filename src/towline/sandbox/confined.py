"""Runs a command under the supervisor: starts it, hands it the task, reads its report.

`Supervised` alone limits time, memory, processes, disk and output, and filters system calls. It
isolates neither files nor processes nor the network: `BubblewrapSandbox` adds that. Both are
chosen by `choice.py`, and `Supervised` only where `fix.sandbox = "none"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from towline.sandbox.base import Limits, Ran

_SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
_CHUNK: Final = 1 << 16
_LONGEST_REPORT: Final = 1 << 20
_GRACE_SECONDS: Final = 15.0
_LONGEST_REASON: Final = 500
_NICE: Final = 10
_HOME = "home"
_ADDRESS_SPACES: Final = 4
_OPEN_FILES: Final = 1024
_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix"),
    *("/etc/alternatives", "/etc/ca-certificates", "/etc/group", "/etc/hosts", "/etc/ld.so.cache"),
    *("/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/mime.types"),
    *("/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd", "/etc/protocols", "/etc/services"),
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/timezone"),
    *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem"),
    "/etc/pki/tls/openssl.cnf",
)
"""Not all of /etc/ssl and /etc/pki: private keys are there, which a service of root could read."""
_WITH_NETWORK: Final = ("/etc/resolv.conf", "/etc/gai.conf", "/etc/host.conf")
_ENDED: Final[Mapping[str, str]] = {
    "time": "it was ended: it took longer than {seconds:g} s",
    "memory": "it was ended: it used more than {memory_bytes} bytes of memory",
    "processes": "it was ended: it started more than {processes} processes",
    "disk": "it was ended: it wrote more than {disk_bytes} bytes",
}


class Supervised:
    """Commands with limits, but without isolation.

    `readable` are folders besides the system's that a command may read, a toolchain for one.
    """

    name = "limits"

    def __init__(
        self, *, readable: Sequence[Path] = (), path: str | None = None, nice: int = _NICE
    ) -> None:
        own = dict.fromkeys([sys.prefix, sys.base_prefix, *map(str, readable)])
        self._readable = [str(Path(one).absolute()) for one in own]
        places = [f"{sys.prefix}/bin", "/usr/local/bin", *os.defpath.split(os.pathsep)]
        self._path = path or os.pathsep.join(dict.fromkeys(filter(None, places)))
        self._nice = nice

    async def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        try:
            private = await asyncio.to_thread(_private_folder)
            given = {
                "PATH": self._path,
                "HOME": str(private / _HOME),
                "TMPDIR": str(private / _HOME),
                "LANG": "C.UTF-8",
                **(environment or {}),
            }
            task = self._task(list(command), _absolute(folder), private, limits, given)
            return await _run(task, limits, stdin)
        except OSError as error:
            return Ran(None, "", trouble=f"the sandbox cannot start: {error.strerror}")

    def _task(
        self,
        command: list[str],
        folder: Path,
        private: Path,
        limits: Limits,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        home = str(private / _HOME)
        writable = [str(folder), home, *(str(one.absolute()) for one in limits.writable)]
        return {
            "command": command,
            "folder": str(folder),
            "environment": dict(environment),
            "measured": writable,
            "private": str(private),
            "seconds": limits.seconds,
            "memory": limits.memory_bytes,
            "processes": limits.processes,
            "disk": limits.disk_bytes,
            "limits": _resource_limits(limits),
            "nice": self._nice,
            "wrapping": [],
        }

    def readable(self, network: bool) -> list[str]:
        return [*_SYSTEM, *(_WITH_NETWORK if network else ()), *self._readable]


def _absolute(folder: Path) -> Path:
    return folder.absolute()


def _resource_limits(limits: Limits) -> list[tuple[str, int]]:
    seconds = max(1, int(limits.seconds) + 1)
    return [
        ("CORE", 0),
        ("CPU", seconds * 4),
        ("AS", limits.memory_bytes * _ADDRESS_SPACES),
        ("FSIZE", limits.disk_bytes),
        ("NOFILE", _OPEN_FILES),
        ("MEMLOCK", 1 << 20),
        ("MSGQUEUE", 0),
    ]


def _private_folder() -> Path:
    """With a home that is empty. The supervisor removes it, also when the service is gone."""
    folder = Path(tempfile.mkdtemp(prefix="towline-sandbox-"))
    (folder / _HOME).mkdir()
    return folder


async def _run(task: Mapping[str, Any], limits: Limits, stdin: bytes) -> Ran:
    async with _supervisor(task) as (process, hearing):
        kept = asyncio.create_task(_end_of(process.stdout, limits.output_bytes))
        feeding = asyncio.create_task(_feed(process.stdin, stdin))
        try:
            async with asyncio.timeout(limits.seconds + _GRACE_SECONDS):
                told = await asyncio.shield(hearing)
                output = (await kept).decode(errors="replace")
                await process.wait()
        except TimeoutError:
            return Ran(None, "", timed_out=True, trouble="the sandbox itself did not end in time")
        finally:
            feeding.cancel()
            kept.cancel()
    return _ran(told, output, limits)


def _ran(told: Mapping[str, Any], output: str, limits: Limits) -> Ran:
    if not told or "trouble" in told:
        reason = str(told.get("trouble") or "its supervisor ended without a word")
        said = " ".join(f"{reason[:_LONGEST_REASON]} {output[-200:]}".split())
        return Ran(None, output, trouble=f"the sandbox cannot run it: {said}")
    why, status = str(told.get("why") or ""), told.get("status")
    if status is not None and type(status) is not int:
        return Ran(None, output, trouble="the sandbox's supervisor told no status")
    if why in _ENDED:
        ended = _ENDED[why].format(**limits._asdict())
        output = f"{output}\n[{ended}]\n"
    if why == "abandoned":
        return Ran(None, output, trouble="the sandbox was abandoned")
    return Ran(status, output, timed_out=why == "time")


@contextlib.asynccontextmanager
async def _supervisor(
    task: Mapping[str, Any],
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.Task[dict[str, Any]]]]:
    """Running, with its task; whatever happens here, it and its command end."""
    control, tell = os.pipe()
    hear, report = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_SUPERVISOR), str(control), str(report)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            pass_fds=(control, report),
            start_new_session=True,
        )
    except BaseException:
        os.close(tell)
        os.close(hear)
        raise
    finally:
        os.close(control)
        os.close(report)
    hearing = asyncio.create_task(_heard(os.fdopen(hear, "rb")))
    try:
        await asyncio.to_thread(_write_all, tell, json.dumps(task).encode() + b"\n")
        yield process, hearing
    finally:
        os.close(tell)
        await asyncio.shield(_end(process, hearing))


async def _end(process: asyncio.subprocess.Process, hearing: asyncio.Task[Any]) -> None:
    """The closed pipe tells it to make an end; what does not listen is killed."""
    try:
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    await hearing


def _write_all(fd: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]


async def _heard(pipe: BinaryIO) -> dict[str, Any]:
    """All that is said until the other end closes, which it does when its process ends.

    Nothing, if it is more than a supervisor has to say, or cannot be read."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        text = b""
        while len(text) <= _LONGEST_REPORT and (chunk := await reader.read(_CHUNK)):
            text += chunk
    finally:
        transport.close()
    try:
        told = json.loads(text or b"{}") if len(text) <= _LONGEST_REPORT else {}
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


async def _end_of(stream: asyncio.StreamReader | None, most: int) -> bytes:
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK)):
        kept += chunk
        if len(kept) > 2 * most + _CHUNK:
            del kept[:-most]
    return bytes(kept[-most:]) if most else b""


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    if stream is None:
        return
    # uvloop says by a RuntimeError that the reader has ended already.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        stream.write(data)
        await stream.drain()
    stream.close()
