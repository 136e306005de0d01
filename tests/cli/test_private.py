"""What the real program keeps private under the usual umask: its files, its secret, its keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from tests.cli.doctor_runs import examined, towline
from tests.cli.test_serve import get, keys_said, post, program
from tests.e2e.programs import PATIENCE, Program, open_files
from tests.http.front_door import push
from towline import Idempotency
from towline.db import database_for
from towline.http.key_text import compose

FORM = re.compile(r'name="csrf" value="([^"]+)"')
OLD_KEY = compose("abcdefgh", "x" * 43)


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """As in nearly every shell."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def first_key(started: Program) -> str:
    """The one that it says after it has said where it listens."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert get(started.port, "/healthz").status_code == 200
        if keys := keys_said(started):
            return keys[0]
    raise AssertionError("it says no key")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def secret_of(folder: Path) -> bytes:
    return (folder / "towline.db.secret").read_bytes()


async def test_every_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Database, log, locks, audit, secret, settings, bundle, folders for fixes and for sockets."""
    folder, temporary = tmp_path / "in", tmp_path / "tmp"
    folder.mkdir(mode=0o700)
    temporary.mkdir(mode=0o700)
    given = {
        "TOWLINE_AUDIT__FILE": str(folder / "audit.jsonl"),
        "TOWLINE_AUDIT__MAX_BYTES": "1",
        "TMPDIR": str(temporary),
    }
    url = f"sqlite:///{folder / 'towline.db'}"
    with program(folder, url, **given) as started:
        assert post(started.port, push()).status_code == 202
        key = first_key(started)
        for _ in range(3):
            signed_in(started, key)
        ran = await asyncio.gather(
            towline(folder, "keys", "create", "--scope", "read", **given),
            towline(folder, "init", "--yes"),
            towline(folder, "doctor", "--bundle", "bundle.zip", **given),
        )
        assert "Traceback" not in "".join(one.err for one in ran)
        while_it_runs = names_in(folder)
        assert {"towline.db-wal", "towline.db-shm", "towline.db.secret"} <= while_it_runs
        assert {"bundle.zip", "towline.toml", "audit.jsonl", "audit.jsonl.1"} <= while_it_runs
        assert open_files(tmp_path) == {}
        started.kill()
        assert open_files(tmp_path) == {}


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o277])
async def test_the_librarys_file_is_private(tmp_path: Path, umask: int) -> None:
    """A program that has no umask of ours makes the database and its log for its owner alone."""
    os.umask(umask)
    async with Idempotency.open(f"sqlite:///{tmp_path / 'app.db'}") as idem:
        assert (await idem.check_and_set("jira:1", "acme", 1)).status == "new"
        assert {"app.db", "app.db-wal", "app.db-shm"} <= names_in(tmp_path)
        assert open_files(tmp_path) == {}
        assert (tmp_path / "app.db").stat().st_mode & 0o777 == 0o600


async def database_of_mode(folder: Path, mode: int) -> tuple[str, Path]:
    """As an earlier version or a person left it; its URL and its file."""
    file = folder / "towline.db"
    database = database_for(f"sqlite:///{file}")
    await database.connect()
    await database.aclose()
    await asyncio.to_thread(file.chmod, mode)
    return f"sqlite:///{file}", file


async def test_a_file_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    """The doctor names it and changes nothing; the start closes it and says so in one line."""
    url, file = await database_of_mode(tmp_path, 0o644)
    ran = await examined(tmp_path, TOWLINE_DATABASE_URL=url)
    (found,) = ran.findings("files")
    assert found["verdict"] == "warning"
    assert found["found"] == f"{file} is open to every user of this machine (mode 0644)"
    assert found["fix"] == f"chmod 600 {file}"
    with program(tmp_path, url) as started:
        assert get(started.port, "/healthz").status_code == 200
        assert open_files(tmp_path) == {}
        started.stop()
    (said,) = [line for line in started.output if "is open to" in line]
    assert f"{file} is open to every user" in said
    assert "it is closed to others now" in said


async def test_a_file_for_a_group_stays_so(tmp_path: Path) -> None:
    """A person may have meant that; doctor and start say so, with the line that closes it."""
    url, file = await database_of_mode(tmp_path, 0o640)
    assert (await examined(tmp_path, TOWLINE_DATABASE_URL=url)).verdicts("files") == ["warning"]
    with program(tmp_path, url) as started:
        assert get(started.port, "/healthz").status_code == 200
        started.stop()
    (said,) = [line for line in started.output if "is open to" in line]
    assert f"{file} is open to its group (mode 0640); close it: chmod 600 {file}" in said
    assert file.stat().st_mode & 0o777 == 0o640


async def test_settings_with_secrets_that_others_read(tmp_path: Path) -> None:
    """The doctor names the file; without a secret in it, it may be open."""
    file = tmp_path / "towline.toml"
    file.write_text('[tow]\nlabels = ["tow"]\n')
    assert (await examined(tmp_path)).verdicts("files") == ["ok"]
    file.write_text('[github]\nwebhook_secrets = ["a secret of the hook"]\n')
    (found,) = (await examined(tmp_path)).findings("files")
    assert found["fix"] == "chmod 600 towline.toml"


async def test_the_doctor_names_short_secrets(tmp_path: Path) -> None:
    """Below 32 characters it warns, whatever they are for, and never shows them."""
    short, long = "only-16-letters!", "x" * 32
    given = {
        "TOWLINE_GITHUB__WEBHOOK_SECRETS": json.dumps([long, short]),
        "TOWLINE_SLACK__WEBHOOK_SECRETS": json.dumps([long]),
        "TOWLINE_MESH__HMAC_KEY": short,
        "TOWLINE_API_KEYS__CI__KEY": short,
    }
    ran = await examined(tmp_path, **given)
    assert short not in ran.out
    found = ran.findings("secrets")
    assert [one["verdict"] for one in found] == ["warning"] * 3
    named = [one["found"].partition(" has 16 characters")[0] for one in found]
    assert named == ["github.webhook_secrets", "mesh.hmac_key", "api_keys.ci.key"]
    assert (await examined(tmp_path)).verdicts("secrets") == ["ok"]


@pytest.mark.slow
def test_two_that_start_at_once_have_one_secret(tmp_path: Path, postgres_url: str) -> None:
    """On one machine and one PostgreSQL: a session of the one opens the other."""
    home = tmp_path / "state"
    given = {"XDG_STATE_HOME": str(home), "TOWLINE_API_KEYS__OPS__KEY": "k" * 32}
    both = [program(tmp_path, postgres_url, **given) for _ in range(2)]
    threads = [asyncio.to_thread(one.start) for one in both]

    async def started() -> None:
        await asyncio.gather(*threads)

    try:
        asyncio.run(started())
        assert [path.name for path in home.rglob("*")] == ["towline", "secret"]
        assert open_files(home) == {}
        cookie = signed_in(both[0], "k" * 32)
        assert page(both[1], cookie) == 200
        assert not [line for one in both for line in one.output if "secret" in line]
    finally:
        for one in both:
            one.stop()


def signed_in(started: Program, key: str) -> str:
    """The cookie."""
    with httpx2.Client(base_url=f"http://127.0.0.1:{started.port}", timeout=60) as client:
        found = FORM.search(client.get("/ui/sign-in").text)
        assert found is not None
        form = {"csrf": found[1], "key": key}
        assert client.post("/ui/sign-in", data=form).status_code == 303
        return client.cookies["towline_session"]


def page(started: Program, cookie: str) -> int:
    headers = {"cookie": f"towline_session={cookie}"}
    return httpx2.get(
        f"http://127.0.0.1:{started.port}/ui/health", headers=headers, timeout=60
    ).status_code


def test_a_reader_of_the_file_can_sign_nothing(tmp_path: Path) -> None:
    """What opens the API or a session is in the secret's file and in no table."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    with program(tmp_path, url) as started:
        key = first_key(started)
        cookie = signed_in(started, key)
        with closing(sqlite3.connect(tmp_path / "towline.db")) as db:
            whole = "\n".join(db.iterdump())
        for text in (key, key[13:], cookie.partition(".")[2], secret_of(tmp_path).decode().strip()):
            assert text not in whole
        assert hashlib.sha256(key.encode()).hexdigest() not in whole
        assert "dashboard secret" not in whole
        started.stop()


@pytest.mark.slow
def test_keys_that_are_not_sealed_go_on_working(tmp_path: Path) -> None:
    """They open the API, and are sealed at their first use."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    with program(tmp_path, url) as first:
        assert get(first.port, "/healthz").status_code == 200
        assert first.stop() == 0
    (tmp_path / "towline.db.secret").unlink()
    plain = hashlib.sha256(OLD_KEY.encode()).hexdigest()
    with closing(sqlite3.connect(tmp_path / "towline.db")) as db:
        db.executescript(f"""
            DELETE FROM towline_api_keys;
            INSERT INTO towline_api_keys (prefix, digest, name, scopes, created_us)
              VALUES ('abcdefgh', '{plain}', 'old', 'admin', 1);
        """)
    with program(tmp_path, url) as second:
        assert keys_said(second) == []
        assert [get(second.port, "/api/prs", OLD_KEY).status_code for _ in range(2)] == [200, 200]
        with closing(sqlite3.connect(tmp_path / "towline.db")) as db:
            ((digest,),) = db.execute("SELECT digest FROM towline_api_keys").fetchall()
        assert digest.startswith("v2:")
        assert second.stop() == 0


@pytest.mark.slow
async def test_another_secret_is_told(tmp_path: Path) -> None:
    """One line at the start, one when the key is used, and a warning of the doctor."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    with program(tmp_path, url) as first:
        key = first_key(first)
        assert first.stop() == 0
    other = {"TOWLINE_SERVE__SECRET": "another secret " * 3}
    with program(tmp_path, url, **other) as second:
        assert get(second.port, "/api/prs", key).status_code == 401
        second.stop()
    warned = [line for line in second.output if "warning" in line and "secret" in line]
    assert len(warned) == 2
    assert "an API key was made with another secret than that of serve.secret" in warned[0]
    assert "sessions and API keys that were made with the other one do not work" in warned[0]
    assert f"key {key[4:12]} was made under another secret" in warned[1]
    found = (await examined(tmp_path, TOWLINE_DATABASE_URL=url, **other)).findings("secret")
    assert [one["verdict"] for one in found] == ["warning"]
    made = await towline(
        tmp_path, "keys", "create", "--scope", "read", TOWLINE_DATABASE_URL=url, **other
    )
    with program(tmp_path, url, **other) as third:
        assert get(third.port, "/api/prs", made.out.strip()).status_code == 200
        third.stop()


async def test_a_secret_that_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    """It names the setting that helps; so does a file with too short a secret."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    ran = await towline(
        tmp_path, "serve", "--port", "0", TOWLINE_DATABASE_URL=url,
        TOWLINE_SERVE__SECRET_FILE=str(tmp_path / "none" / "secret"),
    )  # fmt: skip
    assert ran.code == 1
    (line,) = ran.err.splitlines()
    assert "the secret cannot be written to" in line
    assert "set serve.secret (TOWLINE_SERVE__SECRET)" in line
    short = tmp_path / "short"
    short.write_text("too short")
    ran = await towline(
        tmp_path, "serve", "--port", "0", TOWLINE_DATABASE_URL=url,
        TOWLINE_SERVE__SECRET_FILE=str(short),
    )  # fmt: skip
    assert ran.code == 1
    assert "has 9 characters, and 32 are needed" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/api/prs", "/mesh/requests/none", "/metrics", "/api/sessions"])
def test_wrong_keys_are_slowed_everywhere(tmp_path: Path, path: str) -> None:
    """After ten there is 429 with Retry-After; a right key passes, there and elsewhere."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    with program(tmp_path, url) as started:
        key = first_key(started)
        wrong = {"x-api-key": compose("abcdefgh", "y" * 43), "x-forwarded-for": "203.0.113.9"}
        address = f"http://127.0.0.1:{started.port}{path}"
        answers = [httpx2.get(address, headers=wrong, timeout=60) for _ in range(40)]
        assert [one.status_code for one in answers] == [401] * 10 + [429] * 30
        assert answers[-1].json()["code"] == "too_many_attempts"
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        for client in ("203.0.113.9", "203.0.113.10"):
            headers = {"x-api-key": key, "x-forwarded-for": client}
            assert httpx2.get(address, headers=headers, timeout=60).status_code in (200, 404)
        started.stop()


async def test_sessions_on_the_command_line(tmp_path: Path) -> None:
    """They are listed and ended by their ids; a session that ended opens nothing."""
    url = f"sqlite:///{tmp_path / 'towline.db'}"
    with program(tmp_path, url) as started:
        key = first_key(started)
        one, two = signed_in(started, key), signed_in(started, key)
        given = {"TOWLINE_DATABASE_URL": url}
        listed = (await towline(tmp_path, "sessions", "list", "--json", **given)).out
        found = json.loads(listed)
        assert {each["id"] for each in found} == {cookie.partition(".")[0] for cookie in (one, two)}
        assert {each["key"] for each in found} == {key[4:12]}
        ended = await towline(tmp_path, "sessions", "revoke", one.partition(".")[0], **given)
        assert ended.code == 0
        assert (page(started, one), page(started, two)) == (303, 200)
        again = await towline(tmp_path, "sessions", "revoke", one.partition(".")[0], **given)
        assert (again.code, "or it has ended" in again.err) == (1, True)
        assert (await towline(tmp_path, "sessions", "revoke", **given)).code == 1
        assert (await towline(tmp_path, "keys", "revoke", key[4:12], **given)).code == 0
        assert (
            json.loads((await towline(tmp_path, "sessions", "list", "--json", **given)).out) == []
        )
        started.stop()
