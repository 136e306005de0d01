"""Runs a fixer's tool, and tells its failures from those of the place where it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from towline.fix.model import Command
from towline.sandbox.base import Limits, Ran, Sandbox
from towline_once.errors import Definitive, Transient

TRY_AGAIN: Final = 75
"""The status by which a program says that it may go better another time (EX_TEMPFAIL)."""
_LOG_CHARS: Final = 20_000
_SHORTEST_SECRET: Final = 8


async def run_tool(
    command: Command,
    sandbox: Sandbox,
    folder: Path,
    *,
    argv: Sequence[str] | None = None,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    accepted: Sequence[int] = (0,),
) -> Ran:
    """`argv` stands in for the command's own; another status than the accepted raises."""
    limits = Limits(
        seconds=command.seconds,
        memory_bytes=command.memory_bytes,
        processes=command.processes,
        network=command.network,
    )
    ran = await sandbox.run(
        argv or command.argv, folder, limits, stdin=stdin, environment=environment
    )
    ran = ran._replace(output=without(ran.output, secrets_of(environment)))
    if ran.trouble is not None:
        raise Transient(f"{command.name} could not be run: {ran.trouble}")
    if ran.timed_out:
        raise Transient(f"{command.name} took longer than {command.seconds:g} s")
    if ran.status is None:
        raise Transient(f"{command.name} was ended from outside, perhaps for its use of memory")
    if ran.status in accepted:
        return ran
    said = f"{command.name} ended with status {ran.status}: {last_words(ran.output)}"
    raise Transient(said) if ran.status == TRY_AGAIN else Definitive(said)


def secrets_of(environment: Mapping[str, str] | None) -> list[str]:
    """What a program was given and must not say: keys are long, and what is short is no secret."""
    given = {value.strip() for value in (environment or {}).values()}
    return sorted((one for one in given if len(one) >= _SHORTEST_SECRET), key=len, reverse=True)


def without(text: str, secrets: Sequence[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def log_of(*runs: Ran) -> str:
    return "\n".join(ran.output.strip() for ran in runs if ran.output.strip())[-_LOG_CHARS:]


def last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    text = " | ".join(lines[-3:])[-300:]
    return "".join(char if char.isprintable() else " " for char in text) or "it said nothing"
