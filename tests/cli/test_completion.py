"""The command line's manners: completion, help, and one line for whatever was asked wrongly."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.cli.doctor_runs import towline
from towline.cli import app

CHOSEN = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
RUN_UNTIL_STOPPED = {"serve", "worker", "demo", "sim serve", "bench"}


@pytest.mark.parametrize(
    ("shell", "marks"),
    [
        ("bash", ("complete -o default -F _towline_completion towline", "complete_bash")),
        ("zsh", ("#compdef towline", "complete_zsh")),
    ],
)
async def test_show_completion(tmp_path: Path, shell: str, marks: tuple[str, ...]) -> None:
    """The script for the shell is printed, and the other shell's is not."""
    ran = await towline(tmp_path, "--show-completion", shell, **CHOSEN)
    assert ran.code == 0
    assert all(mark in ran.out for mark in marks), ran.out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
async def test_install_completion(tmp_path: Path, shell: str) -> None:
    """It writes into the home folder, and says where."""
    ran = await towline(tmp_path, "--install-completion", shell, HOME=str(tmp_path), **CHOSEN)
    assert (ran.code, "installed in" in ran.out) == (0, True), ran.err
    assert any("_towline_completion" in text for text in texts_below(tmp_path))


def texts_below(folder: Path) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in folder.rglob("*") if file.is_file()]


async def test_commands_are_completed(tmp_path: Path) -> None:
    """What begins like that is offered, in bash and in zsh."""
    bash = {"COMP_WORDS": "towline do", "COMP_CWORD": "1", "_TOWLINE_COMPLETE": "complete_bash"}
    for environment in (
        bash,
        {"_TYPER_COMPLETE_ARGS": "towline do", "_TOWLINE_COMPLETE": "complete_zsh"},
    ):
        ran = await python(tmp_path, "-m", "towline", **environment)
        assert "doctor" in ran, environment
        assert "serve" not in ran


async def python(folder: Path, *arguments: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        cwd=folder,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(100):
        out, _ = await process.communicate()
    return out.decode()


async def test_alone_it_shows_the_help(tmp_path: Path) -> None:
    """`towline` lists the commands, and loads neither rich's texts nor the service for that."""
    ran = await towline(tmp_path)
    assert "Usage:" in ran.out + ran.err
    assert "doctor" in ran.out + ran.err
    code = (
        "import sys; sys.argv = ['towline', '--help']\n"
        "from towline.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = ('rich', 'pydantic', 'fastapi', 'httpx2', 'towline.app.service', 'uvicorn')\n"
        "print('LOADED', [name for name in heavy if name in sys.modules])"
    )
    assert "LOADED []" in await python(tmp_path, "-c", code)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["prs", "--foo"], "--foo"),
        (["prs", "--limit", "many"], "--limit"),
        (["prs", "--limit", "0"], "--limit"),
        (["nosuch"], "nosuch"),
        (["pr"], "OWNER/NAME#N"),
        (["pr", "nonsense"], "OWNER/NAME#NUMBER"),
        (["doctor", "--timeout", "-1"], "--timeout"),
        (["serve", "--port", "x"], "--port"),
        (["keys", "create", "--scope", "all"], "unknown scope"),
        (["sim", "serve", "--speed", "0"], "--speed"),
    ],
)
async def test_what_is_asked_wrongly_is_one_line(
    tmp_path: Path, words: list[str], complaint: str
) -> None:
    """It names what is wrong, on standard error, with a code that is not zero."""
    ran = await towline(tmp_path, *words)
    assert ran.code != 0
    assert (ran.out, ran.err.count("\n")) == ("", 1), ran.err
    assert complaint in ran.err


def commands(group: Any, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            found |= commands(one, f"{path}{name} ")
        else:
            found[f"{path}{name}"] = one
    return found


def test_every_command_and_option_says_what_it_is() -> None:
    """Each has a line of help, and what prints data takes --json."""
    for name, command in commands(typer.main.get_command(app)).items():
        assert command.help, name
        options = {option for one in command.params for option in one.opts}
        for one in command.params:
            assert getattr(one, "help", None), f"{name} {one.name}"
        assert "--json" in options or name in RUN_UNTIL_STOPPED, name


async def test_bench_outside_of_a_checkout(tmp_path: Path) -> None:
    """One line says where the benchmarks are."""
    ran = await towline(tmp_path, "bench")
    assert (ran.code, ran.err.count("\n"), "make bench" in ran.err) == (1, 1, True)
