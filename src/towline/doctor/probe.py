"""Checks that run beside each other, each with its deadline: none can hang, none can raise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from towline.doctor.findings import Finding, failure, one_line
from towline_once.errors import MissingExtra, TowlineError

SECONDS: Final = 10.0
_LONGEST: Final = 1000

Look: TypeAlias = Callable[[], list[Finding] | Awaitable[list[Finding]]]
Heard: TypeAlias = Callable[[str], None]


class Probe(NamedTuple):
    """`fix` is for whatever the look itself does not foresee."""

    check: str
    look: Look
    fix: str
    seconds: float = SECONDS


async def looked(probes: Sequence[Probe], on_end: Heard = lambda _: None) -> list[Finding]:
    """The findings of all, in the order of the probes; `on_end` hears of each that ended."""

    async def one(probe: Probe) -> list[Finding]:
        found = await _findings(probe)
        on_end(probe.check)
        return found

    return [finding for some in await asyncio.gather(*map(one, probes)) for finding in some]


async def _findings(probe: Probe) -> list[Finding]:
    """A task of its own: what does not even heed its cancellation is left behind."""
    task = asyncio.ensure_future(_looking(probe))
    done, _ = await asyncio.wait({task}, timeout=probe.seconds)
    if not done:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return [failure(probe.check, f"no answer within {probe.seconds:g} s", probe.fix)]
    try:
        return [one._replace(found=one_line(one.found, _LONGEST)) for one in task.result()]
    except MissingExtra as error:
        return [failure(probe.check, one_line(str(error)), one_line(_command_in(str(error))))]
    except TowlineError as error:
        return [failure(probe.check, one_line(str(error)), probe.fix)]
    except Exception as error:  # a check that breaks is a finding, not the end of the others
        told = one_line(f"{type(error).__name__}: {error}")
        return [failure(probe.check, f"the check itself failed: {told}", probe.fix)]


async def _looking(probe: Probe) -> list[Finding]:
    found = probe.look()
    return found if isinstance(found, list) else await found


def _command_in(text: str) -> str:
    """The message of a missing extra ends in what to run."""
    before, colon, command = text.rpartition(": ")
    return command if colon and "pip" in command else before or text
