"""Rewrites one dependency in the files that Python projects name theirs in.

Nothing but its specifier changes: comments, order and layout stay. What was written is read back,
and refused if anything else has changed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple, TypeAlias

from towline.fix.fixers.requirement_specs import NAME, plain_name, raised, same_name
from towline_once.errors import Rejected

Raise: TypeAlias = Callable[[str], str]

# Runs of blanks are taken whole (`*+`), lest a long one be tried in each of its parts.
_NAMED = rf"\s*+(?P<name>{NAME})\s*+(?:\[[^\]]*+\]\s*+)?"
_REQUIREMENT = re.compile(
    rf"(?P<head>{_NAMED}(?:\(\s*+)?)"
    r"(?P<spec>(?:(?:===|==|~=|!=|<=|>=|<|>)[^;#()]*+)?)"
    r"(?P<rest>(?:\)\s*+)?(?:;.*)?)",
    re.DOTALL,
)
_EXACT = re.compile(rf"{_NAMED}==\s*+(?P<version>[\w.!+-]++)\s*+(?:;.*)?$")
_AT_ADDRESS = re.compile(rf"{_NAMED}@\s*+\S")
_REMARK = re.compile(r"(?:^|(?<!\s)\s++)#.*$")
_OPTION = re.compile(r"\s(--?[a-z][a-z-]*(?:[= ].*)?)$", re.DOTALL)
_SECTION = re.compile(r"\s*+\[\s*+([^\[\]]*[^\[\]\s])\s*+\]\s*+(?:#.*)?$")
_ENTRY = re.compile(r"""(\s*(["']?)([\w.-]+)\2\s*=\s*)(.*)$""", re.DOTALL)
_FILE_NAME = re.compile(r".*(?:requirements|constraints).*\.(?:txt|in|lock|pip)", re.IGNORECASE)
_LOCKS: Final = ("poetry.lock", "uv.lock", "Pipfile.lock", "pdm.lock")


class Bump(NamedTuple):
    """`was` and `now` are the specifiers, in the order of the file."""

    text: str
    was: tuple[str, ...]
    now: tuple[str, ...]

    @property
    def changed(self) -> bool:
        return self.was != self.now


def is_requirements_file(path: str) -> bool:
    place = PurePosixPath(path)
    return bool(_FILE_NAME.fullmatch(place.name)) or (
        place.parent.name == "requirements" and place.suffix in (".txt", ".in")
    )


def is_lock_file(path: str) -> bool:
    return PurePosixPath(path).name in _LOCKS


def bump(path: str, text: str, package: str, fixed: str) -> Bump | None:
    """The file with `package` at `fixed` or newer; None if it does not name the package.

    `Rejected` if it is pinned by a hash or in another way that cannot be rewritten.
    """
    if PurePosixPath(path).name == "pyproject.toml":
        return _bump_pyproject(text, package, fixed)
    if is_requirements_file(path):
        return _bump_requirements(text, package, fixed)
    return None


def exact_pins(path: str, text: str) -> list[tuple[str, str]]:
    """Names and versions of what is pinned exactly, as far as it can be read."""
    if PurePosixPath(path).name == "pyproject.toml":
        try:
            lines = list(_requirements_in(_toml(text)))
        except Rejected:
            return []
    elif is_requirements_file(path):
        lines = [_OPTION.sub("", _body(line)) for line in _logical_lines(text)]
    else:
        return []
    matches = (_EXACT.match(line) for line in lines)
    return [(plain_name(one["name"]), one["version"]) for one in matches if one is not None]


class _Record:
    """Raises specifiers, and keeps them as they were and are."""

    def __init__(self, fixed: str) -> None:
        self._fixed = fixed
        self.was: list[str] = []
        self.now: list[str] = []

    def __call__(self, specifier: str, *, poetry: bool = False) -> str:
        new = raised(specifier, self._fixed, poetry=poetry)
        self.was.append(specifier.strip())
        self.now.append(new.strip())
        return new

    def bump(self, text: str) -> Bump | None:
        return Bump(text, tuple(self.was), tuple(self.now)) if self.was else None


# ------------------------------------------------------------------ requirements files


def _bump_requirements(text: str, package: str, fixed: str) -> Bump | None:
    record = _Record(fixed)
    out = [_new_line(line, package, record) for line in _logical_lines(text)]
    return record.bump("".join(out))


def _logical_lines(text: str) -> Iterator[str]:
    """Lines with those that continue them."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if not line.rstrip("\r\n").endswith("\\"):
            yield pending
            pending = ""
    if pending:
        yield pending


def _new_line(line: str, package: str, record: _Record) -> str:
    first = line.split("\n", 1)[0]
    if _named_at_address(first, package):
        raise Rejected(f"{package} is taken from an address, which a version does not change")
    plain = _OPTION.sub("", _body(line))
    new = _new_requirement(plain, package, record)
    if new is None:
        return line
    if "--hash" in line and new != plain:
        raise Rejected(
            f"{package} is pinned by hashes, which only a tool that downloads the files can renew"
        )
    return new + line[len(plain) :]


def _body(line: str) -> str:
    """The first of a line and its continuations, without remark and backslash."""
    first = line.split("\n", 1)[0].rstrip("\r")
    return _REMARK.sub("", first).rstrip().removesuffix("\\").rstrip()


def _new_requirement(text: str, package: str, raise_to: Raise) -> str | None:
    """None if it is not a requirement of the package."""
    match = _REQUIREMENT.fullmatch(text)
    if match is None or not same_name(match["name"], package):
        return None
    spec = match["spec"].rstrip()
    gap = match["spec"][len(spec) :]
    return f"{match['head']}{raise_to(spec)}{gap}{match['rest']}"


def _named_at_address(text: str, package: str) -> bool:
    match = _AT_ADDRESS.match(text)
    return match is not None and same_name(match["name"], package)


# ------------------------------------------------------------------ pyproject.toml


def _bump_pyproject(text: str, package: str, fixed: str) -> Bump | None:
    data = _toml(text)
    record = _Record(fixed)
    new = text
    for old in dict.fromkeys(_requirements_in(data)):
        if _named_at_address(old, package):
            raise Rejected(f"{package} is taken from an address, which a version does not change")
        changed = _new_requirement(old, package, record)
        if changed is not None and changed != old:
            new = _with_string(new, old, changed)
    new = "".join(_poetry_lines(new, package, record))
    expected = _expected(data, package, fixed)
    if not _equal(_toml(new), expected):
        raise Rejected(f"{package} is written in pyproject.toml in a way that is not understood")
    return record.bump(new)


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers too long, and tables too deep
        raise Rejected(f"pyproject.toml cannot be read: {error}") from None


def _equal(one: object, other: object) -> bool:
    """Tables may be nested deeper than can be compared."""
    try:
        return one == other
    except RecursionError:
        return False


def _requirement_lists(data: dict[str, Any]) -> Iterator[list[Any]]:
    project = _table(data.get("project"))
    groups = (project.get("optional-dependencies"), data.get("dependency-groups"))
    lists = [
        project.get("dependencies"),
        _table(data.get("build-system")).get("requires"),
        *(one for group in groups for one in _table(group).values()),
    ]
    yield from (one for one in lists if isinstance(one, list))


def _requirements_in(data: dict[str, Any]) -> Iterator[str]:
    for requirements in _requirement_lists(data):
        yield from (one for one in requirements if isinstance(one, str))


def _with_string(text: str, old: str, new: str) -> str:
    for quote in ('"', "'"):
        text = text.replace(f"{quote}{old}{quote}", f"{quote}{new}{quote}")
    return text


def _poetry_lines(text: str, package: str, record: _Record) -> Iterator[str]:
    section: list[str] = []
    for line in text.splitlines(keepends=True):
        if (match := _SECTION.match(line)) is not None:
            section = [part.strip().strip("\"'") for part in match[1].split(".")]
            yield line
        else:
            yield _new_poetry_line(line, section, package, record)


def _new_poetry_line(line: str, section: list[str], package: str, record: _Record) -> str:
    entry = _ENTRY.match(line)
    if entry is None or section[:2] != ["tool", "poetry"]:
        return line
    in_table = same_name(section[-1], package) and entry[3] == "version"
    named = same_name(entry[3], package) and section[-1].endswith("dependencies")
    if not in_table and not named:
        return line
    pattern = r"""(\bversion\s*=\s*|^)(["'])([^"']*)\2"""
    return entry[1] + re.sub(
        pattern,
        lambda match: f"{match[1]}{match[2]}{record(match[3], poetry=True)}{match[2]}",
        entry[4],
        count=1,
    )


def _expected(data: dict[str, Any], package: str, fixed: str) -> dict[str, Any]:
    """What the file should say afterwards, changed as data instead of as text."""
    for requirements in _requirement_lists(data):
        for place, one in enumerate(requirements):
            if isinstance(one, str):
                changed = _new_requirement(one, package, lambda spec: raised(spec, fixed))
                requirements[place] = one if changed is None else changed
    for dependencies in _poetry_tables(_table(_table(data.get("tool")).get("poetry"))):
        for name, value in dependencies.items():
            if plain_name(name) != plain_name(package):
                continue
            if isinstance(value, str):
                dependencies[name] = raised(value, fixed, poetry=True)
            elif isinstance(value, dict) and isinstance(value.get("version"), str):
                value["version"] = raised(value["version"], fixed, poetry=True)
    return data


def _poetry_tables(poetry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (_table(poetry.get(name)) for name in ("dependencies", "dev-dependencies"))
    for group in _table(poetry.get("group")).values():
        yield _table(_table(group).get("dependencies"))


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
