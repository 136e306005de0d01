"""Settings from the file and the environment, good and bad."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from towline import Rejected, config
from towline.inbox.sources import SOURCES


def written(folder: Path, text: str) -> Path:
    file = folder / "towline.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_need_nothing() -> None:
    """Without file and environment there is an embedded default, as specified."""
    loaded = config.load(environment={})
    assert loaded.database_url == "sqlite:///towline.db"
    kept = loaded.idempotency
    assert (kept.enabled, kept.ttl_sec) == (True, 86400)
    assert (kept.max_cached_bytes, kept.store_max_items) == (16384, 200_000)


def test_environment_overrides_the_file(tmp_path: Path) -> None:
    """`TOWLINE_…` with `__` for nesting wins over the file."""
    file = written(tmp_path, 'database_url = "sqlite:///a.db"\n[idempotency]\nttl_sec = 60\n')
    loaded = config.load(file, {"TOWLINE_IDEMPOTENCY__TTL_SEC": "90", "OTHER": "x"})
    assert (loaded.database_url, loaded.idempotency.ttl_sec) == ("sqlite:///a.db", 90)


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        ('["the new one", "the old one"]', ("the new one", "the old one")),
        ("only, this one", ("only, this one",)),
        ("[]", ()),
    ],
)
def test_lists_in_the_environment(text: str, secrets: tuple[str, ...]) -> None:
    """JSON, or one text as it is: a secret may have commas."""
    loaded = config.load(environment={"TOWLINE_GITHUB__WEBHOOK_SECRETS": text})
    assert loaded.github.webhook_secrets == secrets


_SHARED = [f"{name.upper()}__WEBHOOK_SECRETS" for name in SOURCES]


@pytest.mark.parametrize("variable", [*_SHARED, "MESH__HMAC_KEY"])
@pytest.mark.parametrize("text", ["", "  ", "a", "1234567", "a         "])
def test_a_secret_that_is_blank_or_short_stops_the_start(variable: str, text: str) -> None:
    """In one line that names the setting and says how long it must be, without the secret."""
    given = [text, json.dumps(["long enough", text])] if variable in _SHARED else [text]
    for value in given:
        with pytest.raises(Rejected, match=f"TOWLINE_{variable}.* at least 8 characters"):
            config.load(environment={f"TOWLINE_{variable}": value})
    config.load(environment={f"TOWLINE_{variable}": "12345678"})


@pytest.mark.parametrize("text", ['["read", "submit"]', "read,submit", "read submit"])
def test_a_key_of_the_environment(text: str) -> None:
    """Its name is part of the variable; scopes are JSON or words."""
    variables = {"TOWLINE_API_KEYS__CI__KEY": "k" * 16, "TOWLINE_API_KEYS__CI__SCOPES": text}
    assert config.load(environment=variables).api_keys["ci"].scopes == ("read", "submit")


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"TOWLINE_API_KEYS__CI__KEY": "short"}, "api_keys.ci.key"),
        ({"TOWLINE_API_KEYS__CI__KY": "k" * 16}, "api_keys.ci"),
        ({"TOWLINE_GITHUB__WEBHOOK_SECRETS": "[a"}, "github.webhook_secrets"),
        ({"TOWLINE_SERVE__PORT": "99999"}, "serve.port"),
        ({"TOWLINE_SERVE__SECRET": "x" * 31}, r"serve.secret .*at least 32 characters"),
        ({"TOWLINE_SERVE__SECRET": "x" * 32, "TOWLINE_SERVE__SECRET_FILE": "f"}, "keep one of"),
        ({"TOWLINE_SERVE__TRUSTED_PROXIES": "proxy"}, r"serve.trusted_proxies\[0\] .*10.0.0.0/8"),
        ({"TOWLINE_DATABSE_URL": "x"}, "did you mean database_url"),
        ({"TOWLINE_IDEMPOTENCY__TTL": "5"}, "did you mean ttl_sec"),
        ({"TOWLINE_ZZZ": "5"}, "allowed here: .*database_url"),
        ({"TOWLINE_IDEMPOTENCY__ENABLED": "perhaps"}, "idempotency.enabled"),
        ({"TOWLINE_IDEMPOTENCY__TTL_SEC": "-1"}, "greater than 0"),
        ({"TOWLINE_POLLING__JIRA__A__JQL": ""}, r"\): JQL is one line of text"),
        ({"TOWLINE_STATE_BACKEND": "etcd"}, "'memory', 'sql' or 'redis'"),
        ({"TOWLINE_DATABASE_URL__HOST": "x", "TOWLINE_DATABASE_URL": "y"}, "database_url"),
    ],
)
def test_bad_settings_name_themselves(environment: dict[str, str], complaint: str) -> None:
    """A bad setting ends in one line that names it and what is allowed."""
    with pytest.raises(Rejected, match=complaint) as caught:
        config.load(environment=environment)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a = ", "[x", "\x00", "unknown = 1", 'idempotency = "no"'])
def test_bad_files_are_one_line(tmp_path: Path, text: str) -> None:
    """A file that is no TOML, or sets what does not exist, is one clear line."""
    with pytest.raises(Rejected) as caught:
        config.load(written(tmp_path, text), {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[github]\nwebhook_secrets = 1", "it is a list of texts"),
        ("[tow]\nauthors = 1", "it is a list of texts"),
        ("[fix]\nallowed_secrets = 1", "it is a list of tables"),
        ("[audit]\nfile = 1", "it is a path, as text"),
    ],
)
def test_the_kind_of_a_value_is_said_in_plain_words(
    tmp_path: Path, text: str, complaint: str
) -> None:
    """Not in those of Python."""
    with pytest.raises(Rejected, match=f"{complaint}$"):
        config.load(written(tmp_path, text), {})


@pytest.mark.filterwarnings("error")
def test_a_regular_expression_warns_nobody() -> None:
    """One that Python reads with a warning is taken as Python reads it today."""
    loaded = config.load(environment={"TOWLINE_TOW__VULNERABILITY_PATTERN": "[[1]]"})
    assert loaded.tow.vulnerability_pattern is not None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that was asked for must be there."""
    with pytest.raises(Rejected, match=r"absent\.toml"):
        config.load(tmp_path / "absent.toml", {})
