"""The command line as a person runs it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def towline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "towline", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
        check=False,
    )


def test_db_upgrade_and_current(bare_sql_url: str) -> None:
    """`db current` sees an empty database, `db upgrade` fills it, twice does no harm."""
    before = towline("db", "current", "--json", TOWLINE_DATABASE_URL=bare_sql_url)
    assert json.loads(before.stdout)["version"] is None
    for _ in range(2):
        upgraded = towline("db", "upgrade", TOWLINE_DATABASE_URL=bare_sql_url)
        assert (upgraded.returncode, "up to date" in upgraded.stdout) == (0, True)
    after = json.loads(towline("db", "current", "--json", TOWLINE_DATABASE_URL=bare_sql_url).stdout)
    assert after["version"] == after["newest"]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://user:hunter2@127.0.0.1:1/x", "not reachable"),
        ("redis://127.0.0.1", "sqlite:///FILE or postgresql"),
        ("sqlite:///no/such/folder/x.db", "does not exist"),
        ("nonsense", "sqlite:///FILE or postgresql"),
    ],
)
def test_failures_are_one_line(url: str, complaint: str) -> None:
    """A wrong address is one line on standard error, without a password or a traceback."""
    done = towline("db", "upgrade", TOWLINE_DATABASE_URL=url)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert "hunter2" not in done.stderr + done.stdout


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """Pointing at some other file neither harms it nor ends in a traceback."""
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to be taken for one\n" * 40, encoding="utf-8")
    before = file.read_bytes()
    done = towline("db", "upgrade", TOWLINE_DATABASE_URL=f"sqlite:///{file}")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "not a database" in done.stderr
    assert file.read_bytes() == before


def test_version_and_help() -> None:
    """`--version` and `--help` answer."""
    assert towline("--version").stdout.strip() == "0.1.0"
    assert "db" in towline("--help").stdout


def test_importing_is_light() -> None:
    """Importing the package loads neither a driver nor Alembic nor a web framework."""
    code = (
        "import sys, towline; towline.Idempotency.open('sqlite:///x.db'); "
        "print([m for m in ('alembic', 'sqlalchemy', 'asyncpg', 'hiredis', 'fastapi', 'pydantic') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
