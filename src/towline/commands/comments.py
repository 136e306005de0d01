"""Slash commands in comments: who may give them, and how they are answered.

A reaction says whether a command was taken; where it was not, one comment says why. Words that
only look like commands are other bots' business, unless they are nearly one of ours. A comment that
comes while the forge does not answer is kept as a job of its own: it outlives a longer outage than
the job of its delivery.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol

import orjson

from towline.commands.failure_notices import MOST_ATTEMPTS
from towline.commands.routing import Answers, CommandSource, Ordered, rejection
from towline.events import Actor, Commented
from towline.forges.base import Forge, Permission
from towline.forges.snapshot import PullRef
from towline.jobs.ids import job_id
from towline.jobs.model import OWN_QUEUE, NewJob
from towline.pulls.command_rules import NoCredentials, NotNow, UnknownPull, lacking
from towline.pulls.model import PullRecord
from towline.pulls.policy import TowPolicy
from towline.pulls.selection import is_person
from towline.pulls.store import Change, PullStore
from towline.slash_commands import COMMANDS, Command, Parsed
from towline_once.errors import Rejected

COMMENT: Final = "comment"
_AGAIN_AFTER_US: Final = 30_000_000
_RANKS: Final[tuple[Permission, ...]] = ("none", "read", "triage", "write", "maintain", "admin")


class GiveOrder(Protocol):
    async def __call__(
        self,
        repo: str,
        number: int,
        command: str,
        *,
        source: CommandSource,
        requested_by: str,
        key: str | None = None,
        at_us: int | None = None,
    ) -> Ordered: ...


class CommentedCommands:
    """Gets every comment; the same comment twice must do no harm."""

    def __init__(
        self, order: GiveOrder, store: PullStore, forges: Mapping[str, Forge], policy: TowPolicy
    ) -> None:
        self._order = order
        self._store = store
        self._forges = forges
        self._policy = policy
        self._answers = Answers(forges)

    async def orders(self, event: Commented, at_us: int) -> list[Ordered]:
        """Those of a comment that came at `at_us`. `Unavailable` if the forge does not answer."""
        if event.action != "created" or not is_person(event.author, self._policy.own_logins):
            return []
        nearly = _nearly(event.given)
        if not event.given.commands and not nearly:
            return []
        record = await self._store.read(event.repo, event.number)
        if record is None or event.author is None:
            return []
        ref, login = record.ref, event.author.login
        if ref.forge not in self._forges:
            await self._write_down(ref, login, event)
            return []
        if not await self._may(ref, login):
            needed = self._policy.command_permission
            said = f"@{login} may not give commands here: that needs {needed} permission."
            await self._refuse(ref, event, [said])
            return []
        ordered, refusals = await self._order_all(login, event, at_us)
        refusals += nearly
        if refusals:
            await self._refuse(ref, event, refusals)
        elif ordered:
            await self._react(ref, event, "+1")
        return ordered

    async def _order_all(
        self, login: str, event: Commented, at_us: int
    ) -> tuple[list[Ordered], list[str]]:
        ordered: list[Ordered] = []
        refusals: list[str] = []
        for command in event.given.commands:
            try:
                taken = await self._order(
                    event.repo,
                    event.number,
                    command,
                    source="pr-comment",
                    requested_by=login,
                    key=f"{event.source} {event.repo} {event.comment_id} {command}",
                    at_us=at_us,
                )
            except (NotNow, NoCredentials, UnknownPull) as refused:
                refusals.append(f"{refused}.")
            else:
                ordered.append(taken)
        return ordered, refusals

    async def _write_down(self, ref: PullRef, login: str, event: Commented) -> None:
        """Without credentials nobody can be answered, so the log of the pull request tells."""
        for command in event.given.commands:
            why = lacking(command, ref.forge, self._forges)
            if why is not None:
                await self._store.change(ref, _refusing(command, why, login, event))

    async def _may(self, ref: PullRef, login: str) -> bool:
        try:
            permission = await self._forges[ref.forge].permission(ref.repo, login)
        except Rejected:
            return False
        needed = self._policy.command_permission
        return _RANKS.index(permission) >= next(
            (rank for rank, name in enumerate(_RANKS) if name == needed), len(_RANKS)
        )

    async def _refuse(self, ref: PullRef, event: Commented, lines: list[str]) -> None:
        await self._react(ref, event, "-1")
        await self._answers.say(ref, "\n".join(lines), f"refused:{event.comment_id}")

    async def _react(self, ref: PullRef, event: Commented, content: Literal["+1", "-1"]) -> None:
        if event.in_review:
            return
        try:
            await self._forges[ref.forge].react(ref, event.comment_id, content)
        except Rejected:
            return


def _refusing(
    command: Command, why: str, login: str, event: Commented
) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None:
            return None
        told = {
            "command": command,
            "source": "pr-comment",
            "requested_by": login,
            "state": record.state,
        }
        key = f"refused {event.source} {event.repo} {event.comment_id} {command}"
        return rejection(record, told, why, "command-queue", now_us, key)

    return decide


def asked_again(event: Commented, at_us: int) -> NewJob:
    """The job that looks at a comment once more; one for each comment."""
    author = event.author
    asked = f"comment {event.source} {event.repo} {event.comment_id}"
    params = {
        "source": event.source,
        "repo": event.repo,
        "number": event.number,
        "comment_id": event.comment_id,
        "author": author and [author.login, author.kind],
        "body": event.body,
        "in_review": event.in_review,
        "at_us": at_us,
    }
    return NewJob(
        id=job_id(at_us, hashlib.sha256(asked.encode()).digest()),
        queue=OWN_QUEUE,
        kind=COMMENT,
        params=orjson.dumps(params).decode(),
        repo=event.repo,
        delay_us=_AGAIN_AFTER_US,
        max_attempts=MOST_ATTEMPTS,
    )


def asked_before(params: Mapping[str, Any]) -> tuple[Commented, int]:
    """The comment of such a job, and when it came."""
    event = Commented(
        source=params["source"],
        repo=params["repo"],
        number=params["number"],
        action="created",
        comment_id=params["comment_id"],
        author=params["author"] and Actor(*params["author"]),
        body=params["body"],
        in_review=params["in_review"],
    )
    return event, int(params["at_us"])


def _nearly(parsed: Parsed) -> list[str]:
    lines = []
    for word in parsed.unknown:
        meant = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.8)
        if meant:
            lines.append(f"There is no command `{word}`; did you mean `{meant[0]}`?")
    return lines
