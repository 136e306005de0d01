"""The sandbox: bubblewrap makes an empty root, and puts only what a command needs into it.

Namespaces for the user, processes, mounts, names and the network come from bubblewrap, the filter
of system calls from `calls.py`, the limits from the supervisor. The number of processes is limited
inside, where only the command's own are counted.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from towline.sandbox import calls
from towline.sandbox.base import Limits
from towline.sandbox.confined import Supervised

_INSIDE_ID: Final = "1000"
_SMALL: Final = str(64 * 1024**2)


class BubblewrapSandbox(Supervised):
    name = "bubblewrap"

    def __init__(self, *, program: str | None = None, **how: Any) -> None:
        super().__init__(**how)
        self.program = program or shutil.which("bwrap")
        self._prlimit = shutil.which("prlimit", path="/usr/bin:/bin")

    async def works(self) -> str | None:
        """None if it does; otherwise why it does not. It is tried out by running `true`."""
        if not calls.known():
            return f"the system calls of {platform.machine()} are not known, so none is refused"
        if self.program is None:
            return "bubblewrap is not installed"
        with tempfile.TemporaryDirectory() as folder:
            ran = await self.run(["true"], Path(folder), Limits(seconds=10))
        if ran.succeeded:
            return None
        said = " ".join((ran.output or ran.trouble or "").split())
        said = said[:200] or f"it ended with {ran.status}"
        return f"bubblewrap does not work here: {said}"

    def _task(
        self,
        command: list[str],
        folder: Path,
        private: Path,
        limits: Limits,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        task = super()._task(command, folder, private, limits, environment)
        told = ["--seccomp", "{refused}", "--json-status-fd", "{status}"]
        counted = [self._prlimit, f"--nproc={limits.processes}", "--"] if self._prlimit else []
        return task | {"wrapping": [*self._wrapping(task, limits), *told, "--", *counted]}

    def _wrapping(self, task: Mapping[str, Any], limits: Limits) -> list[str]:
        wrapping = [
            self.program or "bwrap",
            *("--unshare-all", "--unshare-user", "--uid", _INSIDE_ID, "--gid", _INSIDE_ID),
            *(("--share-net",) if limits.network else ()),
            *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox"),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", _SMALL, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),  # noqa: S108
            *("--size", _SMALL, "--tmpfs", "/tmp"),  # noqa: S108  inside
        ]
        for path in (*self.readable(limits.network), *map(str, limits.readable)):
            wrapping += ["--ro-bind-try", path, path]
        for path in task["measured"]:
            wrapping += ["--bind", path, path]
        return [*wrapping, "--remount-ro", "/", "--chdir", task["folder"]]
