"""Who makes a patch: anything from a linter to a coding agent, as a plug-in.

Fixers are found by the entry point group `towline.fixers`. One changes files in its workspace and
says what it did; the later stages judge what it changed, whichever fixer it was.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from towline.fix.model import Errand
from towline.git.workspace import Workspace
from towline.sandbox.base import Sandbox


class Plan(NamedTuple):
    """`log` is the end of the failing job's log, as far as there is one."""

    errand: Errand
    fixer: str
    cause: str
    """What seems to be wrong, in a sentence."""
    why: str
    """Why this fixer."""
    log: str = ""


class FixerReport(NamedTuple):
    summary: str
    """What was done, in a sentence or two, for the pull request."""
    title: str = ""
    log: str = ""


class Fixer(Protocol):
    name: str

    def fits(self, errand: Errand, log: str) -> str | None:
        """Why it may be able to help; None if it is not."""
        ...

    async def fix(self, plan: Plan, workspace: Workspace, sandbox: Sandbox) -> FixerReport:
        """`Definitive` if it cannot help after all, `Transient` if it may another time."""
        ...
