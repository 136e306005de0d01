"""PostgreSQL as a `Database`, over asyncpg.

asyncpg was chosen by measurement (`bench/drivers.py`): over arrays it is level with psycopg 3, a
single statement is faster by a quarter or more. Its pool asks the server to reset a connection
after each use, which doubles the round trips. With a reset of ours that asks nothing, it still
costs 14 µs of the processor more a statement, a sixth of a cycle with 32 callers. So a small pool
of our own hands connections out: one that met an error or a deadline is thrown away, never reused.

A lost connection leaves the outcome unknown. Every statement here is idempotent by holder and
token, so it is tried once more on a new connection, within the same deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson

from towline_once.db.migrate import ONCE, Revisions, newest_of, version_of
from towline_once.db.notify import PostgresMailbox
from towline_once.db.single_flight import SharedAttempt
from towline_once.db.statement import Row, Script, Statement, Step
from towline_once.errors import MissingExtra, Rejected, StoreFull, Transient, Unavailable
from towline_once.ports import Clock

# ------------------------------------------------------------------ array literals
# Columns of a batch as PostgreSQL array literals.
#
# asyncpg would take the lists themselves, but asks of each element whether it is a container; at
# thirty elements a cycle that costs more than the rest of the call. Written as one text a column,
# the server splits it in C.

# In a JSON text only \" and \\ mean the same as in an array literal.
_OTHER_ESCAPE = re.compile(r'\\[^"\\]')

_FIRST, _FIRST_TWO = itemgetter(0), itemgetter(0, 1)


def columns_of(statement: Statement, rows: Sequence[Row]) -> list[str | bytes]:
    """Rows that are written go in the order of their keys, lest two statements lock each other."""
    if statement.writes and len(rows) > 1:
        rows = sorted(rows, key=_FIRST_TWO if len(statement.columns) > 1 else _FIRST)
    columns: list[str | bytes] = []
    for kind, column in zip(statement.columns.values(), zip(*rows, strict=True), strict=True):
        columns += in_one_piece(column) if kind == "bytea" else [array_literal(column)]
    return columns


def in_one_piece(values: Sequence[bytes]) -> list[str | bytes]:
    """As they are: in an array literal they would be twice as long, and read byte by byte."""
    lengths = list(map(len, values))
    starts = accumulate(lengths[:-1], initial=1)
    return [b"".join(values), array_literal(list(starts)), array_literal(lengths)]


def array_literal(values: Sequence[str | int | None]) -> str:
    """JSON has the same quotes, and almost the same escapes."""
    text = orjson.dumps(values).decode()
    if "\\" in text and _OTHER_ESCAPE.search(text):
        return "{" + ",".join(map(_element, values)) + "}"
    return "{" + text[1:-1] + "}"


def _element(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


# ------------------------------------------------------------------ the database

try:
    import asyncpg
except ImportError as missing:
    raise MissingExtra("PostgreSQL needs an extra: pip install 'towline[postgres]'") from missing

_log = logging.getLogger("towline.store")
T = TypeVar("T")

# Batches are small and every table is probed by its key; a plan made while a table was empty
# must not go on scanning it when it has grown. Values come in arrays, which no plan looks into: to
# plan for each of them anew would be in vain.
_SESSION = {
    "application_name": "towline",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
# A machine that is cut off says nothing any more. By itself the server would keep its sessions for
# two hours, with what they had locked.
_SIGNS_OF_LIFE = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15000",
}
_KNOWS_TRANSACTION_TIMEOUT = 17
_PLAN_SECONDS = 15
"""How long a plan may be used: one made for an empty queue reads a long one whole for each job."""
_UPGRADE_SECONDS = 600.0


class Postgres:
    dialect = "postgresql"
    seats, lanes = 32, 2
    far = True

    def __init__(
        self,
        url: str,
        clock: Clock,
        timeout: float = 5.0,
        pool_size: int = 8,
        plan_seconds: int = _PLAN_SECONDS,
        revisions: Sequence[Revisions] = (ONCE,),
    ) -> None:
        parts = urlsplit(url)
        if not parts.hostname and not parts.query:
            raise Rejected(
                "a PostgreSQL URL is postgresql://[user[:password]@]host[:port]/database"
            )
        self.clock = clock
        self._url = url.replace("postgres://", "postgresql://", 1)
        self._where = f"{parts.hostname or 'local socket'}{parts.path}"
        self._timeout = timeout
        self._plan_seconds = plan_seconds
        self._revisions = revisions
        self._idle: list[Any] = []
        self._lent: set[Any] = set()
        self._places = asyncio.Semaphore(pool_size)
        self._preparing = SharedAttempt(self._prepare)
        self._prepared = False
        self.mailbox = PostgresMailbox(self._dial, self._connection_for_posts)

    # ------------------------------------------------------------------ connections

    async def connect(self) -> None:
        """Reach the server and bring its tables up to date."""
        if not self._prepared:
            await self._preparing()

    async def _prepare(self) -> None:
        found = await self._found()
        current = [one.is_current(at) for one, at in zip(self._revisions, found, strict=True)]
        if not all(current):
            await self._upgrade()
        self._prepared = True

    async def _upgrade(self) -> None:
        connection = await self._dial_with(
            {"application_name": "towline-migrations", **_SIGNS_OF_LIFE}
        )
        try:
            async with asyncio.timeout(_UPGRADE_SECONDS):
                for one in self._revisions:
                    await one.upgrade_postgres(connection)
        except Exception as error:
            raise self._translate(error) from error
        finally:
            connection.terminate()

    async def version(self) -> str | None:
        return version_of(await self._found())

    async def _found(self) -> list[str | None]:
        async with self._deadline(), self._borrow() as connection:
            return [await one.found_in_postgres(connection) for one in self._revisions]

    def newest(self) -> str:
        return newest_of(self._revisions)

    async def _dial(self) -> Any:
        """What a client had locked is free again soon after its own calls would have ended.

        A newer server ends a transaction also where its client was lost between the two halves
        of a statement, while to an older one it seems to be at work.
        """
        limit = int(self._timeout * 1000)
        limits = {"statement_timeout": limit, "idle_in_transaction_session_timeout": limit}
        settings = {name: str(value) for name, value in limits.items()}
        connection = await self._dial_with({**_SESSION, **_SIGNS_OF_LIFE, **settings})
        if connection.get_server_version().major >= _KNOWS_TRANSACTION_TIMEOUT:
            try:
                await connection.execute(f"SET transaction_timeout = {2 * limit}")
            except BaseException as error:
                connection.terminate()
                if isinstance(error, Exception):
                    raise self._translate(error) from error
                raise
        return connection

    async def dial_for_reading(self) -> Any:
        """A connection of the caller's own, whose transactions may not write."""
        limit = str(int(self._timeout * 1000))
        reading = {"default_transaction_read_only": "on", "statement_timeout": limit}
        return await self._dial_with({"application_name": "towline-doctor", **reading})

    async def _dial_with(self, settings: dict[str, str]) -> Any:
        try:
            return await asyncpg.connect(
                self._url,
                timeout=self._timeout,
                server_settings=settings,
                max_cached_statement_lifetime=self._plan_seconds,
            )
        except Exception as error:
            raise self._translate(error) from error

    @contextlib.asynccontextmanager
    async def _deadline(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError:
            raise self._silent() from None

    def _silent(self) -> Unavailable:
        return Unavailable(f"PostgreSQL at {self._where} did not answer within {self._timeout:g} s")

    @asynccontextmanager
    async def _borrow(self) -> AsyncIterator[Any]:
        """A connection; it is kept only if it comes back unharmed."""
        async with self._places:
            connection = await self._lend()
            try:
                yield connection
            except BaseException as error:
                self._throw_away(connection)
                if isinstance(error, Exception):
                    raise self._translate(error) from error
                raise
            self._keep(connection)

    async def _lend(self) -> Any:
        connection = self._take_idle() or await self._dial()
        self._lent.add(connection)
        return connection

    def _take_idle(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _keep(self, connection: Any) -> None:
        self._lent.discard(connection)
        self._idle.append(connection)

    def _throw_away(self, connection: Any) -> None:
        self._lent.discard(connection)
        connection.terminate()

    async def _connection_for_posts(self, query: str, *arguments: Any) -> None:
        async with self._deadline(), self._borrow() as connection:
            await connection.execute(query, *arguments)

    # ------------------------------------------------------------------ statements

    async def run(self, statement: Statement, rows: Sequence[Row]) -> list[Row]:
        columns = columns_of(statement, rows)

        def work(connection: Any) -> Awaitable[list[Row]]:
            found: Awaitable[list[Row]] = connection.fetch(
                statement.for_postgres, self.clock.shift_us(), *columns
            )
            return found

        return await self._retry_once(work)

    async def run_all(self, steps: Sequence[Step]) -> list[list[Row]]:
        def script() -> Script[list[list[Row]]]:
            found: list[list[Row]] = []
            for step in steps:
                found += [(yield step)]
            return found

        return await self.transact(script)

    async def transact(self, script: Callable[[], Script[T]]) -> T:
        async def work(connection: Any) -> T:
            """Without a rollback: the connection of a failed one is thrown away, and to ask a
            silent server for one would take as long as it is silent."""
            transaction = connection.transaction()
            await transaction.start()
            run, playing = self.bind(connection), script()
            try:
                step = next(playing)
                while True:
                    step = playing.send(await run(*step))
            except StopIteration as end:
                await transaction.commit()
                result: T = end.value
                return result

        return await self._retry_once(work)

    async def _retry_once(self, work: Callable[[Any], Awaitable[T]]) -> T:
        if not self._prepared:
            await self.connect()
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._attempt(work)
                except Transient as trouble:
                    _log.info("postgres_retry reason=%s", trouble)
                    return await self._attempt(work)
        except TimeoutError:
            raise self._silent() from None

    async def _attempt(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with self._places:
            connection = await self._lend()
            try:
                done = await work(connection)
            except BaseException as error:
                self._throw_away(connection)
                if isinstance(error, Exception):
                    raise self._translate(error) from error
                raise
            self._keep(connection)
            return done

    def bind(self, connection: Any) -> Callable[[Statement, Sequence[Row]], Awaitable[list[Row]]]:
        """Works on an asyncpg connection that has a transaction open."""

        async def run(statement: Statement, rows: Sequence[Row]) -> list[Row]:
            columns = columns_of(statement, rows)
            found: list[Row] = await connection.fetch(
                statement.for_postgres, self.clock.shift_us(), *columns
            )
            return found

        return run

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, (TimeoutError, asyncpg.QueryCanceledError)):
            return self._silent()
        if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
            return Rejected(f"PostgreSQL at {self._where} refused the user or password")
        if isinstance(error, asyncpg.InvalidCatalogNameError):
            return Rejected(f"PostgreSQL at {self._where}: that database does not exist")
        if isinstance(error, asyncpg.InsufficientPrivilegeError):
            return Rejected(f"PostgreSQL at {self._where} refused: {error}")
        if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
            return Unavailable(f"PostgreSQL at {self._where} takes no writes now: {error}")
        if isinstance(error, asyncpg.DiskFullError):
            return StoreFull(f"PostgreSQL at {self._where}: its disk is full")
        if isinstance(error, _RACES):
            return Transient(f"PostgreSQL at {self._where}: {error}")
        if isinstance(error, (OSError, asyncpg.InterfaceError, *_GONE)):
            return Unavailable(f"PostgreSQL at {self._where} is not reachable: {error}")
        return error

    async def aclose(self) -> None:
        """Also what is under way: a caller that waits for it gets an error."""
        await self._preparing.abandon()
        await self.mailbox.aclose()
        for connection in list(self._lent):
            self._throw_away(connection)
        idle, self._idle = self._idle, []
        for connection in idle:
            with contextlib.suppress(Exception):
                await connection.close(timeout=1)
        await asyncio.sleep(0)  # the sockets of connections that were cut off close by then


# Two claims of one slot meet in its unique index; the second one looks again.
_RACES = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.UniqueViolationError,
)
_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InternalClientError,
    asyncpg.InvalidTransactionStateError,
)
