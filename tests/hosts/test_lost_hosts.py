"""Three machines behind a balancer: one is cut off, another loses its power, under load."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.ledger import all_done, answered_well
from tests.e2e.senders import Parcel
from tests.hosts.fleet import LEASE_SECONDS, STORE_SECONDS, Fleet, fleet_on
from tests.hosts.ledger import TakenOver
from tests.hosts.load import openings
from tests.hosts.network import Network
from tests.hosts.scene import CUT_OFF, KILLED, STAYS, Lateness, Scene, Times, load_on, scene_of

REAPER_SECONDS = 1.0
LEADER_SECONDS = 15.0
SLACK_SECONDS = 3.0
TOLD_AGAIN_SECONDS = 30.0
"""After which a job is told of again whose message died with a machine."""
DELIVERIES = 500
_log = logging.getLogger("tests.hosts")


class Seen(NamedTuple):
    times: Times
    lateness: Lateness
    states: dict[str, int]
    untold: int
    failures: int
    """Of doors, as the balancer saw them."""
    stale: int
    """Results that the worker which was cut off had kept, and that were refused."""
    longest_wait: float
    led_after: float
    """From the loss of the leader's machine until there was another leader."""
    oldest_transaction: float
    sessions_of_the_dead: int
    taken_over: list[TakenOver]
    ends: dict[str, int]
    opened: dict[tuple[str, int], int]

    def recovery(self, host: str) -> float:
        """From the loss of a machine until the last of its jobs was begun elsewhere."""
        lost_at = self.times.cut_off if host == CUT_OFF else self.times.killed
        begun = [one.begun_at or 0.0 for one in self.taken_over if one.host == host]
        return max(begun) - lost_at

    def in_short(self) -> str:
        measured = "; ".join(
            f"{host}: {[one.host for one in self.taken_over].count(host)} jobs in hand, "
            f"the last begun elsewhere after {self.recovery(host):.1f} s"
            for host in (CUT_OFF, KILLED)
        )
        return (
            f"{measured}; another leader after {self.led_after:.1f} s, longest wait of a job "
            f"{self.longest_wait:.1f} s, oldest transaction {self.oldest_transaction:.1f} s; "
            f"{self.untold} deliveries taken and not told so; {self.failures} failures of doors; "
            f"{self.stale} stale results"
        )


async def play(fleet: Fleet, unique: list[Parcel]) -> Seen:
    async with scene_of(fleet) as scene:
        try:
            return await _play(scene, unique)
        except BaseException as error:
            error.add_note(fleet.last_words())
            raise


async def _play(scene: Scene, unique: list[Parcel]) -> Seen:
    await scene.gather()
    async with load_on(scene, unique) as drip:
        await scene.all_work()
        times, lateness = await scene.play(drip)
    states = await all_done(scene.fleet.database_url, unique)
    ledger = scene.ledger
    return Seen(
        times,
        lateness,
        states,
        answered_well(scene.crowd, unique),
        scene.balancer.failures,
        scene.fleet.said(CUT_OFF, "worker").count('"job_stale"'),
        await ledger.longest_wait(),
        scene.fleet.led_at(STAYS) - times.cut_off,
        scene.oldest_transaction,
        await ledger.sessions(scene.fleet.network.machines[KILLED].address),
        await ledger.taken_over(),
        await ledger.ends(),
        await ledger.opened(),
    )


def on_machines(network: Network, folder: Path, unique: list[Parcel]) -> Seen:
    def at_the_hub() -> Seen:
        with fleet_on(network, folder) as fleet:
            return asyncio.run(play(fleet, unique))

    return network.hub.inside(at_the_hub)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_machine_cut_off_and_another_killed(network: Network, tmp_path: Path) -> None:
    """Nothing is lost, nothing is done twice, and others have their work within one lease."""
    unique = openings(DELIVERIES)
    seen = on_machines(network, tmp_path, unique)
    _log.info("%s", seen.in_short())
    assert seen.states == {"done": DELIVERIES}
    assert set(seen.ends.values()) == {1}
    assert len(seen.opened) == DELIVERIES
    assert set(seen.opened.values()) == {1}
    assert seen.failures > 0
    assert seen.lateness == Lateness(in_time=200, late=409)
    assert seen.oldest_transaction < 2 * STORE_SECONDS + SLACK_SECONDS
    assert seen.led_after < LEADER_SECONDS + SLACK_SECONDS
    assert seen.sessions_of_the_dead == 0
    for host in (CUT_OFF, KILLED):
        assert seen.recovery(host) < LEASE_SECONDS + REAPER_SECONDS + SLACK_SECONDS
    assert seen.longest_wait < TOLD_AGAIN_SECONDS + REAPER_SECONDS + SLACK_SECONDS
