"""Raising what a requirement asks for to a version without a known vulnerability.

Of a specifier only what stands in the way is changed: a pin is moved, a floor is raised, a
ceiling that shuts the fixed version out is lifted to the next major one.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from towline.errors import Rejected

NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,100}[A-Za-z0-9])?"
_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d{1,9})!)?(?P<release>\d{1,9}(?:\.\d{1,9}){0,10})"
    r"(?:[-_.]?(?P<pre>a|b|c|rc|alpha|beta|pre|preview)[-_.]?(?P<pre_n>\d{0,9}))?"
    r"(?:(?:[-_.]?(?:post|rev|r)[-_.]?|-)(?P<post>\d{1,9}))?(?:[-_.]?dev[-_.]?(?P<dev>\d{0,9}))?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE | re.ASCII,
)
_CLAUSE = re.compile(r"\s*+(===|==|~=|!=|<=|>=|<|>|\^|~)?\s*+([^\s,;]++)\s*+")
_PRE: Final = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}
_FINAL: Final = "z"


class Version(NamedTuple):
    """Ordered as PEP 440 says; the local part does not count."""

    epoch: int
    release: tuple[int, ...]
    pre: tuple[str, int]
    post: int
    dev: float

    @property
    def parts(self) -> tuple[int, ...]:
        return self.release or (0,)

    @property
    def is_early(self) -> bool:
        """Before its release."""
        return self.pre[0] != _FINAL or self.dev != float("inf")

    def written(self, *parts: int) -> str:
        """A release of the same epoch."""
        epoch = f"{self.epoch}!" if self.epoch else ""
        return f"{epoch}{'.'.join(map(str, parts))}"


def version_of(text: str) -> Version:
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise Rejected(f"{text[:50]!r} is not a version")
    release = tuple(int(part) for part in match["release"].split("."))
    while len(release) > 1 and release[-1] == 0:
        release = release[:-1]
    dev = float(match["dev"] or 0) if match["dev"] is not None else float("inf")
    if match["pre"]:
        letter = match["pre"].lower()
        pre = (_PRE.get(letter, letter), int(match["pre_n"] or 0))
    elif match["dev"] is not None and match["post"] is None:
        pre = ("", 0)
    else:
        pre = (_FINAL, 0)
    post = int(match["post"]) if match["post"] is not None else -1
    return Version(int(match["epoch"] or 0), release, pre, post, dev)


def same_name(one: str, other: str) -> bool:
    return plain_name(one) == plain_name(other)


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
    if version.endswith(".*"):
        return operator, _wildcard(operator, version.removesuffix(".*"), fixed, wanted)
    known = version_of(version)
    if operator in ("", "==", "===", "^", ">=", "~"):
        return operator, fixed if known < wanted else version
    if operator == ">":
        return (">=", fixed) if known < wanted else (operator, version)
    if operator == "~=":
        return operator, _compatible(version, known, fixed, wanted)
    if operator == "<=":
        return operator, fixed if known < wanted else version
    if operator == "<":
        return operator, version if _below(wanted, known) else wanted.written(wanted.parts[0] + 1)
    if known == wanted:
        raise Rejected(f"the fixed version {fixed} is shut out by !={version}")
    return operator, version


def _below(wanted: Version, known: Version) -> bool:
    """By PEP 440 `<2` lets no pre-release of 2 in."""
    same_release = (wanted.epoch, wanted.release) == (known.epoch, known.release)
    return wanted < known and (known.is_early or not (wanted.is_early and same_release))


def _wildcard(operator: str, prefix: str, fixed: str, wanted: Version) -> str:
    known = version_of(prefix).parts
    count = prefix.count(".") + 1
    padded = (*wanted.parts, *([0] * count))[:count]
    kept = padded == (*known, *([0] * count))[:count]
    if operator == "!=" and kept:
        raise Rejected(f"the fixed version {fixed} is shut out by !={prefix}.*")
    if operator == "!=" or kept or known > wanted.parts:
        return f"{prefix}.*"
    return f"{wanted.written(*padded)}.*"


def _compatible(version: str, known: Version, fixed: str, wanted: Version) -> str:
    """`~=1.4` stays if it lets the fixed version in, and else takes as many parts of it."""
    count = version.count(".") + 1
    prefix = (*known.parts, *([0] * count))[: count - 1]
    padded = (*wanted.parts, *([0] * count))
    if wanted < known or (wanted.epoch, *padded[: count - 1]) == (known.epoch, *prefix):
        return fixed if known < wanted and fixed.count(".") + 1 == count else version
    return fixed if fixed.count(".") + 1 == count else wanted.written(*padded[:count])


def _holds_floor(operator: str, version: str, wanted: Version) -> bool:
    """Whether a clause keeps everything below the fixed version out."""
    if version.endswith(".*"):
        return operator == "==" and version_of(version.removesuffix(".*")) > wanted
    known = version_of(version)
    if operator in ("", "==", "===", ">=", "^", "~", "~="):
        return known >= wanted
    return operator == ">" and known >= wanted
