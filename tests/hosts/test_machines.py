"""The machines that the tests are made on: they fail as machines do, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.hosts.balancer import Balancer
from tests.hosts.network import Network, NoNamespaces
from tests.hosts.scene import CUT_OFF, KILLED

SECONDS = 20.0
MOMENT = 0.3


def connected(network: Network, name: str) -> tuple[socket.socket, socket.socket]:
    """The ends of a connection, at a machine and at the hub."""
    address = (network.hub.address, 9000)
    with network.hub.inside(lambda: socket.create_server(address)) as listening:
        machine = network.machines[name]
        theirs = machine.inside(lambda: socket.create_connection(address, timeout=SECONDS))
        ours, _ = listening.accept()
    ours.settimeout(SECONDS)
    return theirs, ours


def test_a_cut_is_silent(network: Network) -> None:
    """Neither side is told; what was said meanwhile arrives when the link is back."""
    theirs, ours = connected(network, CUT_OFF)
    with theirs, ours:
        theirs.sendall(b"before")
        assert ours.recv(99) == b"before"
        network.cut_off(CUT_OFF)
        theirs.sendall(b"meanwhile")
        ours.settimeout(MOMENT)
        with pytest.raises(TimeoutError):
            ours.recv(99)
        network.rejoin(CUT_OFF)
        ours.settimeout(SECONDS)
        assert ours.recv(99) == b"meanwhile"


def test_a_killed_machine_is_silent_and_takes_its_processes_along(
    network: Network, tmp_path: Path
) -> None:
    """Those that its processes started as well; nobody hears of it."""
    machine = network.machines[KILLED]
    theirs, ours = connected(network, KILLED)
    with theirs, ours:
        machine.start(["sh", "-c", "sleep 600 & sleep 600"], {}, tmp_path, tmp_path / "log")
        first = psutil.Process(machine.pid)
        ends = time.monotonic() + SECONDS
        while len(sleepers := _sleepers(tmp_path)) < 2:
            assert time.monotonic() < ends
        network.kill(KILLED)
        assert psutil.wait_procs([first, *sleepers], SECONDS)[1] == []
        ours.settimeout(MOMENT)
        with pytest.raises(TimeoutError):
            ours.recv(99)


def _sleepers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() == "sleep" and process.cwd() == str(folder):
                found.append(process)
    return found


def test_nothing_is_left_of_them() -> None:
    """Also when what was done on them failed."""
    pids = []
    try:
        with Network("oak") as network:
            pids = [network.hub.pid, network.machines["oak"].pid]
            raise ZeroDivisionError
    except NoNamespaces as why:
        pytest.skip(f"machines cannot be made of namespaces here: {why}")
    except ZeroDivisionError:
        assert len(pids) == 2
        assert not any(map(psutil.pid_exists, pids))


def test_without_the_tools_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is then skipped for a reason that can be read."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoNamespaces, match="not installed: ip, unshare, nsenter, hostname"):
        Network("oak").__enter__()


async def test_the_balancer_passes_over_who_is_away_or_silent() -> None:
    """A door that refuses is not noticed; a silent one is asked once, and then left alone."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(99):
            writer.write(b"here")
        writer.close()

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"who is there?")
        said = await asyncio.wait_for(reader.read(99), SECONDS)
        writer.close()
        return said

    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as answering:
            doors = [one.getsockname() for one in (refusing, silent, answering.sockets[0])]
            async with Balancer(doors) as balancer:
                said = [await ask(balancer.port) for _ in range(6)]
    assert said.count(b"") == 1
    assert said.count(b"here") == 5
