"""Pollers and lists that move: a thing that changes again takes with it what was said before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from tests.clocks import ManualClock
from tests.flow.recovery_world import Quiet
from towline.coordination.sql import SqlDocuments
from towline.core import keys
from towline.core.throttle import rate_of
from towline.flow.ingest import Ingest
from towline.flow.poll import Pollers, PollRules
from towline.ports.polling import Page, Thing
from towline.sources import Delivery
from towline.store.inbox import SqlInbox
from towline.store.sql import Database
from towline.telemetry import audit_to_log
from towline.wiring import database_for

SECOND = 1_000_000
RULES = PollRules(overlap_seconds=10.0, max_pages=3)


@dataclass
class Place:
    """Two things on a page; `moves` happen after the page of that number was read."""

    newest_first: bool
    now: int = 100 * SECOND
    things: dict[str, int] = field(default_factory=dict)
    words: list[tuple[str, int, str]] = field(default_factory=list)
    moves: dict[int, str] = field(default_factory=dict)
    name: str = "place"
    grain_us: int = SECOND
    pages: int = 0

    def say(self, thing: str, word: str) -> None:
        self.words.append((thing, self.now, word))
        self.things[thing] = self.now

    async def now_us(self) -> int:
        self.pages = 0
        return self.now

    async def page(self, since_us: int, cursor: str | None = None) -> Page:
        listed = sorted(self.things.items(), key=lambda one: (one[1], one[0]))
        if self.newest_first:
            listed.reverse()
        else:
            listed = [one for one in listed if one[1] >= since_us]
        start = int(cursor or "0")
        shown = [Thing(thing, at, told(f"{thing}@{at}")) for thing, at in listed[start : start + 2]]
        self.pages += 1
        if (moved := self.moves.pop(self.pages, None)) is not None:
            self.now += SECOND
            self.things[moved] = self.now
        return Page(shown, str(start + 2) if start + 2 < len(listed) else None)

    async def said(self, thing: Thing, since_us: int) -> Sequence[Delivery]:
        return [told(word) for on, at, word in self.words if on == thing.id and at >= since_us]

    async def aclose(self) -> None:
        return None


def told(name: str) -> Delivery:
    key = keys.GitHub(name, hook_id="poll")
    return Delivery(
        key=key, delivery_id=name, source="github", event_name="push", repo=None, payload={},
        events=(),
    )  # fmt: skip


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    opened = database_for(sql_url, ManualClock())
    await opened.connect()
    yield opened
    await opened.aclose()


def pollers(database: Database, place: Place) -> Pollers:
    inbox, clock = SqlInbox(database, rate_of(1000, 60_000_000)), ManualClock()
    ingest = Ingest(inbox, Quiet(), clock, audit_to_log, {}, 3)
    return Pollers([place], inbox, ingest, SqlDocuments(database), clock, RULES)


async def knows(database: Database, word: str) -> bool:
    return bool(await SqlInbox(database, rate_of(1000, 60_000_000)).known([word]))


async def test_a_word_on_a_thing_beyond_the_cut(database: Database) -> None:
    """A reading is cut short before a thing that changed twice: its first word is found later."""
    place = Place(newest_first=False)
    poller = pollers(database, place)
    await poller.poll()
    place.now += SECOND
    place.say("twice", "the first word")
    for n in range(8):
        place.now += 20 * SECOND
        place.things[f"other-{n}"] = place.now
    place.now += 20 * SECOND
    place.things["twice"] = place.now
    (report,) = await poller.poll()
    assert not report.ended
    for _ in range(6):
        await poller.poll()
    assert await knows(database, "the first word")


async def test_a_word_on_a_thing_that_moves_to_the_front(database: Database) -> None:
    """A thing changes while the page after the first is read: its word is not left behind."""
    place = Place(newest_first=True)
    poller = pollers(database, place)
    await poller.poll()
    place.now += SECOND
    place.say("moving", "the word")
    place.now += 60 * SECOND
    place.things |= {"new": place.now, "newer": place.now}
    place.moves[1] = "moving"
    for _ in range(3):
        await poller.poll()
        place.now += 30 * SECOND
    assert await knows(database, "the word")
