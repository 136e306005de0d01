"""Raising what a requirement asks for to a version without a known vulnerability.

Of a specifier only what stands in the way is changed: a pin is moved, a floor is raised, a
ceiling that shuts the fixed version out is lifted to the next major one. `packaging` knows what a
version is and what a clause lets in; how a clause is rewritten is decided here.
"""

from __future__ import annotations

import re
from typing import Final

from packaging.specifiers import InvalidSpecifier, Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from towline_once.errors import Rejected

NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,100}[A-Za-z0-9])?"
_CLAUSE = re.compile(r"\s*+(===|==|~=|!=|<=|>=|<|>|\^|~)?\s*+([^\s,;]++)\s*+")
_LONGEST_VERSION: Final = 100


def version_of(text: str) -> Version:
    """Without its local part, which does not count for the order."""
    try:
        if len(text) > _LONGEST_VERSION or not text.isascii():
            raise ValueError(text)
        return Version(Version(text).public)
    except ValueError:  # packaging's own error is one
        raise Rejected(f"{text[:50]!r} is not a version") from None


def same_name(one: str, other: str) -> bool:
    return plain_name(one) == plain_name(other)


def plain_name(name: str) -> str:
    return canonicalize_name(name)


def raised(specifier: str, fixed: str, *, poetry: bool = False) -> str:
    """The specifier, changed so that it asks for `fixed` or newer; the same if it does already."""
    wanted = version_of(fixed)
    text = specifier.strip()
    if text in ("", "*"):
        return f">={fixed}"
    clauses = [_clause(clause, poetry) for clause in text.split(",") if clause.strip()]
    out = [_moved(operator, version, fixed, wanted) for operator, version in clauses]
    if not any(_holds_floor(*clause, wanted) for clause in out):
        out.append((">=", fixed))
    if out == clauses:
        return specifier
    separator = ", " if ", " in text else ","
    spaced = bool(re.search(r"[<>=~!^] ", text))
    return separator.join(
        f"{operator}{' ' if spaced and operator else ''}{version}" for operator, version in out
    )


def _clause(text: str, poetry: bool) -> tuple[str, str]:
    match = _CLAUSE.fullmatch(text)
    operators = ("", "^", "~") if poetry else ()
    if match is None or (match[1] or "") in {"", "^", "~"} - set(operators):
        raise Rejected(f"the specifier {text.strip()[:60]!r} is not understood")
    return match[1] or "", match[2]


def _moved(operator: str, version: str, fixed: str, wanted: Version) -> tuple[str, str]:
    """One clause, moved as far as it must be."""
    stem = version.removesuffix(".*")
    known = version_of(stem)
    if operator == "!=":
        if known == wanted or not _lets_in(operator, version, wanted):
            raise Rejected(f"the fixed version {fixed} is shut out by !={version}")
        return operator, version
    if operator == "<":
        lets_in = _lets_in(operator, version, wanted)
        return operator, version if lets_in else _written(wanted, wanted.major + 1)
    parts = stem.count(".") + 1
    if stem != version:
        kept = known > wanted or _lets_in("==", version, wanted)
        return operator, version if kept else f"{_shortened(wanted, parts)}.*"
    if known >= wanted:
        return operator, version
    if operator == ">":
        return ">=", fixed
    if operator == "~=" and fixed.count(".") + 1 != parts:
        lets_in = _lets_in(operator, version, wanted)
        return operator, version if lets_in else _shortened(wanted, parts)
    return operator, fixed


def _lets_in(operator: str, version: str, wanted: Version) -> bool:
    try:
        return Specifier(operator + version).contains(wanted, prereleases=True)
    except InvalidSpecifier:
        raise Rejected(f"the specifier {(operator + version)[:60]!r} is not understood") from None


def _shortened(version: Version, parts: int) -> str:
    return _written(version, *(*version.release, *([0] * parts))[:parts])


def _written(version: Version, *release: int) -> str:
    """A release of the same epoch."""
    epoch = f"{version.epoch}!" if version.epoch else ""
    return f"{epoch}{'.'.join(map(str, release))}"


def _holds_floor(operator: str, version: str, wanted: Version) -> bool:
    """Whether a clause keeps everything below the fixed version out."""
    if version.endswith(".*"):
        return operator == "==" and version_of(version.removesuffix(".*")) > wanted
    return operator not in ("<", "<=", "!=") and version_of(version) >= wanted
