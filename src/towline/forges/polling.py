"""What a source needs that is polled instead of sending webhooks, and how far it has been read.

`inbox/poll.py` calls it. A watermark moves only after everything before it is stored, so that a
crash repeats a page and never skips one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

import orjson

from towline.forges import payload
from towline.forges.client import seconds_of
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import ForgeUnreadable
from towline.forges.payload import Object


class Thing(NamedTuple):
    """A merge request, pull request or issue as a list shows it."""

    id: str
    at_us: int
    """When it last changed, by the server's clock."""
    delivery: Delivery
    """As a webhook would tell of it, with a key of its own."""


class Page(NamedTuple):
    things: Sequence[Thing]
    next: str | None
    """The cursor of the page after this one."""


POLL_DEADLINE_SECONDS: Final = 15.0


class Polled(Protocol):
    """One source. Each call ends by its deadline; `ForgeUnavailable` says when to come again."""

    @property
    def name(self) -> str:
        """As it is shown, and as its watermark is kept."""
        ...

    @property
    def newest_first(self) -> bool:
        """Whether its lists begin with what changed last; else they end with it."""
        ...

    @property
    def grain_us(self) -> int:
        """How precisely it can be asked for what changed since a moment."""
        ...

    async def now_us(self) -> int:
        """The server's time, of an answer that ended before this returns."""
        ...

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        """Things that changed since then; there may be older ones among them."""
        ...

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        """What was said about it since then, oldest first."""
        ...

    async def aclose(self) -> None: ...


# ------------------------------------------------------------------ watermarks
# How far a source that sends no webhooks has been read.
#
# All times here are the server's own: those of its answers and those it puts on its things. Ours
# say
# only how long ago the last reading was. A `Mark` is kept for each source, by these rules:
#
# * The first reading finds nothing: it notes where the source's time stands, and history before
#   that is not replayed.
# * A reading starts an overlap before the watermark, so that what the server showed late, or
#   stamped by another of its clocks, is seen after all. What is seen twice is known by its key.
# * The watermark moves to the start of a reading, not to its end, and only when everything that
# the
#   reading found is stored: what happens during a reading belongs to the next.
# * A reading that was cut short by its limit of pages went from old to new. It moves the
# watermark
#   to the newest thing it has stored. A thing that changed twice is beyond it, with all that was
#   said about it before: what was said is looked for since the last reading that came to its end.
# * A server whose clock was put back is followed, up to a day: things are stamped by the clock it
# has
#   now. Further back lie things whose keys may be forgotten, and which would act again.
# * A server whose answers run ahead is believed no more than our clock has gone on since, or than
# its
#   things are stamped with: if it was wrong, the next reading starts where this one did.

GRAIN_US: Final = 1_000_000
"""A `Date` header has whole seconds."""
FARTHEST_BACK_US: Final = 86_400 * GRAIN_US
"""A clock that was put back further needs a person."""


class Mark(NamedTuple):
    began_us: int
    """When the source was read for the first time."""
    watermark_us: int
    """Everything that changed before this, and not since, is stored."""
    heard_us: int | None = None
    """Everything that was said before this is stored; None: before the watermark."""
    ahead_us: int | None = None
    """How far its time was ahead of our store's, as far as it was believed."""


def first_mark(now_us: int) -> Mark:
    return Mark(began_us=now_us, watermark_us=now_us)


def believed(mark: Mark, started_us: int, ours_us: int, newest_us: int) -> int:
    """How much of the server's time is believed, by our store's time and its newest thing."""
    if mark.ahead_us is None:
        return started_us
    return min(started_us, max(mark.watermark_us, ours_us + mark.ahead_us, newest_us))


def went_too_far_back(mark: Mark, started_us: int) -> bool:
    return mark.watermark_us - started_us > FARTHEST_BACK_US


def read_since(mark: Mark, now_us: int, overlap_us: int) -> int:
    """From when on things must be looked at; `now_us` is the server's time."""
    return _since(mark.watermark_us, mark.began_us, now_us, overlap_us)


def said_since(mark: Mark, now_us: int, overlap_us: int) -> int:
    """From when on what was said about a thing must be looked at."""
    return _since(heard_us_of(mark), mark.began_us, now_us, overlap_us)


def heard_us_of(mark: Mark) -> int:
    return mark.watermark_us if mark.heard_us is None else mark.heard_us


def _since(reached_us: int, began_us: int, now_us: int, overlap_us: int) -> int:
    wanted = min(reached_us, now_us) - overlap_us
    return wanted if now_us < began_us else max(began_us, wanted)


def advanced(mark: Mark, started_us: int) -> Mark:
    """Everything is stored that changed before this reading started."""
    return Mark(min(mark.began_us, started_us), started_us)


def advanced_to(mark: Mark, newest_us: int, started_us: int) -> Mark:
    """Everything is stored up to the newest thing of a reading that was cut short."""
    moved_us = max(mark.watermark_us, min(newest_us, started_us))
    return mark._replace(watermark_us=moved_us, heard_us=heard_us_of(mark))


def next_since(since_us: int, newest_us: int, grain_us: int) -> int | None:
    """Where to ask again after a page that ends with `newest_us`, instead of for its next page.

    A list in the order of changes moves up when one of its things changes while it is read: the
    next page would begin too late. From a moment at or before the newest thing nothing is missed.
    None if that is no later than what was asked for: then only the next page leads on.
    """
    later = (newest_us - grain_us) // grain_us * grain_us
    return later if later > since_us else None


def pause_seconds(failures: int, every_seconds: float, longest: float, asked: float) -> float:
    """How long a source is left alone after so many failures in a row."""
    if failures == 0:
        return 0.0
    grown = every_seconds * 2.0 ** min(failures - 1, 20)
    return float(max(min(grown, longest), asked))


def mark_text(mark: Mark) -> str:
    return orjson.dumps(mark._asdict()).decode()


def mark_from(text: str) -> Mark:
    fields = orjson.loads(text)
    began_us, watermark_us = int(fields["began_us"]), int(fields["watermark_us"])
    others = (fields.get(name) for name in ("heard_us", "ahead_us"))
    return Mark(began_us, watermark_us, *(None if one is None else int(one) for one in others))


# ------------------------------------------------------------------ times and numbers
# The times and numbers of what is polled: what has none of them cannot be kept track of.

HOOK: Final = "poll"
"""Stands for the hook in the keys of what was found."""


def date_of(headers: Mapping[str, str], server: str) -> int:
    """The server's time, of whole seconds."""
    told = seconds_of(headers.get("date"))
    if told is None:
        raise ForgeUnreadable(f"{server}'s answer has no Date to go by")
    return int(told) * GRAIN_US


def stamp_of(item: Object, name: str, server: str) -> int:
    at = payload.moment(item, name)
    if at is None:
        raise ForgeUnreadable(f"something in {server}'s list has no {name}")
    return round(at * 1e6)


def required_number(item: Object, name: str) -> int:
    number = payload.number(item, name)
    if number is None:
        raise ForgeUnreadable(f"something in the forge's list has no {name}")
    return number


def moment_text(at_us: int) -> str:
    at = datetime.fromtimestamp(max(at_us, 0) // GRAIN_US, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
