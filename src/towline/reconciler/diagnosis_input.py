"""Fetches what a diagnosis of one pull request needs, such as the log of its failed check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towline.events import CheckChanged
from towline.forges.base import Forge
from towline.forges.snapshot import Snapshot
from towline.pulls.model import PullEvent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.store import PullStore, whole_log
from towline.reconciler.decision import case_of, history_of
from towline.reconciler.rules import Case
from towline.remediation.triggers import failed_checks
from towline_once.errors import Rejected
from towline_once.failures import UNEXPLAINED, Failure, classify_failure

_MOST_LOGS = 3
_CONTAINERS = ("check_suite", "workflow_run", "pipeline")


class Gathered(NamedTuple):
    case: Case
    failed: tuple[str, ...]
    """The names of CI's checks that failed."""
    transient: bool | None
    """What they say of themselves, and where that does not tell, their logs; None if not read."""
    evidence: str
    logs: int
    """How many logs were fetched for that."""
    events: Sequence[PullEvent] = ()


class CaseFile:
    def __init__(self, store: PullStore, forges: Mapping[str, Forge], policy: TowPolicy) -> None:
        self._store = store
        self._forges = forges
        self._policy = policy

    async def gather(self, record: PullRecord, sight: Snapshot) -> Gathered:
        """`Unavailable` if the forge does not give a log that is needed."""
        facts = record.facts
        failed = self._failed(sight) if record.state == "CHECKS_FAILED" else []
        read: Failure | None = None
        logs = 0
        if failed and not facts.transient:
            read, logs = await self._read(record, failed)
        transient = read.kind == "transient" if read is not None else None
        evidence = read.evidence if read is not None else facts.evidence
        events = await whole_log(self._store, record.ref)
        case = case_of(
            record,
            history_of(events),
            transient=bool(facts.transient if transient is None else transient),
            evidence=evidence if record.state == "CHECKS_FAILED" else "",
            reopened=await self._reopened(record),
        )
        names = tuple(sorted(check.name for check in failed))
        return Gathered(case, names, transient, evidence, logs, events)

    def _failed(self, sight: Snapshot) -> list[CheckChanged]:
        checks = failed_checks(sight, self._policy.of(sight.pull.repo).signals)
        failed = [check for check in checks if check.status == "completed" and not check.passed]
        return [check for check in failed if check.check not in _CONTAINERS] or failed

    async def _read(
        self, record: PullRecord, failed: list[CheckChanged]
    ) -> tuple[Failure | None, int]:
        """One that will fail again decides; else what the last of them says."""
        told = [self._reading(check, check.summary) for check in failed]
        lasting = [one for one in told if one.kind == "persistent" and one.pattern != UNEXPLAINED]
        if lasting:
            return lasting[0], 0
        unexplained = [
            check for check, one in zip(failed, told, strict=True) if one.pattern == UNEXPLAINED
        ][:_MOST_LOGS]
        reading: Failure | None = told[-1] if told else None
        for logs, check in enumerate(unexplained, start=1):
            reading = self._reading(check, f"{check.summary}\n{await self._log(record, check)}")
            if reading.kind == "persistent":
                return reading, logs
        return reading, len(unexplained)

    async def _log(self, record: PullRecord, check: CheckChanged) -> str:
        forge = self._forges[record.ref.forge]
        try:
            return await forge.failure_log(record.ref.repo, check, self._policy.log_bytes)
        except Rejected:
            return ""

    def _reading(self, check: CheckChanged, text: str) -> Failure:
        return classify_failure(
            text.strip(),
            conclusion=check.conclusion,
            check=check.name,
            patterns=self._policy.patterns,
        )

    async def _reopened(self, record: PullRecord) -> int:
        facts = record.facts
        if record.vulnerability_id is None or not (facts.conflicts or facts.behind):
            return 0
        return await self._store.reopened(record.vulnerability_id)
