"""Every kind of trigger reaches whom it is for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import REPO, Rig
from towline.db import database_for
from towline.integrations.http_trigger import HttpPoster
from towline.pulls.signals import TRIGGER_KINDS, Poked, Signals, Trigger
from towline.remediation.triggers import Errand, Poker
from towline_once.errors import Rejected, Unavailable
from towline_sim.actors.builds import WorldCi
from towline_sim.actors.jenkins import Jenkins

TRIGGERS: dict[str, tuple[Poked, Trigger, str]] = {
    "native": ("merge", Trigger(kind="native"), "merge"),
    "rerun_failed": ("rebuild", Trigger(kind="rerun_failed"), "rerun_failed"),
    "rerequest_suite": ("rebuild", Trigger(kind="rerequest_suite"), "rerequest"),
    "empty_commit": ("rebuild", Trigger(kind="empty_commit"), "empty_commit"),
    "label": ("policy", Trigger(kind="label", label="again"), "toggle_label"),
    "comment": ("approver", Trigger(kind="comment", text="/approve"), "comment"),
    "status": ("policy", Trigger(kind="status", context="policy-bot"), "reemit_status"),
    "dispatch": ("sod", Trigger(kind="dispatch", event_type="sod"), "dispatch"),
    "jenkins": ("rebuild", Trigger(kind="jenkins", job="{repo}/PR-{number}"), ""),
    "http": ("merge", Trigger(kind="http"), ""),
}


async def answering(status: int, seen: list[bytes]) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().splitlines()
            if line.startswith(b"content-length")
        )
        seen.append(head.lower() + await reader.readexactly(length))
        writer.write(f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize("kind", TRIGGER_KINDS)
async def test_each_kind_of_trigger(sqlite_url: str, clock: ManualClock, kind: str) -> None:
    """One call, to the forge, to Jenkins or to an address, with what it needs."""
    database = database_for(sqlite_url, clock)
    await database.connect()
    rig = Rig(database, clock)
    jenkins = Jenkins(rig.world)
    ref = await rig.open_pull()
    rig.finish_checks(ref, conclusion="success" if kind == "native" else "failure")
    rig.say_policy(ref)
    await rig.pass_time(60)
    seen: list[bytes] = []
    server = await answering(204, seen)
    poked, trigger, call = TRIGGERS[kind]
    if kind == "http":
        port = server.sockets[0].getsockname()[1]
        trigger = Trigger(kind="http", url=f"http://127.0.0.1:{port}/merge/{{number}}")
    http = HttpPoster(["127.0.0.1"])
    poker = Poker({"github": rig.forge}, WorldCi(jenkins), http)
    sight = (await rig.forge.look([ref]))[ref]
    builds = len(jenkins.builds)
    poke = await poker.poke(Errand(ref, poked, trigger, Signals(), sight, "intent-1"))
    assert poke.done.took, poke.done
    if call:
        assert rig.forge.bill.by_name[call] >= 1
    elif kind == "jenkins":
        assert (len(jenkins.builds) - builds, bool(poke.watch)) == (1, True)
    else:
        assert b"idempotency-key: intent-1" in seen[0]
        assert f'"repo":"{REPO}"'.encode() in seen[0]
    await http.aclose()
    server.close()
    await database.aclose()


@pytest.mark.parametrize(("status", "outcome"), [(500, Unavailable), (429, Unavailable)])
async def test_an_address_that_fails_leaves_it_open(status: int, outcome: Any) -> None:
    """Whether it arrived is not known; the address is in no message."""
    server = await answering(status, [])
    port = server.sockets[0].getsockname()[1]
    http = HttpPoster(["127.0.0.1"])
    with pytest.raises(outcome) as failed:
        await http.post(f"http://127.0.0.1:{port}/s3cret", {}, "k")
    assert "s3cret" not in str(failed.value)
    await http.aclose()
    server.close()


async def test_only_hosts_that_are_named_are_called() -> None:
    """Anything else is refused before a connection is made."""
    http = HttpPoster(["ci.example"])
    with pytest.raises(Rejected, match="allowed_hosts"):
        await http.post("http://169.254.169.254/latest", {}, "k")
    await http.aclose()
