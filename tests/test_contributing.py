"""CONTRIBUTING.md says where to go for what, and is right."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TASKS = (
    *("a forge", "a rule of diagnosis", "a field on the page of a pull request", "a threshold"),
    *("an npm fixer", "a metric", "a CLI command", "a setting", "a webhook event"),
    *("a command of people", "a scan", "a table"),
)
FILES = {".py", ".html", ".md", ".sql", ".toml"}
OUTSIDE = ("docs/", "packages/", "tests/", "pyproject.toml")


def rows() -> dict[str, list[str]]:
    """The paths of each task, from the root of the repository."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## Where to go for what\n")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 2 and cells[0] != "task" and "---" not in line:
            paths = re.findall(r"`([\w./-]+(?:/|\.\w+))`", cells[1])
            named = (path for path in paths if "/" in path or (ROOT / path).suffix in FILES)
            found[cells[0]] = [
                path if path.startswith(OUTSIDE) else f"src/towline/{path}" for path in named
            ]
    return found


def test_the_files_of_each_task_exist() -> None:
    """Twelve tasks, each with the files that it touches, all of them where the table says."""
    found = rows()
    assert tuple(found) == TASKS
    assert [task for task, paths in found.items() if not paths] == []
    missing = [path for paths in found.values() for path in paths if not (ROOT / path).exists()]
    assert missing == []
