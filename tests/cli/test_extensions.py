"""Commands that other distributions bring by the entry-point group `towline.commands`."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = (
    "import importlib.metadata as installed, sys\n"
    "installed.entry_points = lambda **_: ()\n"
    "from towline.cli import main\n"
    "sys.argv = ['towline', *sys.argv[1:]]\n"
    "main()\n"
)
"""The command line, where no distribution brings a command."""


def towline_alone(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--port", "0", "--no-browser"],
        ["sim", "serve", "--seed", "3"],
        ["simulate", "--seeds", "7"],
    ],
)
def test_a_command_of_another_distribution_says_what_to_install(words: list[str]) -> None:
    """Whatever it is called with: one line, that names the distribution, and a failure."""
    ran = towline_alone(*words)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (1, "", 1), ran.stderr
    assert f"`towline {words[0]}` comes with towline-sim" in ran.stderr
    assert "pip install ./packages/towline-sim" in ran.stderr


def test_the_help_says_which_commands_are_not_installed() -> None:
    """They are listed all the same, with where they come from."""
    ran = towline_alone("--help")
    assert ran.returncode == 0
    assert ran.stdout.count("it comes with towline-sim") == 3, ran.stdout
