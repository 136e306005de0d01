"""A sandbox of what the kernel gives to any process, where bubblewrap is missing or does not work.

Where user namespaces are allowed, a command has processes, a network and a root of its own.
Landlock restricts files, too. A seccomp filter refuses some system calls. `holds` says what of
`EVERYTHING` is true here. Limits on time, memory, processes, output and disk always hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from towline.ports.workspace import Limits
from towline.sandbox.confined import Supervised

EVERYTHING: Final = frozenset({"files", "network", "processes", "system calls"})


class LimitsSandbox(Supervised):
    """`required` names what has to hold: without it nothing is run. `probe` finds out first.

    `use` names what is made use of, where the machine has it.
    """

    name = "limits"

    def __init__(
        self,
        *,
        required: Collection[str] = (),
        use: Collection[str] = ("namespaces", "landlock"),
        **how: Any,
    ) -> None:
        super().__init__(**how)
        self._required = frozenset(required)
        self._use = sorted(use)
        self.holds: frozenset[str] = frozenset()

    async def probe(self) -> frozenset[str]:
        found = set()
        for what in sorted(EVERYTHING):
            trial = LimitsSandbox(required=[what], use=self._use)
            with tempfile.TemporaryDirectory() as folder:
                ran = await trial.run(["true"], Path(folder), Limits(seconds=10))
            if ran.succeeded:
                found.add(what)
        self.holds = frozenset(found)
        return self.holds

    def _task(
        self,
        command: list[str],
        folder: Path,
        private: Path,
        limits: Limits,
        environment: Mapping[str, str],
    ) -> dict[str, Any]:
        task = super()._task(command, folder, private, limits, environment)
        required = self._required - ({"network"} if limits.network else set())
        return task | {"confine": True, "required": sorted(required), "use": self._use}
