"""A breaker's document after each commit: what is counted, what opens it, and what closes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from towline_once.coordination.circuit_breaker import BreakerService, Limits, Permit
from towline_sim.proof.harness import Stage

_SWAPS: Final = frozenset({"create document", "replace document"})
_BUCKETS: Final = 30


class Telling(NamedTuple):
    """What a caller says of its call; `succeeded` is None where that says nothing."""

    epoch: int
    probe: str
    succeeded: bool | None


class _Counted(NamedTuple):
    at_us: int
    failed: bool


class BreakerWatch:
    tables = frozenset({"once_documents"})

    def __init__(self, stage: Stage, name: str, limits: Limits) -> None:
        self._stage = stage
        self._name = name
        self._limits = limits
        self._width_us = limits.window_us // _BUCKETS
        self._tellings: dict[str, list[Telling]] = {}
        self._counted: list[_Counted] = []
        self._signed_by: set[str] = set()
        self._version = 0
        self.circuit: dict[str, Any] = {"opened_us": 0, "epoch": 0, "probe": "", "buckets": []}

    async def tell(self, breaker: BreakerService, permit: Permit, succeeded: bool | None) -> None:
        """Say how a call went. What gets no answer may still be written, however late."""
        told = Telling(permit._epoch, permit._probe, succeeded)
        mine = self._tellings.setdefault(breaker._process_id, [])
        mine.append(told)
        if succeeded is None:
            await permit.ignored()
        else:
            await (permit.succeeded() if succeeded else permit.failed())
        mine.remove(told)
        kept = succeeded is None and permit.is_probe and self.circuit["probe"] == permit._probe
        self._stage.expect(not kept, f"the probe {permit._probe} was given back, and is held")

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if _SWAPS.isdisjoint(names):
            return
        row = db.execute(
            "SELECT version, body FROM once_documents WHERE name = ?", (f"breaker {self._name}",)
        ).fetchone()
        if row is None or row[0] == self._version:
            return
        before, after = self.circuit, orjson.loads(row[1])
        self._version, self.circuit = row[0], after
        self._follows(before, after, self._stage.server.clock.now_us())

    def _follows(self, before: dict[str, Any], after: dict[str, Any], now_us: int) -> None:
        expect, signature = self._stage.expect, after["signed_by"].split()[0]
        expect(signature not in self._signed_by, f"{signature} wrote to the breaker twice")
        self._signed_by.add(signature)
        mine = self._tellings.get(signature.partition(":")[0], [])
        if after["probe"] not in ("", before["probe"]):
            since = (now_us - before["opened_us"]) / 1e6
            cool = since >= self._limits.cooldown_us / 1e6
            expect(cool, f"a probe was let through {since:.3f} s after the breaker opened")
        elif not before["opened_us"]:
            self._counts(before, after, mine)
        elif not after["opened_us"]:
            by = any(one.probe == before["probe"] and one.succeeded for one in mine)
            expect(bool(before["probe"]) and by, "the breaker was closed by no probe of its own")
            expect(not after["buckets"], "the breaker is closed and counts what was before")
            self._counted = []
        else:
            self._probe_ended(before, after, mine)

    def _probe_ended(
        self, before: dict[str, Any], after: dict[str, Any], mine: Sequence[Telling]
    ) -> None:
        verdicts = {one.succeeded for one in mine if one.probe == before["probe"]}
        self._stage.expect(bool(verdicts), f"the probe {before['probe']} was ended by another")
        if verdicts == {False}:
            anew = after["opened_us"] > before["opened_us"]
            self._stage.expect(anew, "a probe failed, and the breaker did not cool down again")

    def _counts(
        self, before: dict[str, Any], after: dict[str, Any], mine: Sequence[Telling]
    ) -> None:
        """By the time that its writer read, which the document tells."""
        ours = any(one.epoch == before["epoch"] and not one.probe for one in mine)
        self._stage.expect(ours, "an outcome from before the breaker last changed was counted")
        opened, width_us = bool(after["opened_us"]), self._width_us
        one = _Counted(after["opened_us"], failed=True) if opened else self._newest(before, after)
        self._counted.append(one)
        oldest_us = one.at_us - self._limits.window_us
        recent = [each for each in self._counted if each.at_us > oldest_us - 2 * width_us]
        surely = [each for each in self._counted if each.at_us > oldest_us + 2 * width_us]
        if opened:
            enough = len(recent) >= self._limits.minimum
            self._stage.expect(enough, f"{len(recent)} outcomes opened the breaker")
            self._counted = []
        elif len(surely) >= self._limits.minimum:
            sick = all(each.failed for each in recent)
            self._stage.expect(not sick, f"{len(surely)} failures did not open the breaker")

    def _newest(self, before: dict[str, Any], after: dict[str, Any]) -> _Counted:
        number, _, bad = after["buckets"][-1]
        known = next((bucket[2] for bucket in before["buckets"] if bucket[0] == number), 0)
        return _Counted(number * self._width_us, failed=bad > known)
