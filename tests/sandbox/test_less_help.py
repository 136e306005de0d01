"""Limits without isolation, as `fix.sandbox = "none"` has them where bubblewrap does not work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sandbox.test_sandboxes import (
    DETACHED,
    ENDLESS,
    GREEDY,
    SEGMENTS,
    folder,
    python,
    survivors,
)
from towline.sandbox.base import Limits
from towline.sandbox.confined import Supervised

__all__ = ["folder"]


@pytest.mark.parametrize("case", [*ENDLESS, *GREEDY, "daemon"])
async def test_everything_ends_without_any_help(folder: Path, case: str) -> None:
    """Whatever detaches itself comes to the supervisor, which ends it."""
    sandbox = Supervised()
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


async def test_a_command_is_run_without_isolation(folder: Path) -> None:
    """Status, output and environment are as in the sandbox; so is what cannot be started."""
    sandbox = Supervised()
    code = "import os, sys; print(sys.stdin.read(), os.getcwd(), len(os.environ)); sys.exit(3)"
    ran = await sandbox.run(["python3", "-c", code], folder, Limits(), stdin=b"given")
    words = ran.output.split()
    assert (ran.status, words[:2]) == (3, ["given", str(folder)])
    assert int(words[2]) <= 5
    assert (await sandbox.run(["no-such-program"], folder, Limits())).status == 127
    gone = await sandbox.run(["true"], folder / "gone", Limits())
    assert gone.status is None
    assert "No such file" in (gone.trouble or "")


async def test_segments_of_the_machine_are_out_of_reach(folder: Path) -> None:
    """Without a namespace for them, which ends with the command, even one of a page would stay."""
    ran = await python(Supervised(), folder, SEGMENTS)
    assert ran.output.split() == ["28", "28", "28", "28", "-1"], ran


async def test_system_calls_are_refused_without_isolation_too(folder: Path) -> None:
    """A user namespace is one of those that the filter refuses."""
    ran = await Supervised().run(["unshare", "--user", "true"], folder, Limits(seconds=20))
    assert ran.status not in (0, None)
    assert "Operation not permitted" in ran.output
