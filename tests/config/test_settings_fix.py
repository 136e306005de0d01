"""Settings of the fix pipeline: what they become, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from towline import config
from towline.app.policy import fix_rules_of
from towline.fix.model import BANDIT
from towline_once.errors import Rejected

FULL = """
[tow]
labels = ["tow", "other"]
own_logins = ["towline[bot]"]

[pipeline]
max_attempts = 5
cooldown_seconds = 60

[fix]
repos = ["octo-org/app", "group/sub/lib"]
command = "/towline"
issues = [{project = "PROJ", repo = "octo-org/app", labels = ["x"], statuses = ["To Do"]}]
scans = [{argv = ["semgrep", "scan"], seconds = 5}]

[repo."group/sub/lib".fix]
forge = "gitlab"
bandit = false
labels = ["mine"]
base_branches = ["release/*"]
validation = {argv = ["make", "test"], memory_mb = 64, network = true}
"""


def rules(tmp_path: Path, text: str, **environment: str) -> config.Settings:
    file = tmp_path / "towline.toml"
    file.write_text(text, encoding="utf-8")
    return config.load(file, environment)


def test_what_the_settings_become(tmp_path: Path) -> None:
    """What holds for all, and what a repository has of its own."""
    found = fix_rules_of(rules(tmp_path, FULL))
    assert (found.command, found.own_logins) == ("towline", frozenset({"towline[bot]"}))
    assert found.issues[0].statuses == frozenset({"to do"})
    app, lib = found.repos["octo-org/app"], found.repos["group/sub/lib"]
    assert (app.max_attempts, app.cooldown_seconds, app.labels) == (5, 60, ("tow",))
    assert app.scans[0] == BANDIT
    assert (app.scans[1].name, app.scans[1].argv) == ("semgrep", ("semgrep", "scan"))
    assert (app.forge, app.validation, app.base_branches) == ("github", None, ("main", "master"))
    assert (lib.forge, lib.labels, lib.base_branches) == ("gitlab", ("mine",), ("release/*",))
    assert [scan.name for scan in lib.scans] == ["semgrep"]
    assert lib.validation is not None
    assert (lib.validation.memory_bytes, lib.validation.network) == (64 * 1024**2, True)


def test_isolation_is_required_unless_it_is_said(tmp_path: Path) -> None:
    """By default; the old name and a wrong value are refused in one line with the right one."""
    assert rules(tmp_path, "").fix.sandbox == "required"
    assert rules(tmp_path, "[fix]\nsandbox = 'none'\n").fix.sandbox == "none"
    with pytest.raises(Rejected, match=r"fix\.strict_sandbox .*; did you mean sandbox\?"):
        rules(tmp_path, "[fix]\nstrict_sandbox = true\n")
    with pytest.raises(Rejected, match=r"fix\.sandbox .*'required' or 'none'"):
        rules(tmp_path, "[fix]\nsandbox = 'maybe'\n")


def test_nothing_is_fixed_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Without repositories there are no rules."""
    assert fix_rules_of(rules(tmp_path, "")).repos == {}


def test_from_the_environment(tmp_path: Path) -> None:
    """A list of names, and a key that no repr shows."""
    given = {"TOWLINE_FIX__REPOS": "octo-org/app, octo-org/lib", "TOWLINE_FIX__LLM__API_KEY": "s3c"}
    found = rules(tmp_path, "", **given)
    assert found.fix.repos == ("octo-org/app", "octo-org/lib")
    assert "s3c" not in repr(found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('repos = ["app"]', "OWNER/NAME"),
        ('fixers = ["command"]', "the fixer command needs fix.agent"),
        ('fixers = ["llm"]', "the fixer llm needs fix.llm.model"),
        ('command = "rebuild"', "/rebuild is a command of the tow already"),
        ('command = "Do It"', "small letters and hyphens"),
        ("validation = {argv = []}", "fix.validation.argv"),
        ('issues = [{project = "P", repo = "o/r"}]', "o/r of fix.issues is not in fix.repos"),
        ("max_files = 0", "fix.max_files"),
        ("unheard = 1", "fix.unheard"),
        ('audit = "0 3 * * *"', "fix.audit needs fix.audit_network"),
    ],
)
def test_a_wrong_one_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """In one line."""
    with pytest.raises(Rejected) as refused:
        rules(tmp_path, f"[fix]\n{text}\n")
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('audit = "0 3 * * *"', "fix.audit needs fix.audit_network"),
        ('fixers = ["command"]', "the fixer command needs fix.agent"),
        ('fixers = ["llm"]', "the fixer llm needs fix.llm.model"),
    ],
)
def test_what_one_repository_lacks_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    """What `[fix]` alone can say is missed at the start, and not when it is needed."""
    own = f'[repo."octo-org/app".fix]\n{text}\n'
    with pytest.raises(Rejected) as refused:
        rules(tmp_path, own)
    assert f'repo."octo-org/app".fix: {complaint}' in str(refused.value)
    assert "\n" not in str(refused.value)
    given = '[fix]\naudit_network = true\nagent = {argv = ["x"]}\nllm = {model = "m"}\n'
    assert rules(tmp_path, given + own).repo["octo-org/app"].fix is not None


def test_allowed_secrets_are_lines_by_their_hash(tmp_path: Path) -> None:
    """Of one repository; what is no hash is refused in one line."""
    table = '[[repo."a/b".fix.allowed_secrets]]\npath = "tests/*"\nsha256 = "{}"'
    line = f'[fix]\nrepos = ["a/b"]\n{table}'
    (allowed,) = fix_rules_of(rules(tmp_path, line.format("0a" * 32))).repos["a/b"].allowed_secrets
    assert allowed == ("tests/*", "0a" * 32)
    with pytest.raises(Rejected, match="sha256"):
        rules(tmp_path, line.format("hunter2"))
