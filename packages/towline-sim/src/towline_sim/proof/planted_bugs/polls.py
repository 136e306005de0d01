"""Planted bugs of watermarks, and of what a webhook and a poller both tell of."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation, body

_DEDUP: Final = "towline.inbox.poll_dedup"
_LOG: Final = "towline.forges.delivery_log"
_MARKS: Final = "towline.forges.polling"
_READING: Final = "towline.inbox.poll:_Reading"

dedup = partial(Mutation, "polls", area="dedup")
watermark = partial(Mutation, "polls", area="watermark")

ROWS: Final = (
    dedup("owners-swept-at-once", "a sweep takes its own marks only",
        [Edit(f"{_DEDUP}:FORGET", "s.expires_us <= {now}", "s.key LIKE 'told:%'")]),
    dedup("thing-without-its-id", "a pull request's comment is one thing",
        [Edit(f"{_DEDUP}:thing_of", ":{event.number}:{event.comment_id}", ":{event.number}"),
         Edit(f"{_DEDUP}:thing_of", "return _issue(event)",
              'return (_issue(event) or "").rpartition(":")[0] or None')]),
    watermark("clock-put-back-ignored", "a server's time only grows",
        [body(f"{_MARKS}:_since", "return max(began_us, reached_us - overlap_us)")],
        not_found="the forge's clock is never put back here"),
    watermark("known-thing-says-nothing-new", "what is known need not be asked",
        [Edit(f"{_READING}._unknown", "told = [*await",
              "met = await self._parts.inbox.known([thing.delivery.delivery_id])\n"
              "        if str(thing.delivery.key) in met:\n"
              "            return []\n"
              "        told = [*await")]),
    watermark("left-is-refused", "what cannot be read is not tried again",
        [body("towline.inbox.lost_deliveries:_Sweep._leave", "return outcomes.refused")]),
    watermark("log-mark-to-now", "the log was read up to now",
        [Edit(f"{_LOG}:advanced", "return mark",
              "return mark._replace(watermark_us=max(mark.watermark_us, now_us))"),
         Edit(f"{_LOG}:advanced", "return moved._replace(",
              "return moved._replace(watermark_us=max(moved.watermark_us, now_us), ")]),
    watermark("log-without-overlap", "the log is read from the watermark on",
        [body(f"{_LOG}:read_since",
              "return max(now_us - limits.horizon_us, mark.watermark_us)")]),
    watermark("mark-at-the-end", "the watermark is when the reading ended",
        [Edit(f"{_READING}._write", "note = Note(",
              "if mark.watermark_us != mark.began_us and mark.heard_us is None:\n"
              "            mark = mark._replace(watermark_us=await self._place.now_us())\n"
              "        note = Note(")]),
    watermark("one-bad-thing-skipped", "one bad thing must not stop the rest",
        [body(f"{_READING}._store", """
            from contextlib import suppress

            from towline_once.errors import Transient

            found, self._found, self._found_of = self._found, [], set()
            for delivery in found:
                with suppress(Transient):
                    await self._parts.ingest.take(delivery)
                    self.taken_in += 1
            return note is None or await self._parts.ingest.take_all([], note) is not None
        """)]),
    watermark("one-known-all-known", "a thing is stored with what was said of it",
        [Edit(f"{_READING}._unknown", "return [one for one in told if str(one.key) not in known]",
              "return [] if known else told")]),
    watermark("page-after-the-newest", "the next page begins after the last",
        [body(f"{_MARKS}:next_since", """
            later = newest_us // grain_us * grain_us + grain_us
            return later if newest_us > since_us else None
        """)]),
    watermark("recovery-begins-now", "history is not replayed",
        [body(f"{_LOG}:first_mark", "return Mark(began_us=now_us, watermark_us=now_us)")]),
)  # fmt: skip
