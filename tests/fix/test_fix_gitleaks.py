"""SAFETY with gitleaks on the PATH: a program in its place that writes reports of its shape."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fix.test_fix_checks import TOKEN, attempt_for
from tests.fix.workshop import BareSandbox, Tree
from towline.fix.checks import Safety
from towline.fix.model import AllowedLine, FixPolicy
from towline.sandbox.base import Ran
from towline.sandbox.choice import Choice
from towline_once.errors import Transient

# It takes the words that gitleaks' README documents, and finds "hunter" and what follows it.
PROGRAM = r"""
import json, pathlib, re, sys
command, *given = sys.argv[1:]
flags = {"--no-banner", "--ignore-gitleaks-allow"}
valued = {"--exit-code", "--report-format", "--report-path"}
options, paths = {}, []
while given:
    word = given.pop(0)
    if word in valued: options[word] = given.pop(0)
    elif word in flags: options[word] = True
    elif word.startswith("-"): sys.exit(126)
    else: paths.append(word)
(source,) = paths
assert command == "dir" and options["--report-format"] == "json"
assert options["--ignore-gitleaks-allow"]
found = []
for file in sorted(pathlib.Path(source).rglob("*")):
    if not file.is_file() or file.name == "poetry.lock": continue
    text = file.read_text()
    for match in re.finditer(r"hunter\w+(\n  \w+)*", text):
        first = text.count("\n", 0, match.start()) + 1
        found.append({
            "RuleID": "generic-api-key", "Description": "Detected a Generic API Key",
            "StartLine": first, "EndLine": first + match[0].count("\n"),
            "StartColumn": 1, "EndColumn": 9, "Match": match[0], "Secret": match[0],
            "File": str(file), "SymlinkFile": "", "Commit": "", "Entropy": 3.5,
            "Author": "", "Email": "", "Date": "", "Message": "", "Tags": [],
            "Fingerprint": f"{file}:generic-api-key:{first}",
        })
pathlib.Path(options["--report-path"]).write_text(json.dumps(found))
sys.exit(int(options["--exit-code"]) if found else 0)
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "programs" / "gitleaks"
    place.parent.mkdir()
    place.write_text(f"#!{sys.executable}\n{PROGRAM}")
    place.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place.parent}{os.pathsep}{os.environ['PATH']}")
    return place


def tree_of(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> Tree:
    tree = Tree(tmp_path / "tree", before)
    tree.write(after)
    return tree


@pytest.mark.parametrize("remark", ["", "  # gitleaks:allow"])
async def test_what_gitleaks_finds_is_refused_by_rule_and_line(tmp_path: Path, remark: str) -> None:
    """The reason names file, line and rule, and never the value; a remark changes nothing."""
    after = {"a.py": f"x = 1\ny = 2\nz = hunter22{remark}\n"}
    tree = tree_of(tmp_path, {"a.py": "x = 1\n"}, after)
    end = await Safety().run(attempt_for(tree))
    assert end.outcome == "refused"
    assert "gitleaks' generic-api-key in a.py, line 3" in end.reason
    assert "hunter22" not in end.reason + end.log + str(end.output)


async def test_it_searches_in_the_sandbox(tmp_path: Path, isolation: Choice) -> None:
    """Nothing stood in for the sandbox: the program is readable there, and its report comes out."""
    tree = tree_of(tmp_path, {"a.py": "x = 1\n"}, {"a.py": "x = hunter22\n", "b.py": "y = 1\n"})
    sandbox: Any = isolation.sandbox
    end = await Safety().run(attempt_for(tree, sandbox))
    assert "gitleaks' generic-api-key in a.py, line 1" in end.reason


async def test_only_what_is_new_counts(tmp_path: Path) -> None:
    """Not what was there before, nor what only moved, nor a lock file that gitleaks leaves out."""
    before = {"a.py": "x = hunter22\nold = hunter33\n"}
    after = {"a.py": "x  =  hunter22\nold = hunter33\nnew = 1\n", "poetry.lock": "hunter44\n"}
    tree = tree_of(tmp_path, before, after)
    assert (await Safety().run(attempt_for(tree))).outcome == "passed"


async def test_the_settings_of_the_repository_have_no_say(tmp_path: Path) -> None:
    """gitleaks sees neither the patch's configuration nor its list of exceptions at its root."""
    names = (".gitleaks.toml", ".gitleaksignore")
    tree = tree_of(tmp_path, {"a.py": "x = 1\n"}, dict.fromkeys(names, "x = hunter22\n"))
    end = await Safety().run(attempt_for(tree, policy=FixPolicy(allow_workflows=True)))
    assert all(f"in {name}, line 1" in end.reason for name in names)


async def test_an_allowed_line_is_allowed_for_gitleaks_too(tmp_path: Path) -> None:
    """Of a secret over several lines each has to be allowed."""
    lines = ["x = hunter22", "  more"]
    known = [AllowedLine("a.py", hashlib.sha256(one.strip().encode()).hexdigest()) for one in lines]
    tree = tree_of(tmp_path, {"a.py": "x = 1\n"}, {"a.py": "\n".join(lines) + "\n"})
    for allowed, outcome in ((known[:1], "refused"), (known, "passed")):
        policy = FixPolicy(allowed_secrets=tuple(allowed))
        assert (await Safety().run(attempt_for(tree, policy=policy))).outcome == outcome


async def test_our_own_patterns_need_no_gitleaks(tmp_path: Path) -> None:
    """They are searched first, so a program that finds nothing cannot hide a known token."""
    tree = tree_of(tmp_path, {"a.py": "x = 1\n"}, {"a.py": f'x = "{TOKEN}"\n'})
    sandbox = BareSandbox()
    end = await Safety().run(attempt_for(tree, sandbox))
    assert "GitHub token in a.py, line 1" in end.reason
    assert sandbox.asked == []


def replace(program: Path, text: str) -> None:
    program.write_text(f"#!{sys.executable}\n{text}\n")


REPORTS: dict[str, object] = {
    "nothing at all": None,
    "no list": {"findings": []},
    "no findings but words": ["x"],
    "half an entry": [{"RuleID": "x"}],
    "a foreign file": [{"RuleID": "x", "Secret": "y", "File": "z", "StartLine": 1, "EndLine": 1}],
    "no number": [
        {"RuleID": "x", "Secret": "y", "File": "added/0/a", "StartLine": None, "EndLine": 1}
    ],
}


@pytest.mark.parametrize("case", [*REPORTS, "no report", "a crash", "no start", "no end"])
async def test_a_search_that_fails_is_no_pass(tmp_path: Path, program: Path, case: str) -> None:
    """The run is tried again; an empty report of `null`, as gitleaks may write it, is none."""
    text = (
        f"import pathlib\npathlib.Path('report.json').write_text({json.dumps(REPORTS.get(case))!r})"
    )
    text = {"no report": "", "a crash": "raise SystemExit(1)"}.get(case, text)
    replace(program, text)
    answers = {"no start": Ran(None, "", trouble="gone"), "no end": Ran(None, "", timed_out=True)}
    sandbox = BareSandbox(*([answers[case]] if case in answers else []))
    tree = tree_of(tmp_path, {"a.py": "x = 1\n"}, {"a.py": "x = 2\n"})
    stage = Safety().run(attempt_for(tree, sandbox))
    if case == "nothing at all":
        assert (await stage).outcome == "passed"
    else:
        with pytest.raises(Transient, match="gitleaks"):
            await stage
