"""The fixer `command`: any program, with the plan on its standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fix.workshop import BareSandbox, Tree
from towline.fix.fixers.base import Plan
from towline.fix.fixers.command import CommandFixer, build
from towline.fix.fixers.config import AgentConfig, FixerConfig
from towline.fix.model import Advisory, Command, Errand
from towline.sandbox.base import Ran
from towline_once.errors import Definitive, Rejected, Transient

PLAN = Plan(
    Errand(
        cause="request",
        forge="github",
        repo="octo-org/app",
        base_ref="main",
        instruction="say hello",
        advisory=Advisory(id="GHSA-1", package="requests"),
        more={"number": "7"},
    ),
    "command",
    "somebody asked",
    "it takes all",
    "the log",
)
OBEYS = """
import json, os, sys
plan = json.load(sys.stdin)
assert plan["version"] == 1 and plan["log"] == "the log" and plan["cause"] == "somebody asked"
assert plan["errand"]["advisory"]["id"] == "GHSA-1" and plan["errand"]["more"] == {"number": "7"}
open("hello.txt", "w").write(plan["errand"]["instruction"] + os.environ["AGENT_KEY"])
print("done")
"""


def agent(code: str, **environment: str) -> CommandFixer:
    command = Command(
        name="agent", argv=(sys.executable, "-c", code), seconds=20, memory_bytes=123, network=True
    )
    return build(FixerConfig(agent=AgentConfig(command=command, environment=environment)))


async def test_it_gets_the_plan_and_changes_the_workspace(tmp_path: Path) -> None:
    """With the configured environment and limits, and nothing else of ours."""
    tree = Tree(tmp_path, {"a": "x\n"})
    sandbox = BareSandbox()
    report = await agent(OBEYS, AGENT_KEY="!").fix(PLAN, tree, sandbox)
    assert tree.read("hello.txt") == "say hello!"
    assert report.summary == "Changed by agent: somebody asked"
    assert report.log == "done"
    ((_, limits, environment, _),) = sandbox.asked
    assert environment == {"AGENT_KEY": "!"}
    assert (limits.seconds, limits.memory_bytes, limits.network) == (20, 123, True)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("pass", Definitive, "agent changed nothing"),
        ("open('a','w').write('y'); raise SystemExit(1)", Definitive, "status 1"),
        ("import sys; print('busy'); sys.exit(75)", Transient, "status 75: busy"),
    ],
)
async def test_its_status_says_how_it_went(
    tmp_path: Path, code: str, error: type[Exception], said: str
) -> None:
    """75 may go better another time; other failures and no change are final."""
    tree = Tree(tmp_path, {"a": "x\n"})
    with pytest.raises(error, match=said):
        await agent(code).fix(PLAN, tree, BareSandbox())


@pytest.mark.parametrize(
    "ran", [Ran(None, "", timed_out=True), Ran(None, "", trouble="x"), Ran(None, "")]
)
async def test_trouble_is_tried_again(tmp_path: Path, ran: Ran) -> None:
    """Time, memory and the sandbox are not the errand's fault."""
    with pytest.raises(Transient, match="agent"):
        await agent("pass").fix(PLAN, Tree(tmp_path, {"a": "x\n"}), BareSandbox(ran))


def test_it_needs_a_command() -> None:
    """And keeps its environment out of sight."""
    with pytest.raises(Rejected, match="no command"):
        build(FixerConfig())
    shown = AgentConfig(command=Command(name="x", argv=("x",)), environment={"KEY": "hidden"})
    assert "hidden" not in repr(FixerConfig(agent=shown))


async def test_what_it_was_given_in_secret_stays_a_secret(tmp_path: Path) -> None:
    """Neither the log nor the reason repeats the key, and no patch takes it along."""
    key = "the-key-of-the-agent"
    tells = "import os\nprint('key:', os.environ['AGENT_KEY'])\n"
    changed = f"{tells}open('hello.txt', 'w').write('hello')"
    report = await agent(changed, AGENT_KEY=key).fix(PLAN, Tree(tmp_path / "a", {}), BareSandbox())
    assert report.log == "key: ***"
    fixer = agent(f"{tells}raise SystemExit(3)", AGENT_KEY=key)
    with pytest.raises(Definitive) as failed:
        await fixer.fix(PLAN, Tree(tmp_path / "b", {}), BareSandbox())
    assert key not in str(failed.value)
    writes = "import os\nopen('hello.txt', 'w').write(os.environ['AGENT_KEY'])"
    with pytest.raises(Definitive, match="in secret"):
        await agent(writes, AGENT_KEY=key).fix(PLAN, Tree(tmp_path / "c", {}), BareSandbox())
