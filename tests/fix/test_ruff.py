"""The fixer `ruff`, with the real program in real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fix.workshop import BareSandbox, Tree
from towline.fix.fixers.base import Plan
from towline.fix.fixers.config import FixerConfig
from towline.fix.fixers.ruff import build
from towline.fix.model import Errand
from towline.sandbox.base import Ran
from towline_once.errors import Definitive, Transient

SETTINGS = "[tool.ruff.lint]\nselect = ['F', 'I']\n"
UNUSED = "import os\nimport sys\n\nprint(sys.argv)\n"
LINT_LOG = (
    "src/a.py:1:8: F401 [*] `os` imported but unused\n[*] 1 fixable with the `--fix` option.\n"
)
NEW_LOG = "F401 [*] `os` imported but unused\n --> src/a.py:1:8\n  |\nFound 1 error.\n"
FORMAT_LOG = "Would reformat: src/a.py\n1 file would be reformatted, 3 files already formatted\n"
RUFF = build(FixerConfig())


def errand(check: str | None = "lint") -> Errand:
    return Errand(
        cause="failure", forge="github", repo="octo-org/app", base_ref="main", check=check
    )


def plan(log: str, check: str | None = "lint") -> Plan:
    return Plan(errand(check), "ruff", "lint failed", "it fits", log)


@pytest.mark.parametrize(
    ("check", "log", "fits"),
    [
        ("build", LINT_LOG, True),
        ("build", NEW_LOG, True),
        ("build", FORMAT_LOG, True),
        ("build", f"2026-01-01T00:00:00.000Z \x1b[1m{LINT_LOG}", True),
        ("Ruff", "", True),
        ("code-style", "", True),
        ("format", "", True),
        ("tests", "E   AssertionError: 1 != 2\ntests/test_a.py:3: AssertionError", False),
        ("informational", "", False),
        (None, "", False),
    ],
)
def test_it_knows_its_failures(check: str | None, log: str, fits: bool) -> None:
    """By what the log says, or else by the name of the check."""
    assert (RUFF.fits(errand(check), log) is not None) is fits


@pytest.mark.parametrize("log", [LINT_LOG, NEW_LOG, LINT_LOG.replace("src/", "/build/x/src/")])
async def test_it_repairs_the_files_that_the_log_names(tmp_path: Path, log: str) -> None:
    """And only these; the style of a repository that is not formatted stays."""
    tree = Tree(
        tmp_path, {"pyproject.toml": SETTINGS, "src/a.py": UNUSED + "x=1\n", "src/b.py": UNUSED}
    )
    report = await RUFF.fix(plan(log), tree, BareSandbox())
    assert tree.read("src/a.py") == "import sys\n\nprint(sys.argv)\nx=1\n"
    assert tree.read("src/b.py") == UNUSED
    assert report.summary == "Ran `ruff check --fix` on 1 files that the log names."


async def test_it_formats_when_that_is_the_failure(tmp_path: Path) -> None:
    """Without touching what a linter would find."""
    tree = Tree(tmp_path, {"src/a.py": "import os\nx=1\n", "src/b.py": "y=1\n"})
    report = await RUFF.fix(plan(FORMAT_LOG, "format"), tree, BareSandbox())
    assert tree.read("src/a.py") == "import os\n\nx = 1\n"
    assert tree.read("src/b.py") == "y=1\n"
    assert report.title == "Format the code"


async def test_formatted_files_stay_formatted(tmp_path: Path) -> None:
    """A repair that leaves gaps is tidied where the files were tidy before."""
    text = "def f():\n    import os\n\n    return 1\n"
    tree = Tree(tmp_path, {"pyproject.toml": SETTINGS, "src/a.py": text})
    await RUFF.fix(plan(LINT_LOG), tree, BareSandbox())
    assert tree.read("src/a.py") == "def f():\n\n    return 1\n"


async def test_without_names_the_whole_tree_is_repaired(tmp_path: Path) -> None:
    """By the repository's own settings, its exclusions too."""
    settings = "[tool.ruff]\nextend-exclude = ['gen']\n" + SETTINGS
    tree = Tree(tmp_path, {"pyproject.toml": settings, "a.py": UNUSED, "gen/b.py": UNUSED})
    report = await RUFF.fix(plan(""), tree, BareSandbox())
    assert "import os" not in tree.read("a.py")
    assert tree.read("gen/b.py") == UNUSED
    assert "the whole tree" in report.summary


async def test_nothing_to_repair_is_final(tmp_path: Path) -> None:
    """A failure that ruff cannot repair is not tried again."""
    tree = Tree(tmp_path, {"src/a.py": "print(undefined)\n"})
    with pytest.raises(Definitive, match="nothing that it can repair"):
        await RUFF.fix(plan("src/a.py:1:7: F821 Undefined name `undefined`\n"), tree, BareSandbox())


async def test_broken_settings_are_final_and_trouble_is_not(tmp_path: Path) -> None:
    """The repository's fault, and the sandbox's."""
    tree = Tree(tmp_path, {"pyproject.toml": "[tool.ruff]\nno-such = 1\n", "src/a.py": UNUSED})
    with pytest.raises(Definitive, match="ruff ended with status 2"):
        await RUFF.fix(plan(LINT_LOG), tree, BareSandbox())
    with pytest.raises(Transient, match="no namespaces"):
        await RUFF.fix(plan(LINT_LOG), tree, BareSandbox(Ran(None, "", trouble="no namespaces")))


async def test_names_in_a_log_lead_nowhere_else(tmp_path: Path) -> None:
    """A log is anybody's words: links, options and paths outside are not followed."""
    outside = tmp_path / "outside.py"
    outside.write_text(UNUSED)
    tree = Tree(tmp_path / "r", {"pyproject.toml": SETTINGS, "--config.py": UNUSED, "a.py": UNUSED})
    (tree.folder / "link.py").symlink_to(outside)
    log = "".join(f"{name}:1:8: F401 x\n" for name in ("../outside.py", "link.py", "--config.py"))
    sandbox = BareSandbox()
    await RUFF.fix(plan(log), tree, sandbox)
    assert outside.read_text() == UNUSED
    assert all(command[-2:] == ("--", "--config.py") for command, *_ in sandbox.asked)
    assert not any(limits.network for _, limits, *_ in sandbox.asked)
