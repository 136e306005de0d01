"""What a source makes of a request: a `Delivery`, or a rejection with its HTTP status and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from towline.events import Event
from towline_once.canonical_json import JsonValue
from towline_once.errors import Rejected
from towline_once.keys import Key

Headers: TypeAlias = Mapping[str, str]
"""Names in lower case."""


class DeliveryRejected(Rejected):
    """A request that is answered with `status`, and whose problem has the stable name `code`."""

    status: ClassVar[int]
    code: ClassVar[str]


class BadSignature(DeliveryRejected):
    """Nothing shows that the sender knows a secret of this source."""

    status = 401
    code = "bad_signature"


class NoSecret(BadSignature):
    """The source has no secret, so that no delivery can be verified."""

    code = "no_secret"


class OutsideWindow(BadSignature):
    """Genuine, but signed too long ago, or too far in the future: replayed, or a wrong clock."""

    code = "outside_window"


class Malformed(DeliveryRejected):
    """The headers or the body are not what this source sends."""

    status = 400
    code = "malformed"


class Delivery(NamedTuple):
    """A request that is genuine and well-formed.

    `delivery_id` is what the sender or an operator would look for; `key` is what duplicates
    share. `reply`, where there is one, is the whole answer: there is nothing to store or do.
    """

    key: Key
    delivery_id: str
    source: str
    event_name: str
    repo: str | None
    payload: JsonValue
    events: tuple[Event, ...] = ()
    reply: bytes | None = None


class Receive(Protocol):
    """The one shape of all sources; `now` is in seconds since 1970."""

    def __call__(
        self,
        headers: Headers,
        body: bytes,
        secrets: Sequence[str],
        now: float,
        *,
        allow_unsigned: bool = False,
    ) -> Delivery: ...
