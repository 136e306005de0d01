"""Reads pip-audit's report: which package has to go to which version."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from towline.core.requirement_specs import Version, version_of
from towline.errors import Rejected


class Vulnerable(NamedTuple):
    package: str
    fixed: str
    """The smallest version without any of what is known."""
    ids: tuple[str, ...] = ()


def needed_versions(report: str) -> list[Vulnerable]:
    """The packages with a vulnerability that a newer version is without, by name."""
    try:
        told = orjson.loads(report)
    except orjson.JSONDecodeError:
        raise Rejected("pip-audit's report is not JSON") from None
    dependencies = told.get("dependencies") if isinstance(told, dict) else None
    if not isinstance(dependencies, list):
        raise Rejected("pip-audit's report names no dependencies")
    needed = (_needed(one) for one in dependencies if isinstance(one, dict))
    return sorted(one for one in needed if one is not None)


def _needed(dependency: dict[str, Any]) -> Vulnerable | None:
    name, version = dependency.get("name"), dependency.get("version")
    vulns = dependency.get("vulns")
    if not isinstance(name, str) or not isinstance(version, str) or not isinstance(vulns, list):
        return None
    current = version_of(version)
    fixes: list[tuple[Version, str]] = []
    ids: list[str] = []
    for vuln in vulns:
        if not isinstance(vuln, dict):
            continue
        ids += _texts([vuln.get("id")]) + _texts(vuln.get("aliases"))
        fixes += _newer(_texts(vuln.get("fix_versions")), current)[:1]
    return Vulnerable(name, max(fixes)[1], tuple(ids)) if fixes else None


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _newer(versions: list[str], current: Version) -> list[tuple[Version, str]]:
    known = sorted((version_of(text), text) for text in versions)
    return [one for one in known if one[0] > current]
