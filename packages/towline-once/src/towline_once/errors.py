"""Every error that leaves Towline. Four families say what the caller can do about it:

`Rejected`   the input is wrong: change it, do not retry.
`Transient`  nothing is known to be wrong with the input: try again later.
`Conflict`   another holder has or used the thing: the message says which.
`LeaseLost`  what the caller held is no longer theirs: stop, and write nothing.

Beside them, `WrongLoop` and `Forked` are mistakes in a program: a handle works in the event loop
and the process that opened it, and has to be opened again elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence


class TowlineError(Exception):
    """The root of the tree."""


class Rejected(TowlineError, ValueError):
    """The input is wrong, and trying again will not help."""


class MissingExtra(Rejected):
    """A backend was asked for whose optional packages are not installed."""


class Transient(TowlineError):
    """The work was not done, or its outcome is unknown; it may be tried again."""


class Unavailable(Transient):
    """A store or a server did not answer within its deadline, or could not be reached.

    `retry_after` is set where a server asks to be left alone for so many seconds.
    """

    def __init__(
        self, message: str = "", retry_after: float = 0.0, *, maybe_done: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.maybe_done = maybe_done or retry_after == 0
        """Whether what was asked for may have happened. A server that limits calls did nothing."""


class Closed(Unavailable):
    """The handle was closed; another one has to be opened."""


class StoreFull(Transient):
    """The store holds its maximum of records and none of them may be evicted."""


class WrongLoop(TowlineError, RuntimeError):
    """A handle was used in another event loop, or thread, than the one it was opened in."""


class Forked(TowlineError, RuntimeError):
    """A handle was used in a child of the process that opened it."""


class Conflict(TowlineError):
    """Another holder or an earlier use stands in the way."""


class KeyCollision(Conflict):
    """One idempotency key was used with two different payloads."""

    def __init__(self, message: str, pointers: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.pointers = list(pointers)


class InFlight(Conflict):
    """Another holder is working on this key."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Indeterminate(Conflict):
    """A holder died half-way and the key is parked until a person decides."""


class LockTimeout(Conflict):
    """The lock was not granted before the wait ended."""


class NoSlot(Conflict):
    """All slots are taken."""


class LeaseLost(TowlineError):
    """The lease ended or passed to another holder; the body was cancelled."""


class Stale(LeaseLost):
    """The claim was taken over by another holder; its result was not recorded."""


class Definitive(TowlineError):
    """Raised by a handler to say that trying again is useless: stored and replayed."""


class NotIsolated(Definitive):
    """This machine cannot isolate the code of repositories, so none of it was run."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}: {fix}")
        self.problem = problem
        self.fix = fix


class Exhausted(Definitive):
    """The key failed as often as it may; the last error is replayed."""
