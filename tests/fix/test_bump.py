"""The fixer `bump`: from an advisory, or from what pip-audit says, to a new pin."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from tests.fix.workshop import BareSandbox, Tree
from towline.fix.fixers.base import Plan
from towline.fix.fixers.bump import build
from towline.fix.fixers.config import PIP_AUDIT, FixerConfig
from towline.fix.model import Advisory, Command, Errand
from towline_once.errors import Definitive, Transient

AUDIT = """
import json
pins = sorted(line.strip() for line in open("requirements.txt"))
assert pins == ["flask==1.0", "jinja2==2.4"], pins
vulns = [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.11.3"]}]
json.dump({"dependencies": [
    {"name": "jinja2", "version": "2.4", "vulns": vulns},
    {"name": "flask", "version": "1.0", "vulns": []},
]}, open("audit.json", "w"))
print("Found 1 known vulnerability in 1 package")
raise SystemExit(1)
"""
FILES = {"requirements.txt": "flask==1.0\njinja2==2.4  # old\n", "README.md": "jinja2==2.4\n"}


def errand(advisory: Advisory | None, **more: str) -> Errand:
    return Errand(
        cause="vulnerability",
        forge="github",
        repo="octo-org/app",
        base_ref="main",
        advisory=advisory,
        vulnerability_id=more.get("vulnerability_id"),
        check=more.get("check"),
    )


def plan(advisory: Advisory | None, **more: str) -> Plan:
    return Plan(errand(advisory, **more), "bump", "jinja2 is vulnerable", "it fits")


def audited_by(code: str, *, network: bool = True) -> FixerConfig:
    argv = (sys.executable, "-c", code)
    return FixerConfig(audit=Command(name="pip-audit", argv=argv, seconds=30, network=network))


JINJA = Advisory(id="GHSA-1", package="Jinja2", fixed="2.11.3")


def test_it_takes_python_packages() -> None:
    """An advisory of its ecosystem, or a failed audit."""
    bump = build(FixerConfig())
    assert bump.fits(errand(JINJA), "") == "GHSA-1 is about the Python package Jinja2"
    assert bump.fits(errand(dataclasses.replace(JINJA, ecosystem="npm")), "") is None
    assert bump.fits(errand(None), "") is not None
    failure = dataclasses.replace(errand(None), cause="failure")
    assert bump.fits(failure, "") is None
    assert bump.fits(failure, "Found 2 known vulnerabilities in 1 package") is not None
    assert bump.fits(dataclasses.replace(failure, check="pip-audit"), "") is not None


async def test_the_advisory_s_version_is_written(tmp_path: Path) -> None:
    """In every file that names the package as a dependency; nothing is run."""
    files = {**FILES, "pyproject.toml": "[project]\ndependencies = ['jinja2>=2,<3']\n"}
    tree = Tree(tmp_path, files)
    sandbox = BareSandbox()
    report = await build(FixerConfig()).fix(plan(JINJA), tree, sandbox)
    assert tree.read("requirements.txt") == "flask==1.0\njinja2==2.11.3  # old\n"
    assert "'jinja2>=2.11.3,<3'" in tree.read("pyproject.toml")
    assert tree.read("README.md") == FILES["README.md"]
    assert "jinja2 in requirements.txt: ==2.4 → ==2.11.3" in report.summary
    assert report.title == "Raise jinja2 to 2.11.3"
    assert sandbox.asked == []


@pytest.mark.parametrize("advisory", [None, dataclasses.replace(JINJA, fixed=None)])
async def test_pip_audit_gives_the_version(tmp_path: Path, advisory: Advisory | None) -> None:
    """It is given the pins alone, in a folder of its own."""
    tree = Tree(tmp_path, {**FILES, "pyproject.toml": "[project]\nname = 'x'\n"})
    await build(audited_by(AUDIT)).fix(plan(advisory), tree, BareSandbox())
    assert "jinja2==2.11.3" in tree.read("requirements.txt")
    assert b"audit.json" not in tree.changes()


@pytest.mark.parametrize(
    ("files", "advisory", "said"),
    [
        ({"requirements.txt": "flask==1\n"}, JINJA, "is in no requirements file"),
        ({"requirements.txt": "jinja2==3.0\n"}, JINJA, "2.11.3 or newer already"),
        ({"requirements.txt": "jinja2==2.4 --hash=sha256:ab\n"}, JINJA, "pinned by hashes"),
        ({"requirements.txt": "jinja2>=2\n"}, None, "nothing is pinned exactly"),
        (FILES, Advisory(id="X", package="flask"), "knows of no version of flask"),
    ],
)
async def test_what_cannot_be_raised_is_final(
    tmp_path: Path, files: dict[str, str], advisory: Advisory | None, said: str
) -> None:
    """With a reason that a person can act on, and nothing changed."""
    tree = Tree(tmp_path, files)
    with pytest.raises(Definitive, match=said):
        await build(audited_by(AUDIT)).fix(plan(advisory), tree, BareSandbox())
    assert tree.changes() == b""


async def test_one_that_cannot_be_raised_does_not_keep_the_others(tmp_path: Path) -> None:
    """The proposal says which is left."""
    code = AUDIT.replace('"vulns": []', '"vulns": [{"id": "P-2", "fix_versions": ["1.1"]}]')
    pinned = {"requirements.txt": "flask==1.0 --hash=sha256:ab\njinja2==2.4\n"}
    tree = Tree(tmp_path, pinned)
    report = await build(audited_by(code)).fix(plan(None), tree, BareSandbox())
    assert tree.read("requirements.txt") == "flask==1.0 --hash=sha256:ab\njinja2==2.11.3\n"
    assert report.title == "Raise jinja2 to 2.11.3"
    assert "Left as it is: flask is pinned by hashes" in report.summary


async def test_an_advisory_with_a_strange_version_changes_nothing(tmp_path: Path) -> None:
    """What is written to a file is a version, whatever the advisory says."""
    odd = dataclasses.replace(JINJA, fixed="2.11.3\nevil @ https://example.test")
    tree = Tree(tmp_path, FILES)
    with pytest.raises(Definitive, match="is not a version"):
        await build(FixerConfig()).fix(plan(odd), tree, BareSandbox())
    assert tree.changes() == b""


async def test_without_a_network_there_is_nobody_to_ask(tmp_path: Path) -> None:
    """Which is said, and is how it is configured by default."""
    assert not PIP_AUDIT.network
    with pytest.raises(Definitive, match="has no network"):
        await build(FixerConfig()).fix(plan(None), Tree(tmp_path, FILES), BareSandbox())


async def test_an_audit_without_a_report_is_tried_again(tmp_path: Path) -> None:
    """The service may have been out of reach."""
    with pytest.raises(Transient, match="no report"):
        await build(audited_by("pass")).fix(plan(None), Tree(tmp_path, FILES), BareSandbox())


async def test_a_lock_file_is_spoken_of(tmp_path: Path) -> None:
    """It is not renewed, so the proposal says so."""
    tree = Tree(tmp_path, {**FILES, "poetry.lock": "[[package]]\nname = 'jinja2'\n"})
    report = await build(FixerConfig()).fix(plan(JINJA), tree, BareSandbox())
    assert report.summary.endswith("poetry.lock is not renewed by this.")


async def test_links_are_not_followed(tmp_path: Path) -> None:
    """A requirements file that is a link to somewhere else is left alone."""
    outside = tmp_path / "requirements.txt"
    outside.write_text("jinja2==2.4\n")
    tree = Tree(tmp_path / "r", {"x": "x\n"})
    (tree.folder / "requirements.txt").symlink_to(outside)
    with pytest.raises(Definitive, match="in no requirements file"):
        await build(FixerConfig()).fix(plan(JINJA), tree, BareSandbox())
    assert outside.read_text() == "jinja2==2.4\n"
