"""Pollers, lists that move and clocks that are wrong.

A thing that changes again takes with it what was said before; an answer with a wrong time must not
move the watermark past what nobody has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.inbox.recovery_world import Quiet
from towline.forges.delivery import Delivery
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.polling import Page, Thing, mark_from
from towline.inbox.ingest import Ingest
from towline.inbox.poll import Pollers, PollRules
from towline.inbox.store import Inbox
from towline_once import keys
from towline_once.coordination.rate_limit import per_minute
from towline_once.coordination.sql import SqlDocuments
from towline_once.db.statement import Database
from towline_once.metrics import audit_to_log

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
    wrong: int = 0
    """How far its answers' time is from that of its things."""
    mute: str = ""
    """The thing about which it does not answer."""

    def say(self, thing: str, word: str) -> None:
        self.words.append((thing, self.now, word))
        self.things[thing] = self.now

    async def now_us(self) -> int:
        self.pages = 0
        return self.now + self.wrong

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
        if thing.id == self.mute:
            raise ForgeUnavailable("it does not answer")
        return [told(word) for on, at, word in self.words if on == thing.id and at >= since_us]

    async def aclose(self) -> None:
        return None


def told(name: str) -> Delivery:
    key = keys.GitHub(name, hook_id="poll")
    return Delivery(
        key=key, delivery_id=name, source="github", event_name="push", repo=None, payload={},
        events=(),
    )  # fmt: skip


def pollers(database: Database, place: Place, ingest: type[Ingest] = Ingest) -> Pollers:
    inbox, clock = Inbox(database, per_minute(1000)), database.clock
    taking = ingest(inbox, Quiet(), clock, audit_to_log, {}, 3)
    return Pollers([place], inbox, taking, SqlDocuments(database), clock, RULES)


async def knows(database: Database, word: str) -> bool:
    return bool(await Inbox(database, per_minute(1000)).known([word]))


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


async def test_a_word_that_moves_while_the_last_page_is_read(database: Database) -> None:
    """The list is as long as may be read, and what moves is looked for all the same."""
    place = Place(newest_first=True)
    poller = pollers(database, place)
    await poller.poll()
    place.now += SECOND
    place.say("moving", "the word")
    for n in range(4):
        place.now += 20 * SECOND
        place.things[f"other-{n}"] = place.now
    place.moves[2] = "moving"
    place.things["old"] = 0
    for _ in range(3):
        await poller.poll()
        place.now += 30 * SECOND
    assert await knows(database, "the word")


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("readings", [1, 4])
async def test_an_answer_whose_time_is_ahead(
    database: Database, clock: ManualClock, readings: int, newest_first: bool
) -> None:
    """By a day, once or for a while: what is said in the hour that nobody reads is found."""
    place = Place(newest_first=newest_first)
    await pollers(database, place).poll()

    def pass_time(seconds: int) -> None:
        place.now += seconds * SECOND
        clock.advance(seconds)

    place.wrong = 86_400 * SECOND
    for n in range(readings):
        pass_time(60)
        place.say("busy", f"word {n}")
        await pollers(database, place).poll()
    pass_time(60)
    place.say("quiet", "while nobody reads")
    pass_time(3600)
    place.wrong = 0
    (report,) = await pollers(database, place).poll()
    assert report.trouble is None
    assert await knows(database, "while nobody reads")
    assert all([await knows(database, f"word {n}") for n in range(readings)])


async def test_a_time_that_really_went_on_is_believed(
    database: Database, clock: ManualClock
) -> None:
    """The server's clock is set right by a day: as soon as a thing shows it, so does the mark."""
    place = Place(newest_first=False)
    await pollers(database, place).poll()
    place.now += 86_400 * SECOND
    clock.advance(60)
    await pollers(database, place).poll()
    assert (await marked(database)) < 200 * SECOND
    place.say("thing", "word")
    clock.advance(60)
    place.now += 60 * SECOND
    await pollers(database, place).poll()
    assert (await marked(database)) == place.now - 60 * SECOND


async def test_a_time_far_back_is_not_followed(database: Database, clock: ManualClock) -> None:
    """A month: what was said then is not said again, and all is well with the next answer."""
    place = Place(newest_first=True, now=90 * 86_400 * SECOND)
    place.say("thing", "of last month")
    place.now += 30 * 86_400 * SECOND
    poller = pollers(database, place)
    await poller.poll()
    before = await marked(database)
    place.wrong = -31 * 86_400 * SECOND
    (report,) = await poller.poll()
    assert report.trouble == "its clock went back by more than a day"
    assert (await marked(database), await knows(database, "of last month")) == (before, False)
    place.wrong = 0
    clock.advance(61)
    (report,) = await poller.poll()
    assert report.trouble is None


async def test_the_watermark_comes_with_what_it_passes(database: Database) -> None:
    """Somebody else has moved it meanwhile: what was found is not stored without it."""
    place = Place(newest_first=False)
    await pollers(database, place).poll()
    place.now += SECOND
    place.say("thing", "word")

    class Late(Ingest):
        async def take_all(self, deliveries: Any, note: Any) -> Any:
            documents = SqlDocuments(database)
            assert await documents.swap(note.name, note.version, note.body) is not None
            return await super().take_all(deliveries, note)

    (report,) = await pollers(database, place, Late).poll()
    assert report.trouble == "another process is reading it at the same time"
    assert (report.taken_in, await knows(database, "word")) == (0, False)


async def test_what_was_found_before_a_failure_is_kept(database: Database) -> None:
    """The watermark stays, and what was said about the things before is acted on meanwhile."""
    place = Place(newest_first=False, mute="mute")
    poller = pollers(database, place)
    await poller.poll()
    before = await marked(database)
    for thing in ("heard", "mute", "behind it"):
        place.now += SECOND
        place.say(thing, f"on {thing}")
    (report,) = await poller.poll()
    assert (report.trouble, report.taken_in) == ("it does not answer", 2)
    known = [await knows(database, f"on {thing}") for thing in ("heard", "mute", "behind it")]
    assert (known, await marked(database)) == ([True, False, False], before)


async def test_the_newest_word_on_a_thing_comes_last(database: Database) -> None:
    """One that changes while it is read is met twice, and stored in that order."""
    place = Place(newest_first=False)
    poller = pollers(database, place)
    await poller.poll()
    for thing in ("z", "y", "x"):
        place.now += 5 * SECOND
        place.things[thing] = place.now
    place.moves[1] = "z"
    await poller.poll()
    rows = await Inbox(database, per_minute(1000)).listing(2**62, 10)
    received = {row.delivery_id: row.received_us for row in rows}
    early, late = sorted(name for name in received if name.startswith("z@"))
    assert received[early] < received[late]


async def marked(database: Database) -> int:
    return mark_from((await SqlDocuments(database).read("poll place")).body).watermark_us
