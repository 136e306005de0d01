"""PR: the patch becomes a commit, a branch and one pull request; a second run finds them.

The branch's name and the commit's id follow from the run and its patch, and a pull request that
is there for the branch is adopted. So each of these may be done twice:

    look beside ▸ commit ▸ push ▸ write down what is to be opened ▸ open ▸ note

Between the last three a pull request may be there that is not recorded. Other runs for the same
thing look for it at the forge; if it is not there, they wait until the run that was about to open
it has come to an end, or was ended because its job died. Who slept through that holds the right to
propose no more, and is stopped by it just before the forge is asked to open. Nothing is ever merged
here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from towline.fix.attempt import Attempt, Hold, Locks, StageEnd
from towline.fix.metrics import PR_SKIPPED
from towline.fix.model import (
    ALREADY_PROPOSED,
    TO_BE_OPENED,
    Beside,
    Errand,
    Opening,
    RunRecord,
    Stage,
    StageRecord,
    digest_of,
    subject_of,
)
from towline.fix.siblings import look_beside
from towline.fix.store import RunStore
from towline.forges.base import Forge, NewPull, Publisher
from towline.forges.credentials import no_credentials
from towline.git.workspace import BranchMoved, Repositories, Workspace
from towline_once.errors import Definitive, LeaseLost, LockTimeout, Transient
from towline_once.ports import Clock

# ------------------------------------------------------------------ texts
# What a fix says of itself: the commit's message, and the pull request's title and body.
#
# What comes from a log, a fixer or a person stands in fences or code, so that it mentions no user,
# closes nothing and hides nothing.

LONGEST_TITLE: Final = 120
LONGEST_BODY: Final = 30_000
_MOST_EVIDENCE: Final = 4_000
_MOST_SUMMARY: Final = 2_000
_MOST_FILES: Final = 50
_BACKTICKS: Final = re.compile(r"`{3,}")
_PLAIN_URL: Final = re.compile(r"https?://[!-;=?-_a-z{-~]+")
_FILE: Final = re.compile(r"^diff --git a/(?:.*) b/(.*)$", re.MULTILINE)


def title_of(errand: Errand, proposed: str) -> str:
    """The fixer's, if it has one; what is vulnerable is named in any case."""
    title = _one_line(proposed) or _one_line(errand.title) or f"Fix {errand.repo}"
    known = _one_line(errand.vulnerability_id or "")
    if known and known not in title:
        title = f"{title[: LONGEST_TITLE - len(known) - 3]} ({known})"
    return title[:LONGEST_TITLE]


def commit_message(run: RunRecord, errand: Errand, title: str, summary: str) -> str:
    """The same for the same run and patch, so that the commit is the same, too."""
    parts = [title]
    if summary.strip():
        parts.append(_plain(summary)[:_MOST_SUMMARY])
    trailers = [f"Towline-Run: {run.run_id}"]
    if errand.vulnerability_id:
        trailers.append(f"Fixes-Vulnerability: {_one_line(errand.vulnerability_id)}")
    return "\n\n".join([*parts, "\n".join(trailers)]) + "\n"


def body_of(
    run: RunRecord, errand: Errand, outputs: Mapping[Stage, Mapping[str, object]], checks: str
) -> str:
    """Why, what, the evidence, and how it was validated."""
    plan, patch = outputs.get("PLAN", {}), outputs.get("PATCH", {})
    parts = [
        "## Why",
        _code(_text(plan, "cause")),
        *_sources(errand),
        "## What was changed",
        _code(_text(patch, "summary") or "see the diff"),
        f"By the fixer `{_one_line(_text(plan, 'fixer'))}`: {_code(_text(plan, 'why'))}",
        *_files(_text(patch, "diff")),
    ]
    if log := _text(plan, "log").strip():
        parts += ["## Evidence", _fenced(log[-_MOST_EVIDENCE:])]
    parts += ["## Checks before this was opened", checks]
    parts.append(f"Run `{run.run_id}`, attempt {run.attempt_count}. Towline does not merge it.")
    return "\n\n".join(parts)[:LONGEST_BODY]


def checks_of(run: RunRecord) -> str:
    """A line for each stage between the patch and the pull request."""
    wanted = ("SAFETY", "SCANS", "VALIDATION")
    lines = [
        f"- {one.stage}: {one.outcome}" + (f", {_code(one.reason)}" if one.reason else "")
        for one in run.stages
        if one.stage in wanted
    ]
    return "\n".join(lines) or "- none are configured"


def _sources(errand: Errand) -> list[str]:
    lines = []
    if errand.url:
        plain = _PLAIN_URL.fullmatch(errand.url)
        lines.append(f"- seen at <{errand.url}>" if plain else f"- seen at {_code(errand.url)}")
    if errand.sha:
        lines.append(f"- commit {errand.sha}")
    if errand.vulnerability_id:
        lines.append(f"- vulnerability {_one_line(errand.vulnerability_id)}")
    if issue := errand.more.get("issue"):
        lines.append(f"- issue {_one_line(issue)}")
    if errand.replaces is not None:
        lines.append(f"- replaces #{errand.replaces}")
    if errand.requested_by:
        lines.append(f"- asked for by `{_one_line(errand.requested_by)}`")
    if errand.instruction and errand.instruction != errand.title:
        lines.append("- in these words:\n\n" + _fenced(errand.instruction[:_MOST_SUMMARY]))
    return ["\n".join(lines)] if lines else []


def _files(diff: str) -> list[str]:
    names = list(dict.fromkeys(_FILE.findall(diff)))
    if not names:
        return []
    shown = [f"- {_code(name)}" for name in names[:_MOST_FILES]]
    if len(names) > _MOST_FILES:
        shown.append(f"- and {len(names) - _MOST_FILES} more")
    return ["\n".join(shown)]


def _fenced(text: str) -> str:
    """In a fence that nothing within can end."""
    text = _plain(text)
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _code(text: str) -> str:
    line = _one_line(text).replace("`", "'")
    return f"`{line[:_MOST_SUMMARY]}`" if line else ""


def _one_line(text: str) -> str:
    return " ".join(_plain(text).split())


def _plain(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable() or letter in "\n\t")


def _text(output: Mapping[str, object], name: str) -> str:
    value = output.get(name)
    return value if isinstance(value, str) else ""


# ------------------------------------------------------------------ the stage

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
    """Whether a push or an opening was begun whose outcome is not known."""
    return intended(run) is not None or run.opening is not None
