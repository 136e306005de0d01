"""What `towline command` and `towline reconcile` do with the tow's own parts, and what they say."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.pulls.tow_plane import TowPlane, tow_plane_on
from towline.cli.command import ordered_at
from towline.cli.reconcile import show, swept_by
from towline_once.errors import Conflict, Rejected, Transient


@pytest.fixture
async def plane(sqlite_url: str) -> AsyncIterator[TowPlane]:
    """The tow over a simulated world."""
    async with tow_plane_on(sqlite_url) as opened:
        yield opened


async def test_a_command_is_queued_for_a_worker(plane: TowPlane) -> None:
    """By a bare name, too; the job says who ordered it and from where."""
    await plane.tow("octo-org/app", 7, state="CHECKS_FAILED")
    told = await ordered_at(plane.pulls, plane.bridge, "app#7", "/rebuild")
    assert (told["repo"], told["number"], told["command"]) == ("octo-org/app", 7, "/rebuild")
    job = await plane.jobs.read(told["job_id"])
    assert job is not None
    params = json.loads(job.params or "")
    assert (params["source"], params["requested_by"][:3]) == ("admin-api", "cli")


@pytest.mark.parametrize(
    ("ref", "order", "kind", "complaint"),
    [
        ("octo-org/app#7", "/explode", Rejected, "no command '/explode'; there are /rebuild"),
        ("octo-org/app#8", "/rebuild", Rejected, "octo-org/app#8 is not under tow"),
        ("octo-org/app#7", "/rebuild", Conflict, "/rebuild does nothing in state MERGED"),
        ("nonsense", "/rebuild", Rejected, "written OWNER/NAME#NUMBER"),
    ],
)
async def test_refused_commands(
    plane: TowPlane, ref: str, order: str, kind: type[Exception], complaint: str
) -> None:
    """One line that says why, and nothing is queued."""
    await plane.tow("octo-org/app", 7, state="MERGED")
    with pytest.raises(kind, match=complaint) as caught:
        await ordered_at(plane.pulls, plane.bridge, ref, order)
    assert "\n" not in str(caught.value)
    assert plane.rings == []


async def test_a_sweep_says_what_it_did(
    plane: TowPlane, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each decision, and the counts; as JSON the whole report."""
    ref = await plane.rig.open_pull()
    plane.rig.finish_checks(ref, conclusion="failure", log="java.net.SocketTimeoutException\n")
    await plane.rig.pass_time(31 * 60)
    report = await swept_by(plane.rig.reconciler, dry_run=True)
    show(report, as_json=False)
    said = capsys.readouterr()
    assert f"{ref}  CHECKS_FAILED  RETRY_CHECKS" in said.out
    assert "1 stale, 1 looked" in said.err
    show(report, as_json=True)
    assert json.loads(capsys.readouterr().out) == report
    assert report["dry_run"] is True


async def test_a_sweep_that_ended_early_is_a_failure(plane: TowPlane) -> None:
    """What was done is shown, and the exit is not zero."""
    report = await swept_by(plane.rig.reconciler, dry_run=True)
    with pytest.raises(Transient, match="ended early: the forge is away"):
        show({**report, "trouble": "the forge is away"}, as_json=False)
