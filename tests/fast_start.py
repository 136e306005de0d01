"""`towline` in a process of its own, without loading its modules anew for every test.

A process with all modules of the command line loaded waits for orders and forks for each of them:
what runs has its own process id, folder, environment and output, and ends with its own exit code.
A test of how Python starts or ends (its flags, a full disk, a closed pipe) starts it for itself.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 100.0
_LOADED = ("towline.cli", "towline.doctor", "towline_sim.cli")
_MESSAGE = 1 << 20


def towline(
    *arguments: str,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; `environment` comes on top of that of the tests."""
    order = {
        "arguments": ["towline", *arguments],
        "folder": str(folder or Path.cwd()),
        "environment": {**os.environ, **(environment or {})},
    }
    ours, theirs = socket.socketpair()
    with (
        ours,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        open(os.devnull, "rb") as nothing,
    ):
        with theirs:
            fds = [nothing.fileno(), out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(_server(), [json.dumps(order).encode()], fds)
        code = _code(ours, arguments, seconds)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            arguments, code, out.read().decode(), err.read().decode()
        )


def _code(ours: socket.socket, arguments: Sequence[str], seconds: float) -> int:
    ours.settimeout(seconds)
    pid = 0
    try:
        with ours.makefile("rb") as lines:
            pid = int(lines.readline())
            return int(lines.readline())
    except TimeoutError:
        if pid:
            os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(arguments, seconds) from None


@cache
def _server() -> socket.socket:
    """Of this test process; it ends when the test process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for side in (ours, theirs):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fast_start", str(theirs.fileno())],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait(SECONDS)

    atexit.register(end)
    return ours


# ---------------------------------------------------------------------- the process that forks


def _serve(orders: socket.socket) -> None:
    for name in _LOADED:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    importlib.import_module("towline.app.service")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        order, fds, _, _ = socket.recv_fds(orders, _MESSAGE, 4)
        if not order:
            return
        if os.fork() == 0:
            orders.close()
            _keep(json.loads(order), fds)
        for fd in fds:
            os.close(fd)


def _keep(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Fork once more, tell who it is, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(order, fds)
    for fd in fds[:3]:
        os.close(fd)
    os.write(fds[3], b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(fds[3], b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _become(order: dict[str, Any], fds: list[int]) -> NoReturn:
    """Run the command as a new interpreter would."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    sys.argv[:] = order["arguments"]
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
    code = 1
    try:
        from towline.cli import main

        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _serve(given)
