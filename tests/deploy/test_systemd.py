"""The units of systemd: what they start exists, what they may do is little."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, complaint_about
from towline.config import Settings

UNITS = ("towline.service", "towline-worker@.service")
PROGRAM = "/opt/towline/bin/towline"


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "systemd" / name).read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("name", UNITS)
def test_a_units_commands(name: str) -> None:
    """Each is a command of ours, with options that it has."""
    service = unit(name)["Service"]
    for key in ("ExecStartPre", "ExecStart"):
        if line := service.get(key):
            program, *words = shlex.split(line)
            assert program == PROGRAM
            assert complaint_about(words) is None
    assert int(service["TimeoutStopSec"]) > Settings().worker.drain_seconds + 10


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_hardened(name: str) -> None:
    """No privileges, and nothing to write but its own state."""
    service = unit(name)["Service"]
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    assert service["User"] != "root"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_a_unit(name: str, tmp_path: Path) -> None:
    """`systemd-analyze verify` has no complaint; a program of this machine stands in for ours."""
    text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
    file = tmp_path / name.replace("@", "@1")
    file.write_text(text.replace(PROGRAM, sys.executable), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if file.name in line]
    assert (complaints, done.returncode) == ([], 0), done.stderr
