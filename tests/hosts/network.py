"""Machines made of namespaces: each has its own network, name and processes, and dies as a whole.

The first process of a machine holds its namespaces and waits for its input to end, which it does
when the test ends, in whatever way. With that process the kernel ends all others of the machine,
and then its links. Nothing of this is visible in the network of the real machine.

The machines hang on a switch in the middle, the hub. A link that is taken down there is like a
cable that is pulled: packets get lost, and neither side is told.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import psutil

T = TypeVar("T")
PATIENCE = 20.0
_SWITCH = "lan"
_SUBNET = "10.77.0"
_CLONE_NEWNET = 0x40000000
_BECOME = 'hostname "$0" && ip link set lo up && echo up && exec cat'
_TOOLS = ("ip", "unshare", "nsenter", "hostname")


class NoNamespaces(RuntimeError):
    """Machines cannot be made here; the message says why."""


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")


class Machine:
    """A name, a network and processes of its own."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        own = ["--net", "--uts", "--pid", "--fork", "--kill-child"]
        self._holder = subprocess.Popen(
            ["unshare", *own, "--", "sh", "-c", _BECOME, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "up\n":
            why = self._holder.stderr.read().strip()
            self._forget()
            raise NoNamespaces(f"no new namespaces: {why}")
        (first,) = psutil.Process(self._holder.pid).children()
        self.pid = first.pid
        self._programs: list[subprocess.Popen[bytes]] = []

    def ip(self, *words: str) -> None:
        _run(["nsenter", "--target", str(self.pid), "--net", "--", "ip", *words])

    def inside(self, work: Callable[[], T]) -> T:
        """Run something of this process in the machine's network: all its sockets are there.

        So are those of the threads and processes that it starts.
        """
        done: Future[T] = Future()

        def enter() -> None:
            try:
                _enter_network(self.pid)
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=enter, name=f"on {self.name}", daemon=True).start()
        return done.result()

    def start(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        """A process of this machine, which ends with it at the latest."""
        where = ["--target", str(self.pid), "--net", "--uts", "--pid"]
        with log.open("ab") as said:
            program = subprocess.Popen(
                ["nsenter", *where, "--", *command],
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self._programs.append(program)

    @property
    def running(self) -> bool:
        """Whether none of its programs has ended."""
        return all(program.poll() is None for program in self._programs)

    def kill(self) -> None:
        """As a machine whose power fails: all its processes at once, and no handler runs."""
        if self._holder.poll() is None:
            psutil.Process(self.pid).kill()
        for program in self._programs:
            program.wait(PATIENCE)
        self._forget()

    def _forget(self) -> None:
        self._holder.wait(PATIENCE)
        for stream in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if stream is not None:
                stream.close()


def _enter_network(pid: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open("rb") as network:
        if library.setns(network.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "cannot enter the network of a machine")


class Network:
    """The hub, and machines by name."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.machines: dict[str, Machine] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """`NoNamespaces` where this cannot be done."""
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise NoNamespaces(f"not installed: {', '.join(missing)}")
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _build(self) -> None:
        self.hub = self._machine("hub", f"{_SUBNET}.1")
        self.hub.ip("link", "add", _SWITCH, "type", "bridge")
        self.hub.ip("address", "add", f"{self.hub.address}/24", "dev", _SWITCH)
        self.hub.ip("link", "set", _SWITCH, "up")
        for place, name in enumerate(self._names, 11):
            machine = self._machine(name, f"{_SUBNET}.{place}")
            peer = ["peer", "name", "eth0", "netns", str(machine.pid)]
            self.hub.ip("link", "add", _port(name), "type", "veth", *peer)
            self.hub.ip("link", "set", _port(name), "master", _SWITCH, "up")
            machine.ip("address", "add", f"{machine.address}/24", "dev", "eth0")
            machine.ip("link", "set", "eth0", "up")
            self.machines[name] = machine

    def _machine(self, name: str, address: str) -> Machine:
        machine = Machine(name, address)
        self._stack.callback(machine.kill)
        return machine

    def cut_off(self, name: str) -> None:
        self.hub.ip("link", "set", _port(name), "down")

    def rejoin(self, name: str) -> None:
        self.hub.ip("link", "set", _port(name), "up")

    def kill(self, name: str) -> None:
        """The link first, so that no last packet tells of it."""
        self.cut_off(name)
        self.machines[name].kill()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _port(name: str) -> str:
    """As an interface's name may have fifteen characters."""
    return f"to-{name}"[:15]
