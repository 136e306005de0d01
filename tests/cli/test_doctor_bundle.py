"""`towline doctor --bundle`: an archive that helps, and in which no secret is to be found."""

from __future__ import annotations

import base64
import re
import sqlite3
import tarfile
import types
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin
from urllib.parse import quote

import orjson
from pydantic import BaseModel

from tests.cli.doctor_runs import examined, towline
from towline import config
from towline.doctor.redaction import Redactor, shown_settings

MARK = "pL4nt3d"


class Planted:
    """Gives each place a secret of its own, and remembers them all."""

    def __init__(self) -> None:
        self.secrets: list[str] = []

    def new(self) -> str:
        self.secrets.append(f"{MARK}{len(self.secrets):03d}-zz")
        return self.secrets[-1]


def toml_with_secrets(planted: Planted, port: int = 1) -> str:
    """A secret in every setting that is one, in addresses, and in command lines."""
    new = planted.new
    senders = "".join(
        f'[{name}]\nwebhook_secrets = ["{new()}", "{new()}"]\n'
        for name in ("slack", "ci", "scheduler")
    )
    return f"""
database_url = "postgresql://user:{new()}@127.0.0.1:{port}/x?sslpassword={new()}"
redis_url = "redis://user:{new()}@127.0.0.1:{port}/0"
[github]
api_url = "http://127.0.0.1:{port}"
token = "{new()}"
webhook_secrets = ["{new()}"]
[gitlab]
api_url = "http://127.0.0.1:{port}/api/v4"
token = "{new()}"
webhook_secrets = ["{new()}"]
[jira]
url = "http://127.0.0.1:{port}"
token = "{new()}"
webhook_secrets = ["{new()}"]
[jenkins]
url = "http://127.0.0.1:{port}"
user = "ci"
token = "{new()}"
webhook_secrets = ["{new()}"]
{senders}
[serve]
secret = "{new()}-which-is-long-enough-for-a-secret"
[mesh]
hmac_key = "{new()}"
[traces]
endpoint = "http://user:{new()}@127.0.0.1:{port}/v1?api_key={new()}"
[api_keys.ops]
key = "{new()}-long-enough"
[notify]
urls = ["json://user:{new()}@127.0.0.1:{port}/{new()}", "slack://{new()}/b/c"]
[triggers]
allowed_hosts = ["hooks.example"]
[triggers.policy]
kind = "http"
url = "https://hooks.example/{new()}?token={new()}"
[repo."demo/app".triggers.merge]
kind = "http"
url = "https://hooks.example/{new()}"
[fix]
repos = ["demo/app"]
fixers = ["ruff", "command", "llm"]
[fix.agent]
argv = ["true", "--token={new()}", "{new()}"]
environment = ["AGENT_SECRET"]
[fix.llm]
model = "some-model"
url = "http://user:{new()}@127.0.0.1:{port}"
api_key = "{new()}"
"""


def members(file: Path) -> dict[str, bytes]:
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(file) as archive:
        found = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: opened.read() for name, opened in found.items() if opened is not None}


def forms(secret: str) -> set[bytes]:
    plain = secret.encode()
    return {plain, quote(secret, safe="").encode(), base64.b64encode(plain).rstrip(b"=")}


async def test_no_secret_is_in_the_archive(tmp_path: Path) -> None:
    """Planted in every secret setting, in addresses, command lines and variables: none is found."""
    planted = Planted()
    (tmp_path / "towline.toml").write_text(toml_with_secrets(planted), encoding="utf-8")
    variable = planted.new()
    for name in ("bundle.tar.gz", "bundle.zip"):
        file = tmp_path / name
        ran = await examined(
            tmp_path, "--timeout", "1", "--bundle", str(file), AGENT_SECRET=variable
        )
        assert (ran.code, ran.data()["bundle"]) == (1, str(file)), ran.err
        assert file.stat().st_mode & 0o077 == 0
        packed = members(file)
        assert {Path(one).name for one in packed} == {
            *("doctor.json", "doctor.txt", "versions.json", "settings.json"),
            *("database.json", "metrics.txt"),
        }
        everything = b"\n".join([*packed.values(), ran.out.encode(), ran.err.encode()])
        found = [one for one in planted.secrets for form in forms(one) if form in everything]
        assert found == []
        assert MARK.encode() not in everything
        assert b"[redacted]" in packed["towline-bundle/settings.json"]


def secret_fields(table: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        if field.repr is False:
            yield f"{path}{name}"
        else:
            for inner in tables_in(field.annotation):
                yield from secret_fields(inner, f"{path}{name}.")


def tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, Annotated, dict, tuple):
        for part in get_args(annotation):
            yield from tables_in(part)


SECRET_NAMES = re.compile(
    r"token|secret|password|api_key|hmac|_key$|^key$|urls$|(database|redis)_url"
)


def test_every_setting_that_sounds_secret_is_one() -> None:
    """A new setting with such a name must be marked, or the archive would show it."""
    known = set(secret_fields(config.Settings))
    harmless = {"fix.llm.max_tokens", "serve.secret_file"}

    def sounding(table: type[BaseModel], path: str = "") -> Iterator[str]:
        for name, field in table.model_fields.items():
            if SECRET_NAMES.search(name) and not list(tables_in(field.annotation)):
                yield f"{path}{name}"
            for inner in tables_in(field.annotation):
                yield from sounding(inner, f"{path}{name}.")

    assert set(sounding(config.Settings)) - known - harmless == set()


def test_the_planted_settings_are_all_secret_ones(tmp_path: Path) -> None:
    """The planted file sets every secret setting there is; a new one has to be added to it."""
    file = tmp_path / "towline.toml"
    file.write_text(toml_with_secrets(Planted()), encoding="utf-8")
    loaded = config.load(file, {})

    def unset(value: BaseModel, path: str = "") -> Iterator[str]:
        for name, field in type(value).model_fields.items():
            held = getattr(value, name)
            if field.repr is False and not held:
                yield f"{path}{name}"
            elif isinstance(held, BaseModel):
                yield from unset(held, f"{path}{name}.")

    ignored = re.compile(r"triggers\.\w+\.url")
    assert [name for name in unset(loaded) if not ignored.fullmatch(name)] == []
    assert MARK not in orjson.dumps(Redactor.of(loaded).data(shown_settings(loaded))).decode()


async def test_what_the_archive_tells(tmp_path: Path) -> None:
    """Versions, rows, states, and the reasons of failed jobs, from which tokens are taken out."""
    await towline(tmp_path, "db", "upgrade")
    token = "ghp_" + "a1" * 18
    with sqlite3.connect(tmp_path / "towline.db") as db:
        db.execute(
            "INSERT INTO towline_jobs (id, queue, kind, priority, state, held, passengers,"
            " run_at_us, created_us, updated_us, attempts, max_attempts, token, published_us,"
            " params, error, reason) VALUES ('j1', 'own', 'delivery', 0, 'dead', 0, 0, 1, 1, 1,"
            " 3, 3, 1, 0, '{\"body\": \"private\"}', 'long private text', ?)",
            (f"refused with {token}",),
        )
    ran = await towline(tmp_path, "doctor", "--bundle", "b.tar.gz")
    assert ran.code == 0, ran.out
    packed = members(tmp_path / "b.tar.gz")
    told = orjson.loads(packed["towline-bundle/database.json"])
    assert told["rows"]["towline_jobs"] == 1
    assert told["states"]["towline_jobs"] == {"dead": 1}
    assert told["troubled_jobs"][0]["reason"] == "refused with [redacted]"
    assert b"private" not in b"".join(packed.values())
    versions = orjson.loads(packed["towline-bundle/versions.json"])
    assert versions["packages"]["pydantic"]
    assert versions["towline"] == "0.1.0"


async def test_a_name_that_is_no_archive(tmp_path: Path) -> None:
    """One line, before anything is looked at; so is a folder that is not there."""
    for name, complaint in (("b.rar", ".tar.gz or a .zip"), ("no/b.zip", "does not exist")):
        ran = await towline(tmp_path, "doctor", "--bundle", name)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
        assert complaint in ran.err
