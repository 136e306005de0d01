"""A person is told once, with everything that matters, also after a crash."""

from __future__ import annotations

import pytest

from tests.clocks import ManualClock
from tests.reconciler.tow_rig import REPO, Rig
from towline.forges.snapshot import PullRef
from towline.integrations.notify import AppriseNotifier
from towline.jobs.model import OWN_QUEUE, Wish
from towline_once.db.statement import Database
from towline_once.errors import MissingExtra, Rejected, Unavailable

MINUTES = 60.0
TEST_LOG = "E   AssertionError: assert 1 == 2\n=== 1 failed, 12 passed in 3.2s ===\n"


@pytest.fixture
async def rig(database: Database, clock: ManualClock) -> Rig:
    return Rig(database, clock)


async def escalated(rig: Rig) -> PullRef:
    ref = await rig.open_pull()
    rig.finish_checks(ref, conclusion="failure", log=TEST_LOG)
    await rig.pass_time(31 * MINUTES)
    assert (await rig.sweep()).escalated == 1
    return ref


async def test_the_message_has_all_that_the_specification_asks_for(rig: Rig) -> None:
    """Link, repository, vulnerability, reason, attempts and history, also as a comment."""
    ref = await escalated(rig)
    await rig.work()
    [(title, text)] = rig.told.messages
    for part in (
        f"https://forge.example/{REPO}/pull/{ref.number}",
        f"Repository: {REPO}",
        "Vulnerability: CVE-2024-10001",
        "Reason: likely a real problem of the code",
        "Attempts:\n- none",
        "CHECKS_FAILED",
    ):
        assert part in text
    assert title.startswith(f"{REPO}#{ref.number} needs a person")
    assert "needs a person" in rig.world.comments(REPO, ref.number)[-1].body
    assert "ESCALATION_SENT" in await rig.types(ref)


async def test_a_crash_after_the_mark_sends_nothing_again(rig: Rig) -> None:
    """The job runs again and finds that it was told."""
    ref = await escalated(rig)
    [job] = await rig.jobs.claim(Wish((OWN_QUEUE,), "w", 10, 60_000_000, 10))
    await rig.escalations.escalate(job)
    again = await rig.escalations.escalate(job)
    assert (again["told"], len(rig.told.messages)) == (False, 1)
    assert len(rig.world.comments(REPO, ref.number)) == 1


async def test_a_notifier_that_is_away_is_tried_again(rig: Rig) -> None:
    """Nothing counts as told until somebody was; the comment is not repeated."""
    ref = await escalated(rig)
    [job] = await rig.jobs.claim(Wish((OWN_QUEUE,), "w", 10, 60_000_000, 10))
    rig.told.away = Unavailable("not now")
    with pytest.raises(Unavailable):
        await rig.escalations.escalate(job)
    rig.told.away = None
    assert (await rig.escalations.escalate(job))["told"]
    assert len(rig.told.messages) == 1
    assert len(rig.world.comments(REPO, ref.number)) == 1


async def test_what_was_resolved_in_the_meantime_calls_nobody(rig: Rig) -> None:
    """Closed by a person before the job ran."""
    ref = await escalated(rig)
    rig.world.set_permission(REPO, "octocat", "write")
    rig.world.edit_pull(REPO, ref.number, "octocat", state="closed")
    await rig.pass_time(5)
    await rig.work()
    assert rig.told.messages == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise's, when it loads its plugins
async def test_apprise_says_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """A bad address, and one that nobody answers at: the address is in no message."""
    secret = "s3cr3t-token"
    with pytest.raises(Rejected) as bad:
        AppriseNotifier([f"nosuchscheme://{secret}"])
    notifier = AppriseNotifier([f"json://user:{secret}@127.0.0.1:9/"], deadline_seconds=10)
    with pytest.raises(Unavailable) as away:
        await notifier.notify("title", "text")
    assert secret not in f"{bad.value} {away.value} {notifier!r} {caplog.text}"
    assert issubclass(MissingExtra, Rejected)
