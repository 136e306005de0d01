"""How the tow's scene ends: what must be true when all has been well for a while."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from towline.core.escalation import ESCALATED
from towline.core.ids import mark_of
from towline.core.pulls import PullRecord
from towline.proof.scenes.tow_ledger import Key
from towline.proof.scenes.tow_world import BUDGETS
from towline.sim.entities import Pull

if TYPE_CHECKING:
    from towline.proof.scenes.tow import TowScene

_LOOK_SECONDS: Final = 20.0
_MOST_LOOKS: Final = 120
"""Each step of a pull request may take its threshold, a dead prober's lease and a slow clock."""
_AGREEMENT_SECONDS: Final = 110.0
_OVER: Final = frozenset({"MERGED", "CLOSED", "NEEDS_INTERVENTION"})


class TowEnd:
    def __init__(self, scene: TowScene) -> None:
        self._scene = scene
        self._stage = scene.stage
        self._town = scene.town
        self._watch = scene.watch

    async def come(self) -> None:
        """Soon after the last trouble everything has ended, and is as the world shows it."""
        for _ in range(_MOST_LOOKS):
            calm = not self._left()
            await asyncio.sleep(_AGREEMENT_SECONDS if calm else _LOOK_SECONDS)
            if calm and not self._left():
                break
        left = self._left()
        self._stage.expect(not left, f"still under way: {', '.join(left)}")
        self._agrees()
        self._scene.early.nothing_waits_in_vain(self._stage.server.db)
        self._people_know()
        self._watch.rules.told_once()
        self._replaced()

    def _left(self) -> list[str]:
        """What is not over yet."""
        left = []
        for pull in self._town.pulls():
            record = self._watch.known.get((pull.repo, pull.number))
            if not self._is_over(pull, record):
                state = record.state if record is not None else "unknown"
                left.append(f"{pull.repo}#{pull.number} {state}")
        jobs = self._stage.server.db.execute(
            "SELECT kind, count(*) FROM towline_jobs WHERE state IN ('queued', 'running')"
            " GROUP BY kind ORDER BY kind"
        )
        return [*left, *(f"{count} jobs {kind}" for kind, count in jobs)]

    def _is_over(self, pull: Pull, record: PullRecord | None) -> bool:
        if record is None:
            return pull.state != "open"
        if record.intent is not None:
            return False
        return record.state in _OVER or self._scene.observe

    def _agrees(self) -> None:
        """The record is as the world shows it; an open one waits for a person."""
        for pull in self._town.pulls():
            key = (pull.repo, pull.number)
            record = self._watch.known.get(key)
            if record is None:
                made = sum(self._town.ledger.made[key, strategy] for strategy in BUDGETS)
                self._stage.expect(pull.state != "open", f"{key} is open and not under tow")
                self._stage.expect(not made, f"{key} is helped and not under tow")
                continue
            wanted = "MERGED" if pull.merged else "CLOSED" if pull.state == "closed" else "open"
            shown = record.state if record.state in ("MERGED", "CLOSED") else "open"
            self._stage.expect(shown == wanted, f"{key} is {wanted}, recorded as {record.state}")
            same = record.head_sha == pull.head_sha or record.state != "MERGED"
            self._stage.expect(same, f"{key} has another head than its record")
            self._overdone(key, record)

    def _overdone(self, key: Key, record: PullRecord) -> None:
        ledger = self._town.ledger
        self._stage.expect(ledger.merges[key] <= 1, f"{key} was merged twice")
        jobs = self._stage.server.db.execute(
            "SELECT count(*) FROM towline_deliveries d LEFT JOIN towline_jobs j ON j.id = d.job_id"
            " WHERE j.id IS NULL"
        ).fetchone()[0]
        self._stage.expect(jobs == 0, f"{jobs} deliveries have no job")

    def _people_know(self) -> None:
        """Each escalation is told once, and once more for what may have swallowed its mark."""
        told: Counter[str] = self._scene.chat.told
        trouble = len(self._stage.weather.fired)
        for key, log in self._watch.logs.items():
            over = self._watch.known[key].state in ("MERGED", "CLOSED")
            for event in log:
                if event.event_type != ESCALATED:
                    continue
                times = told[f"Escalation: {mark_of(event.key)}"]
                self._stage.expect(over or times >= 1, f"nobody was told of {event.key}")
                self._stage.expect(times <= 1 + trouble, f"{event.key} was told {times} times")

    def _replaced(self) -> None:
        """As many fresh ones for a vulnerability as its budget and people's orders allow."""
        titles: Counter[str] = Counter()
        orders: Counter[str] = Counter()
        for pull in self._town.pulls():
            titles[pull.title] += 1
            log = self._watch.logs.get((pull.repo, pull.number), [])
            orders[pull.title] += sum(
                event.payload.get("command") == "/close-and-reopen" for event in log
            )
        for title, count in titles.items():
            most = 1 + self._town.people.twins[title] + BUDGETS["close_and_reopen"] + orders[title]
            self._stage.expect(count <= most, f"{title}: {count} pull requests")
