"""Commands that could not be carried out: who gave one is told so once, where it was given.

The job of a command has more attempts than the command has tries. Those that are left over are
for telling, so no other task has to look after it: a worker that dies at any line, or a reaper that
takes the job back, only brings the next attempt on. The event stands in the log for the admin API
and the dashboard, and the comment is for those who commented; each is made once for its key. When
all attempts are used up, hours later, the job is a dead letter like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from towline.commands.routing import Answers, Routed, order_id, why_marker, written_by
from towline.forges.snapshot import PullRef
from towline.jobs.model import Claimed
from towline.jobs.store import JobStore
from towline.pulls.command_rules import STRATEGY_OF
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.store import Change, PullStore, whole_log
from towline.remediation.strategies import OUTCOME
from towline.slash_commands import Command

FAILED: Final = "COMMAND_FAILED"
MOST_TRIES: Final = 6
"""With the usual pauses between them, an outage of a quarter of an hour is outlived."""
MOST_ATTEMPTS: Final = 30

_UNSETTLED: Final = "its workers died or were cut off"


def is_given_up(job: Claimed) -> bool:
    """Whether this attempt is one of those that only tell."""
    return job.attempts > MOST_TRIES


class Failures:
    def __init__(self, store: PullStore, jobs: JobStore, answers: Answers) -> None:
        self._store = store
        self._jobs = jobs
        self._answers = answers

    async def last_error(self, job: Claimed) -> str:
        record = await self._jobs.read(job.id)
        return (record.error if record is not None else None) or _UNSETTLED

    async def tell(
        self, job: Claimed, command: Command, params: Mapping[str, Any], error: str
    ) -> Routed | None:
        """What came of it after all, in an attempt that died later; None: it is told as failed."""
        record = await self._store.read(str(params["repo"]), int(params["number"]))
        if record is None:
            return Routed("refused", "it is no longer under tow")
        ref = record.ref
        came = came_of(command, params, record, await whole_log(self._store, ref))
        if came is not None:
            if not came.took:
                await self._answers.tell(ref, params, f"{command}: {came.detail}")
            return came
        await self._store.change(ref, _failing(command, params, error))
        await self._comment(ref, job, command, params)
        return None

    async def _comment(
        self, ref: PullRef, job: Claimed, command: Command, params: Mapping[str, Any]
    ) -> None:
        """The error stays in the log and the job: a comment may be read by anybody."""
        text = (
            f"@{params['requested_by']} `{command}` could not be carried out, and is not tried "
            f"again by itself. The job `{job.id}` says what went wrong; when that is over, give "
            "the command again."
        )
        marker = why_marker(params) if command == "/why" else None
        await self._answers.tell(ref, params, text, marker)


def came_of(
    command: Command, params: Mapping[str, Any], record: PullRecord, events: list[PullEvent]
) -> Routed | None:
    """What the log knows of it; the answer to `/why` is known at the forge alone, by its mark."""
    if command == "/cancel" and record.state in TERMINAL:
        return Routed("done", f"it is {record.state}")
    if command not in STRATEGY_OF:
        return None
    order = order_id(params)
    if record.intent is not None and record.intent.id == order:
        return Routed("pending", "it was begun and is being looked after")
    for event in reversed(events):
        if event.event_type == OUTCOME and event.payload.get("intent") == order:
            return Routed(str(event.payload["outcome"]), str(event.payload.get("detail", "")))
    return None


def _failing(
    command: Command, params: Mapping[str, Any], error: str
) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None:
            return None
        payload = {
            "command": command,
            "source": params["source"],
            "requested_by": params["requested_by"],
            "reason": error[:500],
        }
        key = f"failed command {params['root']}"
        return Change(record, [PullEvent(FAILED, written_by(params), now_us, payload, key=key)])

    return decide
