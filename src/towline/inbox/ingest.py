"""From bytes to a durable job: verify ▸ dedup ▸ throttle ▸ store and enqueue.

The sender hears of success only after the commit that makes the delivery durable and queues its
work. Whatever happens before that, it will send again, or be asked to.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import orjson

from towline.events import (
    Actor,
    CheckChanged,
    CommandGiven,
    Commented,
    Event,
    PullRequestChanged,
    ReviewSubmitted,
)
from towline.forges.delivery import Delivery, Malformed
from towline.forges.gitlab import webhooks as gitlab
from towline.inbox.metrics import count_delivery
from towline.inbox.model import Arrival, Taken
from towline.inbox.sources import SOURCES
from towline.inbox.store import Inbox
from towline.integrations import generic_ci
from towline.jobs.ids import job_id
from towline.jobs.model import OWN_QUEUE, Bell, NewJob
from towline.observability import tracing
from towline_once import keys
from towline_once.coordination.rate_limit import Start
from towline_once.metrics import Audit
from towline_once.ports import Clock, Note

# ------------------------------------------------------------------ deliveries that share a job
# Which deliveries may share one job: those that only say how one thing stands.
#
# The state of a pull request or of a commit's checks is looked at as a whole, so many deliveries
# about it need one look. What a person says or orders is acted on by itself, each time.


def subject_of(events: Sequence[Event]) -> str | None:
    """The one thing that all events are about, if they are of the kind that may wait together."""
    subjects = {_subject(event) for event in events}
    return subjects.pop() if len(subjects) == 1 else None


def _subject(event: Event) -> str | None:
    if event.repo is None:
        return None
    if isinstance(event, PullRequestChanged):
        return f"{event.source}:{event.repo}#{event.number}"
    if isinstance(event, CheckChanged) and event.head_sha is not None:
        return f"{event.source}:{event.repo}@{event.head_sha}"
    return None


# ------------------------------------------------------------------ the service

Status = Literal["accepted", "duplicate_ignored", "throttled_delayed", "answered"]

DELIVERY: Final = "delivery"
_URGENT: Final = 10
_STATUS: Final[Mapping[str, Status]] = {
    "accepted": "accepted",
    "duplicate": "duplicate_ignored",
    "throttled": "throttled_delayed",
}
_log = logging.getLogger("towline.ingest")


class Receipt(NamedTuple):
    """What became of a delivery. `answered` has its whole answer in `reply`, and no job."""

    status: Status
    delivery_id: str
    job_id: str | None = None
    event_name: str = ""
    reply: bytes | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """The secrets that a source may use, any of them."""

    secrets: Sequence[str] = ()
    allow_unsigned: bool = False

    @property
    def needs_signature(self) -> bool:
        return any(self.secrets) or not self.allow_unsigned


_NOBODY: Final = Sender()
_THE_SOURCE_ITSELF: Final = Sender(allow_unsigned=True)


def _starts_nothing(delivery: Delivery) -> tuple[Start, ...]:
    return ()


class Ingest:
    def __init__(
        self,
        inbox: Inbox,
        bell: Bell,
        clock: Clock,
        audit: Audit,
        senders: Mapping[str, Sender],
        max_attempts: int,
        starts: Callable[[Delivery], tuple[Start, ...]] = _starts_nothing,
    ) -> None:
        """`starts` tells which fix runs a delivery asks for."""
        self._inbox = inbox
        self._bell = bell
        self._clock = clock
        self._audit = audit
        self._senders = senders
        self._max_attempts = max_attempts
        self._starts = starts

    async def take_in(
        self,
        source: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        verified: bool = False,
        provider: str | None = None,
    ) -> Receipt:
        """Take a request in; `DeliveryRejected` says what is wrong with it.

        With `verified` the signature is not asked for: it was read from the sender itself.
        """
        return await self.take(
            self._received(source, headers, body, verified=verified, provider=provider), body
        )

    def _received(
        self,
        source: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        verified: bool = False,
        provider: str | None = None,
    ) -> Delivery:
        sender = _THE_SOURCE_ITSELF if verified else self._senders.get(source, _NOBODY)
        now = self._clock.now_us() / 1e6
        given: dict[str, Any] = {"allow_unsigned": sender.allow_unsigned}
        if source == generic_ci.SOURCE:
            given["provider"] = provider
        return SOURCES[source].receive(headers, body, sender.secrets, now, **given)

    async def take(self, delivery: Delivery, body: bytes = b"") -> Receipt:
        """Take in what is known to be genuine."""
        if delivery.reply is not None:
            return _answered(delivery)
        if tracing.off():
            arrival = self._arrival(delivery, body, None)
            del delivery  # its payload is large, and not needed while the store writes
            return self._receipt(arrival, await self._inbox.take(arrival))
        told = {"source": delivery.source, "delivery_id": delivery.delivery_id}
        with tracing.span("delivery", repo=delivery.repo, **told) as trace:
            arrival = self._arrival(delivery, body, trace)
            return self._receipt(arrival, await self._inbox.take(arrival))

    async def take_all(
        self, deliveries: Sequence[Delivery], note: Note | None
    ) -> list[Receipt] | None:
        """Take in several that are known to be genuine, and write the note, all or nothing.

        None if the note's document is not what it was; each of them has a key of its own."""
        with tracing.span("deliveries") as trace:
            arrivals = [self._arrival(one, b"", trace) for one in deliveries]
            taken = await self._inbox.take_all(arrivals, note)
        if taken is None:
            return None
        return [self._receipt(arrival, told) for arrival, told in zip(arrivals, taken, strict=True)]

    def _arrival(self, delivery: Delivery, body: bytes, trace: str | None) -> Arrival:
        job = NewJob(
            new_job_id(self._clock),
            OWN_QUEUE,
            DELIVERY,
            repo=delivery.repo,
            subject=subject_of(delivery.events),
            priority=_priority(delivery),
            max_attempts=self._max_attempts,
            trace=trace,
        )
        return Arrival(
            storable(str(delivery.key)),
            storable(delivery.delivery_id),
            delivery.source,
            storable(delivery.event_name),
            delivery.repo,
            _payload(delivery, body),
            job,
            self._starts(delivery),
        )

    def _receipt(self, arrival: Arrival, taken: Taken) -> Receipt:
        status = _STATUS[taken.status]
        if taken.status != "duplicate":
            self._bell.ring((taken.job_id,))
        elif not taken.same_body:
            self._audit(
                "IDEMPOTENCY_KEY_COLLISION",
                key_prefix=keys.prefix(arrival.key),
                source=arrival.source,
                new_hash_prefix=hashlib.sha256(arrival.body).hexdigest()[:8],
            )
        count_delivery(arrival.source, status)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(
                f"delivery_{taken.status}",
                extra={
                    "delivery_id": arrival.delivery_id,
                    "source": arrival.source,
                    "repo": arrival.repo,
                    "job_id": taken.job_id,
                },
            )
        return Receipt(status, arrival.delivery_id, taken.job_id, arrival.event_name)


def _answered(delivery: Delivery) -> Receipt:
    return Receipt("answered", delivery.delivery_id, None, delivery.event_name, delivery.reply)


def new_job_id(clock: Clock) -> str:
    return job_id(clock.now_us(), secrets.token_bytes(8))


def storable(text: str) -> str:
    """Text that every store can hold."""
    if "\0" in text or not (text.isascii() or text.encode("utf-8", "ignore").decode() == text):
        raise Malformed("the delivery's id or event name has characters that cannot be stored")
    return text


def _payload(delivery: Delivery, body: bytes) -> bytes:
    """The payload as it came; as it was read where that was a form, or repeats a member."""
    if body[:1] == b"{" and delivery.source != gitlab.SOURCE:
        return body
    try:
        return orjson.dumps(delivery.payload)
    except orjson.JSONEncodeError:  # an integer of more than 64 bits
        return json.dumps(delivery.payload, ensure_ascii=False).encode()


def _priority(delivery: Delivery) -> int:
    """What a person says goes first, and no flood holds it up."""
    return _URGENT if any(map(_is_said_by_a_person, delivery.events)) else 0


def _is_said_by_a_person(event: Event) -> bool:
    """A command, or a review, which may be an objection."""
    if isinstance(event, CommandGiven):
        return True
    if isinstance(event, Commented):
        return not _is_bot(event.author) and bool(event.given.commands or event.given.unknown)
    return isinstance(event, ReviewSubmitted) and not _is_bot(event.reviewer)


def _is_bot(actor: Actor | None) -> bool:
    return actor is not None and actor.is_bot
