"""The safeguards of pollers and of the recovery of lost webhooks."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_DEDUP: Final = "towline.inbox.poll_dedup"
_LOG: Final = "towline.forges.delivery_log"
_LOST: Final = "towline.inbox.lost_deliveries"
_MARKS: Final = "towline.forges.polling"
_POLL: Final = "towline.inbox.poll"

row = partial(Mutation, "polls")

ROWS: Final = (
    row("answers-are-believed", "what was answered and is not stored is taken in from the log",
        [body(f"{_LOG}:_taken_elsewhere", "return one.answered_us > 0")]),
    row("cut-short-to-the-start", "a reading cut short moves the watermark to what it stored",
        [body(f"{_MARKS}:advanced_to", "return Mark(mark.began_us, started_us)")]),
    row("first-told-off", "what a webhook and a poller both tell of is acted on once",
        [body(f"{_DEDUP}:FirstTold._is_first", "return True")]),
    row("front-read-once", "after several pages the front is read again",
        [body(f"{_POLL}:_newest_first", """
            found, cursor = [], None
            for _ in range(most_pages):
                page = await place.page(since_us, cursor)
                found += [one for one in page.things if one.at_us >= since_us]
                if page.next is None or any(one.at_us < since_us for one in page.things):
                    return sorted(found, key=_age)
                cursor = page.next
            raise ForgeUnreadable("its list does not end")
        """)]),
    row("hours-added-up", "an hour's counts are put in place of those before",
        [Edit(f"{_LOST}:RECORD", "received = excluded.received",
              "received = towline_hook_hours.received + excluded.received")]),
    row("left-is-forgotten", "the log's watermark does not pass what could not be read",
        [Edit(f"{_LOG}:advanced", "*(one.first_us for one in left)", "")]),
    row("mark-before-storing", "the watermark moves after everything before it is stored",
        [body(f"{_POLL}:_Reading.run", """
            document = await self._parts.documents.read(self._document)
            if not document.body:
                return await self._read()
            mark, started_us = watermarks.mark_from(document.body), await self._place.now_us()
            overlap_us, most = self._parts.rules.overlap_us, self._parts.rules.max_pages
            await self._write(watermarks.advanced(mark, started_us), document.version)
            since_us = watermarks.read_since(mark, started_us, overlap_us)
            async for reach in walk(self._place, since_us, since_us, most):
                await self._take_in(reach, since_us)
            return self._report(ended=True)
        """)]),
    row("mark-by-our-clock", "the watermark is the server's time",
        [Edit("towline_sim.proof.scenarios.polls_forge:SimPolled.now_us",
              "self._forge.now_us() // GRAIN_US * GRAIN_US",
              "self._forge.now_us() - self._forge.skew_us")]),
    row("no-overlap", "a reading starts an overlap before the watermark",
        [body(f"{_MARKS}:_since", "return max(began_us, min(reached_us, now_us))")]),
    row("numbered-pages-once", "a list that moves is read by time, or until it is as it was",
        [Edit(f"{_POLL}:walk", "next_since(asked_us, newest_us, place.grain_us)", "None"),
         body(f"{_POLL}:_Numbered.as_before", "return True")]),
    row("owner-not-known-again", "the delivery that acts on a thing keeps it through crashes",
        [Edit(f"{_DEDUP}:OWN", "OR once_seen.holder = excluded.holder", "")]),
    row("owner-of-anything", "the first delivery to tell of a thing stays the one that acts on it",
        [Edit(f"{_DEDUP}:OWN", "WHERE once_seen.expires_us <= {now} "
              "OR once_seen.holder = excluded.holder", "WHERE true")]),
    row("recovery-off", "deliveries that never arrived are taken in from the log",
        [body(f"{_LOST}:Recovery.sweep", "return []")]),
    row("said-since-the-watermark", "what was said is looked for since the last whole reading",
        [body(f"{_MARKS}:said_since", "return read_since(mark, now_us, overlap_us)")]),
    row("swap-any-version", "a document is replaced only by who has read it as it is",
        [Edit("towline_once.coordination.sql:REPLACE_DOCUMENT",
              "AND once_documents.version = b.version", "")]),
)  # fmt: skip
