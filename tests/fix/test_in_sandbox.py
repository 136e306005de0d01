"""Fixers and checks in the sandbox that this machine has, with nothing stood in for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fix.workshop import Tree
from towline.fix.attempt import Attempt
from towline.fix.checks import Safety, Scans, Validation
from towline.fix.fixers.base import Plan
from towline.fix.fixers.command import CommandFixer
from towline.fix.fixers.config import AgentConfig, FixerConfig
from towline.fix.fixers.ruff import build
from towline.fix.model import Command, Errand, FixPolicy, RunRecord
from towline.sandbox.base import Sandbox
from towline.sandbox.choice import Choice, MachineSandbox
from towline_once.errors import Transient

ERRAND = Errand(cause="failure", forge="github", repo="octo-org/app", base_ref="main", check="lint")
PLAN = Plan(ERRAND, "ruff", "lint failed", "it fits", "a.py:1:8: F401 [*] `os` imported\n")
RUN = RunRecord(
    "key", "event", "run", ERRAND, "running", 1, None, "towline/x", None, None, None, None, 0, 0, 1
)


@pytest.fixture
def sandbox(isolation: Choice) -> Sandbox:
    return MachineSandbox()


def attempt(tree: Tree, sandbox: Sandbox, policy: FixPolicy) -> Attempt:
    return Attempt(
        run=RUN,
        token=1,
        errand=ERRAND,
        policy=policy,
        sandbox=sandbox,
        workspace=tree,
        diff=tree.changes(),
    )


def python(code: str, seconds: float = 60) -> Command:
    return Command(name="tests", argv=(sys.executable, "-c", code), seconds=seconds)


async def test_a_lint_failure_passes_all_checks(tmp_path: Path, sandbox: Sandbox) -> None:
    """From ruff's repair to the repository's own command."""
    tree = Tree(tmp_path / "r", {"a.py": "import os\nimport sys\n\nprint(sys.path)\n"})
    await build(FixerConfig()).fix(PLAN, tree, sandbox)
    policy = FixPolicy(validation=python("import a"))
    for stage in (Safety(), Scans(), Validation()):
        end = await stage.run(attempt(tree, sandbox, policy))
        assert end.outcome == "passed", end
    assert tree.read("a.py") == "import sys\n\nprint(sys.path)\n"


async def test_bandit_s_findings_come_out_of_it(tmp_path: Path, sandbox: Sandbox) -> None:
    """The report is written in a folder of its own."""
    tree = Tree(tmp_path / "r", {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = eval(input())\n"})
    end = await Scans().run(attempt(tree, sandbox, FixPolicy()))
    assert "B307 in a.py, line 1" in end.reason


async def test_an_agent_sees_its_plan_and_little_else(tmp_path: Path, sandbox: Sandbox) -> None:
    """Its own folder, its own environment."""
    said = "json.load(sys.stdin)['log'] + os.environ['K']"
    code = f"import json, os, sys; open('out', 'w').write({said})"
    agent = AgentConfig(command=python(code), environment={"K": "v"})
    tree = Tree(tmp_path / "r", {"a": "x\n"})
    await CommandFixer(agent).fix(PLAN, tree, sandbox)
    assert tree.read("out") == PLAN.log + "v"


async def test_a_test_that_opens_sockets_fails_for_good(tmp_path: Path, sandbox: Sandbox) -> None:
    """There is no network, and there will be none the next time."""
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    tree = Tree(tmp_path / "r", {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    policy = FixPolicy(validation=python(code))
    end = await Validation().run(attempt(tree, sandbox, policy))
    assert end.outcome == "refused"


async def test_a_test_without_end_is_ended(tmp_path: Path, sandbox: Sandbox) -> None:
    """And may be tried again another time."""
    tree = Tree(tmp_path / "r", {"a.py": "x = 1\n"})
    tree.write({"a.py": "x = 2\n"})
    policy = FixPolicy(validation=python("import time\nwhile True: time.sleep(1)", seconds=1))
    with pytest.raises(Transient, match="took too long"):
        await Validation().run(attempt(tree, sandbox, policy))
