"""Through the pages of a list that changes while it is read, without missing a thing.

From old to new, each page is asked for by the time of the newest thing before it, and by its number
only where a page does not lead past one moment. From new to old, what changes meanwhile moves to
the front, which is the next reading's business, and what is behind it moves down, where it is met
again. Either way what was not changed is met at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from towline.core.watermarks import next_since
from towline.ports.hooks import ForgeUnreadable
from towline.ports.polling import Polled, Thing


class Reach(NamedTuple):
    """A part of a reading: what is new in it, and whether the list goes on."""

    things: list[Thing]
    ended: bool


async def walk(place: Polled, since_us: int, most_pages: int) -> AsyncIterator[Reach]:
    """At most so many pages; the last part says whether they were enough."""
    if place.newest_first:
        yield Reach(await _newest_first(place, since_us, most_pages), ended=True)
        return
    met: set[tuple[str, int]] = set()
    asked_us, cursor = since_us, None
    for _ in range(most_pages):
        page = await place.page(asked_us, cursor)
        new = [one for one in page.things if _is_new(one, since_us, met)]
        yield Reach(sorted(new, key=_age), ended=page.next is None)
        if page.next is None:
            return
        newest_us = max((one.at_us for one in page.things), default=asked_us)
        later_us = next_since(asked_us, newest_us, place.grain_us)
        asked_us, cursor = (asked_us, page.next) if later_us is None else (later_us, None)


async def _newest_first(place: Polled, since_us: int, most_pages: int) -> list[Thing]:
    met: set[tuple[str, int]] = set()
    found: list[Thing] = []
    cursor = None
    for _ in range(most_pages):
        page = await place.page(since_us, cursor)
        found += [one for one in page.things if _is_new(one, since_us, met)]
        older = any(one.at_us < since_us for one in page.things)
        if page.next is None or older:
            return sorted(found, key=_age)
        cursor = page.next
    raise ForgeUnreadable(f"its list does not end after {most_pages} pages")


def _is_new(thing: Thing, since_us: int, met: set[tuple[str, int]]) -> bool:
    version = (thing.id, thing.at_us)
    if thing.at_us < since_us or version in met:
        return False
    met.add(version)
    return True


def _age(thing: Thing) -> tuple[int, str]:
    return thing.at_us, thing.id
