"""Write the parts of the reference that the code decides: `python -m scripts.reference`.

A page has its generated parts between two comments, `generated: NAME` and `end`. The rest is
written by hand. With `--check` nothing is written, and a page that differs is an error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import typer.main

from scripts.reference_lifecycle import budgets, commands_by_state, picture, states, transitions
from scripts.reference_metrics import metrics
from scripts.reference_settings import settings_tables
from scripts.reference_tables import table
from towline.cli import app
from towline.pulls.lifecycle import diagram

ROOT: Final = Path(__file__).resolve().parents[1]
_PART: Final = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_VALUES: Final[dict[Any, str]] = {int: "N", float: "X", Path: "FILE"}


def commands() -> str:
    """Every command with its arguments and options, in the order of the help."""
    return "\n".join(_of_command(path, command) for path, command in every_command())


def every_command() -> list[tuple[str, Any]]:
    """The path of each command as it is typed, and what typer made of it."""
    return list(_below("towline", typer.main.get_command(app)))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] | None = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, one in inner.items():
        if not one.hidden:
            yield from _below(f"{path} {name}", one)


def _of_command(path: str, command: Any) -> str:
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    words = [path, *(_in_usage(param) for param in shown if is_argument(param))]
    if any(not is_argument(param) for param in shown):
        words.append("[OPTIONS]")
    rows = [(f"`{spelled(param)}`", _default(param), _meaning(param)) for param in shown]
    parts = [f"## {path}", (command.help or "").strip(), f"`{' '.join(words)}`"]
    if rows:
        parts.append(table(("argument or option", "default", "meaning"), rows).rstrip())
    return "\n\n".join(parts) + "\n"


def is_argument(param: Any) -> bool:
    return str(param.param_type_name) == "argument"


def _in_usage(param: Any) -> str:
    shown = spelled(param) + ("…" if param.nargs == -1 else "")
    return shown if param.required else f"[{shown}]"


def spelled(param: Any) -> str:
    """As it is typed: `--port INTEGER`, `--json`, `PULL`."""
    if is_argument(param):
        return str(param.metavar or param.name.upper())
    names = ", ".join((*param.opts, *param.secondary_opts))
    if param.is_flag or param.count:
        return names
    return f"{names} {param.metavar or _value_of(param)}"


def _value_of(param: Any) -> str:
    """What stands for the value, by the type in the command's signature."""
    annotation = param.type_descriptor.annotation
    return _VALUES.get((get_args(annotation) or (annotation,))[0], "TEXT")


def _default(param: Any) -> str:
    if param.required:
        return "required"
    nothing = param.default is None or param.default in ("", (), [], False)
    return "" if nothing or callable(param.default) else f"`{param.default}`"


def _meaning(param: Any) -> str:
    return str(getattr(param, "help", None) or "").strip()


PARTS: Final[dict[str, Callable[[], str]]] = {
    "commands": commands,
    "settings": settings_tables,
    "metrics": metrics,
    "states": states,
    "transitions": transitions,
    "budgets": budgets,
    "commands-by-state": commands_by_state,
    "mermaid": lambda: f"```mermaid\n{diagram()}```\n",
}
PICTURES: Final[dict[str, Callable[[], str]]] = {"docs/reference/lifecycle.svg": picture}


def generated(page: str) -> str:
    """The page with its generated parts as the code has them now."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[4]}", page)


def wanted() -> Iterator[tuple[Path, str]]:
    """Every file that has something generated, and what it should hold."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if _PART.search(text):
            yield page, generated(text)
    for name, draw in PICTURES.items():
        yield ROOT / name, draw()


def differing() -> list[tuple[Path, str]]:
    return [
        (file, text)
        for file, text in wanted()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]


def main(arguments: Iterable[str]) -> int:
    check = "--check" in arguments
    found = differing()
    for file, text in found:
        if not check:
            file.write_text(text, encoding="utf-8")
        sys.stderr.write(f"{file.relative_to(ROOT)} {'differs' if check else 'is written'}\n")
    if check and found:
        sys.stderr.write("run `make docs`, and commit what it writes\n")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
