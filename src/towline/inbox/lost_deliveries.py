"""Lost webhooks: read the forge's log ▸ compare with the inbox ▸ take in what is missing.

What is taken in goes through the same ingest as a webhook, under the same key, so that nothing
acts twice, whichever comes first. The rules are in `forges/delivery_log.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from prometheus_client import Counter

from towline.forges import delivery_log
from towline.forges.delivery import DeliveryRejected
from towline.forges.delivery_log import (
    Entry,
    ForgeRefused,
    ForgeUnavailable,
    ForgeUnreadable,
    Hook,
    HookHour,
    HookLog,
    HourCounts,
    Limits,
    Mark,
    Sent,
)
from towline.inbox.store import Inbox
from towline_once import keys
from towline_once.db.statement import Database, Statement
from towline_once.errors import Conflict, TowlineError, Transient
from towline_once.metrics import Audit, audit_to_log
from towline_once.ports import DocumentStore

SOURCE: Final = "github"
HOOK_DELIVERIES = Counter(
    "towline_hook_deliveries",
    "Deliveries in a watched hook's log by what became of them",
    ["hook", "outcome"],
)

_AT_A_TIME: Final = 50
_GUIDS_AT_A_TIME: Final = 500
_MOST_PAGES: Final = 5_000
_MOST_FAILED_READS: Final = 5
"""In a row; fewer may be the fault of the deliveries that were asked for."""
_log = logging.getLogger("towline.recover")


class Receipt(Protocol):
    @property
    def status(self) -> str: ...


class TakeIn(Protocol):
    """The way in for webhooks."""

    async def take_in(
        self, source: str, headers: Mapping[str, str], body: bytes, *, verified: bool
    ) -> Receipt: ...


class HookReport(NamedTuple):
    """What a sweep did for one hook; with a `trouble` its watermark stays where it was."""

    hook: str
    seen: int = 0
    recovered: int = 0
    refused: int = 0
    left: int = 0
    trouble: str | None = None
    retry_after: float = 0.0


class Recovery:
    """Run `sweep` from one process at a time; two of them do no harm, but the same work."""

    def __init__(
        self,
        log: HookLog,
        inbox: Inbox,
        ingest: TakeIn,
        documents: DocumentStore,
        hours: HookHours,
        hooks: Sequence[Hook],
        *,
        audit: Audit = audit_to_log,
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self._parts = _Parts(log, inbox, ingest, documents, hours, audit, limits, _Complaints())
        self._hooks = hooks

    async def sweep(self) -> list[HookReport]:
        """Every hook once; trouble with one does not keep from the next."""
        return [await self._guarded(hook) for hook in self._hooks]

    async def _guarded(self, hook: Hook) -> HookReport:
        complaints = self._parts.complaints
        try:
            report = await _Sweep(self._parts, hook).run()
        except Exception as error:
            line = f"lost webhooks of hook {hook.name} cannot be looked for"
            trouble = complaints.about(hook.name, None, line, error)
            retry_after = error.retry_after if isinstance(error, ForgeUnavailable) else 0.0
            return HookReport(hook.name, trouble=trouble, retry_after=retry_after)
        return report


class _Complaints:
    """One line about each trouble for as long as it stays the same."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str | None], str] = {}

    def about(self, hook: str, guid: str | None, line: str, error: Exception) -> str:
        expected = isinstance(error, TowlineError)
        trouble = str(error) if expected else f"{type(error).__name__}: {error}"
        if self._made.get((hook, guid)) != trouble:
            self._made[hook, guid] = trouble
            bug = None if expected else error
            _log.warning("%s: %s", line, trouble, exc_info=bug, extra={"delivery_id": guid})
        return trouble

    def ended(self, hook: str, still: Collection[str]) -> bool:
        """A sweep went through, but for these deliveries; whether the one before did not."""
        over = [it for it in self._made if it[0] == hook and it[1] not in still]
        for subject in over:
            del self._made[subject]
        return (hook, None) in over


class _Parts(NamedTuple):
    log: HookLog
    inbox: Inbox
    ingest: TakeIn
    documents: DocumentStore
    hours: HookHours
    audit: Audit
    limits: Limits
    complaints: _Complaints


class _Outcomes(NamedTuple):
    recovered: list[Sent]
    arrived: list[Sent]
    """As webhooks after all, in the meantime."""
    refused: list[Sent]
    left: list[Sent]


class _Sweep:
    """One hook's log compared with the inbox, once."""

    def __init__(self, parts: _Parts, hook: Hook) -> None:
        self._parts = parts
        self._hook = hook
        self._document = f"hook {hook.name}"
        self._version = 0
        self._written = ""
        self._now_us = 0
        self._since_us = 0
        self._failed_reads = 0

    async def run(self) -> HookReport:
        mark, entries = await self._read_log(await self._read_mark())
        sent = delivery_log.grouped(entries)
        known = await self._known(sent)
        mark = delivery_log.resumed(mark, sent, known)
        lost = delivery_log.missing(sent, known, mark, self._now_us, self._parts.limits)
        outcomes = _Outcomes([], [], [], [])
        for start in range(0, len(lost), _AT_A_TIME):
            mark = await self._take_in(mark, lost[start : start + _AT_A_TIME], outcomes)
        stored = known | {one.guid for one in (*outcomes.recovered, *outcomes.arrived)}
        await self._count(delivery_log.hourly(sent, stored, mark, self._since_us))
        mark = delivery_log.advanced(mark, sent, outcomes.left, self._now_us, self._parts.limits)
        await self._write_mark(mark)
        if self._parts.complaints.ended(self._hook.name, {one.guid for one in outcomes.left}):
            _log.info("lost webhooks of hook %s can be looked for again", self._hook.name)
        recovered, _, refused, left = map(len, outcomes)
        return HookReport(self._hook.name, len(sent), recovered, refused, left)

    async def _read_log(self, mark: Mark | None) -> tuple[Mark, list[Entry]]:
        """Newest first, down to where it was dealt with."""
        page = await self._parts.log.page(self._hook)
        self._now_us = page.now_us
        mark = mark or delivery_log.first_mark(page.now_us, self._parts.limits)
        self._since_us = delivery_log.read_since(mark, page.now_us, self._parts.limits)
        entries: list[Entry] = []
        for _ in range(_MOST_PAGES):
            within = [entry for entry in page.entries if entry.delivered_us >= self._since_us]
            entries += within
            if page.next is None or len(within) < len(page.entries):
                return mark, entries
            page = await self._parts.log.page(self._hook, page.next)
        raise ForgeUnreadable(f"its delivery log does not end after {_MOST_PAGES} pages")

    async def _known(self, sent: Sequence[Sent]) -> set[str]:
        """The GUIDs that the inbox has."""
        every = [one.guid for one in sent]
        known: set[str] = set()
        for start in range(0, len(every), _GUIDS_AT_A_TIME):
            known |= await self._parts.inbox.known(every[start : start + _GUIDS_AT_A_TIME])
        return {guid for guid in every if self._hook.key(guid) in known}

    async def _take_in(self, mark: Mark, lost: Sequence[Sent], outcomes: _Outcomes) -> Mark:
        """Noted before, tallied after: between the two a crash leaves a trace."""
        mark = mark._replace(underway=tuple(one.guid for one in lost))
        await self._write_mark(mark)
        mine = _Outcomes([], [], [], [])
        for one in lost:
            (await self._outcome(one, mine)).append(one)
        mark = delivery_log.tallied(mark, mine.recovered, mine.refused)
        await self._write_mark(mark)
        HOOK_DELIVERIES.labels(self._hook.name, "refused").inc(len(mine.refused))
        for total, part in zip(outcomes, mine, strict=True):
            total.extend(part)
        return mark

    async def _outcome(self, one: Sent, outcomes: _Outcomes) -> list[Sent]:
        """Where one belongs; what cannot be served just now ends the sweep of this hook."""
        try:
            receipt = await self._recover(one)
        except ForgeUnavailable as error:
            self._failed_reads += 1
            if error.retry_after or self._failed_reads >= _MOST_FAILED_READS:
                raise
            return self._leave(one, outcomes, error)
        except Transient:
            raise
        except (DeliveryRejected, ForgeRefused) as error:
            self._complain(one, error)
            return outcomes.refused
        except Exception as error:
            return self._leave(one, outcomes, error)
        self._failed_reads = 0
        if receipt.status == "duplicate_ignored":
            return outcomes.arrived
        self._parts.audit(
            "WEBHOOK_RECOVERED",
            hook=self._hook.name,
            key_prefix=keys.prefix(self._hook.key(one.guid)),
            delivery_id=one.guid,
            event_name=one.event,
            delivered_us=one.first_us,
        )
        return outcomes.recovered

    async def _recover(self, one: Sent) -> Receipt:
        recorded = await self._parts.log.read(self._hook, one.entry_id)
        if recorded.guid != one.guid:
            raise ForgeUnreadable("GitHub answered with another delivery than the one asked for")
        headers = self._hook.headers(one.guid, one.event)
        body = _body_of(recorded.payload)
        return await self._parts.ingest.take_in(SOURCE, headers, body, verified=True)

    def _leave(self, one: Sent, outcomes: _Outcomes, error: Exception) -> list[Sent]:
        self._complain(one, error)
        return outcomes.left

    def _complain(self, one: Sent, error: Exception) -> None:
        line = f"a lost delivery of hook {self._hook.name} is not taken in"
        self._parts.complaints.about(self._hook.name, one.guid, line, error)

    async def _count(self, counts: Sequence[HourCounts]) -> None:
        """Prometheus is told by how much the hours have grown."""
        name = self._hook.name
        recorded = await self._parts.hours.hours(name, self._since_us)
        before = {hour.hour_us: hour for hour in recorded}
        await self._parts.hours.record(name, counts)
        for count in counts:
            old = before.get(count.hour_us)
            for outcome in ("delivered", "received", "recovered"):
                grown = getattr(count, outcome) - (getattr(old, outcome) if old else 0)
                if grown > 0:
                    HOOK_DELIVERIES.labels(name, outcome).inc(grown)

    async def _read_mark(self) -> Mark | None:
        document = await self._parts.documents.read(self._document)
        self._version, self._written = document.version, document.body
        return delivery_log.mark_from(document.body) if document.body else None

    async def _write_mark(self, mark: Mark) -> None:
        text = delivery_log.mark_text(mark)
        if text == self._written:
            return
        document = await self._parts.documents.swap(self._document, self._version, text)
        if document is None:
            raise Conflict("another process is looking after it at the same time")
        self._version, self._written = document.version, text


def _body_of(payload: Mapping[str, Any]) -> bytes:
    """Written as GitHub writes it; a lone surrogate, which has no bytes, stays escaped."""
    try:
        return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(payload, separators=(",", ":")).encode()


# ------------------------------------------------------------------ SQL
# What came of each hook's deliveries, hour by hour, in SQL.

_KEPT_US = 40 * 86_400_000_000

RECORD = Statement(
    "record hook hours",
    {
        "hook": "text", "hour_us": "bigint", "delivered": "bigint", "received": "bigint",
        "recovered": "bigint",
    },
    """
    INSERT INTO towline_hook_hours (hook, hour_us, delivered, received, recovered)
    SELECT b.hook, b.hour_us, b.delivered, b.received, b.recovered FROM b WHERE true
    ON CONFLICT (hook, hour_us) DO UPDATE SET delivered = excluded.delivered,
      received = excluded.received, recovered = excluded.recovered
    RETURNING hook
    """,
)  # fmt: skip

# At each record, so that no other task has to: an hour goes for each that comes.
FORGET = Statement(
    "forget hook hours",
    {"hook": "text", "kept_us": "bigint"},
    """
    DELETE FROM towline_hook_hours WHERE hook = (SELECT hook FROM b)
      AND hour_us < {now} - (SELECT kept_us FROM b) RETURNING hour_us
    """,
)

HOURS = Statement(
    "hook hours",
    {"hook": "text", "since_us": "bigint"},
    """
    SELECT h.hook, h.hour_us, h.delivered, h.received, h.recovered
    FROM b JOIN towline_hook_hours h
      ON h.hour_us >= b.since_us AND (b.hook IS NULL OR h.hook = b.hook)
    ORDER BY h.hour_us, h.hook
    """,
    writes=False,
)


class HookHours:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, hook: str, counts: Sequence[HourCounts]) -> None:
        """Put these in place of what was recorded for their hours."""
        if counts:
            recorded = [(hook, *count) for count in counts]
            await self._database.run_all([(RECORD, recorded), (FORGET, [(hook, _KEPT_US)])])

    async def hours(self, hook: str | None, since_us: int) -> list[HookHour]:
        """Oldest first, of one hook or of all."""
        rows = await self._database.run(HOURS, [(hook, since_us)])
        return [HookHour._make(row) for row in rows]
