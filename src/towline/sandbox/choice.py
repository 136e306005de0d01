"""Which sandbox this machine can have."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from towline.errors import Rejected
from towline.ports.workspace import Sandbox
from towline.sandbox.bubblewrap import BubblewrapSandbox
from towline.sandbox.limits import EVERYTHING, LimitsSandbox


class Choice(NamedTuple):
    sandbox: Sandbox
    reason: str
    """A line for the log."""
    missing: tuple[str, ...] = ()
    """What is not isolated here."""


async def choose_sandbox(
    *, readable: Sequence[Path] = (), path: str | None = None, strict: bool = False
) -> Choice:
    """Bubblewrap if it works here, otherwise limits; both are tried out by running `true`.

    `strict` asks for everything to be cut off, network, files and processes: if this machine
    cannot do that, it is `Rejected` here, before anything is run.
    """
    program = shutil.which("bwrap")
    why = "it is not installed"
    if program is not None:
        wrapped = BubblewrapSandbox(program=program, readable=readable, path=path)
        trouble = await wrapped.works()
        if trouble is None:
            return Choice(wrapped, f"sandbox: bubblewrap, which works here ({program})")
        why = f"it does not work here: {trouble}"
    required = EVERYTHING if strict else frozenset[str]()
    limited = LimitsSandbox(required=required, readable=readable, path=path)
    holds = await limited.probe()
    lacking = tuple(sorted(EVERYTHING - holds))
    missing = ", ".join(lacking)
    if strict and missing:
        raise Rejected(
            f"no sandbox on this machine isolates {missing}: install bubblewrap ({why}), "
            "allow user namespaces, or do not ask for strict isolation"
        )
    held = ", ".join(sorted(holds)) or "nothing"
    without = f"; not isolated: {missing}" if missing else ""
    said = f"sandbox: limits, isolating {held}{without} (bubblewrap: {why})"
    return Choice(limited, said, lacking)
