"""`towline doctor` with GitLab, Jenkins and Jira that answer, each in every way they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli import forge_doubles as doubles
from tests.cli.doctor_runs import Ran, examined
from tests.cli.forge_doubles import REPO, TOKEN, Doubles, settings_for
from tests.hook_world import served

CHECKS = ("gitlab", "jenkins", "jira")


async def looked_at(folder: Path, app: Any, *arguments: str, token: str = TOKEN) -> Ran:
    async with served(app) as url:
        return await examined(folder, *arguments, **settings_for(url, token))


async def test_all_is_well(tmp_path: Path) -> None:
    """Each takes the token; GitLab tells its scopes and the rights on the project."""
    ran = await looked_at(tmp_path, Doubles(doubles.all_three))
    found = {check: [one["found"] for one in ran.findings(check)] for check in CHECKS}
    assert found == {
        "gitlab": [
            "GitLab takes the token of towline-bot; scopes: api",
            f"{REPO} can be read and written to (level 40)",
        ],
        "jenkins": ["Jenkins answers, and takes the token of ci"],
        "jira": ["Jira answers, and takes the token"],
    }
    assert {verdict for check in CHECKS for verdict in ran.verdicts(check)} == {"ok"}
    assert TOKEN not in ran.out + ran.err


@pytest.mark.parametrize(
    ("say", "token", "expected"),
    [
        (
            doubles.all_three,
            "wrong-token-9876543210",
            {
                "gitlab": ("does not take the token (401: 401 Unauthorized)", "gitlab.token"),
                "jenkins": ("does not take ci and the token (401)", "jenkins.token"),
                "jira": ("does not take the token (401)", "jira.token"),
            },
        ),
        (
            doubles.lacking_scope,
            TOKEN,
            {
                "gitlab": ("(403: insufficient_scope)", "give the token the scope api"),
                "jenkins": ("ci, who may not read there (403)", "Overall/Read"),
                "jira": ("(403)", "captcha"),
            },
        ),
        (
            doubles.nothing,
            TOKEN,
            {
                "gitlab": ("no GitLab API at http://", "ends in /api/v4"),
                "jenkins": ("no Jenkins at http://", "check jenkins.url"),
                "jira": ("no Jira at http://", "check jira.url"),
            },
        ),
        (
            doubles.pages,
            TOKEN,
            {
                "gitlab": ("answer is not JSON", "ends in /api/v4"),
                "jenkins": ("answers with a page", "let API tokens pass"),
                "jira": ("answers with a page", "let tokens pass"),
            },
        ),
        (
            doubles.broken,
            TOKEN,
            {
                "gitlab": ("failed to answer about user (502)", "gitlab.api_url"),
                "jenkins": ("failed to answer about the queue (502)", "jenkins.url"),
                "jira": ("failed to answer about user (502)", "jira.url"),
            },
        ),
    ],
    ids=["wrong token", "missing scope", "wrong address", "a page", "broken"],
)
async def test_each_trouble_has_its_fix(
    tmp_path: Path,
    say: Callable[[str, dict[str, str]], doubles.Said],
    token: str,
    expected: dict[str, tuple[str, str]],
) -> None:
    """One failure for each server, which says what is wrong and what to do; no secret is shown."""
    ran = await looked_at(tmp_path, Doubles(say), token=token)
    assert ran.code == 1
    for check, (found, fix) in expected.items():
        (one,) = ran.findings(check)
        assert one["verdict"] == "failure", one
        assert found in one["found"], one
        assert fix in one["fix"], one
    assert token not in ran.out + ran.err
    assert "Traceback" not in ran.err


async def test_one_that_is_slow(tmp_path: Path) -> None:
    """It fails by its own deadline, and the others are not kept waiting."""
    ran = await looked_at(tmp_path, Doubles(doubles.all_three, forever=True), "--timeout", "1")
    for check in CHECKS:
        (one,) = ran.findings(check)
        assert (one["verdict"], bool(one["fix"])) == ("failure", True)
        assert "did not answer about" in one["found"]
        assert "within 1 s" in one["found"]


@pytest.mark.parametrize(
    ("path", "said", "expected"),
    [
        ("/personal_access_tokens/self", {"scopes": ["read_api"]}, "its scopes are: read_api"),
        (
            "/projects/octo-org%2Fapp/members/all/7",
            {"access_level": 20},
            "not written to (level 20)",
        ),
        ("/projects/octo-org%2Fapp", None, f"{REPO} is not there, or closed"),
    ],
    ids=["scopes", "rights", "project"],
)
async def test_what_a_gitlab_token_does_not_open(
    tmp_path: Path, path: str, said: object, expected: str
) -> None:
    """A token that is taken, but reads only, or not this project."""

    def say(asked: str, headers: dict[str, str]) -> doubles.Said:
        if asked == f"/gitlab/api/v4{path}":
            return doubles.said_as_json(404 if said is None else 200, said or {"message": "404"})
        return doubles.all_three(asked, headers)

    ran = await looked_at(tmp_path, Doubles(say))
    failed = [one for one in ran.findings("gitlab") if one["verdict"] == "failure"]
    assert [expected in one["found"] and bool(one["fix"]) for one in failed] == [True]
