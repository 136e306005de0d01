"""PR: the patch becomes a commit, a branch and one pull request; whoever comes second finds them.

The branch's name and the commit's id follow from the run and its patch, and a pull request that
is there for the branch is adopted. So each of these may be done twice:

    look beside ▸ commit ▸ push ▸ write down what is to be opened ▸ open ▸ note

Between the last three a pull request may be there that nobody has noted. Other runs for the same
thing look for it at the forge; if it is not there, they wait until whoever was about to open it has
come to an end, or was ended because its job died. Who slept through that holds the right to propose
no more, and is stopped by it just before the forge is asked to open. Nothing is ever merged here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from towline.core.fix_texts import body_of, checks_of, commit_message, title_of
from towline.core.fixrun import (
    ALREADY_PROPOSED,
    TO_BE_OPENED,
    Beside,
    Opening,
    RunRecord,
    StageRecord,
    comes_first,
    digest_of,
    subject_of,
)
from towline.core.snapshot import PullRef, Snapshot
from towline.errors import Definitive, LeaseLost, LockTimeout, Transient
from towline.flow.credentials import no_credentials
from towline.flow.fix_metrics import PR_SKIPPED
from towline.flow.fix_stages import Attempt, Hold, Locks, StageEnd
from towline.ports.clock import Clock
from towline.ports.forge import Forge, NewPull, Publisher
from towline.ports.runs import RunStore
from towline.ports.workspace import BranchMoved, Repositories, Workspace

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
            wait_seconds = seconds + _LONGER_THAN_THE_DEAD
            async with self._locks.acquire(key, seconds, wait_seconds) as right:
                return await self._propose(attempt, right)
        except LockTimeout as busy:
            raise Transient(f"another run for the same thing proposes just now: {busy}") from None

    async def _propose(self, attempt: Attempt, right: Hold) -> StageEnd:
        run = await self._still_ours(attempt)
        if run.last_pr_url is not None:
            PR_SKIPPED.inc()
            output = {"number": run.last_pr_number, "url": run.last_pr_url, "created": False}
            return StageEnd("passed", f"is there already: {run.last_pr_url}", output)
        beside = None
        if not await self._is_there(run):
            looked = await look_beside(self._runs, self._forges, self._publishers, attempt)
            if looked.open_url is not None:
                PR_SKIPPED.inc()
                return StageEnd("refused", f"{ALREADY_PROPOSED}{looked.open_url} is still open")
            if looked.awaited is not None:
                raise Transient(f"{looked.awaited} is about to propose the same")
            beside = looked.beside
        workspace = attempt.workspace
        if workspace is None:
            raise Definitive("there is no workspace")
        patch = attempt.outputs.get("PATCH", {})
        title = title_of(attempt.errand, str(patch.get("title") or ""))
        message = commit_message(run, attempt.errand, title, str(patch.get("summary") or ""))
        commit = await workspace.commit(message)
        if attempt.errand.head_ref is not None:
            return await self._push_onto(attempt, workspace, commit)
        return await self._open(attempt, workspace, commit, title, beside, right)

    async def _still_ours(self, attempt: Attempt) -> RunRecord:
        run = await self._runs.read(attempt.run.run_key)
        if run is None or run.token != attempt.token:
            raise LeaseLost("another attempt of this run has taken over")
        return run

    async def _is_there(self, run: RunRecord) -> bool:
        """Whether an attempt before this one has opened it, and did not live to say so."""
        publisher = self._publishers.get(run.errand.forge)
        if publisher is None or run.opening is None:
            return False
        return await publisher.find_pull(run.errand.repo, *run.opening) is not None

    async def _open(
        self,
        attempt: Attempt,
        workspace: Workspace,
        commit: str,
        title: str,
        beside: Beside | None,
        right: Hold,
    ) -> StageEnd:
        errand, run = attempt.errand, attempt.run
        publisher = self._publishers.get(errand.forge)
        if publisher is None:
            raise Definitive(no_credentials(errand.forge))
        pushed = await self._repositories.push(workspace, run.branch, commit)
        if beside is not None:
            await self._intend(attempt, beside)
            run = attempt.run
        opened = await publisher.open_pull(
            NewPull(
                repo=errand.repo,
                head=run.branch,
                base=errand.base_ref,
                title=title,
                body=body_of(run, errand, attempt.outputs, checks_of(run)),
                labels=attempt.policy.labels,
            ),
            still=right.check,
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

    async def _intend(self, attempt: Attempt, beside: Beside) -> None:
        """Write down what is to be opened, unless another run was quicker while we slept."""
        opening = Opening(attempt.run.branch, attempt.errand.base_ref)
        record = StageRecord(
            "PR", attempt.run.attempt_count, "failed", digest_of(opening), TO_BE_OPENED,
            opening._asdict(), "", self._clock.now_us(), 0.0,
        )  # fmt: skip
        intended = await self._runs.intend(attempt.run, attempt.token, record, beside)
        if intended == "superseded":
            raise LeaseLost("another attempt of this run has taken over")
        if intended == "beaten":
            raise Transient("another run for the same thing was quicker")
        attempt.run = attempt.run.with_stage(record)

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
        try:
            await self._repositories.push(workspace, branch, commit)
        except BranchMoved:
            attempt.run = attempt.run.with_stage(record._replace(output={}))
            raise
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


def is_under_way(run: RunRecord) -> bool:
    """Whether something was to be pushed or opened, of which nobody knows what became of it."""
    return intended(run) is not None or run.opening is not None


class Looked(NamedTuple):
    """What other runs for the same thing have at the forge, or may have any moment."""

    beside: Beside
    open_url: str | None = None
    """Of a pull request that nobody has decided on yet."""
    awaited: str | None = None
    """The run that is about to open one, and comes first."""


async def look_beside(
    runs: RunStore,
    forges: Mapping[str, Forge],
    publishers: Mapping[str, Publisher],
    attempt: Attempt,
) -> Looked:
    errand, awaited = attempt.errand, None
    beside = await runs.beside(attempt.run.errand, attempt.run.run_key)
    forge, publisher = forges.get(errand.forge), publishers.get(errand.forge)
    urls: dict[PullRef, str | None] = {}
    for rival in beside.runs:
        number, url = rival.last_pr_number, rival.last_pr_url
        if rival.opening is not None and publisher is not None:
            found = await publisher.find_pull(errand.repo, *rival.opening)
            number, url = (found.number, found.url) if found is not None else (None, None)
            if found is None and comes_first(rival, attempt.run):
                awaited = rival.run_id
        if number is not None and number != errand.replaces:
            urls[PullRef(errand.forge, errand.repo, number)] = url
    seen = await forge.look(list(urls)) if forge is not None and urls else {}
    still_open = [url for ref, url in urls.items() if ref in seen and _is_open(seen[ref])]
    return Looked(beside, still_open[0] if still_open else None, awaited)


def _is_open(sight: Snapshot) -> bool:
    return sight.pull.state == "open"
