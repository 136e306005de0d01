"""The safeguards of fix runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from towline.fix import plan, publish
from towline.fix import store as q
from towline.fix.attempt import Attempt, StageEnd
from towline.fix.model import Beside, Errand, RunRecord
from towline.fix.pipeline import FixHandler
from towline.fix.publish import Looked, Publishing
from towline.fix.store import RunStore
from towline.forges.github import publish as github_publish
from towline.git.repository import GitRepositories
from towline.git.workspace import Workspace
from towline.git.worktree import Worktree
from towline.jobs import runner
from towline_once.coordination.lease import Lease
from towline_once.errors import Transient
from towline_sim.proof.mutations import Mutation, instead, sql

_OURS = "AND towline_runs.token = b.token"
_LIVE = "towline_runs.state IN ('waiting', 'running')"
_SEEN = "AND (b.seen IS NULL OR towline_runs.token = b.seen)"
_stage = FixHandler._stage
_gated = FixHandler._gated
_beside = RunStore.beside


class NoLock:
    """In the place of a lease: whoever has it is never told to stop."""

    def check(self) -> None:
        return None


async def _push_without_lock(
    self: GitRepositories, workspace: Workspace, branch: str, commit: str
) -> str | None:
    if not isinstance(workspace, Worktree):
        raise TypeError(workspace)
    return await self._push(workspace, branch, commit, NoLock())


async def _ours_anyway(self: Publishing, attempt: Attempt) -> RunRecord:
    return attempt.run


async def _looks_at_nobody(runs: RunStore, _: Any, __: Any, attempt: Attempt) -> Looked:
    return Looked(await runs.beside(attempt.run.errand, attempt.run.run_key))


async def _writes_nothing_down(self: RunStore, *_: Any) -> str:
    return "written"


async def _found_nothing(self: Any, repo: str, head: str, base: str) -> None:
    return None


async def _never_cool(self: FixHandler, run: Any, job: Any, policy: Any) -> int:
    return 0


async def _beside_by_the_own_clock(self: RunStore, errand: Errand, but: str) -> Beside:
    seen = await _beside(self, errand, but)
    return seen._replace(now_us=self._database.clock.now_us())


async def _refused_is_trouble(
    self: FixHandler, attempt: Attempt, stage: Any, *, anew: bool = False
) -> StageEnd:
    end = await _stage(self, attempt, stage, anew=anew)
    if end.outcome == "refused":
        raise Transient(end.reason)
    return end


async def _blocked_or_not(self: FixHandler, run: RunRecord, job: Any) -> dict[str, Any]:
    return await _gated(self, run._replace(state="waiting"), job)


async def _revives_nothing(self: FixHandler) -> int:
    return 0


async def _propose_beside_others(self: Publishing, attempt: Attempt) -> StageEnd:
    return await self._propose(attempt, NoLock())


@asynccontextmanager
async def _not_held(*_: Any, **__: Any) -> AsyncIterator[None]:
    yield


_NOT_COMPARED: Final = [instead(Beside, "marks", property(lambda self: frozenset()))]

MUTATIONS: Final = (
    Mutation(
        "run-for-each-delivery",
        "one failure has one run",
        "fix",
        [sql(q.CREATE, "SELECT b.run_key,", "SELECT b.run_key || b.event_id,")],
    ),
    Mutation(
        "attempts-of-a-run-not-counted",
        "attempts of a run are counted when they begin",
        "fix",
        [sql(q.BEGIN, "attempt_count = attempt_count + 1", "attempt_count = 1")],
    ),
    Mutation(
        "attempts-of-a-run-without-end",
        "a run has so many attempts and no more",
        "fix",
        [sql(q.BEGIN, "AND towline_runs.attempt_count < b.most", "")],
    ),
    Mutation(
        "blocked-is-ignored",
        "a blocked run stays blocked until it is unblocked",
        "fix",
        [instead(FixHandler, "_gated", _blocked_or_not), sql(q.BEGIN, f"AND {_LIVE}", "")],
    ),
    Mutation(
        "finish-any-token",
        "only the newest attempt ends a run",
        "fix",
        [sql(q.FINISH, _OURS, ""), sql(q.TOUCH, _OURS, ""), sql(q.OPENED, _OURS, ""),
         instead(runner.Held, "abandon", lambda self, why: None)],
    ),
    Mutation(
        "stages-not-kept",
        "a stage that passed is not repeated",
        "fix",
        [instead(FixHandler, "_known", lambda self, attempt, stage: None)],
    ),
    Mutation(
        "refusals-are-retried",
        "what was refused is refused for good",
        "fix",
        [instead(FixHandler, "_stage", _refused_is_trouble),
         instead(FixHandler, "_refused", lambda self, attempt: None)],
    ),
    Mutation(
        "refusal-forgotten-in-a-crash",
        "a refusal that was written down holds, whoever comes to read it",
        "fix",
        [instead(FixHandler, "_refused", lambda self, attempt: None)],
    ),
    Mutation(
        "cooldown-off",
        "after an attempt a run is left alone for a while",
        "fix",
        [instead(FixHandler, "_cooling", _never_cool)],
    ),
    Mutation(
        "push-without-lock",
        "a repository is pushed to by one at a time",
        "fix",
        [instead(GitRepositories, "push", _push_without_lock)],
    ),
    Mutation(
        "own-pull-not-adopted",
        "a pull request that is open for the branch is adopted",
        "fix",
        [instead(github_publish.GitHubPublisher, "_find", _found_nothing)],
    ),
    Mutation(
        "twin-is-not-looked-for",
        "what is proposed and undecided is not proposed again",
        "fix",
        [instead(publish, "look_beside", _looks_at_nobody),
         instead(plan, "look_beside", _looks_at_nobody),
         instead(FixHandler, "_cooling", _never_cool)],
    ),
    Mutation(
        "row-not-looked-at-again",
        "an attempt that was superseded opens nothing",
        "fix",
        [instead(Publishing, "_still_ours", _ours_anyway), sql(q.TOUCH, _OURS, ""),
         instead(runner.Held, "abandon", lambda self, why: None),
         instead(Lease, "_lose", lambda self, reason: None)],
    ),
    Mutation(
        "stranded-for-ever",
        "a run whose job has died is given another",
        "fix",
        [instead(FixHandler, "revive", _revives_nothing)],
    ),
    Mutation(
        "propose-beside-others",
        "what two runs are for is proposed by one of them at a time",
        "fix",
        [instead(Publishing, "run", _propose_beside_others), *_NOT_COMPARED],
    ),
    Mutation(
        "opening-not-written-down",
        "before a pull request is opened, it is written down that it will be",
        "fix",
        [instead(RunStore, "intend", _writes_nothing_down)],
    ),
    Mutation(
        "openings-of-others-not-seen",
        "what another run was about to open is looked for",
        "fix",
        [sql(q.BESIDE, "OR EXISTS (", "OR 1 = 0 AND EXISTS (")],
    ),
    Mutation(
        "refused-sandbox-costs-an-attempt",
        "where nothing may be run an attempt is not counted",
        "fix",
        [sql(q.FINISH, "attempt_count - b.uncounted", "attempt_count - 0 * b.uncounted")],
    ),
    Mutation(
        "begun-by-two-jobs",
        "of two jobs that saw the same run one begins",
        "fix",
        [sql(q.BEGIN, _SEEN, ""), sql(q.USE_UP, _SEEN, "")],
    ),
    Mutation(
        "cooldown-by-the-own-clock",
        "the store's times are compared with the store's clock",
        "fix",
        [instead(RunStore, "beside", _beside_by_the_own_clock)],
    ),
)  # fmt: skip
