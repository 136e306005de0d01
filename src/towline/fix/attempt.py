"""What the stages of a fix run share: the attempt they are part of, and how a stage ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from towline.fix.fixers.base import Plan
from towline.fix.model import Errand, FixPolicy, RunRecord, Stage, StageOutcome
from towline.git.workspace import Workspace
from towline.sandbox.base import Sandbox
from towline_once.errors import LockTimeout


class StageEnd(NamedTuple):
    """`refused` blocks the run for good, for `reason`; trouble that may pass is raised instead.

    `output` is JSON that is kept for later stages; `log` is for people, and is cut to size.
    """

    outcome: StageOutcome
    reason: str = ""
    output: Mapping[str, object] = {}
    log: str = ""


@dataclass(kw_only=True)
class Attempt:
    """One attempt of a run, filled in as it goes.

    From PATCH on there is a workspace, and from SAFETY on it holds the patch, which is `diff`.
    """

    run: RunRecord
    token: int
    errand: Errand
    """The run's, with what PLAN found out about it."""
    policy: FixPolicy
    sandbox: Sandbox
    plan: Plan | None = None
    workspace: Workspace | None = None
    diff: bytes = b""
    outputs: dict[Stage, Mapping[str, object]] = field(default_factory=dict)
    """Of the stages that passed."""
    takes_over: bool = False
    """Whether the same job began before and did not end: what it held is left over."""


class StageRunner(Protocol):
    async def run(self, attempt: Attempt) -> StageEnd:
        """`Transient` if it may go better another time; `Definitive` is a refusal, too."""
        ...


class Hold(Protocol):
    def check(self) -> None:
        """Raise `LeaseLost` unless the lock is held still."""
        ...


class Locks(Protocol):
    def acquire(
        self, key: str, ttl_seconds: float = 300, wait_seconds: float = 30
    ) -> AbstractAsyncContextManager[Hold]: ...


@asynccontextmanager
async def held(
    locks: Locks, key: str, ttl_seconds: float, *, takes_over: bool, wait_seconds: float = 0
) -> AsyncIterator[None]:
    """Hold a lock; `LockTimeout` if another run does.

    Who takes over goes on without: its job's lease says that the former holder is gone, and the
    run's token says so to whatever that one still writes.
    """
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(locks.acquire(key, ttl_seconds, wait_seconds))
        except LockTimeout:
            if not takes_over:
                raise
        yield
