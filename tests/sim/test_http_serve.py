"""`towline sim serve` as a user meets it: a process, what it says, how it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from github import Auth, Github

from tests import fast_start

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
LISTENS = re.compile(r"GitHub simulator listens on (http://\S+) with demo/app")
COMMAND = [sys.executable, "-m", "towline", "sim", "serve"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


class Running:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "--port", "0", *arguments],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.line = self.process.stderr.readline()
        found = LISTENS.search(self.line)
        assert found is not None, self.line + self.process.stderr.read()
        self.url = found[1]

    def end(self, number: int) -> tuple[int, str]:
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[Running]:
    program = Running(*arguments)
    try:
        yield program
    finally:
        if program.process.poll() is None:
            program.process.kill()
            program.process.communicate(timeout=SECONDS)


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    return fast_start.towline("sim", "serve", *arguments)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_pull_request_from_opening_to_merge(number: int) -> None:
    """Any client can work with demo/app at once; a signal ends it in good order."""
    with running("--token", "ghp_mine") as program:
        client = Github(base_url=program.url, auth=Auth.Token("ghp_mine"), retry=None)
        repo = client.get_repo("demo/app")
        repo.create_git_ref("refs/heads/fix", repo.get_branch("main").commit.sha)
        repo.create_file("fix.txt", "Fix", "fixed\n", branch="fix")
        pull = repo.create_pull(base="main", head="fix", title="Fix")
        pull.create_issue_comment("ready")
        assert pull.merge().merged
        assert program.end(number) == (0, "")


def test_a_token_is_made_where_none_is_given() -> None:
    """It is shown in the one line, and is needed."""
    with running() as program:
        token = program.line.rpartition(" ")[2].strip()
        assert httpx2.get(f"{program.url}/user").status_code == 401
        bearer = {"authorization": f"Bearer {token}"}
        assert httpx2.get(f"{program.url}/user", headers=bearer).status_code == 200
        assert program.end(signal.SIGTERM) == (0, "")


def _bots_merge(url: str) -> bool:
    """Open a pull request and see whether the bots bring it home in time."""
    client = Github(base_url=url, auth=Auth.Token("ghp_mine"), retry=None)
    repo = client.get_repo("demo/app")
    repo.create_git_ref("refs/heads/fix", repo.get_branch("main").commit.sha)
    repo.create_file("fix.txt", "Fix", "fixed\n", branch="fix")
    number = repo.create_pull(base="main", head="fix", title="Fix").number
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        if repo.get_pull(number).merged:
            return True
        time.sleep(0.1)
    return False


def test_with_actors_and_speed() -> None:
    """CI, policy, approval and merge happen by themselves, an hour in a few seconds."""
    with running("--token", "ghp_mine", "--actors", "--speed", "600", "--seed", "3") as program:
        assert _bots_merge(program.url)
        assert program.end(signal.SIGTERM) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--port", "70000"], "--port"),
        (["--speed", "0"], "--speed"),
        (["--speed", "nan"], "--speed"),
        (["--token", ""], "--token"),
        (["--host", "192.0.2.1", "--port", "0"], "192.0.2.1"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], complaint: str) -> None:
    """Said in one line, with a code that is not zero."""
    done = refused(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("towline: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line() -> None:
    """The port is named, and nothing is left behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused("--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"towline: cannot listen on 127.0.0.1:{port}: ")
    assert done.stderr.count("\n") == 1
