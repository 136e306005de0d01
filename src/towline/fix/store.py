"""Fix runs in SQL: made once with their job, written to by one attempt at a time.

An attempt has a token, and each write compares it in the same UPDATE. An attempt that lost its run
therefore writes nothing.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import orjson

from towline.fix.model import (
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
from towline.inbox.start_queue import FORGET as STARTS_FORGET
from towline.inbox.start_queue import placing
from towline.jobs.ids import ordered_uuid
from towline.jobs.model import OWN_QUEUE, Bell, NewJob
from towline.jobs.pruning import Pruned
from towline.jobs.store import ENQUEUE
from towline_once.coordination.rate_limit import Rates, Start
from towline_once.db.statement import Database, Row, Script, Statement
from towline_once.errors import Rejected

# ------------------------------------------------------------------ the protocol
# Fix runs: one for each failure event, get-or-create, with every stage that ended.

Intended: TypeAlias = Literal["written", "superseded", "beaten"]
"""`superseded` by another attempt of the run; `beaten` by another run for the same thing."""


# ------------------------------------------------------------------ SQL
# The SQL of fix runs. Whatever an attempt writes compares its token inside the one UPDATE.

NEW: Final = {
    "run_key": "text", "event_id": "text", "run_id": "text", "subject": "text", "repo": "text",
    "errand": "text", "branch": "text",
}  # fmt: skip
RECORD: Final = tuple(name for name in RunRecord._fields if name != "stages")
# A run is stored as `waiting` from the first; by the clock it becomes so when its turn has come.
_STATE = """CASE WHEN r.state = 'waiting' AND r.starts_us > {now} THEN 'scheduled'
      ELSE r.state END"""
_ALL = ", ".join({"state": _STATE}.get(column, f"r.{column}") for column in RECORD)
_CHANGED = ", ".join(f"towline_runs.{column}" for column in RECORD)
_OURS = "towline_runs.run_key = b.run_key AND towline_runs.token = b.token"
_LIVE = "towline_runs.state IN ('waiting', 'running')"
_HELD = {"run_key": "text", "token": "bigint"}
_SEEN = "(b.seen IS NULL OR towline_runs.token = b.seen)"
_TO_BE_OPENED = "s.stage = 'PR' AND s.output <> '{{}}'"

CREATE = Statement(
    "create run",
    NEW,
    f"""
    INSERT INTO towline_runs
      ({", ".join(NEW)}, state, attempt_count, created_us, updated_us, token, starts_us)
    SELECT {", ".join(f"b.{name}" for name in NEW)}, 'waiting', 0, {{now}}, {{now}}, 0,
      (SELECT s.starts_us FROM towline_starts s WHERE s.run_key = b.run_key
       AND s.starts_us > {{now}})
    FROM b WHERE true ON CONFLICT DO NOTHING RETURNING run_key, starts_us - {{now}}
    """,
)
"""Also gives how long it waits for its turn, in microseconds; NULL if it does not."""

FIND = Statement(
    "find run",
    {"run_key": "text", "event_id": "text"},
    f"""
    SELECT {_ALL} FROM b JOIN towline_runs r ON r.run_key = b.run_key OR r.event_id = b.event_id
    ORDER BY CASE WHEN r.run_key = b.run_key THEN 0 ELSE 1 END LIMIT 1
    """,
    writes=False,
)

FILL_IN = Statement(
    "fill in errand",
    {"run_key": "text", "errand": "text", "known": "text"},
    """
    UPDATE towline_runs SET errand = b.errand FROM b
    WHERE towline_runs.run_key = b.run_key AND towline_runs.errand = b.known
      AND towline_runs.state = 'waiting' AND towline_runs.attempt_count = 0
    RETURNING towline_runs.run_key
    """,
)

READ = Statement(
    "read run",
    {"run_key": "text"},
    f"SELECT {_ALL} FROM b JOIN towline_runs r ON r.run_key = b.run_key",
    writes=False,
)

_STAGE: Final = {
    "stage": "text", "attempt": "bigint", "outcome": "text", "input_digest": "text",
    "reason": "text", "output": "text", "log": "text", "started_us": "bigint",
    "took_us": "bigint",
}  # fmt: skip


def _stages(name: str, columns: str, which: str = "true") -> Statement:
    return Statement(
        name,
        {"run_key": "text"},
        f"""
        SELECT s.run_key, {columns} FROM b JOIN towline_run_stages s ON s.run_key = b.run_key
        WHERE {which}
        ORDER BY s.run_key, s.attempt
        """,
        writes=False,
    )


STAGES_OF_RUN = _stages("stages of a run", ", ".join(f"s.{name}" for name in _STAGE))
OPENINGS = _stages(
    "what runs were to open", ", ".join(f"s.{name}" for name in _STAGE), _TO_BE_OPENED
)
STAGES_IN_SHORT = _stages(
    "stages in short",
    ", ".join(
        {"output": "'{{}}'", "log": "''"}.get(name, f"s.{name}") for name in _STAGE
    ),
)  # fmt: skip

BEGIN = Statement(
    "begin attempt",
    {"run_key": "text", "most": "bigint", "job": "text", "seen": "bigint"},
    f"""
    UPDATE towline_runs SET state = 'running', attempt_count = attempt_count + 1,
      token = {{epoch}}, last_attempt_us = {{now}}, last_job = b.job, updated_us = {{now}}
    FROM b WHERE towline_runs.run_key = b.run_key AND {_LIVE} AND {_SEEN}
      AND towline_runs.attempt_count < b.most
    RETURNING {_CHANGED}
    """,
)

USE_UP = Statement(
    "use up attempts",
    {"run_key": "text", "most": "bigint", "seen": "bigint"},
    f"""
    UPDATE towline_runs SET state = 'blocked', blocked_reason = 'max_attempts',
      token = {{epoch}}, updated_us = {{now}}
    FROM b WHERE towline_runs.run_key = b.run_key AND {_LIVE} AND {_SEEN}
      AND towline_runs.attempt_count >= b.most
    RETURNING towline_runs.run_key
    """,
)

TOUCH = Statement(
    "touch run",
    _HELD,
    f"""
    UPDATE towline_runs SET updated_us = {{now}} FROM b WHERE {_OURS}
    RETURNING towline_runs.run_key
    """,
)

HOLD_SUBJECT = Statement(
    "hold subject",
    {"repo": "text", "subject": "text"},
    """
    UPDATE towline_runs SET updated_us = towline_runs.updated_us FROM b
    WHERE towline_runs.run_id = (
      SELECT min(r.run_id) FROM towline_runs r WHERE r.repo = b.repo AND r.subject = b.subject)
    RETURNING towline_runs.run_key
    """,
)
"""Its oldest run stands for it: who looks at all of them and writes then does so alone."""

WRITE_STAGE = Statement(
    "write stage",
    {"run_key": "text", **_STAGE},
    f"""
    INSERT INTO towline_run_stages (run_key, {", ".join(_STAGE)})
    SELECT b.run_key, {", ".join(f"b.{name}" for name in _STAGE)} FROM b WHERE true
    ON CONFLICT (run_key, stage, attempt) DO UPDATE SET
      {", ".join(f"{name} = excluded.{name}" for name in list(_STAGE)[2:])}
    RETURNING run_key
    """,
)

FINISH = Statement(
    "finish attempt",
    {**_HELD, "state": "text", "blocked_reason": "text", "uncounted": "bigint"},
    f"""
    UPDATE towline_runs SET state = b.state, blocked_reason = b.blocked_reason,
      attempt_count = attempt_count - b.uncounted, updated_us = {{now}} FROM b WHERE {_OURS}
    RETURNING towline_runs.run_key
    """,
)

OPENED = Statement(
    "note pull request",
    {**_HELD, "number": "bigint", "url": "text"},
    f"""
    UPDATE towline_runs SET
      last_pr_number = CASE WHEN last_pr_url IS NULL THEN b.number ELSE last_pr_number END,
      last_pr_created_us = coalesce(last_pr_created_us, {{now}}),
      last_pr_url = coalesce(last_pr_url, b.url), updated_us = {{now}}
    FROM b WHERE {_OURS}
    RETURNING towline_runs.run_key
    """,
)

UNBLOCK = Statement(
    "unblock run",
    {"run_key": "text", "by": "text"},
    """
    UPDATE towline_runs SET state = 'waiting', attempt_count = 0, blocked_reason = NULL,
      last_attempt_us = NULL, last_job = NULL, unblocked_by = b.by, token = {epoch},
      starts_us = NULL,
      updated_us = {now}
    FROM b WHERE towline_runs.run_key = b.run_key AND towline_runs.state = 'blocked'
    RETURNING towline_runs.run_key
    """,
)

FORGET_STAGES = Statement(
    "forget stages",
    {"run_key": "text"},
    "DELETE FROM towline_run_stages WHERE run_key IN (SELECT b.run_key FROM b) RETURNING stage",
)

BESIDE = Statement(
    "runs beside",
    {"repo": "text", "subject": "text", "but": "text", "most": "bigint"},
    f"""
    SELECT {{now}}, {_ALL} FROM b LEFT JOIN towline_runs r
      ON r.repo = b.repo AND r.subject = b.subject AND r.run_key <> b.but
      AND (r.last_pr_created_us IS NOT NULL OR EXISTS (
        SELECT 1 FROM towline_run_stages s WHERE s.run_key = r.run_key AND {_TO_BE_OPENED}))
    ORDER BY coalesce(r.last_pr_created_us, r.updated_us) DESC LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

STRANDED = Statement(
    "stranded runs",
    {"most": "bigint", "idle_us": "bigint", "dead_us": "bigint"},
    f"""
    SELECT {_ALL} FROM towline_runs r
    WHERE r.state IN ('waiting', 'running') AND r.updated_us <= {{now}} - (SELECT dead_us FROM b)
      AND ((r.updated_us <= {{now}} - (SELECT idle_us FROM b)
            AND coalesce(r.starts_us, 0) <= {{now}} - (SELECT idle_us FROM b)) OR EXISTS (
        SELECT 1 FROM towline_jobs j WHERE j.id = r.last_job AND j.state || '' = 'dead'))
    ORDER BY r.updated_us LIMIT (SELECT most FROM b)
    """,
    writes=False,
)

FORGET = Statement(
    "forget runs",
    {"most": "bigint", "keep_us": "bigint"},
    """
    DELETE FROM towline_runs WHERE run_key IN (
      SELECT r.run_key FROM towline_runs r
      WHERE r.state IN ('blocked', 'done') AND r.updated_us <= {now} - (SELECT keep_us FROM b)
      ORDER BY r.updated_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING run_key, {now} - updated_us
    """,
)


_IN_STATE: Final = {
    "scheduled": " AND r.state = 'waiting' AND r.starts_us > {now}",
    "waiting": " AND r.state = 'waiting' AND coalesce(r.starts_us, 0) <= {now}",
}


@cache
def listing(repo: bool, state: RunState | None) -> Statement:
    wanted = " AND r.repo = (SELECT repo FROM b)" if repo else ""
    if state is not None:
        wanted += _IN_STATE.get(state, f" AND r.state = '{state}'")
    return Statement(
        "list runs",
        {"repo": "text", "before": "text", "most": "bigint"},
        f"""
        SELECT {_ALL} FROM towline_runs r WHERE r.run_id < (SELECT before FROM b) {wanted}
        ORDER BY r.run_id DESC LIMIT (SELECT most FROM b)
        """,
        writes=False,
    )


# ------------------------------------------------------------------ the store

LONGEST_LOG: Final = 100_000
LONGEST_REASON: Final = 2000
_LAST_OF_ALL: Final = "run_~"
_MOST_BESIDE: Final = 10
_ERRAND = frozenset(one.name for one in fields(Errand))
_ADVISORY = frozenset(one.name for one in fields(Advisory))
_RUN_ID: Final = RECORD.index("run_id")
_log = logging.getLogger("towline.store")
_ANOTHER_TYPE: Final = "something is of another type than it was written with"
_NO_TEXTS: Final = {"advisory": dict, "replaces": int, "more": dict}


class RunStore:
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
        """The run, and whether it is new; its job is queued in the same transaction, once.

        The job starts when the turn of the run comes. The inbox has taken its place already, if
        an event starts it and the rate counts it; with `rates` a new run takes its place here.
        """
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
        """Count an attempt and give it a new token; None if it may not begin.

        With its attempts used up it becomes blocked, by `max_attempts`. `job_id` is that of the
        job that makes the attempt. With `seen`, the token with which the run was read, nothing
        is done if it has another one by now: of those who saw the same run, one begins.
        """

        def script() -> Script[RunRecord | None]:
            rows = yield BEGIN, [(run_key, max_attempts, job_id or None, seen)]
            if not rows:
                yield USE_UP, [(run_key, max_attempts, seen)]
                return None
            stages = yield STAGES_OF_RUN, [(run_key,)]
            return _record(rows[0], stages)

        return await self._database.transact(script)

    async def unblock(self, run_key: str, by: str, job: NewJob) -> RunRecord | None:
        """Let a blocked run begin anew, with fresh attempts; None if there is no such run.

        Of its stages nothing is kept but what it was about to open, which may be there.
        """

        def script() -> Script[tuple[RunRecord | None, bool]]:
            unblocked = yield UNBLOCK, [(run_key, by)]
            rows = yield READ, [(run_key,)]
            if unblocked:
                kept = _kept(_record(rows[0], (yield OPENINGS, [(run_key,)])))
                yield FORGET_STAGES, [(run_key,)]
                if kept is not None:
                    yield WRITE_STAGE, [_stage_row(run_key, kept)]
                yield ENQUEUE, [job]
            return (_record(rows[0], ()) if rows else None), bool(unblocked)

        record, unblocked = await self._database.transact(script)
        if unblocked:
            self._ring(job)
        return record

    # ------------------------------------------------------------------ an attempt's writes

    async def record(self, run_key: str, token: int, stage: StageRecord) -> bool:
        """Write down how a stage ended; False if another attempt has taken over."""
        row = _stage_row(run_key, stage)

        def script() -> Script[bool]:
            if not (yield TOUCH, [(run_key, token)]):
                return False
            yield WRITE_STAGE, [row]
            return True

        return await self._database.transact(script)

    async def intend(
        self, run: RunRecord, token: int, stage: StageRecord, beside: Beside
    ) -> Intended:
        """Write down what is about to be opened, unless one beside it is not as it was seen."""
        row = _stage_row(run.run_key, stage)

        def script() -> Script[Intended]:
            yield HOLD_SUBJECT, [(run.errand.repo, subject_of(run.errand))]
            if not (yield TOUCH, [(run.run_key, token)]):
                return "superseded"
            now = yield from _beside(run.errand, run.run_key)
            if not now.marks <= beside.marks:
                return "beaten"
            yield WRITE_STAGE, [row]
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
        """End an attempt; False if another one has taken over.

        One that is not `counted` is given back: the run has as many left as before it began.
        """
        reason = None if blocked_reason is None else _clean(blocked_reason)[:LONGEST_REASON]
        row = (run_key, token, state, reason, int(not counted))
        return bool(await self._database.run(FINISH, [row]))

    async def opened(self, run_key: str, token: int, number: int, url: str) -> bool:
        """Note the pull request, which a run has once; the first one stays."""
        return bool(await self._database.run(OPENED, [(run_key, token, number, url)]))

    # ------------------------------------------------------------------ looking

    async def read(self, run_key: str) -> RunRecord | None:
        def script() -> Script[RunRecord | None]:
            rows = yield READ, [(run_key,)]
            if not rows:
                return None
            stages = yield STAGES_OF_RUN, [(run_key,)]
            return _record(rows[0], stages)

        return await self._database.transact(script)

    async def beside(self, errand: Errand, but: str) -> Beside:
        """Who else has proposed the same or was about to, and what time it is in the store."""
        return await self._database.transact(lambda: _beside(errand, but))

    async def stranded(self, most: int, idle_us: int, dead_us: int) -> list[RunRecord]:
        """Live ones to which nothing has happened for so long that nobody can be at work.

        `dead_us`, the shorter time, is for those whose last attempt's job has died.
        """
        rows = await self._database.run(STRANDED, [(most, idle_us, dead_us)])
        return _readable(rows)

    async def listing(
        self, repo: str | None, state: RunState | None, before: str, most: int
    ) -> list[RunRecord]:
        """The newest first, without the logs of their stages."""
        statement = listing(repo is not None, state)
        runs: list[RunRecord] = []
        while len(runs) < most:
            asked = (repo, before or _LAST_OF_ALL, most - len(runs))
            rows = await self._database.run(statement, [asked])
            if not rows:
                break
            stages = await self._database.run(STAGES_IN_SHORT, [(row[0],) for row in rows])
            whole = _readable(rows, stages)
            runs += whole
            if len(whole) == len(rows):
                break
            before = rows[-1][_RUN_ID]
        return runs

    async def prune(self, most: int, keep_us: int) -> Pruned:
        def script() -> Script[Pruned]:
            forgotten = yield FORGET, [(most, keep_us)]
            if forgotten:
                yield FORGET_STAGES, [(row[0],) for row in forgotten]
            late_us = min((row[1] for row in forgotten), default=keep_us) - keep_us
            return Pruned(len(forgotten), len(forgotten) == most, late_us)

        return await self._database.transact(script)

    async def forget_places(self, most: int, keep_us: int) -> Pruned:
        """Of runs whose turn came that long ago."""
        rows = await self._database.run(STARTS_FORGET, [(most, keep_us)])
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
    if rates is not None and not (yield FIND, [(row[0], row[1])]):
        yield from placing([start], rates)
    created = yield CREATE, [row]
    if created:
        yield ENQUEUE, [job._replace(delay_us=max(job.delay_us, created[0][1] or 0))]
    found = _record((yield FIND, [(row[0], row[1])])[0], ())
    if not created and (more := filled(found.errand, errand)) != found.errand:
        known, wanted = _errand_text(found.errand), _errand_text(more)
        if (yield FILL_IN, [(found.run_key, wanted, known)]):
            found = found._replace(errand=more)
    return found, bool(created)


def _beside(errand: Errand, but: str) -> Script[Beside]:
    rows = yield BESIDE, [(errand.repo, subject_of(errand), but, _MOST_BESIDE)]
    keys = [(row[1],) for row in rows if row[1] is not None]
    openings = (yield OPENINGS, keys) if keys else []
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
    found: dict[str, Any] = dict(zip(RECORD, row, strict=True))
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
