"""Carries out commands that are no remedies, and writes the replies to all commands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from towline.forges.base import Forge
from towline.forges.credentials import no_credentials
from towline.forges.snapshot import PullRef
from towline.pulls.lifecycle import TERMINAL
from towline.pulls.model import EventSource, PullEvent, PullRecord
from towline.pulls.store import Change, PullStore
from towline.remediation.record_changes import Order, closing, move_to
from towline.remediation.strategies import OUTCOME, REMEDIES
from towline.slash_commands import Command
from towline_once.errors import Rejected

ABANDONED = "ABANDONED"
REJECTED = "COMMAND_REJECTED"
_log = logging.getLogger("towline.tow")


CommandSource: TypeAlias = Literal["pr-comment", "admin-api"]


class Ordered(NamedTuple):
    job_id: str
    command: Command
    repo: str
    number: int


class Routed(NamedTuple):
    """`retry` says that it is tried again later, and which of the counts that is one of."""

    outcome: str
    detail: str = ""
    retry: Literal["deferrals", "tries"] | None = None

    @property
    def took(self) -> bool:
        """Whether something was done; who ordered it is told why where nothing was."""
        return self.outcome in ("done", "pending", "unseen")


class Answers:
    """Comments of ours; a refusal of the forge, as on a locked conversation, is only logged."""

    def __init__(self, forges: Mapping[str, Forge]) -> None:
        self._forges = forges

    async def tell(
        self, ref: PullRef, params: Mapping[str, Any], text: str, marker: str | None = None
    ) -> None:
        """Who commented is answered there; the admin API's callers read the job."""
        if params["source"] == "pr-comment":
            await self.say(ref, text, marker or f"answer:{params['root']}")

    async def say(self, ref: PullRef, text: str, marker: str) -> None:
        forge = self._forges.get(ref.forge)
        if forge is None:
            missing = {"repo": ref.repo, "error": no_credentials(ref.forge)}
            _log.warning("comment_impossible", extra=missing)
            return
        try:
            await forge.comment(ref, text, marker)
        except Rejected as refused:
            _log.warning("comment_refused", extra={"repo": ref.repo, "error": str(refused)})


def rejection(
    record: PullRecord,
    command: Mapping[str, object],
    reason: str,
    source: EventSource,
    now_us: int,
    key: str,
) -> Change:
    """A command that was refused, in the log of its pull request."""
    payload = {**command, "reason": reason}
    return Change(record, [PullEvent(REJECTED, source, now_us, payload, key=key)])


def order_id(params: Mapping[str, Any]) -> str:
    """Of the remedy that a command asks for, in this turn of it."""
    return f"command {params['root']} {int(params['tries']) + int(params['deferrals'])}"


def why_marker(params: Mapping[str, Any]) -> str:
    return f"why:{params['root']}"


def written_by(params: Mapping[str, Any]) -> Literal["admin-api", "command-queue"]:
    """The source of events about a command."""
    return "admin-api" if params["source"] == "admin-api" else "command-queue"


async def cancelled(
    store: PullStore, forge: Forge, ref: PullRef, params: Mapping[str, Any]
) -> Routed:
    """Closed at the forge, then recorded as abandoned; closing twice does no harm."""
    by = str(params["requested_by"])
    try:
        done = await forge.close(ref)
    except Rejected as refused:
        return Routed("failed", str(refused))
    if not done.took:
        return Routed("failed", done.detail or done.status)
    reason = f"abandoned on purpose by {by}"
    record_it = closing(reason, "command-queue", f"cancelled {params['root']}", ABANDONED)

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None or record.state == "MERGED":
            return None
        return record_it(record._replace(intent=None), now_us)

    changed = await store.change(ref, decide)
    if changed.record is not None and changed.record.state == "MERGED":
        return Routed("unneeded", "it is merged")
    return Routed("done", reason)


def left_to_a_person(
    order: Order, detail: str
) -> Callable[[PullRecord | None, int], Change | None]:
    """A command found its effect there already: it calls back from intervention all the same."""

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None or record.state in TERMINAL:
            return None
        target = REMEDIES[order.strategy].target
        payload: dict[str, object] = {
            "intent": order.id,
            "strategy": order.strategy,
            "outcome": "unneeded",
            "detail": detail,
            "by": order.by,
        }
        if record.state == "NEEDS_INTERVENTION" and target not in TERMINAL:
            payload |= {"from": record.state, "to": target}
            record = move_to(record, target, now_us)
        event = PullEvent(OUTCOME, order.source, now_us, payload, key=f"unneeded {order.id}")
        return Change(record, [event])

    return decide
