"""Runs one command, watches everything that comes of it, and leaves nothing of it behind.

A script of its own, started as a child of the service, which tells it by one pipe what to do and
hears by another what came of it. If the first one closes, the service is gone, and so is the
command. Whatever the command starts is a descendant of this process, also what detaches itself:
orphans come to the nearest process that asked for them, which is this one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import sys
import time
from types import ModuleType
from typing import Any, NoReturn

_LOOK_SECONDS = 0.1
_KILL_SECONDS = 10.0
_OWN_PROCESSES = 4
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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

    def __init__(self, task: dict[str, Any], kernel: ModuleType, calls: ModuleType) -> None:
        self._task = task
        heard, told = os.pipe()
        self._setup = heard
        self._started, status = os.pipe()
        refused = _readable(calls.program(own_segments=True))
        if task["wrapping"]:
            task["keep"] = [status, refused]
            numbers = {"{status}": str(status), "{refused}": str(refused)}
            wrapping = [numbers.get(one, one) for one in task["wrapping"]]
            task["command"] = [*wrapping, *task["command"]]
        self.pid = os.fork()
        if self.pid == 0:
            os.close(heard)
            _Child(task, kernel, calls, told).run()
        for fd in (told, status, refused):
            os.close(fd)
        self.status: int | None = None

    def setup(self) -> dict[str, Any]:
        """What holds, or what went wrong before the command could start."""
        with os.fdopen(self._setup) as file:
            text = file.read()
        return json.loads(text) if text else {}

    def started(self) -> bool:
        """Whether what wraps the command says that it came that far; after its end."""
        with os.fdopen(self._started) as file:
            return not self._task["wrapping"] or "exit-code" in file.read()

    def reap(self) -> bool:
        """Take leave of those that ended; whether the command itself did."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return self.status is not None
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def kill(self) -> bool:
        """Everything, until nothing is left; what forks meanwhile is found the next time."""
        deadline = time.monotonic() + _KILL_SECONDS
        if self.status is None:
            _send(-self.pid, signal.SIGKILL)  # all that there is where /proc is not
        while time.monotonic() < deadline:
            found = descendants()
            for one in (signal.SIGSTOP, signal.SIGKILL):
                for pid in found:
                    _send(pid, one)
            self.reap()
            if not found:
                return True
            time.sleep(0.005)
        return False


class _Child:
    """The way from a fork of this process to the command, each step with less."""

    def __init__(
        self, task: dict[str, Any], kernel: ModuleType, calls: ModuleType, told: int
    ) -> None:
        self._task = task
        self._kernel = kernel
        self._calls = calls
        self._told = told
        self._holds: list[str] = []

    def run(self) -> NoReturn:
        try:
            os.setsid()
            self._kernel.die_with_parent()
            os.nice(self._task["nice"])
            if self._task["confine"]:
                self._confine()
            self._execute()
        except BaseException as error:
            self._tell({"trouble": f"{type(error).__name__}: {error}"})
        os._exit(70)

    def _confine(self) -> None:
        task, kernel = self._task, self._kernel
        network = task["network"]
        readable, writable = list(task["readable"]), list(task["writable"])
        if "namespaces" in task["use"] and kernel.enter_namespaces(network=network):
            kernel.die_with_parent()
            self._holds += ["processes", *([] if network else ["network"])]
            self._continue_in_child(kernel)
            if not network:
                kernel.raise_loopback()
            if kernel.enter_root(task["root"], readable, writable):
                self._holds.append("files")
                readable += ["/proc", "/"]
                writable += ["/dev/shm"]  # noqa: S108  its own
            self._continue_in_child(kernel)
            kernel.drop_capabilities()
        # A network of its own may be used freely; without one at least TCP can be forbidden.
        free = network or "network" in self._holds
        if "landlock" in task["use"]:
            # Alone it does not count: sockets in the file system stay open to a command.
            kernel.restrict_files(readable, writable, network=free)
        kernel.forget_privileges()
        if self._calls.refuse(own_segments="processes" in self._holds) and self._calls.known():
            self._holds.append("system calls")
        missing = sorted(set(task["required"]) - set(self._holds))
        if missing:
            raise OSError(f"this machine cannot cut it off: no isolation of {', '.join(missing)}")

    def _continue_in_child(self, kernel: ModuleType) -> None:
        """Stay behind to wait, as the first process of a namespace must; the child goes on."""
        pid = os.fork()
        if pid == 0:
            kernel.die_with_parent()
            return
        os.close(self._told)
        while True:
            try:
                ended, status = os.wait()
            except ChildProcessError:
                os._exit(70)
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)

    def _execute(self) -> None:
        task = self._task
        os.chdir(task["folder"])
        own_count = [("NPROC", task["processes"])] if "processes" in self._holds else []
        self._kernel.set_limits([*task["limits"], *own_count])
        for number in (*_IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        keep = {0, 1, 2, self._told, *task["keep"]}
        for fd in _open_fds():
            if fd not in keep:
                _close(fd)
        for fd in task["keep"]:
            os.set_inheritable(fd, True)
        self._tell({"holds": self._holds}, close=False)
        os.set_inheritable(self._told, False)
        command = task["command"]
        try:
            os.execvpe(command[0], command, task["environment"])  # noqa: S606
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)

    def _tell(self, what: dict[str, Any], *, close: bool = True) -> None:
        try:
            os.write(self._told, json.dumps(what).encode())
            if close:
                os.close(self._told)
        except OSError:
            return


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


def _open_fds() -> list[int]:
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return [int(name) for name in os.listdir(folder)]
        except (OSError, ValueError):
            continue
    return list(range(3, 1024))


def _readable(text: bytes) -> int:
    """A pipe from which these few bytes can be read, once."""
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    return reading


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        return


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _take_precedence() -> None:
    """Before all that the command may start, where that is allowed: who forks for ever would
    leave no time to whoever is to end it. Children do not inherit it."""
    with contextlib.suppress(AttributeError, OSError):
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(1))


def main(control: int, report: int) -> None:
    kernel, usage, calls = _load("kernel"), _load("usage"), _load("calls")
    task = _read_task(control)
    _take_precedence()
    kernel.become_subreaper()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    watch = Watch(task, usage, control)
    command = Command(task, kernel, calls)
    told = command.setup()
    why: str | None = None
    pause = 0.005
    while not command.reap():
        why = watch.reason()
        if why is not None:
            break
        select.select([control], [], [], pause)
        pause = min(_LOOK_SECONDS, pause * 1.5)
    clean = command.kill()
    status = None if why else command.status
    remove(task["private"])
    if not command.started() and why is None:
        told["trouble"] = f"it could not be set up (status {status})"
    answer = {"status": status, "why": why, "clean": clean, **told}
    os.write(report, json.dumps(answer).encode())


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
