"""The safeguards of pollers and of the recovery of lost webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from towline.forges import delivery_log
from towline.forges import polling as watermarks
from towline.forges.delivery_log import ForgeUnreadable, Limits, Sent
from towline.forges.polling import Mark, Polled, Thing
from towline.inbox import lost_deliveries, poll
from towline.inbox import poll_dedup as owners
from towline.inbox.lost_deliveries import HookReport, Recovery
from towline.inbox.poll import PollReport, _Reading
from towline.inbox.poll_dedup import FirstTold
from towline_once.coordination import sql as sql_statements
from towline_sim.proof.mutations import Mutation, instead, sql
from towline_sim.proof.scenarios.polls_forge import SimPolled

_run = _Reading.run
_advanced = delivery_log.advanced


async def _marked_first(self: _Reading) -> PollReport:
    document = await self._parts.documents.read(self._document)
    if not document.body:
        return await _run(self)
    mark, started_us = watermarks.mark_from(document.body), await self._place.now_us()
    overlap_us, most = self._parts.rules.overlap_us, self._parts.rules.max_pages
    await self._write(watermarks.advanced(mark, started_us), document.version)
    since_us = watermarks.read_since(mark, started_us, overlap_us)
    async for reach in poll.walk(self._place, since_us, since_us, most):
        await self._take_in(reach, since_us)
    return self._report(ended=True)


async def _our_own_time(self: SimPolled) -> int:
    return await self._wire.call("time", lambda: self._forge.now_us() - self._forge.skew_us)


def _without_overlap(reached_us: int, began_us: int, now_us: int, overlap_us: int) -> int:
    return max(began_us, min(reached_us, now_us))


def _to_the_start(mark: Mark, newest_us: int, started_us: int) -> Mark:
    return Mark(mark.began_us, started_us)


async def _once_from_the_front(
    place: Polled, since_us: int, moving_us: int, most_pages: int
) -> list[Thing]:
    found: list[Thing] = []
    cursor = None
    for _ in range(most_pages):
        page = await place.page(since_us, cursor)
        found += [one for one in page.things if one.at_us >= since_us]
        if page.next is None or any(one.at_us < since_us for one in page.things):
            return sorted(found, key=poll._age)
        cursor = page.next
    raise ForgeUnreadable("its list does not end")


async def _always_first(self: FirstTold, stored: Any, event: Any) -> bool:
    return True


def _leaves_nothing(
    mark: delivery_log.Mark, sent: Sequence[Sent], left: Sequence[Sent], now_us: int, limits: Limits
) -> delivery_log.Mark:
    return _advanced(mark, sent, (), now_us, limits)


async def _looks_for_nothing(self: Recovery) -> list[HookReport]:
    return []


MUTATIONS: Final = (
    Mutation(
        "mark-before-storing",
        "the watermark moves after everything before it is stored",
        "polls",
        [instead(_Reading, "run", _marked_first)],
    ),
    Mutation(
        "no-overlap",
        "a reading starts an overlap before the watermark",
        "polls",
        [instead(watermarks, "_since", _without_overlap)],
    ),
    Mutation(
        "mark-by-our-clock",
        "the watermark is the server's time",
        "polls",
        [instead(SimPolled, "now_us", _our_own_time)],
    ),
    Mutation(
        "cut-short-to-the-start",
        "a reading that was cut short moves the watermark to what it stored",
        "polls",
        [instead(watermarks, "advanced_to", _to_the_start)],
    ),
    Mutation(
        "said-since-the-watermark",
        "what was said is looked for since the last reading that came to its end",
        "polls",
        [instead(watermarks, "said_since", watermarks.read_since)],
    ),
    Mutation(
        "numbered-pages-once",
        "a list that moves is asked for by time, or read until it is as it was",
        "polls",
        [instead(poll, "next_since", lambda *_: None),
         instead(poll._Numbered, "as_before", lambda self: True)],
    ),
    Mutation(
        "front-read-once",
        "after several pages the front is read again",
        "polls",
        [instead(poll, "_newest_first", _once_from_the_front)],
    ),
    Mutation(
        "swap-any-version",
        "a document is replaced only by who has read it as it is",
        "polls",
        [sql(sql_statements.REPLACE_DOCUMENT, "AND towline_documents.version = b.version", "")],
    ),
    Mutation(
        "first-told-off",
        "what a webhook and a poller both tell of is acted on once",
        "polls",
        [instead(FirstTold, "_is_first", _always_first)],
    ),
    Mutation(
        "owner-of-anything",
        "the first delivery to tell of a thing stays the one that acts on it",
        "polls",
        [sql(owners.OWN, "WHERE towline_seen.expires_us <= {now} OR "
             "towline_seen.holder = excluded.holder", "WHERE true")],
    ),
    Mutation(
        "owner-not-known-again",
        "the delivery that acts on a thing keeps it through crashes",
        "polls",
        [sql(owners.OWN, "OR towline_seen.holder = excluded.holder", "")],
    ),
    Mutation(
        "left-is-forgotten",
        "the log's watermark does not pass what could not be read",
        "polls",
        [instead(delivery_log, "advanced", _leaves_nothing)],
    ),
    Mutation(
        "answers-are-believed",
        "a delivery that was answered and is not stored is taken in from the log",
        "polls",
        [instead(delivery_log, "_taken_elsewhere", lambda one, mark: one.answered_us > 0)],
    ),
    Mutation(
        "recovery-off",
        "deliveries that never arrived are taken in from the log",
        "polls",
        [instead(Recovery, "sweep", _looks_for_nothing)],
    ),
    Mutation(
        "hours-added-up",
        "an hour's counts are put in place of those before",
        "polls",
        [sql(lost_deliveries.RECORD, "received = excluded.received",
             "received = towline_hook_hours.received + excluded.received")],
    ),
)  # fmt: skip
