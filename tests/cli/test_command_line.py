"""The command line as a person runs it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from tests import fast_start
from towline.cli import app


def towline(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return fast_start.towline(*arguments, environment=environment)


def test_db_upgrade_and_current(bare_sql_url: str) -> None:
    """`db current` sees an empty database, `db upgrade` fills it, twice does no harm."""
    before = towline("db", "current", "--json", TOWLINE_DATABASE_URL=bare_sql_url)
    assert json.loads(before.stdout)["version"] is None
    for _ in range(2):
        upgraded = towline("db", "upgrade", TOWLINE_DATABASE_URL=bare_sql_url)
        assert (upgraded.returncode, "up to date" in upgraded.stdout) == (0, True)
    after = json.loads(towline("db", "current", "--json", TOWLINE_DATABASE_URL=bare_sql_url).stdout)
    assert after["version"] == after["newest"]


def test_a_database_from_the_future(tmp_path: Path) -> None:
    """`db current` advises what helps, as `db upgrade` would refuse."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    assert towline("db", "upgrade", TOWLINE_DATABASE_URL=url).returncode == 0
    with sqlite3.connect(tmp_path / "towline.db") as db:
        db.execute("UPDATE towline_revisions SET revision = '9999'")
    told = towline("db", "current", TOWLINE_DATABASE_URL=url).stdout
    assert told.endswith("(newer than this Towline: upgrade Towline)\n")


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


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="this system has no such folder")
def test_a_place_where_no_database_can_be_is_named(tmp_path: Path) -> None:
    """A folder in its place, and a folder into which nobody can write."""
    for place, why in (
        (tmp_path, "is a folder"),
        ("/proc/x.db", "or its folder cannot be written"),
    ):
        done = towline("db", "upgrade", TOWLINE_DATABASE_URL=f"sqlite:///{place}")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"cannot use {place} as a database: it {why} (" in done.stderr


FULL: Final = Path("/dev/full")
on_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason="this system has no full disk")


def to_a_full_disk(*arguments: str, **environment: str) -> tuple[int, str]:
    """Its exit code, and what it says about it."""
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "towline", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            env={**os.environ, **environment},
            check=False,
        )
    return done.returncode, done.stderr


@on_a_full_disk
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [["--version"], ["prs", "--help"], ["prs", "--json"], ["keys", "list", "--json"]]
)
def test_output_that_cannot_be_written(sqlite_url: str, words: list[str], unbuffered: str) -> None:
    """It is one line and a failure, also of what is written only at the end."""
    given = {"TOWLINE_DATABASE_URL": sqlite_url, "PYTHONUNBUFFERED": unbuffered}
    assert CliRunner().invoke(app, ["db", "upgrade"], env=given).exit_code == 0
    code, said = to_a_full_disk(*words, **given)
    assert (code, said) == (1, "towline: cannot write the output: No space left on device\n")


@on_a_full_disk
def test_output_of_the_simulation_that_cannot_be_written() -> None:
    """The same of what is printed and waits in a buffer."""
    code, said = to_a_full_disk("simulate", "--seed", "3", PYTHONUNBUFFERED="")
    assert (code, said) == (1, "towline: cannot write the output: No space left on device\n")


@on_a_full_disk
def test_a_key_that_could_not_be_shown_can_be_ended(sqlite_url: str) -> None:
    """The line names the command that ends it."""
    words = ["keys", "create", "--scope", "read"]
    code, said = to_a_full_disk(*words, TOWLINE_DATABASE_URL=sqlite_url)
    assert (code, said.count("\n")) == (1, 1)
    assert "cannot write the output: No space left on device; the key was made" in said
    (made,) = json.loads(towline("keys", "list", "--json", TOWLINE_DATABASE_URL=sqlite_url).stdout)
    assert f"towline keys revoke {made['prefix']} " in said


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_whoever_reads_may_stop(unbuffered: str) -> None:
    """A pipe that nobody reads from any more is no trouble to speak of."""
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "towline", "simulate", "--seed", "3"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        check=False,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")


def test_what_nobody_foresaw_is_one_line_too(tmp_path: Path) -> None:
    """With the kind of error, its text and its place; the log tells how it came about if asked."""
    stumbles = (
        "from towline.cli import app, main\n"
        "app.command('stumble')(lambda: {}['over\\nthis'])\n"
        "main()"
    )
    said = []
    for level in ("info", "debug"):
        done = subprocess.run(
            [sys.executable, "-c", stumbles, "stumble"],
            capture_output=True,
            text=True,
            timeout=100,
            env={**os.environ, "TOWLINE_LOG__LEVEL": level},
            cwd=tmp_path,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        said.append(done.stderr)
    assert said[0].startswith("towline: unforeseen KeyError: 'over\\nthis' (__init__.py:")
    assert said[0].endswith("; TOWLINE_LOG__LEVEL=debug logs how it came about\n")
    assert said[0].count("\n") == 1
    assert "Traceback" in json.loads(said[1].splitlines()[0])["exception"]


def test_version_and_help() -> None:
    """`--version` and `--help` answer."""
    done = subprocess.run(
        [sys.executable, "-m", "towline", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0.1.0"
    assert "db" in towline("--help").stdout


def test_importing_is_light() -> None:
    """Importing the package loads neither a driver nor a web framework."""
    code = (
        "import sys, towline; towline.Idempotency.open('sqlite:///x.db'); "
        "print([m for m in ('asyncpg', 'hiredis', 'fastapi', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
