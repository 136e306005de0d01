"""Fix runs in SQL: made once with their job, written to by one attempt at a time."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import orjson

from towline.core.fixrun import (
    STAGES,
    TO_BE_OPENED,
    Advisory,
    Beside,
    Errand,
    RunRecord,
    RunState,
    StageRecord,
    filled,
    subject_of,
)
from towline.core.ids import ordered_uuid
from towline.core.throttle import Rates, Start
from towline.errors import Rejected
from towline.ports.jobs import OWN_QUEUE, Bell, NewJob
from towline.ports.pruning import Pruned
from towline.ports.runs import Intended
from towline.store import run_statements as q
from towline.store.job_statements import ENQUEUE
from towline.store.sql import Database, Row, Script
from towline.store.starts import FORGET, placing

LONGEST_LOG: Final = 100_000
LONGEST_REASON: Final = 2000
_LAST_OF_ALL: Final = "run_~"
_MOST_BESIDE: Final = 10
_ERRAND = frozenset(one.name for one in fields(Errand))
_ADVISORY = frozenset(one.name for one in fields(Advisory))
_RUN_ID: Final = q.RECORD.index("run_id")
_log = logging.getLogger("towline.store")
_ANOTHER_TYPE: Final = "something is of another type than it was written with"
_NO_TEXTS: Final = {"advisory": dict, "replaces": int, "more": dict}


class SqlRuns:
    def __init__(self, database: Database, bell: Bell | None = None) -> None:
        """`bell` is rung for the jobs of runs, once they are durable."""
        self._database = database
        self._bell = bell

    # ------------------------------------------------------------------ the beginning

    async def get_or_create(
        self,
        run_key: str,
        event_id: str,
        errand: Errand,
        branch: str,
        job: NewJob,
        rates: Rates | None = None,
    ) -> tuple[RunRecord, bool]:
        serial = ordered_uuid(self._database.clock.now_us(), secrets.token_bytes(8)).hex
        row = (
            *(run_key, event_id, f"run_{serial}", subject_of(errand), errand.repo),
            *(_errand_text(errand), branch),
        )
        start = Start(run_key, errand.repo)
        record, created = await self._database.transact(
            lambda: _creating(row, errand, job, start, rates)
        )
        if created and record.starts_us is None:
            self._ring(job)
        return record, created

    async def begin(
        self, run_key: str, max_attempts: int, job_id: str = "", seen: int | None = None
    ) -> RunRecord | None:
        def script() -> Script[RunRecord | None]:
            rows = yield q.BEGIN, [(run_key, max_attempts, job_id or None, seen)]
            if not rows:
                yield q.USE_UP, [(run_key, max_attempts, seen)]
                return None
            stages = yield q.STAGES, [(run_key,)]
            return _record(rows[0], stages)

        return await self._database.transact(script)

    async def unblock(self, run_key: str, by: str, job: NewJob) -> RunRecord | None:
        def script() -> Script[tuple[RunRecord | None, bool]]:
            unblocked = yield q.UNBLOCK, [(run_key, by)]
            rows = yield q.READ, [(run_key,)]
            if unblocked:
                kept = _kept(_record(rows[0], (yield q.OPENINGS, [(run_key,)])))
                yield q.FORGET_STAGES, [(run_key,)]
                if kept is not None:
                    yield q.WRITE_STAGE, [_stage_row(run_key, kept)]
                yield ENQUEUE, [job]
            return (_record(rows[0], ()) if rows else None), bool(unblocked)

        record, unblocked = await self._database.transact(script)
        if unblocked:
            self._ring(job)
        return record

    # ------------------------------------------------------------------ an attempt's writes

    async def record(self, run_key: str, token: int, stage: StageRecord) -> bool:
        row = _stage_row(run_key, stage)

        def script() -> Script[bool]:
            if not (yield q.TOUCH, [(run_key, token)]):
                return False
            yield q.WRITE_STAGE, [row]
            return True

        return await self._database.transact(script)

    async def intend(
        self, run: RunRecord, token: int, stage: StageRecord, beside: Beside
    ) -> Intended:
        row = _stage_row(run.run_key, stage)

        def script() -> Script[Intended]:
            yield q.HOLD_SUBJECT, [(run.errand.repo, subject_of(run.errand))]
            if not (yield q.TOUCH, [(run.run_key, token)]):
                return "superseded"
            now = yield from _beside(run.errand, run.run_key)
            if not now.marks <= beside.marks:
                return "beaten"
            yield q.WRITE_STAGE, [row]
            return "written"

        return await self._database.transact(script)

    async def finish(
        self,
        run_key: str,
        token: int,
        state: RunState,
        blocked_reason: str | None = None,
        *,
        counted: bool = True,
    ) -> bool:
        reason = None if blocked_reason is None else _clean(blocked_reason)[:LONGEST_REASON]
        row = (run_key, token, state, reason, int(not counted))
        return bool(await self._database.run(q.FINISH, [row]))

    async def opened(self, run_key: str, token: int, number: int, url: str) -> bool:
        return bool(await self._database.run(q.OPENED, [(run_key, token, number, url)]))

    # ------------------------------------------------------------------ looking

    async def read(self, run_key: str) -> RunRecord | None:
        def script() -> Script[RunRecord | None]:
            rows = yield q.READ, [(run_key,)]
            if not rows:
                return None
            stages = yield q.STAGES, [(run_key,)]
            return _record(rows[0], stages)

        return await self._database.transact(script)

    async def beside(self, errand: Errand, but: str) -> Beside:
        return await self._database.transact(lambda: _beside(errand, but))

    async def stranded(self, most: int, idle_us: int, dead_us: int) -> list[RunRecord]:
        rows = await self._database.run(q.STRANDED, [(most, idle_us, dead_us)])
        return _readable(rows)

    async def listing(
        self, repo: str | None, state: RunState | None, before: str, most: int
    ) -> list[RunRecord]:
        statement = q.listing(repo is not None, state)
        runs: list[RunRecord] = []
        while len(runs) < most:
            asked = (repo, before or _LAST_OF_ALL, most - len(runs))
            rows = await self._database.run(statement, [asked])
            if not rows:
                break
            stages = await self._database.run(q.STAGES_IN_SHORT, [(row[0],) for row in rows])
            whole = _readable(rows, stages)
            runs += whole
            if len(whole) == len(rows):
                break
            before = rows[-1][_RUN_ID]
        return runs

    async def prune(self, most: int, keep_us: int) -> Pruned:
        def script() -> Script[Pruned]:
            forgotten = yield q.FORGET, [(most, keep_us)]
            if forgotten:
                yield q.FORGET_STAGES, [(row[0],) for row in forgotten]
            late_us = min((row[1] for row in forgotten), default=keep_us) - keep_us
            return Pruned(len(forgotten), len(forgotten) == most, late_us)

        return await self._database.transact(script)

    async def forget_places(self, most: int, keep_us: int) -> Pruned:
        """Of runs whose turn came that long ago."""
        rows = await self._database.run(FORGET, [(most, keep_us)])
        late_us = min((row[1] for row in rows), default=keep_us) - keep_us
        return Pruned(len(rows), len(rows) == most, late_us)

    def _ring(self, job: NewJob) -> None:
        if self._bell is not None and job.queue == OWN_QUEUE and job.delay_us == 0:
            self._bell.ring([job.id])


def _creating(
    row: Row, errand: Errand, job: NewJob, start: Start, rates: Rates | None
) -> Script[tuple[RunRecord, bool]]:
    """The run and its job, or the run that was there; what it lacked is filled in.

    With `rates` a new run takes its place first; without, it has the one that the inbox took."""
    if rates is not None and not (yield q.FIND, [(row[0], row[1])]):
        yield from placing([start], rates)
    created = yield q.CREATE, [row]
    if created:
        yield ENQUEUE, [job._replace(delay_us=max(job.delay_us, created[0][1] or 0))]
    found = _record((yield q.FIND, [(row[0], row[1])])[0], ())
    if not created and (more := filled(found.errand, errand)) != found.errand:
        known, wanted = _errand_text(found.errand), _errand_text(more)
        if (yield q.FILL_IN, [(found.run_key, wanted, known)]):
            found = found._replace(errand=more)
    return found, bool(created)


def _beside(errand: Errand, but: str) -> Script[Beside]:
    rows = yield q.BESIDE, [(errand.repo, subject_of(errand), but, _MOST_BESIDE)]
    keys = [(row[1],) for row in rows if row[1] is not None]
    openings = (yield q.OPENINGS, keys) if keys else []
    runs = [
        _record(row[1:], [one for one in openings if one[0] == row[1]])
        for row in rows
        if row[1] is not None
    ]
    rivals = [one for one in runs if one.last_pr_created_us is not None or one.opening is not None]
    return Beside(rows[0][0], tuple(rivals))


def _kept(run: RunRecord) -> StageRecord | None:
    """What it was about to open, before the first of its new attempts."""
    if run.opening is None:
        return None
    return run.stages[-1]._replace(attempt=0, outcome="failed", reason=TO_BE_OPENED)


def _readable(rows: Sequence[Row], stages: Sequence[Row] = ()) -> list[RunRecord]:
    """A damaged one must not hide the others. It is logged, and asked for alone it says so."""
    runs = []
    for row in rows:
        try:
            runs.append(_record(row, [one for one in stages if one[0] == row[0]]))
        except Rejected as damaged:
            _log.error("run_unreadable error=%s", damaged)
    return runs


def _record(row: Row, stages: Sequence[Row]) -> RunRecord:
    found: dict[str, Any] = dict(zip(q.RECORD, row, strict=True))
    try:
        found["errand"] = _errand_of(orjson.loads(found["errand"]))
        newest = {one[1]: _stage_of(one) for one in stages}
    except (ValueError, TypeError):
        raise Rejected(f"what is stored of run {found['run_id']} cannot be read") from None
    return RunRecord(**found, stages=tuple(newest[name] for name in STAGES if name in newest))


def _stage_row(run_key: str, stage: StageRecord) -> Row:
    return (
        *(run_key, stage.stage, stage.attempt, stage.outcome, stage.input_digest),
        _clean(stage.reason)[:LONGEST_REASON],
        _output_text(stage.output),
        _cut(_clean(stage.log)),
        *(stage.started_us, round(stage.seconds * 1e6)),
    )


def _stage_of(row: Row) -> StageRecord:
    _, stage, attempt, outcome, digest, reason, text, log, started_us, took_us = row
    output = orjson.loads(text)
    if not isinstance(output, dict):
        raise TypeError("the output of a stage is an object")
    return StageRecord(
        stage, attempt, outcome, digest, reason, output, log, started_us, took_us / 1e6
    )


def _errand_text(errand: Errand) -> str:
    plain = {**asdict(errand), "more": dict(errand.more)}
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS).decode()


def _errand_of(stored: Mapping[str, Any]) -> Errand:
    known = _known(stored, _ERRAND)
    if advisory := known.get("advisory"):
        known["advisory"] = Advisory(**_known(advisory, _ADVISORY))
    if not all(isinstance(text, str) for text in known.get("more", {}).values()):
        raise TypeError(_ANOTHER_TYPE)
    return Errand(**known)


def _known(stored: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """What a newer version wrote and this one does not know is left out."""
    known = {name: stored[name] for name in stored if name in names and stored[name] is not None}
    if not all(isinstance(value, _NO_TEXTS.get(name, str)) for name, value in known.items()):
        raise TypeError(_ANOTHER_TYPE)
    return known


def _output_text(output: Mapping[str, object]) -> str:
    """As JSON; names of files may have half characters, which JSON cannot hold."""
    try:
        return orjson.dumps(output, default=str).decode()
    except TypeError:
        return _clean(json.dumps(output, ensure_ascii=False, default=str))


def _clean(text: str) -> str:
    """Storable: no NUL, no half characters."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _cut(log: str) -> str:
    """The end of it says more than its beginning."""
    if len(log) <= LONGEST_LOG:
        return log
    return f"[{len(log) - LONGEST_LOG} characters cut]\n{log[-LONGEST_LOG:]}"
