"""`towline keys`: what is printed, kept and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from towline import Rejected
from towline.cli.keys import keys


def towline_keys(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(keys, arguments, env={"TOWLINE_DATABASE_URL": url})


def printed(url: str, *arguments: str) -> Any:
    done = towline_keys(url, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_create_list_revoke(sql_url: str) -> None:
    """A key is shown once; then it is listed without its secret, and can be ended."""
    made = printed(sql_url, "create", "--scope", "submit", "--scope", "read", "--name", "build bot")
    assert made["key"].startswith(f"tow_{made['prefix']}_")
    assert (made["name"], made["scopes"]) == ("build bot", ["read", "submit"])
    (listed,) = printed(sql_url, "list")
    assert listed == {name: value for name, value in made.items() if name != "key"}
    revoked = printed(sql_url, "revoke", made["prefix"])
    assert revoked["revoked_at"].endswith("Z")
    assert printed(sql_url, "list") == [revoked]
    assert printed(sql_url, "revoke", made["key"]) == revoked


def test_output_for_people(sqlite_url: str) -> None:
    """Standard output has the key and nothing else, so that it can go into a variable."""
    made = towline_keys(sqlite_url, "create", "--scope", "admin")
    text = made.stdout.removesuffix("\n")
    assert text.startswith("tow_")
    assert text.count("\n") == 0
    assert "not shown again" in made.stderr
    prefix = text.split("_")[1]
    assert towline_keys(sqlite_url, "list").stdout == f"{prefix}  admin  valid\n"
    assert f"{prefix} is revoked since" in towline_keys(sqlite_url, "revoke", prefix).stdout
    assert "revoked" in towline_keys(sqlite_url, "list").stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["create"], "at least one scope; allowed: read, submit, work, command, admin"),
        (["create", "--scope", "root"], "unknown scope 'root'; allowed: read"),
        (["create", "--scope", "read", "--name", "a\nb"], "printable"),
        (["revoke", "abcdefgh"], "no key with the prefix abcdefgh"),
        (["revoke", "nonsense!"], "8 small letters and digits"),
    ],
)
def test_refusals_are_one_line(sqlite_url: str, arguments: list[str], complaint: str) -> None:
    """What is wrong is named, and what is allowed; no key comes of it."""
    before = [printed(sqlite_url, "create", "--scope", "read")["prefix"]]
    done = towline_keys(sqlite_url, *arguments)
    assert isinstance(done.exception, Rejected)
    assert complaint in str(done.exception)
    assert "\n" not in str(done.exception)
    assert [key["prefix"] for key in printed(sqlite_url, "list")] == before
