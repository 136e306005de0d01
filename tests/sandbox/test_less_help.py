"""Limits on a machine that gives less: no namespaces, no Landlock, or neither."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.sandbox.test_sandboxes import DETACHED, ENDLESS, GREEDY, SEGMENTS, python, survivors
from towline.ports.workspace import Limits
from towline.sandbox.kernel import landlock_version
from towline.sandbox.limits import EVERYTHING, LimitsSandbox


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.mark.parametrize("case", [*ENDLESS, *GREEDY, "daemon"])
async def test_everything_ends_without_any_help(folder: Path, case: str) -> None:
    """Whatever detaches itself comes to the supervisor, which ends it."""
    sandbox = LimitsSandbox(use=())
    mark = f"mark-{os.getpid()}-{id(folder)}"
    if case in ENDLESS:
        code, limits = ENDLESS[case]
        ran = await python(sandbox, folder, f"# {mark}\n{code}", seconds=1.5, **limits)
        assert ran.timed_out
    elif case in GREEDY:
        code, limits, words = GREEDY[case]
        ran = await python(sandbox, folder, f"# {mark}\n{code}", **limits)
        assert words in ran.output
    else:
        ran = await python(sandbox, folder, f"# {mark}\n{DETACHED}\nprint('done')")
        assert ran.output == "done\n"
    assert survivors(mark) == []


async def test_what_is_required_and_not_to_be_had_is_refused(folder: Path) -> None:
    """The command is not run, and the reason names what is missing."""
    for use in ((), ("landlock",)):
        sandbox = LimitsSandbox(required=EVERYTHING, use=use)
        ran = await sandbox.run(["touch", "made"], folder, Limits(seconds=10))
        assert ran.status is None
        assert "no isolation of files, network, processes" in (ran.trouble or "")
        assert not (folder / "made").exists()


async def test_what_holds_is_found_out() -> None:
    """Without help only the filter of system calls."""
    assert await LimitsSandbox(use=()).probe() == {"system calls"}


async def test_landlock_alone_keeps_files_and_connections_away(
    folder: Path, tmp_path: Path
) -> None:
    """Without namespaces: no file beside its own, no TCP; it counts for nothing all the same."""
    # A socket in the file system, such as that of a database, can still be connected to.
    sandbox = LimitsSandbox(use=["landlock"])
    if not landlock_version():
        pytest.skip("this kernel has no Landlock")
    assert await sandbox.probe() == {"system calls"}
    (tmp_path / "token").write_text("secret")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"""
import os, socket
def attempt(act):
    try: act(); print('allowed')
    except OSError: print('refused')
attempt(lambda: open({str(tmp_path / "token")!r}))
attempt(lambda: open('/proc/{os.getpid()}/environ'))
attempt(lambda: socket.create_connection(('127.0.0.1', {port}), 2))
attempt(lambda: open('own', 'w'))
"""
    ran = await python(sandbox, folder, code)
    server.close()
    await server.wait_closed()
    assert ran.output.split() == ["refused", "refused", "refused", "allowed"]


async def test_segments_of_the_machine_are_out_of_reach(folder: Path) -> None:
    """Without a namespace for them, which ends with the command, even one of a page would stay."""
    ran = await python(LimitsSandbox(use=()), folder, SEGMENTS)
    assert ran.output.split() == ["28", "28", "28", "28", "-1"], ran
