"""PR: the patch becomes a commit, a branch and one pull request; whoever comes second finds them.

The branch's name and the commit's id follow from the run and its patch, and a pull request that
is open for the branch is adopted. So each of these may be done twice: commit ▸ push ▸ open ▸ note.
Nothing is ever merged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from towline.core.fix_texts import body_of, checks_of, commit_message, title_of
from towline.core.fixrun import RunRecord, StageRecord, digest_of, subject_of
from towline.core.snapshot import PullRef
from towline.errors import Definitive, LeaseLost, LockTimeout, Transient
from towline.flow.fix_metrics import PR_SKIPPED
from towline.flow.fix_stages import Attempt, Locks, StageEnd
from towline.ports.clock import Clock
from towline.ports.forge import Forge, Publisher
from towline.ports.runs import RunStore
from towline.ports.workspace import Repositories, Workspace

PROPOSE_SECONDS: Final = 45.0
"""Short, and renewed: other runs wait for it, and who died is not waited for long."""
_LONGER_THAN_THE_DEAD: Final = 15.0


class Publishing:
    def __init__(
        self,
        runs: RunStore,
        forges: Mapping[str, Forge],
        publishers: Mapping[str, Publisher],
        repositories: Repositories,
        locks: Locks,
        clock: Clock,
        *,
        propose_seconds: float = PROPOSE_SECONDS,
    ) -> None:
        self._runs = runs
        self._forges = forges
        self._publishers = publishers
        self._repositories = repositories
        self._locks = locks
        self._clock = clock
        self._propose_seconds = propose_seconds

    async def run(self, attempt: Attempt) -> StageEnd:
        key = f"propose:{subject_of(attempt.run.errand)}"
        try:
            seconds = self._propose_seconds
            async with self._locks.acquire(key, seconds, seconds + _LONGER_THAN_THE_DEAD):
                return await self._propose(attempt)
        except LockTimeout as busy:
            raise Transient(f"another run for the same thing proposes just now: {busy}") from None

    async def _propose(self, attempt: Attempt) -> StageEnd:
        run = await self._still_ours(attempt)
        if run.last_pr_url is not None:
            PR_SKIPPED.inc()
            output = {"number": run.last_pr_number, "url": run.last_pr_url, "created": False}
            return StageEnd("passed", f"is there already: {run.last_pr_url}", output)
        if (twin := await open_twin(self._runs, self._forges, attempt)) is not None:
            PR_SKIPPED.inc()
            return StageEnd("refused", f"already proposed: {twin.last_pr_url} is still open")
        workspace = attempt.workspace
        if workspace is None:
            raise Definitive("there is no workspace")
        patch = attempt.outputs.get("PATCH", {})
        title = title_of(attempt.errand, str(patch.get("title") or ""))
        message = commit_message(run, attempt.errand, title, str(patch.get("summary") or ""))
        commit = await workspace.commit(message)
        if attempt.errand.head_ref is not None:
            return await self._push_onto(attempt, workspace, commit)
        return await self._open(attempt, workspace, commit, title)

    async def _still_ours(self, attempt: Attempt) -> RunRecord:
        run = await self._runs.read(attempt.run.run_key)
        if run is None or run.token != attempt.token:
            raise LeaseLost("another attempt of this run has taken over")
        return run

    async def _open(
        self, attempt: Attempt, workspace: Workspace, commit: str, title: str
    ) -> StageEnd:
        errand, run = attempt.errand, attempt.run
        publisher = self._publishers.get(errand.forge)
        if publisher is None:
            raise Definitive(f"there are no credentials for {errand.forge}")
        pushed = await self._repositories.push(workspace, run.branch, commit)
        opened = await publisher.open_pull(
            errand.repo,
            head=run.branch,
            base=errand.base_ref,
            title=title,
            body=body_of(run, errand, attempt.outputs, checks_of(run)),
            labels=attempt.policy.labels,
        )
        if not opened.created:
            PR_SKIPPED.inc()
        await self._note(attempt, opened.number, opened.url)
        did = "opened" if opened.created else "adopted"
        log = "\n".join(
            [
                f"{run.branch} is at {commit}" + ("" if pushed else " already"),
                f"{did} {opened.url}",
            ]
        )
        output = {
            "number": opened.number,
            "url": opened.url,
            "created": opened.created,
            "commit": commit,
        }
        return StageEnd("passed", f"{did} {opened.url}", output, log)

    # ------------------------------------------------------------------ onto what is there

    async def _push_onto(self, attempt: Attempt, workspace: Workspace, commit: str) -> StageEnd:
        """A merge request's own branch is given one more commit, which is written down first."""
        branch = attempt.errand.head_ref or ""
        intent = {"commit": commit, "base": workspace.base_sha}
        record = StageRecord(
            "PR", attempt.run.attempt_count, "failed", digest_of(intent), "to be pushed", intent,
            "", self._clock.now_us(), 0.0,
        )  # fmt: skip
        if not await self._runs.record(attempt.run.run_key, attempt.token, record):
            raise LeaseLost("another attempt of this run has taken over")
        attempt.run = attempt.run.with_stage(record)
        await self._repositories.push(workspace, branch, commit)
        return await self.pushed_onto(attempt, commit)

    async def pushed_onto(self, attempt: Attempt, commit: str) -> StageEnd:
        """The commit is the head of the branch, by us or by the attempt before."""
        number, url = int(attempt.errand.more.get("number", 0)), attempt.errand.url or ""
        await self._note(attempt, number, url)
        branch = attempt.errand.head_ref or ""
        output = {"number": number, "url": url, "created": False, "commit": commit}
        return StageEnd("passed", f"{commit[:12]} is on {branch}", output)

    async def _note(self, attempt: Attempt, number: int, url: str) -> None:
        if not await self._runs.opened(attempt.run.run_key, attempt.token, number, url):
            raise LeaseLost("another attempt of this run has taken over")


class Intended(NamedTuple):
    """A commit that was about to be pushed onto a branch that is not ours, and what was there."""

    commit: str
    base: str


def intended(run: RunRecord) -> Intended | None:
    last = next((one for one in run.stages if one.stage == "PR"), None)
    if last is None or last.outcome == "passed":
        return None
    commit, base = last.output.get("commit"), last.output.get("base")
    return Intended(commit, base) if isinstance(commit, str) and isinstance(base, str) else None


async def open_twin(
    runs: RunStore, forges: Mapping[str, Forge], attempt: Attempt
) -> RunRecord | None:
    """Another run for the same thing whose pull request nobody has decided on yet."""
    twin = await runs.proposed(attempt.run.errand, attempt.run.run_key)
    if twin is None or twin.last_pr_number is None:
        return None
    ref = PullRef(twin.errand.forge, twin.errand.repo, twin.last_pr_number)
    if ref.number == attempt.errand.replaces or ref.forge not in forges:
        return None
    seen = (await forges[ref.forge].look([ref])).get(ref)
    return twin if seen is not None and seen.pull.state == "open" else None
