"""PLAN and PATCH: finds what is wrong and which fixer can help, and lets it make the patch.

`pipeline` calls both. PLAN asks the forge for the log and for rival pull requests; PATCH runs in
the sandbox.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from towline.fix.attempt import Attempt, Locks, StageEnd, held
from towline.fix.fixers.base import Fixer, Plan
from towline.fix.metrics import PR_SKIPPED
from towline.fix.model import ALREADY_PROPOSED, Errand
from towline.fix.requests import check_of
from towline.fix.siblings import look_beside
from towline.fix.store import RunStore
from towline.forges.base import Forge, Publisher
from towline.forges.credentials import no_credentials
from towline.forges.snapshot import PullRef
from towline.integrations.ci import Ci
from towline_once.errors import Definitive, Rejected
from towline_once.failures import classify_failure

CONTEXT_SECONDS: Final = 600.0
MOST_STORED_DIFF: Final = 8_000_000
_RANKS: Final = ("none", "read", "triage", "write", "maintain", "admin")


class Planner:
    """Fetches the log, finds the cause, chooses the fixer and writes down why."""

    def __init__(
        self,
        runs: RunStore,
        forges: Mapping[str, Forge],
        publishers: Mapping[str, Publisher],
        fixers: Mapping[str, Fixer],
        locks: Locks,
        *,
        ci: Ci | None = None,
        permission: str = "write",
    ) -> None:
        self._runs = runs
        self._forges = forges
        self._publishers = publishers
        self._fixers = fixers
        self._locks = locks
        self._ci = ci
        self._permission = permission

    async def run(self, attempt: Attempt) -> StageEnd:
        looked = await look_beside(self._runs, self._forges, self._publishers, attempt)
        if looked.open_url is not None:
            PR_SKIPPED.inc()
            return StageEnd("refused", f"{ALREADY_PROPOSED}{looked.open_url} is still open")
        key = f"context:{attempt.run.event_id}"
        async with held(self._locks, key, CONTEXT_SECONDS, takes_over=attempt.takes_over):
            errand = await self._resolved(attempt.errand)
            log = await self._log_of(errand, attempt.policy.max_log_bytes)
        failure = classify_failure(
            log or errand.summary,
            conclusion=errand.conclusion,
            check=errand.check,
            patterns=attempt.policy.patterns,
        )
        if errand.cause == "failure" and failure.kind == "transient":
            said = f"transient: {failure.evidence or failure.pattern}; a patch would not help"
            return StageEnd("refused", said, log=log)
        cause = _cause_of(errand, failure.evidence)
        return self._chosen(attempt, errand, log, cause)

    # ------------------------------------------------------------------ what is known

    async def _resolved(self, errand: Errand) -> Errand:
        """With the branches that only the forge knows."""
        number = errand.more.get("number", "")
        if number.isdecimal():
            errand = await self._of_pull(errand, int(number))
        if not errand.base_ref:
            publisher = self._publishers.get(errand.forge)
            if publisher is None:
                raise Definitive(no_credentials(errand.forge))
            errand = replace(errand, base_ref=await publisher.default_branch(errand.repo))
        return errand

    async def _of_pull(self, errand: Errand, number: int) -> Errand:
        forge = self._forges.get(errand.forge)
        if forge is None:
            raise Definitive(no_credentials(errand.forge))
        if errand.cause == "request":
            login = errand.requested_by or ""
            role = await forge.permission(errand.repo, login)
            if _RANKS.index(role) < _RANKS.index(self._permission):
                raise Definitive(
                    f"{login} may not ask for this: it needs {self._permission}, and is {role}"
                )
        ref = PullRef(errand.forge, errand.repo, number)
        seen = (await forge.look([ref])).get(ref)
        if seen is None or seen.pull.state != "open" or not seen.pull.head_ref:
            raise Definitive(f"{ref} is not open any more")
        if seen.pull.from_fork:
            raise Definitive(f"the branch of {ref} is in a fork, which Towline does not write to")
        return replace(
            errand,
            base_ref=seen.pull.base_ref or errand.base_ref,
            head_ref=seen.pull.head_ref,
            sha=seen.pull.head_sha,
            url=seen.pull.url or errand.url,
        )

    async def _log_of(self, errand: Errand, most_bytes: int) -> str:
        """The end of the failing job's log; one that is gone is no reason to give up."""
        if errand.check is None:
            return ""
        try:
            if errand.more.get("source") == "jenkins" and self._ci is not None and errand.url:
                log = await self._ci.log(errand.url, most_bytes)
            elif (forge := self._forges.get(errand.forge)) is not None:
                log = await forge.failure_log(errand.repo, check_of(errand), most_bytes)
            else:
                log = ""
        except Rejected:
            log = ""
        return _ending(log or errand.summary, most_bytes)

    # ------------------------------------------------------------------ who can help

    def _chosen(self, attempt: Attempt, errand: Errand, log: str, cause: str) -> StageEnd:
        asked = []
        for name in attempt.policy.fixers:
            fixer = self._fixers.get(name)
            if fixer is None:
                asked.append(f"{name}: not installed")
                continue
            why = fixer.fits(errand, log)
            if why is None:
                asked.append(f"{name}: does not fit")
                continue
            asked.append(f"{name}: {why}")
            output = {
                "fixer": name,
                "cause": cause,
                "why": why,
                "base_ref": errand.base_ref,
                "head_ref": errand.head_ref,
                "sha": errand.sha,
                "url": errand.url,
                "log": log,
            }
            return StageEnd("passed", f"{name}: {why}", output, "\n".join([cause, *asked]))
        said = f"no fixer fits ({'; '.join(asked) or 'none is configured'})"
        return StageEnd("refused", said, log="\n".join([cause, *asked]))


def adopt_plan(attempt: Attempt, output: Mapping[str, object]) -> None:
    """Take up what PLAN found, now or in an earlier attempt."""

    def text(name: str) -> str | None:
        value = output.get(name)
        return value if isinstance(value, str) else None

    attempt.errand = replace(
        attempt.errand,
        base_ref=text("base_ref") or attempt.errand.base_ref,
        head_ref=text("head_ref"),
        sha=text("sha"),
        url=text("url"),
    )
    attempt.plan = Plan(
        attempt.errand, text("fixer") or "", text("cause") or "", text("why") or "",
        text("log") or "",
    )  # fmt: skip


class Patcher:
    """Has the fixer change the workspace, and keeps what it changed as a diff."""

    def __init__(self, fixers: Mapping[str, Fixer]) -> None:
        self._fixers = fixers

    async def run(self, attempt: Attempt) -> StageEnd:
        plan, workspace = attempt.plan, attempt.workspace
        if plan is None or workspace is None:
            raise Definitive("there is no plan")
        fixer = self._fixers.get(plan.fixer)
        if fixer is None:
            return StageEnd("refused", f"the fixer {plan.fixer} is not installed")
        report = await fixer.fix(plan, workspace, attempt.sandbox)
        diff = await workspace.diff()
        if not diff.strip():
            return StageEnd("refused", f"{plan.fixer} changed nothing", log=report.log)
        if len(diff) > MOST_STORED_DIFF:
            said = f"the patch has {len(diff)} bytes; more than {MOST_STORED_DIFF} are never taken"
            return StageEnd("refused", said, log=report.log)
        output = {
            **diff_as_output(diff),
            "summary": report.summary,
            "title": report.title,
            "base_sha": workspace.base_sha,
        }
        return StageEnd("passed", report.summary, output, report.log)


def diff_as_output(diff: bytes) -> dict[str, object]:
    """As text, where it is text."""
    try:
        return {"diff": diff.decode()}
    except UnicodeDecodeError:
        return {"diff_base64": base64.b64encode(diff).decode()}


def diff_in(output: Mapping[str, object]) -> bytes:
    encoded = output.get("diff_base64")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded)
        except ValueError:
            raise Rejected("the stored patch cannot be read") from None
    text = output.get("diff")
    return text.encode() if isinstance(text, str) else b""


def _cause_of(errand: Errand, evidence: str) -> str:
    if errand.advisory is not None:
        return f"{errand.advisory.package} is vulnerable: {errand.advisory.id}"
    if errand.vulnerability_id is not None:
        return f"{errand.vulnerability_id} is not fixed yet"
    if errand.cause == "request":
        return f"asked for by {errand.requested_by or 'an issue'}"
    return f"{errand.check} failed: {evidence}" if evidence else f"{errand.check} failed"


def _ending(text: str, most_bytes: int) -> str:
    """The end of it, storable."""
    sound = text.replace("\0", "").encode("utf-8", "replace")
    return sound[-most_bytes:].decode("utf-8", "ignore")
