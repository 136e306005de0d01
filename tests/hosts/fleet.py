"""A fleet on machines of its own: servers at the hub, `serve` and `worker` on each machine.

All of this is called in the network of the hub.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.e2e.ledger import settings_for
from tests.hosts.network import Machine, Network
from tests.servers import PostgresServer, RedisServer

ROOT = Path(__file__).resolve().parents[2]
LEASE_SECONDS = 20.0
STORE_SECONDS = 5.0
PATIENCE = 60.0
PORT = 8788
API_KEY = "hosts-" + "k" * 26
AUTHOR = "dependabot[bot]"
_TRUST = "host all all 10.77.0.0/24 trust\n"


class HubPostgres(PostgresServer):
    """Lets the machines in, as well as this one."""

    def __init__(self, address: str) -> None:
        super().__init__([f"listen_addresses={self_and(address)}"])
        self.host = address

    def _make_cluster(self) -> None:
        super()._make_cluster()
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(_TRUST)


class HubRedis(RedisServer):
    def __init__(self, address: str) -> None:
        super().__init__(["--bind", address, "--protected-mode", "no"])
        self.host = address


def self_and(address: str) -> str:
    return f"127.0.0.1,{address}"


class Fleet:
    def __init__(self, network: Network, folder: Path, database_url: str, redis_url: str) -> None:
        self.network = network
        self.database_url = database_url
        self._folder = folder
        self._settings = _settings(database_url, redis_url, network.hub.address)

    def doors(self) -> list[tuple[str, int]]:
        return [(machine.address, PORT) for machine in self.network.machines.values()]

    def start(self, name: str, command: str) -> None:
        machine = self.network.machines[name]
        arguments = ["--host", machine.address, "--port", str(PORT)] if command == "serve" else []
        machine.start(
            [sys.executable, "-m", "towline", command, *arguments],
            self._settings,
            self._folder,
            self._log(machine, command),
        )

    def _log(self, machine: Machine, command: str) -> Path:
        return self._folder / f"{machine.name}-{command}.log"

    def said(self, name: str, command: str) -> str:
        return self._log(self.network.machines[name], command).read_text(errors="replace")

    def led_at(self, name: str) -> float:
        """When one of a machine's processes first became the leader, by its log."""
        said = "".join(self.said(name, command) for command in ("serve", "worker"))
        found = [json.loads(line) for line in said.splitlines() if '"leading"' in line]
        return min(datetime.fromisoformat(line["at"]).timestamp() for line in found)

    def last_words(self) -> str:
        """The ends of all logs, for a test that failed."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"{log.stem}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


def _settings(database_url: str, redis_url: str, door: str) -> dict[str, str]:
    return settings_for(database_url) | {
        "PYTHONPATH": str(ROOT / "src"),
        "TOWLINE_LOG__LEVEL": "info",
        "TOWLINE_SERVE__ALLOWED_HOSTS": door,
        "TOWLINE_ENGINE": "celery",
        "TOWLINE_REDIS_URL": redis_url,
        "TOWLINE_STORE_TIMEOUT_SECONDS": str(STORE_SECONDS),
        "TOWLINE_WORKER__LEASE_SECONDS": str(LEASE_SECONDS),
        "TOWLINE_PIPELINE__BASE_BACKOFF_SECONDS": "0.5",
        "TOWLINE_PIPELINE__MAX_BACKOFF_SECONDS": "2",
        "TOWLINE_TOW__AUTHORS": json.dumps([AUTHOR]),
        "TOWLINE_API_KEYS__TESTS__KEY": API_KEY,
        "TOWLINE_API_KEYS__TESTS__SCOPES": json.dumps(["admin"]),
    }


@contextmanager
def fleet_on(network: Network, folder: Path) -> Iterator[Fleet]:
    """The servers run; the processes of Towline are to be started."""
    address = network.hub.address
    with HubPostgres(address) as postgres, HubRedis(address) as redis:
        yield Fleet(network, folder, postgres.create_database("fleet"), redis.url)


async def until(
    question: Callable[[], Awaitable[object]], what: str, patience: float = PATIENCE
) -> None:
    """Until the answer is yes."""
    ends = time.monotonic() + patience
    while not await question():
        assert time.monotonic() < ends, f"in vain: {what}"
        await asyncio.sleep(0.03)
