"""The safeguards, each with a switch that takes it out, in a play only.

A sweep has to catch every one of them: a safeguard that nobody misses when it is gone is either
not needed or not tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from towline_once.db.statement import Statement


class Switch(NamedTuple):
    """How to take it out, and put it back."""

    out: Callable[[], Callable[[], None]]


class Mutation(NamedTuple):
    name: str
    rule: str
    """The rule or promise that the safeguard keeps."""
    scene: str
    switches: Sequence[Switch]


class NoLongerFits(AssertionError):
    """The code that a switch takes out is not there any more."""


def sql(statement: Statement, old: str, new: str) -> Switch:
    """Take a condition out of a statement."""

    def out() -> Callable[[], None]:
        text = statement.text
        if old not in text:
            raise NoLongerFits(f"the statement {statement.name!r} has no {old!r}")
        _write(statement, text.replace(old, new))
        return lambda: _write(statement, text)

    return Switch(out)


def _write(statement: Statement, text: str) -> None:
    object.__setattr__(statement, "text", text)
    statement._sqlite.clear()
    for cached in ("uses_epoch", "for_postgres"):
        statement.__dict__.pop(cached, None)


def instead(owner: Any, name: str, replacement: Any) -> Switch:
    """Put another function, or another value, in the place of one."""

    def out() -> Callable[[], None]:
        if name not in vars(owner):
            raise NoLongerFits(f"{owner} has no {name}")
        before = vars(owner)[name]
        setattr(owner, name, replacement)
        return lambda: setattr(owner, name, before)

    return Switch(out)


@contextmanager
def without(mutation: Mutation | None) -> Iterator[None]:
    """Play without the safeguard."""
    with ExitStack() as stack:
        for switch in mutation.switches if mutation is not None else ():
            stack.callback(switch.out())
        yield


def all_mutations() -> dict[str, Mutation]:
    from towline_sim.proof.mutations import fix, jobs, keys, locks, mesh, polls, tow

    listed = [
        *keys.MUTATIONS,
        *locks.MUTATIONS,
        *jobs.MUTATIONS,
        *tow.MUTATIONS,
        *mesh.MUTATIONS,
        *polls.MUTATIONS,
        *fix.MUTATIONS,
    ]
    found: Final = {one.name: one for one in listed}
    if len(found) != len(listed):
        raise AssertionError("two mutations share a name")
    return found
