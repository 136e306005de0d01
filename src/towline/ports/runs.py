"""Fix runs: one for each failure event, get-or-create, with every stage that ended."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias

from towline.core.fixrun import Beside, Errand, RunRecord, RunState, StageRecord
from towline.core.throttle import Rates
from towline.ports.jobs import NewJob
from towline.ports.pruning import Pruned

Intended: TypeAlias = Literal["written", "superseded", "beaten"]
"""`superseded` by another attempt of the run; `beaten` by another run for the same thing."""


class RunStore(Protocol):
    async def get_or_create(
        self,
        run_key: str,
        event_id: str,
        errand: Errand,
        branch: str,
        job: NewJob,
        rates: Rates | None = None,
    ) -> tuple[RunRecord, bool]:
        """The run, and whether it is new; its job is queued in the same transaction, once.

        The job starts when the turn of the run comes. The inbox has taken its place already, if
        an event starts it and the rate counts it; with `rates` a new run takes its place here.
        """
        ...

    async def read(self, run_key: str) -> RunRecord | None: ...

    async def begin(
        self, run_key: str, max_attempts: int, job_id: str = "", seen: int | None = None
    ) -> RunRecord | None:
        """Count an attempt and give it a new token; None if it may not begin.

        With its attempts used up it becomes blocked, by `max_attempts`. `job_id` is that of the
        job that makes the attempt. With `seen`, the token with which the run was read, nothing
        is done if it has another one by now: of those who saw the same run, one begins.
        """
        ...

    async def record(self, run_key: str, token: int, stage: StageRecord) -> bool:
        """Write down how a stage ended; False if another attempt has taken over."""
        ...

    async def intend(
        self, run: RunRecord, token: int, stage: StageRecord, beside: Beside
    ) -> Intended:
        """Write down what is about to be opened, unless one beside it is not as it was seen."""
        ...

    async def finish(
        self,
        run_key: str,
        token: int,
        state: RunState,
        blocked_reason: str | None = None,
        *,
        counted: bool = True,
    ) -> bool:
        """End an attempt; False if another one has taken over.

        One that is not `counted` is given back: the run has as many left as before it began.
        """
        ...

    async def opened(self, run_key: str, token: int, number: int, url: str) -> bool:
        """Note the pull request, which a run has once; the first one stays."""
        ...

    async def unblock(self, run_key: str, by: str, job: NewJob) -> RunRecord | None:
        """Let a blocked run begin anew, with fresh attempts; None if there is no such run.

        Of its stages nothing is kept but what it was about to open, which may be there.
        """
        ...

    async def beside(self, errand: Errand, but: str) -> Beside:
        """Who else has proposed the same or was about to, and what time it is in the store."""
        ...

    async def stranded(self, most: int, idle_us: int, dead_us: int) -> list[RunRecord]:
        """Live ones to which nothing has happened for so long that nobody can be at work.

        `dead_us`, the shorter time, is for those whose last attempt's job has died.
        """
        ...

    async def listing(
        self, repo: str | None, state: RunState | None, before: str, most: int
    ) -> list[RunRecord]:
        """The newest first, without the logs of their stages."""
        ...

    async def prune(self, most: int, keep_us: int) -> Pruned: ...

    async def forget_places(self, most: int, keep_us: int) -> Pruned:
        """Delete the places of runs whose turn came that long ago."""
        ...
