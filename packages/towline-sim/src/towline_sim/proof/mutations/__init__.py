"""Safeguards to take out and bugs to plant: rows that change the source of the product.

A row names a place in the source, the text that stands there, and the text to be put instead. It
is applied when its module is imported, by compiling the changed source; no file is touched, and
nobody else in the code knows of it. So it takes a process of its own, which `gate` starts: `apply`
comes before the first import of what it changes.

A sweep has to catch every safeguard that is taken out: one that nobody misses is either not needed
or not tested. A row whose place or text is gone is an error: code that was rewritten needs another
row. This package must import nothing of the product.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final, NamedTuple


class StaleRow(AssertionError):
    """The code that a row changes is not there any more, or is there more than once."""


class Edit(NamedTuple):
    """`place` is `module:name` or `module:Class.method`; spaces and line ends count as one."""

    place: str
    old: str
    """Must stand there once."""
    new: str


@dataclass(frozen=True)
class Mutation:
    """A safeguard that is taken out, or a bug that is planted."""

    scene: str
    """The scenario in which it is missed."""
    name: str
    rule: str
    """What the safeguard keeps; of a planted bug, what whoever made it had in mind."""
    edits: Sequence[Edit]
    seed: int | None = None
    """One that misses it, where few do."""
    area: str = ""
    """Of a planted bug: what it is about."""
    not_found: str = ""
    """Why no seed has to find it: it breaks no promise, or within how many none did."""


def body(place: str, new: str) -> Edit:
    """Other statements in place of all that a function does."""
    return Edit(place, "", new)


def apply(mutation: Mutation) -> None:
    """For the rest of this process; what it changes must not have been imported."""
    edits = _by_module(mutation)
    early = sorted(edits.keys() & sys.modules.keys())
    if early:
        raise RuntimeError(f"{mutation.name} comes too late: {early[0]} is imported already")
    sys.meta_path.insert(0, _Finder(edits))


def changed(mutation: Mutation) -> dict[str, str]:
    """The source of each module as it would be compiled; `StaleRow` if it does not fit."""
    edits = _by_module(mutation)
    return {module: _edited(_source(module), edits[module]) for module in edits}


def _by_module(mutation: Mutation) -> dict[str, list[Edit]]:
    found: dict[str, list[Edit]] = {}
    for edit in mutation.edits:
        found.setdefault(edit.place.partition(":")[0], []).append(edit)
    return found


class _Finder(MetaPathFinder):
    def __init__(self, edits: dict[str, list[Edit]]) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._edits:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._edits[fullname])
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, edits: list[Edit]) -> None:
        super().__init__(fullname, path)
        self._edits = edits

    def get_code(self, fullname: str) -> CodeType:
        source = _edited(self.get_data(self.path).decode(), self._edits)
        return compile(source, self.path, "exec", dont_inherit=True)


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise StaleRow(f"there is no module {module}")
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()


def _edited(source: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        first, last, is_body = _lines(source, edit)
        lines = source.split("\n")
        part = "\n".join(lines[first:last])
        new = _with_body(part, edit.new) if is_body else _with_text(part, edit)
        source = "\n".join([*lines[:first], new, *lines[last:]])
    return source


def _lines(source: str, edit: Edit) -> tuple[int, int, bool]:
    """Of the definition; of its statements, if all of them are replaced."""
    module, _, name = edit.place.partition(":")
    node: ast.AST = ast.parse(source)
    for part in name.split(".") if name else ():
        named = [one for one in getattr(node, "body", ()) if _name_of(one) == part]
        if len(named) != 1:
            raise StaleRow(f"{module} has {len(named)} definitions of {name}, not one")
        node = named[0]
    if not edit.old:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise StaleRow(f"{edit.place} is no function")
        return node.body[0].lineno - 1, node.end_lineno or 0, True
    if isinstance(node, ast.Module):
        return 0, source.count("\n") + 1, False
    assert isinstance(node, ast.stmt)  # noqa: S101  what has a name is one
    return node.lineno - 1, node.end_lineno or 0, False


def _name_of(node: ast.stmt) -> str | None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def _with_body(part: str, new: str) -> str:
    margin = part[: len(part) - len(part.lstrip())]
    return textwrap.indent(textwrap.dedent(new).strip("\n"), margin)


def _with_text(part: str, edit: Edit) -> str:
    pattern = r"\s+".join(map(re.escape, edit.old.split()))
    times = len(re.findall(pattern, part))
    if times != 1:
        raise StaleRow(f"{edit.place} has {edit.old!r} {times} times, not once")
    return re.sub(pattern, lambda _: edit.new, part)


def all_mutations() -> dict[str, Mutation]:
    """The safeguards, by name."""
    from towline_sim.proof.mutations import fix, jobs, keys, locks, mesh, polls, tow

    subjects: Final = (keys, locks, jobs, tow, mesh, polls, fix)
    return by_name([row for subject in subjects for row in subject.ROWS])


def by_name(rows: Sequence[Mutation]) -> dict[str, Mutation]:
    found = {row.name: row for row in rows}
    if len(found) != len(rows):
        raise AssertionError("two rows share a name")
    return found
