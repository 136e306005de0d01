"""A fix run's job: gates ▸ lock ▸ attempt ▸ PLAN ▸ PATCH ▸ SAFETY ▸ SCANS ▸ VALIDATION ▸ PR.

A stage that passed with the same input is not repeated, by this attempt or by a later one. The
patch is kept as a diff and applied to a fresh workspace for the checks, and to another one for the
commit: what the fixer or the tests leave lying about is never part of it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from towline.fix import metrics
from towline.fix.attempt import Attempt, Locks, StageEnd, StageRunner, held
from towline.fix.model import (
    ALREADY_PROPOSED,
    WARNING,
    FixPolicy,
    FixRules,
    RunRecord,
    RunState,
    Stage,
    StageRecord,
    comes_first,
    cooling_us,
    digest_of,
)
from towline.fix.plan import adopt_plan, diff_in
from towline.fix.publish import Publishing, intended, is_under_way
from towline.fix.starter import FixStarter, about, run_job
from towline.fix.store import RunStore
from towline.git.workspace import BranchMoved, Repositories
from towline.jobs.model import Claimed
from towline.jobs.store import JobStore
from towline.sandbox.base import Sandbox
from towline_once.errors import Definitive, LeaseLost, LockTimeout, NotIsolated, Rejected, Transient
from towline_once.ports import Clock

PIPELINE_SECONDS: Final = 1200.0
_LOOK_AGAIN_US: Final = 60_000_000
_MOST_ROUNDS: Final = 6
_CHECKS: Final[tuple[Stage, ...]] = ("SAFETY", "SCANS", "VALIDATION")
_RUN_CODE: Final[frozenset[Stage]] = frozenset({"PATCH", "SCANS", "VALIDATION"})
_STRANDED_US: Final = 3_600_000_000
_DEAD_US: Final = 300_000_000
"""With the job of its last attempt dead no worker is at work, but a late call may be on its way."""
_AT_A_TIME: Final = 100
_ELSEWHERE: Final = "another attempt of this run has taken over"
_log = logging.getLogger("towline.fix")


@dataclass(frozen=True, kw_only=True)
class FixParts:
    """What an attempt works with."""

    runs: RunStore
    jobs: JobStore
    repositories: Repositories
    sandbox: Sandbox
    locks: Locks
    clock: Clock
    stages: Mapping[Stage, StageRunner]
    """All but PR."""
    publishing: Publishing


class FixHandler:
    """For jobs of kind `fix`: those of runs, and those with which the tow asks for one."""

    def __init__(self, parts: FixParts, starter: FixStarter, rules: FixRules) -> None:
        self._parts = parts
        self._runs = parts.runs
        self._starter = starter
        self._rules = rules

    async def __call__(self, job: Claimed) -> dict[str, Any]:
        params = _params(job)
        run_key = params.get("run_key")
        if run_key is None:
            started = await self._starter.replace(params, job.id)
            if started is None:
                raise Definitive("the job says neither which run it is for nor what it replaces")
            return started
        run = await self._runs.read(str(run_key))
        if run is None:
            raise Definitive(f"there is no run {str(run_key)[:80]}")
        result = await self._gated(run, job)
        _log.info("run_%s", result["status"], extra=about(run) | {"job_id": job.id} | result)
        return {"run_key": run.run_key, "run_id": run.run_id, **result}

    async def revive(self) -> int:
        """Give a new job to runs whose job has died; without attempts left, they are blocked."""
        stranded = await self._runs.stranded(_AT_A_TIME, _STRANDED_US, _DEAD_US)
        for run in stranded:
            policy = self._rules.repos.get(run.errand.repo)
            most = policy.max_attempts if policy is not None else 1
            if policy is not None and run.attempt_count >= most:
                await self._runs.begin(run.run_key, most, seen=run.token)
                metrics.LOOP_BLOCKED.inc()
                _log.warning("run_blocked", extra=about(run) | {"reason": "max_attempts"})
                continue
            again = run_job(
                run.run_key, run.errand.repo, run.updated_us, most, salt=f"revived {run.token}"
            )
            await self._parts.jobs.enqueue(again)
        return len(stranded)

    # ------------------------------------------------------------------ gates

    async def _gated(self, run: RunRecord, job: Claimed) -> dict[str, Any]:
        if run.state == "blocked":
            metrics.LOOP_BLOCKED.inc()
            return {"status": "blocked", "reason": run.blocked_reason}
        if run.state == "done":
            metrics.SKIPPED.inc()
            return {"status": "done", "url": run.last_pr_url, "reason": run.blocked_reason}
        policy = self._rules.repos.get(run.errand.repo)
        if policy is None:
            return await self._outside(run, job)
        wait_us = await self._cooling(run, job, policy)
        if wait_us > 0:
            metrics.LOOP_BLOCKED.inc()
            await self._again(run, job, wait_us)
            return {"status": "cooldown", "retry_after": wait_us / 1e6}
        takes_over = _was_here_before(run, job)
        key = f"pipeline:{run.run_key}"
        try:
            async with held(self._parts.locks, key, PIPELINE_SECONDS, takes_over=takes_over):
                return await self._attempt(run, job, policy, takes_over)
        except LockTimeout:
            return await self._skipped(run, job)
        except Transient as trouble:
            if job.attempts < job.max_attempts:
                raise
            await self._again(run, job, round(policy.cooldown_seconds * 1e6))
            return {"status": "waiting", "reason": str(trouble)}

    async def _outside(self, run: RunRecord, job: Claimed) -> dict[str, Any]:
        """Its repository is not one to be fixed, or not any more."""
        begun = await self._runs.begin(run.run_key, run.attempt_count + 1, seen=run.token)
        if begun is None:
            return await self._not_begun(run, job)
        reason = f"{run.errand.repo} is not in fix.repos"
        await self._end(begun, begun.token, "blocked", reason)
        return {"status": "blocked", "reason": reason, "attempt_count": begun.attempt_count}

    async def _cooling(self, run: RunRecord, job: Claimed, policy: FixPolicy) -> int:
        """Another job tried just now, or another run has proposed the same or is about to.

        Times that the store wrote are compared with the store's.
        """
        beside = await self._runs.beside(run.errand, run.run_key)
        last_us = run.last_attempt_us if run.last_job != job.id else None
        twin = beside.proposed
        if twin is not None and twin.last_pr_number == run.errand.replaces:
            twin = None
        proposed_us = twin.last_pr_created_us if twin is not None else None
        waits = [
            cooling_us(us, beside.now_us, policy.cooldown_seconds) for us in (last_us, proposed_us)
        ]
        awaited = any(comes_first(one, run) for one in beside.runs)
        return max(*waits, _LOOK_AGAIN_US if awaited else 0)

    async def _skipped(self, run: RunRecord, job: Claimed) -> dict[str, Any]:
        metrics.SKIPPED.inc()
        await self._again(run, job, _LOOK_AGAIN_US)
        return {"status": "skipped_already_running"}

    async def _again(self, run: RunRecord, job: Claimed, delay_us: int) -> None:
        """A job for later. However often this one is repeated, it leaves one behind."""
        later = run_job(
            run.run_key,
            run.errand.repo,
            job.created_us,
            job.max_attempts,
            salt=f"after {job.id}",
            delay_us=delay_us,
        )
        await self._parts.jobs.enqueue(later)

    # ------------------------------------------------------------------ an attempt

    async def _attempt(
        self, known: RunRecord, job: Claimed, policy: FixPolicy, takes_over: bool
    ) -> dict[str, Any]:
        run = await self._runs.begin(known.run_key, policy.max_attempts, job.id, known.token)
        if run is None:
            return await self._not_begun(known, job)
        attempt = Attempt(
            run=run,
            token=run.token,
            errand=run.errand,
            policy=policy,
            sandbox=self._parts.sandbox,
            takes_over=takes_over,
        )
        try:
            stage, end = await self._through(attempt)
        except (LeaseLost, LockTimeout):
            raise
        except NotIsolated as refusal:
            reason = f"{refusal}; then unblock the run"
            await self._end(attempt.run, attempt.token, "blocked", reason, counted=False)
            return {"status": "blocked", "reason": reason}
        except (Transient, TimeoutError, OSError) as trouble:
            return await self._troubled(attempt, trouble)
        except Exception as broken:
            reason = f"an unexpected error: {type(broken).__name__}"
            await self._end(attempt.run, attempt.token, "blocked", reason)
            raise
        count = {"attempt_count": attempt.run.attempt_count}
        if end.outcome == "passed":
            await self._end(attempt.run, attempt.token, "done", None)
            return {"status": "done", "url": end.output.get("url"), "reason": end.reason, **count}
        state: RunState = "done" if end.reason.startswith(ALREADY_PROPOSED) else "blocked"
        reason = f"{stage}: {end.reason}"
        await self._end(attempt.run, attempt.token, state, reason)
        return {"status": state, "reason": reason, "stage": stage, **count}

    async def _not_begun(self, known: RunRecord, job: Claimed) -> dict[str, Any]:
        """It has ended, or another worker that saw the same run has begun."""
        run = await self._runs.read(known.run_key) or known
        if run.live and run.last_job == job.id:
            raise Transient("this job has begun already, and was not told")
        if run.live:
            return await self._skipped(run, job)
        metrics.LOOP_BLOCKED.inc()
        count = {"attempt_count": run.attempt_count}
        return {"status": run.state, "reason": run.blocked_reason, **count}

    async def _troubled(self, attempt: Attempt, trouble: Exception) -> dict[str, Any]:
        """Tried again by the job's backoff, as often as the run may."""
        run = attempt.run
        if run.attempt_count >= attempt.policy.max_attempts:
            metrics.LOOP_BLOCKED.inc()
            await self._end(run, attempt.token, "blocked", "max_attempts")
            count = {"attempt_count": run.attempt_count}
            return {"status": "blocked", "reason": "max_attempts", "error": str(trouble), **count}
        if not await self._runs.finish(run.run_key, attempt.token, "waiting"):
            raise LeaseLost(_ELSEWHERE)
        raise Transient(str(trouble)) from trouble

    async def _end(
        self, run: RunRecord, token: int, state: Any, reason: str | None, *, counted: bool = True
    ) -> None:
        if not await self._runs.finish(run.run_key, token, state, reason, counted=counted):
            raise LeaseLost(_ELSEWHERE)
        already = state == "done" and reason is not None
        metrics.ENDED.labels("already_proposed" if already else state).inc()

    # ------------------------------------------------------------------ stages

    async def _through(self, attempt: Attempt) -> tuple[Stage, StageEnd]:
        """The last stage it came to, and how that ended."""
        if attempt.run.last_pr_url is not None:
            return "PR", await self._was_opened(attempt)
        if (refused := self._refused(attempt)) is not None:
            return refused.stage, StageEnd("refused", refused.reason, log=refused.log)
        if attempt.policy.runs_code:
            await attempt.sandbox.check()
        end = await self._stage(attempt, "PLAN")
        if end.outcome != "passed":
            return "PLAN", end
        adopt_plan(attempt, end.output)
        errand = attempt.errand
        forgotten: set[Stage] = set()
        for _ in range(_MOST_ROUNDS):
            opened = self._parts.repositories.open(
                errand.forge, errand.repo, errand.head_ref or errand.base_ref
            )
            async with opened as workspace:
                attempt.workspace = workspace
                try:
                    ended = await self._in_workspace(attempt, forgotten)
                except BranchMoved:
                    continue
            if ended is not None:
                return ended
        raise Transient("the branch moves faster than it can be worked on")

    def _refused(self, attempt: Attempt) -> StageRecord | None:
        """By an attempt before this one, which did not live to block the run."""
        return next((one for one in attempt.run.stages if one.outcome == "refused"), None)

    async def _was_opened(self, attempt: Attempt) -> StageEnd:
        """An attempt before this one came to its end, and did not live to say so."""
        metrics.PR_SKIPPED.inc()
        run = attempt.run
        output = {"number": run.last_pr_number, "url": run.last_pr_url, "created": False}
        end = StageEnd("passed", f"is there already: {run.last_pr_url}", output)
        if not any(one.stage == "PR" and one.outcome == "passed" for one in run.stages):
            await self._record(attempt, "PR", end, self._parts.clock.now_us())
        return end

    async def _in_workspace(
        self, attempt: Attempt, forgotten: set[Stage]
    ) -> tuple[Stage, StageEnd] | None:
        """The next that there is to do; None if it goes on in a fresh workspace."""
        workspace = attempt.workspace
        if workspace is None:
            raise Definitive("there is no workspace")
        if (settled := await self._settled(attempt, workspace.base_sha)) is not None:
            return settled
        if not attempt.diff:
            known = self._known(attempt, "PATCH") if "PATCH" not in forgotten else None
            if known is None:
                end = await self._stage(attempt, "PATCH", anew=True)
                attempt.diff = diff_in(end.output)
                return None if end.outcome == "passed" else ("PATCH", end)
            attempt.outputs["PATCH"], attempt.diff = known.output, diff_in(known.output)
        try:
            await workspace.apply(attempt.diff)
        except Rejected as misfit:
            if attempt.outputs["PATCH"].get("base_sha") == workspace.base_sha:
                return "PATCH", StageEnd("refused", f"the patch cannot be applied: {misfit}")
            forgotten.add("PATCH")
            attempt.diff = b""
            return None
        pending = [stage for stage in _CHECKS if self._known(attempt, stage) is None]
        for stage in pending:
            end = await self._stage(attempt, stage)
            if end.outcome != "passed":
                return stage, end
        return None if pending else ("PR", await self._stage(attempt, "PR"))

    async def _settled(self, attempt: Attempt, head: str) -> tuple[Stage, StageEnd] | None:
        """What became of a push onto a branch of others; None if there was none to be made."""
        onto = intended(attempt.run) if attempt.errand.head_ref is not None else None
        if onto is None or head == onto.base:
            return None
        if head == onto.commit:
            end = await self._parts.publishing.pushed_onto(attempt, onto.commit)
            await self._record(attempt, "PR", end, self._parts.clock.now_us())
            return "PR", end
        said = (
            f"{attempt.errand.head_ref} moved while {onto.commit[:12]} was on its way to it: "
            "see whether it has that commit, and ask again if it does not"
        )
        return "PR", StageEnd("refused", said)

    def _known(self, attempt: Attempt, stage: Stage) -> StageRecord | None:
        return attempt.run.passed(stage, _digest(attempt, stage))

    async def _stage(self, attempt: Attempt, stage: Stage, *, anew: bool = False) -> StageEnd:
        known = None if anew else self._known(attempt, stage)
        if known is not None:
            attempt.outputs[stage] = known.output
            return StageEnd("passed", known.reason, known.output)
        started_us = self._parts.clock.now_us()
        runner = self._parts.publishing if stage == "PR" else self._parts.stages[stage]
        try:
            end = await runner.run(attempt)
        except (NotIsolated, Transient, TimeoutError, OSError) as trouble:
            end = StageEnd("failed", str(trouble) or type(trouble).__name__)
            if stage != "PR" or not is_under_way(attempt.run):
                await self._record(attempt, stage, end, started_us)
            raise
        except (Definitive, Rejected) as refusal:
            end = StageEnd("refused", str(refusal))
        if end.outcome == "failed":
            await self._record(attempt, stage, end, started_us)
            raise Transient(f"{stage}: {end.reason}")
        if end.outcome == "refused" and stage == "PR" and attempt.run.opening is not None:
            end = end._replace(output=attempt.run.opening._asdict())
        await self._record(attempt, stage, end, started_us)
        if end.outcome == "passed":
            attempt.outputs[stage] = end.output
        return end

    async def _record(self, attempt: Attempt, stage: Stage, end: StageEnd, started_us: int) -> None:
        seconds = (self._parts.clock.now_us() - started_us) / 1e6
        run = attempt.run
        if stage in _RUN_CODE and (warning := attempt.sandbox.warning) is not None:
            end = end._replace(output={**end.output, WARNING: warning})
        record = StageRecord(
            stage, run.attempt_count, end.outcome, _digest(attempt, stage), end.reason,
            end.output, end.log, started_us, seconds,
        )  # fmt: skip
        if not await self._runs.record(run.run_key, attempt.token, record):
            raise LeaseLost(_ELSEWHERE)
        attempt.run = run.with_stage(record)
        metrics.STAGES.labels(stage, end.outcome).inc()
        metrics.STAGE_SECONDS.labels(stage).observe(seconds)
        said = {"stage": stage, "outcome": end.outcome, "reason": end.reason, "seconds": seconds}
        _log.info("stage_%s", end.outcome, extra=about(run) | said)


def _digest(attempt: Attempt, stage: Stage) -> str:
    """Of all that the stage goes by."""
    if stage == "PLAN":
        return digest_of(stage, attempt.run.errand, attempt.policy.fixers)
    if stage == "PATCH":
        return digest_of(stage, attempt.plan)
    base = attempt.workspace.base_sha if attempt.workspace is not None else ""
    if stage == "PR":
        return digest_of(stage, attempt.diff, base, attempt.run.branch)
    return digest_of(stage, attempt.diff, base, attempt.policy)


def _was_here_before(run: RunRecord, job: Claimed) -> bool:
    """Whether its locks are most likely held by an attempt of the same job that has ended.

    Before a first attempt is written down they may be another job's: one of the two begins.
    """
    return run.last_job == job.id or (run.last_job is None and job.attempts > 1)


def _params(job: Claimed) -> dict[str, Any]:
    try:
        params = orjson.loads(job.params or "{}")
    except orjson.JSONDecodeError:
        raise Definitive("the job's params are not JSON") from None
    return params if isinstance(params, dict) else {}
