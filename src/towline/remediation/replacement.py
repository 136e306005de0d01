"""Close and reopen: the old pull request is closed, and the fix pipeline opens a fresh one.

guard ▸ comment ▸ close ▸ count ▸ record and queue the fix, in one transaction. A process
that finds it closed with its intent open goes on from the count: each of these is done once, by the
intent's id.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

import orjson

from towline.forges.base import Done, Forge
from towline.forges.snapshot import Snapshot
from towline.jobs.ids import job_id
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.pulls.model import EventSource, Intent, PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.store import Change, PullStore
from towline.remediation import record_changes as records
from towline.remediation.escalation import notice_job
from towline.remediation.escalation_text import nobody_reopens
from towline.remediation.record_changes import Ending, Outcome, Remedied
from towline.remediation.strategies import CLOSING_TEXT, closing_text
from towline_once.errors import Rejected, Unavailable

FIX = "fix"
_MARKER = "closed-for-a-fresh-one"
"""The same for every try: it is said once."""
_log = logging.getLogger("towline.tow")


class Closer:
    def __init__(self, store: PullStore, forges: Mapping[str, Forge], policy: TowPolicy) -> None:
        self._store = store
        self._forges = forges
        self._policy = policy

    async def close(self, record: PullRecord, source: EventSource) -> Remedied:
        """The intent is recorded: guard ▸ comment ▸ close ▸ finish."""
        if (twin := await self._twin(record)) is not None:
            _log.info("duplicate PR exists", extra={"repo": record.ref.repo, "reason": str(twin)})
            said = f"duplicate PR exists: {twin.ref}"
            return await self._end(record, "unneeded", said, source, restart=True)
        if record.vulnerability_id is None and not self._policy.reopen_unknown:
            said = "no fresh one can be opened: its vulnerability is not known"
            return await self._end(record, "failed", said, source, restart=True)
        try:
            done = await self._close(record)
        except Unavailable as trouble:
            return await self._end(
                record, "unavailable", str(trouble), source, refund=True, keeps_intent=True
            )
        if not done.took:
            said = done.detail or done.status
            return await self._end(record, "failed", said, source, restart=True)
        return await self._finish(record, source)

    async def settle(
        self, record: PullRecord, sight: Snapshot | None, source: EventSource
    ) -> Remedied:
        """The intent was found open: it was done, or it was not."""
        intent = record.intent
        if intent is None:
            return Remedied("done", "", record)
        condition = "closed" if sight is None else sight.pull.state
        if condition == "closed" and (intent.made or _ours(sight)):
            return await self._finish(record, source)
        if condition == "open":
            return await self._end(record, "unavailable", "it was not closed", source, refund=True)
        said = f"it was {condition} by another user"
        return await self._end(record, "unneeded", said, source, refund=True)

    async def _twin(self, record: PullRecord) -> PullRecord | None:
        if record.vulnerability_id is None:
            return None
        alive = await self._store.alive_for(record.vulnerability_id)
        return next((one for one in alive if one.ref != record.ref), None)

    async def _close(self, record: PullRecord) -> Done:
        """The comment comes first: a closed one with it was closed by us."""
        forge = self._forges[record.ref.forge]
        text = closing_text(record.ref.repo, self._policy.opens_anew(record.ref.repo))
        try:
            await forge.comment(record.ref, text, _MARKER)
            return await forge.close(record.ref)
        except Rejected as refused:
            return Done("blocked", str(refused))

    async def _finish(self, record: PullRecord, source: EventSource) -> Remedied:
        intent = record.intent
        if intent is None:
            return Remedied("done", "", record)
        if record.vulnerability_id is not None:
            await self._store.count_reopened(record.vulnerability_id, intent.id)
        jobs, detail = [fix_job(record, intent)], "closed; a fresh one is asked for"
        if not self._policy.opens_anew(record.ref.repo):
            detail = f"closed; open a fresh one by hand: {record.ref.repo} is not in fix.repos"
            mark = f"unreplaced {intent.id}"
            jobs.append(notice_job(nobody_reopens(record), intent.began_us, mark))
        closing = records.closing(CLOSING_TEXT, source, f"closed {intent.id}", "REPLACED", jobs)
        ending = Ending(
            intent_id=intent.id,
            outcome="done",
            detail=detail,
            source=source,
            adjust=closing,
        )
        changed = await self._store.change(record.ref, records.ended(ending))
        return Remedied("done", ending.detail, changed.record)

    async def _end(
        self,
        record: PullRecord,
        outcome: Outcome,
        detail: str,
        source: EventSource,
        *,
        refund: bool = False,
        keeps_intent: bool = False,
        restart: bool = False,
    ) -> Remedied:
        ending = Ending(
            intent_id=record.intent.id if record.intent is not None else "",
            outcome=outcome,
            detail=detail,
            source=source,
            refund=refund,
            keeps_intent=keeps_intent,
            adjust=_restarted if restart else None,
        )
        changed = await self._store.change(record.ref, records.ended(ending))
        return Remedied(outcome, detail, changed.record)


def fix_job(record: PullRecord, intent: Intent) -> NewJob:
    """Asks the fix pipeline for a fresh branch and pull request for the same thing."""
    params = {
        "forge": record.ref.forge,
        "repo": record.ref.repo,
        "vulnerability_id": record.vulnerability_id,
        "replaces": record.ref.number,
        "base_ref": record.base_ref,
        "title": record.title,
    }
    dice = hashlib.sha256(f"fix {intent.id}".encode()).digest()
    return NewJob(
        id=job_id(intent.began_us, dice),
        queue=OWN_QUEUE,
        kind=FIX,
        params=orjson.dumps(params).decode(),
        repo=record.ref.repo,
    )


def _restarted(record: PullRecord, now_us: int) -> Change:
    return Change(record._replace(since_us=now_us))


def _ours(sight: Snapshot | None) -> bool:
    return sight is not None and any(_MARKER in comment.body for comment in sight.comments)
