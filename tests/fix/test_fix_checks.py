"""What a patch must pass: real git and bandit, in folders of their own."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from tests.fix.workshop import BareSandbox, Tree
from towline.fix.attempt import Attempt
from towline.fix.checks import Safety, Scans, Validation
from towline.fix.model import BANDIT, AllowedLine, Command, Errand, FixPolicy, RunRecord
from towline.sandbox.base import Ran
from towline_once.errors import Transient

ERRAND = Errand(cause="failure", forge="github", repo="octo-org/app", base_ref="main")
RUN = RunRecord(
    "key", "event", "run", ERRAND, "running", 1, None, "towline/x", None, None, None, None, 0, 0, 1
)
TOKEN = "ghp_" + "A1b2C3d4E5" * 4
BAD_CALL = "import subprocess\n\n\ndef f(x):\n    subprocess.call(x, shell=True)\n"


def attempt_for(
    tree: Tree, sandbox: BareSandbox | None = None, policy: FixPolicy | None = None
) -> Attempt:
    return Attempt(
        run=RUN,
        token=1,
        errand=ERRAND,
        policy=policy or FixPolicy(),
        sandbox=sandbox or BareSandbox(),
        workspace=tree,
        diff=tree.changes(),
    )


def python(*code: str, name: str = "check", network: bool = False) -> Command:
    return Command(name=name, argv=(sys.executable, "-c", *code), network=network, seconds=30)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (f'token = "{TOKEN}"', "GitHub"),
        (f"# {TOKEN}  # pragma: allowlist secret", "GitHub"),
        ('key = "AKIAIOSFODNN7EXAMPLE"', "AWS"),
        ('password = "correct-horse-battery"', "password"),
        ("db_password: 'correct-horse-battery'", "password"),
        ('{"api-key": "aB3dE6gH9jK2mN5pQ8sT"}', "key"),
        ('key = "sk_live_' + "aB3dE6gH" * 3 + '"', "Stripe"),
        ("npm_" + "aB3dE6gH9j" * 3 + "aB3dE6", "npm"),
        ("SG." + "a" * 22 + "." + "b" * 43, "SendGrid"),
        ("AccountKey=" + "aB" * 43 + "==", "Azure"),
        ("eyJ" + "a" * 20 + ".eyJ" + "b" * 20 + "." + "c" * 20, "JSON Web Token"),
        ("-----BEGIN RSA PRIVATE KEY-----", "rivate"),
        ('x = "xoxb-123456789012-abcdefghijkl"', "Slack"),
        ('url = "postgres://app:s3cretpw@db/x"', "URL"),
        ("glpat-" + "aB3dE6gH9jK2mN5pQ8sT", "GitLab"),
    ],
)
async def test_a_planted_secret_is_refused_by_kind_and_line(
    tmp_path: Path, line: str, kind: str
) -> None:
    """The refusal names what and where, and never the value."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": f"x = 1\n{line}\n"})
    end = await Safety().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert kind in end.reason
    assert "a.py, line 2" in end.reason
    secret = max(line.replace('"', " ").split(), key=len)
    assert secret not in end.reason + end.log + str(end.output)


@pytest.mark.parametrize(
    "line",
    [
        "password = get_password(user)",
        'name = "a perfectly ordinary sentence"',
        "import os",
        "requests==2.32.4",
        'token = "${TOKEN}"',
        'password = "{{ vault_password }}"',
        'api_key = "GITHUB_API_KEY"',
        'secret_name = "my-secret-name"',
        'if password == "":',
        "password = 'short'",
        "x: dict[str, int] = {}",
    ],
)
async def test_ordinary_lines_are_no_secrets(tmp_path: Path, line: str) -> None:
    """What only speaks of secrets passes."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": f"x = 1\n{line}\n"})
    assert (await Safety().run(attempt_for(tree))).outcome == "passed"


async def test_a_secret_that_is_only_moved_is_not_new(tmp_path: Path) -> None:
    """A formatter that touches the line of an old secret is not blamed for it."""
    tree = Tree(tmp_path, {"a.py": f'token="{TOKEN}"\n'})
    tree.write({"a.py": f'token = "{TOKEN}"\n'})
    assert (await Safety().run(attempt_for(tree))).outcome == "passed"


async def test_a_forbidden_path_is_refused_before_anything_is_searched(tmp_path: Path) -> None:
    """The reason names the path and the rule."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({".github/workflows/ci.yml": "on: push\n"})
    end = await Safety().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert end.reason.startswith(".github/workflows/ci.yml: decides what CI runs")


async def test_without_its_package_no_scan_is_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is said in one line, not overlooked."""
    monkeypatch.setitem(sys.modules, "bandit", None)
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    end = await Scans().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert end.reason.endswith("pip install 'towline[fix]'")


@pytest.mark.parametrize("remark", ["", "  # nosec"])
async def test_a_new_bandit_finding_is_refused(tmp_path: Path, remark: str) -> None:
    """Also one that a remark wants to silence."""
    tree = Tree(tmp_path, {"a.py": "def f(x):\n    return x\n"})
    tree.write({"a.py": f"def f(x):\n    return eval(x){remark}\n"})
    end = await Scans().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert "B307 in a.py, line 2" in end.reason


async def test_old_bandit_findings_do_not_count(tmp_path: Path) -> None:
    """Moved, reformatted, or in another file now: what was there before is not the patch's."""
    tree = Tree(tmp_path, {"a.py": BAD_CALL, "b.py": "y = 1\n"})
    call = "subprocess.call(\n        x, shell=True,\n    )"
    moved = f"import subprocess\n\ny = 1\n\n\ndef f(x):\n    {call}\n"
    tree.write({"b.py": moved, "a.py": "z = 1\n"})
    end = await Scans().run(attempt_for(tree))
    assert (end.outcome, end.reason) == ("passed", "bandit: 0 new")


async def test_a_second_one_of_the_same_kind_counts(tmp_path: Path) -> None:
    """How often a finding occurs is part of the comparison."""
    tree = Tree(tmp_path, {"a.py": BAD_CALL})
    tree.write({"a.py": BAD_CALL + "    subprocess.call(x, shell=True)\n"})
    end = await Scans().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert "B602 in a.py, line 6" in end.reason


async def test_new_files_and_hidden_folders_are_scanned(tmp_path: Path) -> None:
    """Neither a new file nor one in a folder that bandit leaves out escapes."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({".tox/evil.py": "eval(input())\n", ".bandit": "[bandit]\nskips: B307\n"})
    end = await Scans().run(attempt_for(tree))
    assert "B307 in .tox/evil.py, line 1" in end.reason


async def test_asserts_in_tests_are_no_findings(tmp_path: Path) -> None:
    """A fix may bring a test."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"tests/test_a.py": "def test_x():\n    assert 1\n"})
    assert (await Scans().run(attempt_for(tree))).outcome == "passed"
    tree.write({"b.py": "assert 1\n"})
    assert "B101 in b.py" in (await Scans().run(attempt_for(tree))).reason


async def test_python_that_no_longer_parses_is_refused(tmp_path: Path) -> None:
    """What a scanner cannot read is not taken for clean."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n", "old.py": "print 'x'\n"})
    tree.write({"a.py": "x = (\n", "old.py": "print 'y'\n"})
    end = await Scans().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert "a.py" in end.reason
    assert "old.py" not in end.reason


async def test_a_repository_cannot_stand_in_for_the_scanner(tmp_path: Path) -> None:
    """A module called bandit in the tree is not what is run."""
    tree = Tree(tmp_path, {"bandit.py": "raise SystemExit(0)\n", "a.py": "x = 1\n"})
    tree.write({"a.py": "eval(input())\n"})
    assert (await Scans().run(attempt_for(tree))).outcome == "refused"


@pytest.mark.parametrize(
    "ran", [Ran(None, "", timed_out=True), Ran(None, "", trouble="no namespace"), Ran(2, "crash")]
)
async def test_trouble_of_the_scanner_is_not_the_patch_s(tmp_path: Path, ran: Ran) -> None:
    """It is tried again another time."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    with pytest.raises(Transient, match="bandit"):
        await Scans().run(attempt_for(tree, BareSandbox(ran)))


SCANNER = """
import json, pathlib, sys
results = [
    {"ruleId": "no-todo", "message": {"text": "a leftover"}, "locations": [{"physicalLocation": {
        "artifactLocation": {"uri": str(path)},
        "region": {"startLine": number, "snippet": {"text": line}}}}]}
    for path in sorted(pathlib.Path(".").glob("*.txt"))
    for number, line in enumerate(path.read_text().splitlines(), 1) if "leftover" in line
]
report = {"version": "2.1.0", "runs": [{"results": results}]}
pathlib.Path(sys.argv[1]).write_text(json.dumps(report))
"""


async def test_sarif_reports_are_compared(tmp_path: Path) -> None:
    """Only what the patch adds counts, wherever the old findings have moved."""
    policy = FixPolicy(scans=(python(SCANNER, "{sarif}", name="todo"),))
    tree = Tree(tmp_path, {"a.txt": "leftover one\n", "b.txt": "gone\n"})
    tree.write({"a.txt": "new line\nleftover one\n"})
    end = await Scans().run(attempt_for(tree, policy=policy))
    assert (end.outcome, end.reason) == ("passed", "todo: 0 new")
    tree.write({"c.txt": "leftover two\n"})
    end = await Scans().run(attempt_for(tree, policy=policy))
    assert end.reason == "the patch adds findings: no-todo in c.txt, line 1: a leftover"
    assert not (tmp_path / "towline-scan.sarif").exists()


async def test_a_scan_by_status_counts_if_it_passed_before(tmp_path: Path) -> None:
    """A command that failed all along says nothing about the patch."""
    scan = python("import sys; sys.exit('bad' in open('a.txt').read())", name="grep")
    policy = FixPolicy(scans=(scan,))
    tree = Tree(tmp_path, {"a.txt": "good\n"})
    tree.write({"a.txt": "bad\n"})
    end = await Scans().run(attempt_for(tree, policy=policy))
    assert end.outcome == "refused"
    assert "grep" in end.reason
    worse = Tree(tmp_path / "other", {"a.txt": "bad\n"})
    worse.write({"a.txt": "bad too\n"})
    end = await Scans().run(attempt_for(worse, policy=policy))
    assert end.outcome == "passed"
    assert "did so without the patch" in end.reason


async def test_a_scan_without_its_report_is_tried_again(tmp_path: Path) -> None:
    """No report, or a link in its place, is not an empty one."""
    link = "import os, sys; os.symlink('/etc/hostname', sys.argv[1])"
    tree = Tree(tmp_path, {"a.txt": "x\n"})
    tree.write({"a.txt": "y\n"})
    for code in ("pass", link):
        policy = FixPolicy(scans=(BANDIT, python(code, "{sarif}", name="scan")))
        with pytest.raises(Transient, match="scan left no report"):
            await Scans().run(attempt_for(tree, policy=policy))


async def test_validation_passes_fails_or_is_not_done(tmp_path: Path) -> None:
    """The end of a failing command's output is the evidence."""
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    end = await Validation().run(attempt_for(tree))
    assert (end.outcome, end.output["validated"]) == ("passed", False)
    assert "not validated" in end.reason
    passing = FixPolicy(validation=python("import a; print(a.x)", name="tests"))
    end = await Validation().run(attempt_for(tree, policy=passing))
    assert (end.outcome, end.reason, end.log) == ("passed", "tests passed", "2\n")
    failing = FixPolicy(validation=python("import a; assert a.x == 1, 'x is wrong'", name="tests"))
    end = await Validation().run(attempt_for(tree, policy=failing))
    assert end.outcome == "refused"
    assert end.reason.startswith("tests failed with status 1")
    assert end.reason.endswith("AssertionError: x is wrong")


@pytest.mark.parametrize(
    "ran",
    [
        Ran(None, "", timed_out=True),
        Ran(None, "", trouble="bubblewrap failed"),
        Ran(None, "killed"),
        Ran(1, "OSError: [Errno 28] No space left on device"),
    ],
)
async def test_trouble_of_the_sandbox_is_not_a_failed_validation(tmp_path: Path, ran: Ran) -> None:
    """Time, memory, disk and the sandbox itself are tried again."""
    policy = FixPolicy(validation=python("pass", name="tests"))
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    with pytest.raises(Transient, match="tests"):
        await Validation().run(attempt_for(tree, BareSandbox(ran), policy))


@pytest.mark.parametrize(("network", "outcome"), [(False, "refused"), (True, "raised")])
async def test_the_network_is_trouble_only_where_there_is_one(
    tmp_path: Path, network: bool, outcome: str
) -> None:
    """A test that opens sockets where none are allowed fails the same way every time."""
    ran = Ran(1, "ConnectionError: Temporary failure in name resolution\n1 failed")
    policy = FixPolicy(validation=python("pass", name="tests", network=network))
    tree = Tree(tmp_path, {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    stage = Validation().run(attempt_for(tree, BareSandbox(ran), policy))
    if outcome == "raised":
        with pytest.raises(Transient):
            await stage
    else:
        assert (await stage).outcome == "refused"


async def test_a_false_secret_is_allowed_by_the_settings_alone(tmp_path: Path) -> None:
    """The very line, in the very place; not beside it, nor changed, nor elsewhere."""
    line = f'EXAMPLE = "{TOKEN}"'
    known = AllowedLine("tests/samples/*", hashlib.sha256(line.encode()).hexdigest())
    policy = FixPolicy(allowed_secrets=(known,))
    for number, (path, text, outcome) in enumerate(
        [
            ("tests/samples/a.py", f"    {line}\n", "passed"),
            ("src/a.py", f"{line}\n", "refused"),
            ("tests/samples/a.py", f"{line}  # and more\n", "refused"),
            ("tests/samples/a.py", f'{line}\nOTHER = "{TOKEN}"\n', "refused"),
            ("tests/samples/a.py", f"{line}\n# towline: allow {known.sha256}\n", "passed"),
        ]
    ):
        tree = Tree(tmp_path / str(number), {"README.md": "x\n"})
        tree.write({path: text})
        assert (await Safety().run(attempt_for(tree, policy=policy))).outcome == outcome, text
