"""Handing a pull request to a person: recorded with its job in one transaction, then told once.

The comment on the pull request is made once for its marker. The notifier has no such mark: the
event ESCALATION_SENT is written after it took the message, and looked for before. A crash between
the two repeats that message; it carries the escalation's id, so that a repeat can be told.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import orjson

from towline.forges.base import Forge
from towline.forges.snapshot import PullRef
from towline.integrations.notify import Notifier
from towline.jobs.ids import job_id, mark_of
from towline.jobs.model import OWN_QUEUE, Claimed, NewJob
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.model import EventSource, PullEvent, PullRecord
from towline.pulls.store import Change, PullStore, whole_log
from towline.remediation.escalation_text import ESCALATED, SENT, Notice, escalation
from towline.remediation.record_changes import Recorder, move_to
from towline_once.canonical_json import parse_json
from towline_once.errors import Definitive, Rejected

ESCALATE = "escalate"
NOTIFY = "notify"
_MOST_ATTEMPTS = 20
_log = logging.getLogger("towline.tow")


def escalating(
    *,
    reason: str,
    rule: str,
    evidence: str,
    diagnosis: Mapping[str, object] | None = None,
    source: EventSource = "reconciler",
) -> Recorder:
    """To NEEDS_INTERVENTION, with the job that tells of it; nothing if it is there already."""

    def decide(record: PullRecord, now_us: int) -> Change | None:
        if record.state in TERMINAL or record.state == "NEEDS_INTERVENTION":
            return None
        key = f"escalated {record.ref.forge} {record.ref} {record.version}"
        payload = {"reason": reason, "rule": rule, "evidence": evidence, "from": record.state}
        event = PullEvent(ESCALATED, source, now_us, payload, key=key)
        stuck = move_to(record, "NEEDS_INTERVENTION", now_us, record.substatus)
        stuck = stuck._replace(diagnosis=diagnosis or record.diagnosis)
        return Change(stuck, [event], [_job(record.ref, key, now_us)])

    return decide


def _job(ref: PullRef, key: str, now_us: int) -> NewJob:
    params = {"forge": ref.forge, "repo": ref.repo, "number": ref.number, "key": key}
    return NewJob(
        id=job_id(now_us, hashlib.sha256(key.encode()).digest()),
        queue=OWN_QUEUE,
        kind=ESCALATE,
        params=orjson.dumps(params).decode(),
        max_attempts=_MOST_ATTEMPTS,
    )


def notice_job(notice: Notice, at_us: int, mark: str) -> NewJob:
    """One for each mark and time, however often it is queued."""
    return NewJob(
        id=job_id(at_us, hashlib.sha256(mark.encode()).digest()),
        queue=OWN_QUEUE,
        kind=NOTIFY,
        params=orjson.dumps({"title": notice.title, "text": notice.text}).decode(),
        max_attempts=10,
    )


class Escalations:
    """The handlers of the jobs `escalate` and `notify`; without a notifier only PRs are told."""

    def __init__(
        self, store: PullStore, forges: Mapping[str, Forge], notifier: Notifier | None
    ) -> None:
        self._store = store
        self._forges = forges
        self._notifier = notifier

    async def escalate(self, job: Claimed) -> dict[str, Any]:
        params = params_of(job)
        ref = PullRef(str(params["forge"]), str(params["repo"]), int(params["number"]))
        key = str(params["key"])
        record = await self._store.read(ref.repo, ref.number)
        if record is None:
            return {"told": False, "why": "it is no longer under tow"}
        events = await whole_log(self._store, ref)
        if any(event.key == _mark(key) for event in events):
            return {"told": False, "why": "it was told before"}
        if record.state in TERMINAL:
            return {"told": False, "why": f"it is {record.state} by now"}
        notice = escalation(record, events)
        await self._comment(ref, notice.text, key)
        if self._notifier is not None:
            text = f"{notice.text}\nEscalation: {mark_of(key)}"
            await self._notifier.notify(notice.title, text)
        await self._store.change(ref, _marked(key))
        return {"told": True}

    async def notify(self, job: Claimed) -> dict[str, Any]:
        params = params_of(job)
        if self._notifier is None:
            _log.warning("nobody_to_notify", extra={"reason": params["title"]})
            return {"told": False, "why": "no notifier is configured"}
        await self._notifier.notify(str(params["title"]), str(params["text"]))
        return {"told": True}

    async def _comment(self, ref: PullRef, text: str, key: str) -> None:
        """A refusal, as on a locked conversation, does not keep people from being told."""
        forge = self._forges.get(ref.forge)
        if forge is None:
            return
        body = f"**Towline needs a person here.**\n\n{text}"
        try:
            await forge.comment(ref, body, f"escalation:{mark_of(key)}")
        except Rejected as refused:
            _log.warning("comment_refused", extra={"repo": ref.repo, "error": str(refused)})


def params_of(job: Claimed) -> dict[str, Any]:
    params = parse_json((job.params or "").encode())
    if not isinstance(params, dict):
        raise Definitive("the job has no parameters")
    return params


def _marked(key: str) -> Any:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None:
            return None
        payload = {"escalation": mark_of(key)}
        return Change(record, [PullEvent(SENT, "reconciler", now_us, payload, key=_mark(key))])

    return decide


def _mark(key: str) -> str:
    return f"sent {key}"
