"""A sandbox runs one untrusted command within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class Limits(NamedTuple):
    """What a command may use. `writable` are folders besides its own that it may write to,
    `readable` files and folders that it may read besides the system's."""

    seconds: float = 600.0
    memory_bytes: int = 2 * 1024**3
    processes: int = 256
    output_bytes: int = 1_000_000
    network: bool = False
    writable: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    disk_bytes: int = 4 * 1024**3
    """How much it may add to what it may write to; no file may be larger than this either."""


class Ran(NamedTuple):
    """`status` is None if it was ended from outside: by time, memory or a signal."""

    status: int | None
    output: str
    """Standard output and error as they came, the end of it."""
    timed_out: bool = False
    trouble: str | None = None
    """Why it could not even be run: the sandbox's fault, not the command's."""

    @property
    def succeeded(self) -> bool:
        return self.status == 0


class Sandbox(Protocol):
    @property
    def warning(self) -> str | None:
        """What the record of a run says of its isolation, where that is not required."""
        ...

    async def check(self) -> None:
        """Raise `NotIsolated` where nothing of a repository may run on this machine."""
        ...

    async def run(
        self,
        command: Sequence[str],
        folder: Path,
        limits: Limits,
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Ran:
        """Nothing of our environment is passed on but what is given here.

        `NotIsolated` where the machine cannot isolate the command; then nothing was run.
        """
        ...
