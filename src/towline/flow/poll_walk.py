"""Through the pages of a list that changes while it is read, without missing a thing.

From old to new, each page is asked for by the time of the newest thing before it, and by its number
only where a page does not lead past one moment. Pages by number move up when a thing before them
changes, and one is passed over: so they are read again until they are as they were.

From new to old, what is behind a thing that changes moves down, where it is met again, and the
thing itself moves to the front, or as far as the overlap behind it. So after several pages that
part is read once more, until it shows nothing new: what was said about such a thing before it moved
would be too old for the next reading.

Either way everything is met at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from towline.core.watermarks import next_since
from towline.ports.hooks import ForgeUnreadable
from towline.ports.polling import Page, Polled, Thing

_MOST_ROUNDS: Final = 10


class Reach(NamedTuple):
    """A part of a reading: what is new in it, and whether the list goes on."""

    things: list[Thing]
    ended: bool
    safe_us: int
    """Nothing before this was passed over."""


async def walk(
    place: Polled, since_us: int, moving_us: int, most_pages: int
) -> AsyncIterator[Reach]:
    """At most so many pages; the last part says whether they were enough.

    What changes meanwhile is stamped after `moving_us`.
    """
    if place.newest_first:
        found = await _newest_first(place, since_us, moving_us, most_pages)
        yield Reach(found, True, moving_us)
        return
    met: set[tuple[str, int]] = set()
    asked_us = safe_us = since_us
    cursor: str | None = None
    numbered = _Numbered()
    for _ in range(most_pages):
        page = await place.page(asked_us, cursor)
        numbered.saw(page)
        newest_us = max((one.at_us for one in page.things), default=asked_us)
        later_us = next_since(asked_us, newest_us, place.grain_us)
        leaves = page.next is None or later_us is not None
        again = cursor is not None and leaves and not numbered.as_before()
        if cursor is None or (leaves and not again):
            safe_us = max(safe_us, newest_us)
        new = [one for one in page.things if _is_new(one, since_us, met)]
        ended = page.next is None and not again
        yield Reach(sorted(new, key=_age), ended, safe_us)
        if ended:
            return
        if again:
            cursor = None
        elif later_us is None:
            cursor = page.next
        else:
            asked_us, cursor, numbered = later_us, None, _Numbered()


class _Numbered:
    """Pages of one moment, asked for by their numbers: all of them twice, or more often."""

    def __init__(self) -> None:
        self._before: list[tuple[str, int]] | None = None
        self._now: list[tuple[str, int]] = []

    def saw(self, page: Page) -> None:
        self._now += [(one.id, one.at_us) for one in page.things]

    def as_before(self) -> bool:
        """Whether nothing has left them since the last time, when they were gone through."""
        before, now = self._before, self._now
        self._before, self._now = now, []
        return before is not None and now[: len(before)] == before


async def _newest_first(
    place: Polled, since_us: int, moving_us: int, most_pages: int
) -> list[Thing]:
    """To the end, and then what moves again, until one page holds it or it shows nothing new.

    Given up half-way, a thing that moved would be passed over with what was said about it."""
    met: set[tuple[str, int]] = set()
    found: list[Thing] = []
    down_to_us = since_us
    for again in range(_MOST_ROUNDS):
        before, cursor, alone = len(found), None, True
        for _ in range(most_pages):
            page = await place.page(since_us, cursor)
            found += [one for one in page.things if _is_new(one, since_us, met)]
            if page.next is None or any(one.at_us < down_to_us for one in page.things):
                break
            cursor, alone = page.next, False
        else:
            raise ForgeUnreadable(f"its list does not end after {most_pages} pages")
        if alone or (again and len(found) == before):
            return sorted(found, key=_age)
        down_to_us = max(since_us, moving_us)
    raise ForgeUnreadable("its list moves faster than it can be read")


def _is_new(thing: Thing, since_us: int, met: set[tuple[str, int]]) -> bool:
    version = (thing.id, thing.at_us)
    if thing.at_us < since_us or version in met:
        return False
    met.add(version)
    return True


def _age(thing: Thing) -> tuple[int, str]:
    return thing.at_us, thing.id
