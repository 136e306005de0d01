"""Watermarks after each commit: none passes a thing that is not stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towline.forges import delivery_log
from towline.forges import polling as watermarks
from towline_sim.proof.harness import Stage
from towline_sim.proof.scenarios.polls_forge import HOOK, Forge, comment_key, pull_key


class MarkWatch:
    tables = frozenset({"towline_deliveries", "towline_documents"})

    def __init__(self, stage: Stage, forge: Forge, place: str) -> None:
        self._stage = stage
        self._forge = forge
        self._documents = {f"poll {place}": self._polled, f"hook {HOOK.name}": self._logged}
        self._seen: dict[str, str] = {}
        self._reached: dict[str, int] = {}
        self.stored: set[str] = set()
        self.began_us: int | None = None
        """When the hook's log was first read, by the forge's clock."""

    def committed(self, db: Any, names: Sequence[str]) -> None:
        keys = [row[0] for row in db.execute("SELECT key FROM towline_deliveries")]
        self._stage.expect(len(keys) == len(set(keys)), "a delivery is stored twice")
        lost = self.stored - set(keys)
        self._stage.expect(not lost, f"deliveries have vanished: {sorted(lost)}")
        self.stored = set(keys)
        for name, body in db.execute("SELECT name, body FROM towline_documents"):
            if name in self._documents and body and self._seen.get(name) != body:
                self._seen[name] = body
                self._documents[name](body)

    def _polled(self, body: str) -> None:
        mark = watermarks.mark_from(body)
        self._forward("the watermark", mark.watermark_us)
        heard_us = watermarks.heard_us_of(mark)
        for said in self._forge.comments:
            if mark.began_us <= said.at_us and said.shown_us < heard_us:
                key = comment_key(said)
                self._stage.expect(key in self.stored, f"the watermark passed {key}")
        for pull in self._forge.pulls.values():
            if mark.began_us <= pull.at_us and pull.shown_us < mark.watermark_us:
                key = pull_key(pull.number, pull.at_us)
                self._stage.expect(key in self.stored, f"the watermark passed {key}")

    def _logged(self, body: str) -> None:
        mark = delivery_log.mark_from(body)
        self._forward("the log's watermark", mark.watermark_us)
        self.began_us = mark.began_us
        for entry, _ in self._forge.log:
            if entry.delivered_us < mark.watermark_us:
                known = HOOK.key(entry.guid) in self.stored
                self._stage.expect(known, f"the log's watermark passed {entry.guid}")

    def _forward(self, name: str, watermark_us: int) -> None:
        """Nobody writes who has not read what stands there."""
        before_us = self._reached.get(name, watermark_us)
        self._stage.expect(watermark_us >= before_us, f"{name} went back")
        self._reached[name] = watermark_us
