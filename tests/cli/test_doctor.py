"""`towline doctor`: settings, stores and tools, found well or not, each trouble with a fix."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from tests.cli.doctor_runs import examined, silent_server, towline
from tests.servers import psql, redis_command
from tests.unisolated import UNISOLATED

BUDGET = 60


async def test_nothing_configured(tmp_path: Path) -> None:
    """It runs without a file, fails nothing, makes nothing, and each warning has a fix."""
    ran = await examined(tmp_path)
    report = ran.data()
    assert (ran.code, report["healthy"], report["counts"]["failure"]) == (0, True, 0)
    assert all(bool(one["fix"]) == (one["verdict"] != "ok") for one in report["findings"])
    checks = {one["check"] for one in report["findings"]}
    assert checks >= {
        *("settings", "start", "database", "sqlite", "disk", "keys", "engine", "github"),
        *("service", "webhooks", "git", "sandbox", "fixers", "notify", "folders"),
    }
    assert os.listdir(tmp_path) == []


async def test_for_people_each_finding_is_one_line(tmp_path: Path) -> None:
    """Verdict, subject, what was found and the fix; then the sum."""
    ran = await towline(tmp_path, "doctor")
    *lines, total = ran.out.splitlines()
    assert all(line.startswith(("ok ", "warning ", "failure ")) for line in lines)
    assert all("→" in line for line in lines if not line.startswith("ok "))
    assert total.endswith("0 failures")
    assert "\x1b" not in ran.out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[tow]\nauthor = 'x'\n", "did you mean authors"),
        ("[serve]\nport = 'high'\n", "serve.port"),
        ("[serve\n", "not valid TOML"),
        ("engine = 'celery'\n", "needs redis_url"),
        ("[github]\napp_id = '1'\n", "app_key_file"),
    ],
)
async def test_settings_that_would_not_start(tmp_path: Path, text: str, complaint: str) -> None:
    """What is wrong with them is a finding, and the machine is looked at all the same."""
    (tmp_path / "towline.toml").write_text(text, encoding="utf-8")
    ran = await examined(tmp_path)
    failed = [one for one in ran.data()["findings"] if one["verdict"] == "failure"]
    assert ran.code == 1
    assert any(complaint in one["found"] and one["fix"] for one in failed), failed
    assert ran.verdicts("git")


async def test_an_sqlite_file_and_its_tables(tmp_path: Path) -> None:
    """No tables yet, then this version's, then a version from the future, which fails."""
    await towline(tmp_path, "keys", "create", "--scope", "admin")
    ran = await examined(tmp_path)
    assert ran.verdicts("tables") == ["ok"]
    assert ran.verdicts("keys") == ["ok"]
    with sqlite3.connect(tmp_path / "towline.db") as db:
        db.execute("UPDATE towline_revisions SET revision = '0000'")
    ran = await examined(tmp_path)
    (old,) = ran.findings("tables")
    assert (ran.code, old["verdict"], old["fix"]) == (0, "warning", "towline db upgrade")
    with sqlite3.connect(tmp_path / "towline.db") as db:
        db.execute("UPDATE towline_revisions SET revision = '9999'")
    ran = await examined(tmp_path)
    assert (ran.code, ran.verdicts("tables")) == (1, ["failure"])
    with sqlite3.connect(tmp_path / "towline.db") as db:
        assert db.execute("SELECT revision FROM towline_revisions").fetchone() == ("9999",)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("sqlite:///no/such/folder/x.db", "does not exist"),
        ("sqlite:///notes.txt", "not a database"),
        ("postgresql://u:hunter2@127.0.0.1:1/x", "not reachable"),
        ("mysql://u:hunter2@127.0.0.1/x", "sqlite:///FILE or postgresql"),
    ],
)
async def test_a_database_that_cannot_be_used(tmp_path: Path, url: str, complaint: str) -> None:
    """It fails with a fix, without the password and without a traceback."""
    notes = tmp_path / "notes.txt"
    notes.write_text("not a database, but long enough\n" * 40, encoding="utf-8")
    before = notes.read_bytes()
    ran = await examined(tmp_path, TOWLINE_DATABASE_URL=url)
    failed = [one for one in ran.data()["findings"] if one["verdict"] == "failure"]
    assert ran.code == 1
    assert any(complaint in one["found"] for one in failed), failed
    assert all(one["fix"] for one in failed)
    assert "hunter2" not in ran.out + ran.err
    assert "Traceback" not in ran.out + ran.err
    assert notes.read_bytes() == before


async def test_postgres_is_looked_at_and_left_alone(tmp_path: Path, bare_postgres_url: str) -> None:
    """Its version and its clock are told, and no table is made."""
    ran = await examined(tmp_path, TOWLINE_DATABASE_URL=bare_postgres_url)
    assert ran.code == 0, ran.out
    assert "PostgreSQL" in ran.findings("database")[0]["found"]
    assert "the database" in ran.findings("clock")[0]["found"]
    assert "no tables yet" in ran.findings("tables")[0]["found"]
    assert psql(
        bare_postgres_url, "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'towline%'"
    ) == ("0")


async def test_redis_and_its_eviction_policy(tmp_path: Path, redis_url: str) -> None:
    """One that may drop keys fails, with the command that mends it; nothing is written to it."""
    environment = {"TOWLINE_REDIS_URL": redis_url, "TOWLINE_STATE_BACKEND": "redis"}
    ran = await examined(tmp_path, **environment)
    assert "failure" not in ran.verdicts("redis")
    redis_command(redis_url, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        ran = await examined(tmp_path, **environment)
    finally:
        redis_command(redis_url, "CONFIG", "SET", "maxmemory-policy", "noeviction")
    (found,) = ran.findings("redis")
    assert (ran.code, found["verdict"]) == (1, "failure")
    assert "maxmemory-policy noeviction" in found["fix"]
    assert b"0" in redis_command(redis_url, "DBSIZE")


@pytest.mark.parametrize(
    ("name", "url", "told"),
    [
        ("REDIS_URL", "foo", "redis_url (TOWLINE_REDIS_URL): an address of Redis starts with"),
        ("REDIS_URL", "memory://", "redis_url (TOWLINE_REDIS_URL): an address of Redis starts"),
        ("REDIS_URL", "redis://:a/hunter2@h", "redis_url (TOWLINE_REDIS_URL): an address of Redis"),
        ("REDIS_URL", "redis://h/x", "redis://[user:password@]host[:port][/database][?allow_evic"),
        ("REDIS_URL", "redis://h/x", "[?allow_eviction=1], or rediss://"),
        ("DATABASE_URL", "postgresql:///x", "postgresql://[user[:password]@]host[:port]/database"),
    ],
)
async def test_a_bad_address_is_named(tmp_path: Path, name: str, url: str, told: str) -> None:
    """Also one that nothing uses yet; the form that it should have is shown as it is."""
    ran = await examined(tmp_path, **{f"TOWLINE_{name}": url})
    failed = [one["found"] for one in ran.data()["findings"] if one["verdict"] == "failure"]
    assert ran.code == 1
    assert any(told in one for one in failed), failed
    assert "hunter2" not in ran.out


async def test_servers_that_never_answer(tmp_path: Path) -> None:
    """Each silent server is a failure of its own, and the whole ends soon."""
    with silent_server() as port:
        here = f"127.0.0.1:{port}"
        began = time.monotonic()
        ran = await examined(
            tmp_path,
            "--timeout",
            "1",
            TOWLINE_DATABASE_URL=f"postgresql://u:hunter2@{here}/x",
            TOWLINE_REDIS_URL=f"redis://:hunter2@{here}",
            TOWLINE_GITHUB__API_URL=f"http://{here}",
            TOWLINE_GITHUB__TOKEN="t0ken",
            TOWLINE_GITLAB__API_URL=f"http://{here}/api/v4",
            TOWLINE_GITLAB__TOKEN="t0ken",
            TOWLINE_JENKINS__URL=f"http://{here}",
            TOWLINE_JENKINS__USER="ci",
            TOWLINE_JENKINS__TOKEN="t0ken",
            TOWLINE_JIRA__URL=f"http://{here}",
            TOWLINE_JIRA__TOKEN="t0ken",
            TOWLINE_SERVE__PORT=str(port),
        )
        assert time.monotonic() - began < BUDGET
    assert ran.code == 1
    for check in ("database", "redis", "github", "gitlab", "jenkins", "jira"):
        assert ran.verdicts(check) == ["failure"], check
    assert ran.verdicts("service") == ["warning"]
    assert "hunter2" not in ran.out + ran.err


async def test_fixers_and_their_tools(tmp_path: Path) -> None:
    """An unknown fixer and an agent that is not installed fail, each by name."""
    text = """
[fix]
repos = ["demo/app"]
fixers = ["ruff", "magic", "command"]
[fix.agent]
argv = ["no-such-agent-here", "--go"]
"""
    (tmp_path / "towline.toml").write_text(text, encoding="utf-8")
    ran = await examined(tmp_path)
    assert ran.verdicts("fixers") == ["ok", "failure", "failure"]
    told = " ".join(one["found"] for one in ran.findings("fixers"))
    assert "magic" in told
    assert "no-such-agent-here" in told


@pytest.mark.slow
async def test_a_machine_without_isolation(tmp_path: Path) -> None:
    """It fails where fixes are made, and says what to do; `none` is a warning in any case."""
    fixing = "[fix]\nrepos = ['demo/app']\n"
    for text, path, verdict, found, fix in (
        (fixing, "/nowhere", "failure", "cannot isolate", "apt-get install bubblewrap"),
        (fixing, os.environ["PATH"], "failure", "cannot isolate", "user namespaces"),
        ("", "/nowhere", "ok", "no fixes are made", ""),
        (f"{fixing}sandbox = 'none'\n", "/nowhere", "warning", 'is "none"', "required"),
    ):
        (tmp_path / "towline.toml").write_text(text, encoding="utf-8")
        ran = await examined(tmp_path, under=UNISOLATED, PATH=path)
        (said,) = ran.findings("sandbox")
        assert (said["verdict"], found in said["found"], fix in said["fix"]) == (
            verdict, True, True,
        ), said  # fmt: skip


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("", []),
        ("[tow]\nauthors = ['bot']\n", ["warning"]),
        ("[tow]\nauthors = ['bot']\n[signals]\nrequired = ['build']\n", ["ok"]),
        (
            (
                "[tow]\nauthors = ['bot']\n[signals]\nrequired = ['build']\n"
                '[repo."acme/app".signals]\nrequired = []\n'
            ),
            ["warning"],
        ),
        (
            (
                "[tow]\nauthors = ['bot']\nrepos = ['acme/app']\n"
                '[repo."acme/app".signals]\nrequired = ["build"]\n'
            ),
            ["ok"],
        ),
    ],
)
async def test_required_checks_that_nobody_named(
    tmp_path: Path, text: str, verdicts: list[str]
) -> None:
    """A warning that says why, where pull requests are towed; no failure."""
    (tmp_path / "towline.toml").write_text(text, encoding="utf-8")
    ran = await examined(tmp_path)
    assert ran.code == 0
    assert ran.verdicts("signals") == verdicts
    for one in ran.findings("signals"):
        if one["verdict"] == "warning":
            assert "DCO or CLA" in one["found"]
            assert one["fix"].endswith("signals.required")


async def test_notifiers_are_understood_and_not_rung(tmp_path: Path) -> None:
    """An address that apprise does not know fails; its secret is not shown."""
    ran = await examined(tmp_path, TOWLINE_NOTIFY__URLS="json://127.0.0.1:1/quietly-s3cret")
    assert ran.verdicts("notify") == ["ok"]
    ran = await examined(tmp_path, TOWLINE_NOTIFY__URLS="nonsense://quietly-s3cret")
    assert (ran.code, ran.verdicts("notify")) == (1, ["failure"])
    assert "s3cret" not in ran.out


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("no/audit.log", "/no does not exist"),
        (".", "Is a directory"),
        ("notes/audit.log", "Not a directory"),
        ("sealed/audit.log", "/sealed cannot be written to"),
    ],
)
async def test_an_audit_file_that_cannot_be_written(
    tmp_path: Path, place: str, complaint: str
) -> None:
    """It fails and is named, as serve would refuse to start; a good one is not made by looking."""
    (tmp_path / "notes").write_text("not a folder", encoding="utf-8")
    (tmp_path / "sealed").mkdir(mode=0o500)
    if place.startswith("sealed") and os.access(tmp_path / "sealed", os.W_OK):
        pytest.skip("this user may write everywhere")
    ran = await examined(tmp_path, TOWLINE_AUDIT__FILE=place)
    (found,) = ran.findings("folders")
    assert (ran.code, found["verdict"], ran.verdicts("start")) == (1, "failure", ["failure"])
    assert "audit.file" in found["found"]
    assert complaint in found["found"]
    ran = await examined(tmp_path, TOWLINE_AUDIT__FILE="audit.log")
    assert (ran.code, ran.verdicts("folders")) == (0, ["ok"])
    assert sorted(os.listdir(tmp_path)) == ["notes", "sealed"]
