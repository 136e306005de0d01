"""Sessions of the dashboard, as a store keeps them."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from towline_once.db.statement import Database, Row, Statement


class StoredSession(NamedTuple):
    """`digest` is that of the cookie, `binding` of what ends the session when it changes."""

    id: str
    digest: str
    principal: str
    binding: str
    address: str
    agent: str
    created_us: int
    seen_us: int
    expires_us: int
    ended_us: int | None


class SessionStore(Protocol):
    async def add(self, session: StoredSession) -> None: ...

    async def find(self, session_id: str) -> StoredSession | None: ...

    async def saw(self, session_id: str, address: str, now_us: int) -> None:
        """Note that a session was used, unless it has ended."""
        ...

    async def end(self, session_id: str, now_us: int) -> bool:
        """False if it has ended before, or is not known."""
        ...

    async def end_others(self, principal: str, but: str, now_us: int) -> int:
        """End all sessions of this principal but one; how many there were."""
        ...

    async def listing(
        self, principal: str | None, before: tuple[int, str], now_us: int, most: int
    ) -> list[StoredSession]:
        """Those that are alive, the newest first, of one principal or of all."""
        ...

    async def sweep(self, now_us: int, most: int) -> int:
        """Delete so many that expired; how many there were."""
        ...


# ------------------------------------------------------------------ SQL
# Sessions of the dashboard in SQL.
#
# The time is always given: a demo has a fast clock, but the sessions of its visitors do not.

_FIELDS: Final = StoredSession._fields
_KINDS: Final = {name: "bigint" if name.endswith("_us") else "text" for name in _FIELDS}
_COLUMNS: Final = ", ".join(f"r.{name}" for name in _FIELDS)
_GIVEN: Final = ", ".join(f"b.{name}" for name in _FIELDS)

ADD = Statement(
    "add session",
    _KINDS,
    f"""
    INSERT INTO towline_sessions ({", ".join(_FIELDS)}) SELECT {_GIVEN} FROM b WHERE true
    ON CONFLICT (id) DO NOTHING RETURNING id
    """,
)

FIND = Statement(
    "find session",
    {"id": "text"},
    f"SELECT {_COLUMNS} FROM b JOIN towline_sessions r ON r.id = b.id",
    writes=False,
)

SAW = Statement(
    "saw session",
    {"id": "text", "address": "text", "now_us": "bigint"},
    """
    UPDATE towline_sessions SET seen_us = b.now_us, address = b.address FROM b
    WHERE towline_sessions.id = b.id AND towline_sessions.ended_us IS NULL
    RETURNING towline_sessions.id
    """,
)

END = Statement(
    "end session",
    {"id": "text", "now_us": "bigint"},
    """
    UPDATE towline_sessions SET ended_us = b.now_us FROM b
    WHERE towline_sessions.id = b.id AND towline_sessions.ended_us IS NULL
    RETURNING towline_sessions.id
    """,
)

END_OTHERS = Statement(
    "end other sessions",
    {"principal": "text", "but": "text", "now_us": "bigint"},
    """
    UPDATE towline_sessions SET ended_us = b.now_us FROM b
    WHERE towline_sessions.principal = b.principal AND towline_sessions.id <> b.but
      AND towline_sessions.ended_us IS NULL AND towline_sessions.expires_us > b.now_us
    RETURNING towline_sessions.id
    """,
)

_PAGE: Final = f"""
    SELECT {_COLUMNS} FROM b JOIN towline_sessions r ON {{which}}
      r.ended_us IS NULL AND r.expires_us > b.now_us
      AND (r.created_us < b.created_us OR (r.created_us = b.created_us AND r.id < b.id))
    ORDER BY r.created_us DESC, r.id DESC LIMIT (SELECT most FROM b)
    """
_PLACE: Final = {"created_us": "bigint", "id": "text", "now_us": "bigint", "most": "bigint"}

LISTING = Statement("list sessions", _PLACE, _PAGE.format(which=""), writes=False)

LISTING_OF = Statement(
    "list sessions of a key",
    {"principal": "text", **_PLACE},
    _PAGE.format(which="r.principal = b.principal AND"),
    writes=False,
)

SWEEP = Statement(
    "sweep sessions",
    {"now_us": "bigint", "most": "bigint"},
    """
    DELETE FROM towline_sessions WHERE id IN (
      SELECT s.id FROM towline_sessions s WHERE s.expires_us <= (SELECT now_us FROM b)
      ORDER BY s.expires_us LIMIT (SELECT most FROM b) {skip_locked})
    RETURNING id
    """,
)


class SqlSessions:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, session: StoredSession) -> None:
        await self._database.run(ADD, [session])

    async def find(self, session_id: str) -> StoredSession | None:
        rows = await self._database.run(FIND, [(session_id,)])
        return _stored(rows[0]) if rows else None

    async def saw(self, session_id: str, address: str, now_us: int) -> None:
        await self._database.run(SAW, [(session_id, address, now_us)])

    async def end(self, session_id: str, now_us: int) -> bool:
        return bool(await self._database.run(END, [(session_id, now_us)]))

    async def end_others(self, principal: str, but: str, now_us: int) -> int:
        return len(await self._database.run(END_OTHERS, [(principal, but, now_us)]))

    async def listing(
        self, principal: str | None, before: tuple[int, str], now_us: int, most: int
    ) -> list[StoredSession]:
        place = (*before, now_us, most)
        if principal is None:
            rows = await self._database.run(LISTING, [place])
        else:
            rows = await self._database.run(LISTING_OF, [(principal, *place)])
        return [_stored(row) for row in rows]

    async def sweep(self, now_us: int, most: int) -> int:
        return len(await self._database.run(SWEEP, [(now_us, most)]))


def _stored(row: Row) -> StoredSession:
    return StoredSession(*row)
