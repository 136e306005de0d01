"""Runs one command, watches everything that comes of it, and leaves nothing of it behind.

A script of its own, started as a child of the service (`confined.py`). One pipe brings the task,
another takes the report back. If the first one closes, the service is gone, and this process ends
the command. Whatever the command starts is a descendant of this process, also what detaches
itself: the kernel gives orphans to the nearest process that asked for them, which is this one.

Bubblewrap isolates the command. Without it (`fix.sandbox = "none"`) only the limits and the filter
of system calls hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from types import ModuleType
from typing import Any

_LOOK_SECONDS = 0.1
_KILL_SECONDS = 10.0
_OWN_PROCESSES = 4
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def _load(name: str) -> ModuleType:
    """One of the files beside this script, which is started without any path to import from."""
    file = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Command:
    """The command as this process sees it: a child, and whatever descends from it."""

    def __init__(self, task: dict[str, Any], calls: ModuleType) -> None:
        self.status: int | None = None
        self._task = task
        self._process: subprocess.Popen[bytes] | None = None
        self._started, status = os.pipe()
        refused = _readable(calls.program(own_segments=True))
        numbers = {"{status}": str(status), "{refused}": str(refused)}
        wrapping = [numbers.get(one, one) for one in task["wrapping"]]
        try:
            self._process = subprocess.Popen(  # noqa: S603  its caller says what to run
                [*wrapping, *task["command"]],
                cwd=task["folder"],
                env=task["environment"],
                pass_fds=(status, refused) if wrapping else (),
                start_new_session=True,
                preexec_fn=lambda: _prepare(task, calls),
            )
        except OSError as error:
            if wrapping or error.filename == task["folder"]:
                raise
            os.write(2, f"{task['command'][0]}: {error.strerror}\n".encode())
            self.status = 127 if isinstance(error, FileNotFoundError) else 126
        finally:
            os.close(status)
            os.close(refused)

    def started(self) -> bool:
        """Whether bubblewrap, where it is used, came as far as the command; after its end."""
        with os.fdopen(self._started) as file:
            return not self._task["wrapping"] or "exit-code" in file.read()

    def reap(self) -> bool:
        """Collect the processes that ended. True once the command itself has."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return self.status is not None
            if self._process is not None and pid == self._process.pid:
                self.status = self._process.returncode = os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        """Everything, until nothing is left; what forks meanwhile is found the next time."""
        deadline = time.monotonic() + _KILL_SECONDS
        if self._process is not None and self.status is None:
            _send(-self._process.pid, signal.SIGKILL)  # all that there is where /proc is not
        while time.monotonic() < deadline and (found := descendants()):
            for one in (signal.SIGSTOP, signal.SIGKILL):
                for pid in found:
                    _send(pid, one)
            self.reap()
            time.sleep(0.005)


def _prepare(task: dict[str, Any], calls: ModuleType) -> None:
    """In the child, just before it becomes the command or bubblewrap."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.nice(task["nice"])
    for name, value in task["limits"]:
        _set_limit(getattr(resource, f"RLIMIT_{name}", None), value)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    if not task["wrapping"]:
        calls.refuse(own_segments=False)


def _set_limit(which: int | None, value: int) -> None:
    """Soft and hard; what is lower already stays."""
    if which is None:
        return
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (value, value))


def descendants() -> list[int]:
    """Of this process, those that still run; the nearest first."""
    parents: dict[int, list[int]] = {}
    for pid, parent in _processes():
        parents.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _processes() -> list[tuple[int, int]]:
    """Each with its parent; one that has ended counts while a thread of it runs."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    facts = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if facts[0] not in (b"Z", b"X") or int(facts[17]) > 1:
                found.append((int(name), int(facts[1])))
    return found


class Watch:
    """Says why a command has to end, if it has to."""

    def __init__(self, task: dict[str, Any], usage: ModuleType, control: int) -> None:
        self._task = task
        self._usage = usage
        self._control = control
        self._until = time.monotonic() + task["seconds"]
        self._folders = task["measured"]
        self._disk = usage.disk_use(self._folders)
        self._next_measure = 0.0

    def reason(self) -> str | None:
        task = self._task
        if select.select([self._control], [], [], 0)[0]:
            return "abandoned"
        if time.monotonic() >= self._until:
            return "time"
        alive = descendants()
        if len(alive) > task["processes"] + _OWN_PROCESSES:
            return "processes"
        in_memory, on_disk = self._usage.in_open_files(alive)
        if self._usage.memory_of(alive, task["memory"] - in_memory) + in_memory > task["memory"]:
            return "memory"
        return "disk" if on_disk > task["disk"] or self._disk_is_full(on_disk) else None

    def _disk_is_full(self, in_open_files: int) -> bool:
        """Measuring a large tree takes long, so it is done the less often."""
        started = time.monotonic()
        if started < self._next_measure:
            return False
        grown = self._usage.disk_use(self._folders) - self._disk + in_open_files
        ended = time.monotonic()
        self._next_measure = ended + max(0.3, 10 * (ended - started))
        return bool(grown > self._task["disk"])


def remove(folder: str) -> None:
    """Also what the command has closed to its owner; links are not followed."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            place = os.path.join(parent, name)
            if not os.path.islink(place):
                with contextlib.suppress(OSError):
                    os.chmod(place, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _readable(text: bytes) -> int:
    """A pipe from which these few bytes can be read, once."""
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _take_precedence() -> None:
    """Before all that the command may start, where that is allowed: who forks for ever would
    leave no time to the process that is to end it. Children do not inherit it."""
    with contextlib.suppress(AttributeError, OSError):
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(1))


def main(control: int, report: int) -> None:
    usage, calls = _load("usage"), _load("calls")
    task = _read_task(control)
    _take_precedence()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    try:
        answer = _run(task, Watch(task, usage, control), calls, control)
    except (OSError, subprocess.SubprocessError) as error:
        answer = {"trouble": f"{type(error).__name__}: {error}"}
    finally:
        remove(task["private"])
    os.write(report, json.dumps(answer).encode())


def _run(task: dict[str, Any], watch: Watch, calls: ModuleType, control: int) -> dict[str, Any]:
    """What came of the command: its status, or why it had to end."""
    command = Command(task, calls)
    why: str | None = None
    pause = 0.005
    while not command.reap():
        why = watch.reason()
        if why is not None:
            break
        select.select([control], [], [], pause)
        pause = min(_LOOK_SECONDS, pause * 1.5)
    command.kill()
    if why is not None:
        return {"status": None, "why": why}
    if not command.started():
        return {"trouble": f"it could not be set up (status {command.status})"}
    return {"status": command.status}


def _read_task(control: int) -> dict[str, Any]:
    text = b""
    while not text.endswith(b"\n"):
        chunk = os.read(control, 65536)
        if not chunk:
            os._exit(70)
        text += chunk
    task: dict[str, Any] = json.loads(text)
    return task


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
