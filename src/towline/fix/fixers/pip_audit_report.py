"""Reads pip-audit's report: which package has to go to which version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
from packaging.version import Version

from towline.fix.fixers.requirement_specs import version_of
from towline.fix.model import Advisory
from towline_once.errors import Rejected


class Vulnerable(NamedTuple):
    package: str
    fixed: str
    """The smallest version without any of what is known."""
    ids: tuple[str, ...] = ()


def needed_versions(report: str) -> list[Vulnerable]:
    """The packages with a vulnerability that a newer version is without, by name."""
    found: dict[str, list[_Known]] = {}
    for one in _known(report):
        found.setdefault(one.package, []).append(one)
    needed = (_needed(package, known) for package, known in found.items())
    return sorted(one for one in needed if one is not None)


def advisories_in(report: str) -> list[Advisory]:
    """One for each vulnerability that a newer version is without, by the name others have for it.

    A CVE comes first, as in the alerts of a forge, so that both start the same run.
    """
    found = {
        (name, one.package): Advisory(
            id=name, package=one.package, vulnerable=one.version, fixed=one.fixes[0][1]
        )
        for one in _known(report)
        if one.fixes and (name := _common_name(one.ids))
    }
    return [found[place] for place in sorted(found)]


class _Known(NamedTuple):
    package: str
    version: str
    ids: list[str]
    fixes: list[tuple[Version, str]]
    """Those that are newer, the smallest first."""


def _known(report: str) -> Iterator[_Known]:
    """What is known against the packages; of what cannot be read nothing is."""
    try:
        told = orjson.loads(report)
    except orjson.JSONDecodeError:
        raise Rejected("pip-audit's report is not JSON") from None
    dependencies = told.get("dependencies") if isinstance(told, dict) else None
    if not isinstance(dependencies, list):
        raise Rejected("pip-audit's report names no dependencies")
    for dependency in dependencies:
        if isinstance(dependency, dict):
            yield from _known_of(dependency)


def _known_of(dependency: dict[str, Any]) -> Iterator[_Known]:
    name, version = dependency.get("name"), dependency.get("version")
    vulns = dependency.get("vulns")
    if not isinstance(name, str) or not isinstance(version, str) or not isinstance(vulns, list):
        return
    current = _version(version)
    if current is None:
        return
    for vuln in vulns:
        if isinstance(vuln, dict):
            ids = _texts([vuln.get("id")]) + _texts(vuln.get("aliases"))
            yield _Known(name, version, ids, _newer(_texts(vuln.get("fix_versions")), current))


def _needed(package: str, known: list[_Known]) -> Vulnerable | None:
    fixes = [one.fixes[0] for one in known if one.fixes]
    ids = tuple(name for one in known for name in one.ids)
    return Vulnerable(package, max(fixes)[1], ids) if fixes else None


def _common_name(ids: list[str]) -> str | None:
    return next((one for one in ids if one.startswith("CVE-")), ids[0] if ids else None)


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _newer(versions: list[str], current: Version) -> list[tuple[Version, str]]:
    known = [(version, text) for text in versions if (version := _version(text)) is not None]
    return sorted(one for one in known if one[0] > current)


def _version(text: str) -> Version | None:
    try:
        return version_of(text)
    except Rejected:
        return None
