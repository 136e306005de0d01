"""What must be true of pull requests and breakers after each commit, and of each action of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from towline.pulls.budgets import LIFETIME_FACTOR, STRATEGIES, Strategy
from towline.pulls.command_rules import ALLOWED_IN
from towline.pulls.lifecycle import Happening, State
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.pulls.sql import COLUMNS, event_of, record_of
from towline.remediation.breakers import GLOBAL, breaker_of_repo
from towline.remediation.escalation_text import ESCALATED, SENT
from towline.remediation.record_changes import BY_SWEEP
from towline.remediation.strategies import OUTCOME
from towline_sim.proof.harness import Stage
from towline_sim.proof.loop import WORLD, current
from towline_sim.proof.scenarios.tow_budgets import REMEDY_OF, Tries
from towline_sim.proof.scenarios.tow_effects import OURS, Key, Ledger
from towline_sim.proof.scenarios.tow_facts import TowWords
from towline_sim.proof.scenarios.tow_rules import TowRules
from towline_sim.proof.scenarios.tow_world import (
    BUDGETS,
    COOLDOWN_SECONDS,
    PLAIN,
    POLICY,
    REQUIRED,
    THRESHOLDS,
)

_ENDED: Final = ("MERGED", "CLOSED")
_WRITES: Final = frozenset({"update pull request", "create pull request"})
_SWAPS: Final = frozenset({"create document", "replace document"})
_OBSERVED: Final = frozenset((*Happening.__args__, "STATE_DRIFT_CORRECTED"))  # type: ignore[attr-defined]
_VISIBLE: Final[frozenset[Strategy]] = frozenset({"rebuild", "branch_update", "close_and_reopen"})
"""Remedies whose effect the forge shows at once, whoever else is asleep."""
_SETTLING_SECONDS: Final = 10.0
_LONG_AGO_SECONDS: Final = 45.0
_HURRY_SECONDS: Final = 12.0
_NEWS_SECONDS: Final = 15.0
"""Longer than it takes from a look to what comes of it."""
_ROW: Final = ", ".join(COLUMNS)
_TRY_AGAIN: Final = "given back"


class PullWatch:
    """Records of pull requests against their own logs, and against what arrived at the world."""

    tables = frozenset({"towline_prs", "towline_documents"})

    def __init__(self, stage: Stage, *, observe: bool) -> None:
        self._stage = stage
        self._observe = observe
        self.known: dict[Key, PullRecord] = {}
        self.logs: dict[Key, list[PullEvent]] = {}
        self._quiet_since_us: dict[Key, int] = {}
        self.ledger: Ledger | None = None
        self.breakers: dict[str, dict[str, Any]] = {}
        self.rules = TowRules(stage)
        self._words = TowWords(stage, REQUIRED, POLICY, self._heads)
        self._tries = Tries(stage)
        self._heard: set[str] = set()

    def all_count(self, all_count: bool) -> None:
        """Whether each check of a head counts where nobody names the required ones."""
        self._words.all_count_in = frozenset({PLAIN} if all_count else ())

    # ------------------------------------------------------------------ commits

    def committed(self, db: Any, names: Sequence[str]) -> None:
        if not _SWAPS.isdisjoint(names):
            self._look_at_breakers(db)
        if _WRITES.isdisjoint(names):
            return
        for repo, number, version in db.execute("SELECT repo, number, version FROM towline_prs"):
            before = self.known.get((repo, number))
            if before is None or before.version != version:
                self._look_at(db, (repo, number), before)

    def _look_at(self, db: Any, key: Key, before: PullRecord | None) -> None:
        row = db.execute(
            f"SELECT {_ROW} FROM towline_prs WHERE repo = ? AND number = ?",
            key,
        ).fetchone()
        after, last_event = record_of(row), row[-1]
        log = self.logs.setdefault(key, [])
        new = [
            event_of(found)
            for found in db.execute(
                "SELECT id, key, event_type, source, at_us, payload FROM towline_pr_events"
                " WHERE repo = ? AND number = ? AND id > ? ORDER BY id",
                (*key, log[-1].id if log else 0),
            )
        ]
        log += new
        self.known[key] = after
        name = f"{key[0]}#{key[1]}"
        heard = ",".join(event.event_type for event in new)
        self._stage.tell(WORLD, f"{name} {after.state} v{after.version} [{heard}]")
        self._expect(last_event == len(log), f"{name} counts {last_event} lines, not {len(log)}")
        if before is not None:
            self._follows(name, before, after, new)
            self._remembers(db, key, before, after, new)
            self.rules.follows(name, before, after, new)
        self._words.follow(name, before, after, new)
        self._tries.follow(name, after, new)
        self._is_sound(name, after, log)

    def _is_sound(self, name: str, record: PullRecord, log: Sequence[PullEvent]) -> None:
        for strategy in STRATEGIES:
            most, used = BUDGETS[strategy], record.counts[strategy]
            ever = record.lifetime[strategy]
            self._expect(0 <= used <= most, f"{name} used {used} of {most} tries of {strategy}")
            cap = most * LIFETIME_FACTOR
            self._expect(0 <= ever <= cap, f"{name} had {ever} tries of {strategy} in its life")
        merges = sum(one.event_type in ("MERGE_SUCCEEDED", "PR_MERGED") for one in log)
        self._expect(merges <= 1, f"{name} was told to be merged {merges} times")

    def _follows(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """From one version to the next."""
        self._expect(
            after.version == before.version + 1,
            f"{name} went from version {before.version} to {after.version}",
        )
        if before.state in _ENDED:
            self._expect(after.state == before.state, f"{name} was {before.state}: {after.state}")
        left = before.intent
        if left is not None and (after.intent is None or after.intent.id != left.id):
            ended = any(
                one.event_type == OUTCOME and one.payload["intent"] == left.id for one in new
            )
            cancelled = after.state == "CLOSED"
            self._expect(ended or cancelled, f"{name} forgot {left.id} without an outcome")
        self._counts(name, before, after, new)

    def _counts(
        self, name: str, before: PullRecord, after: PullRecord, new: Sequence[PullEvent]
    ) -> None:
        """A count starts anew only for what was observed."""
        if any(event.event_type in _OBSERVED for event in new):
            return
        returned = [
            event.payload["strategy"] for event in new if event.payload.get("budget_returned")
        ]
        for strategy in STRATEGIES:
            least = before.counts[strategy] - returned.count(strategy)
            self._expect(
                after.counts[strategy] >= least,
                f"{name} forgot tries of {strategy}, and nothing was observed",
            )

    # ------------------------------------------------------------------ remedies

    def _remembers(
        self,
        db: Any,
        key: Key,
        before: PullRecord,
        after: PullRecord,
        new: Sequence[PullEvent],
    ) -> None:
        name = f"{key[0]}#{key[1]}"
        for event in new:
            strategy = REMEDY_OF.get(event.event_type)
            if strategy is not None:
                self._begins(name, key, before, event)
            elif event.event_type == OUTCOME and before.intent is not None:
                self._ends(name, key, before.intent, event)
            elif event.event_type == ESCALATED:
                self._is_told(db, name, event)
                self._expect(not self._observe, f"{name} was escalated by who only observes")
            elif event.event_type == SENT:
                told = any(line.endswith(str(event.payload["escalation"])) for line in self._heard)
                self._expect(told, f"{name}: nobody was told of {event.key}")
            elif event.event_type == "COMMAND_RECEIVED":
                fits = before.state in ALLOWED_IN[event.payload["command"]]  # type: ignore[index]
                self._expect(fits, f"{name} took {event.payload['command']} in {before.state}")
        made = after.intent is not None and after.intent.made
        was_made = before.intent is not None and before.intent.made
        if after.state != before.state or (made and not was_made):
            self._quiet_since_us[key] = self._stage.server.clock.now_us()

    def _begins(self, name: str, key: Key, before: PullRecord, event: PullEvent) -> None:
        self._expect(before.intent is None, f"{name} begins something beside {before.intent}")
        self._expect(before.state not in _ENDED, f"{name} begins something, but is {before.state}")
        if event.payload["by"] != BY_SWEEP:
            return
        self._expect(not self._observe, f"{name} is helped by who only observes")
        tried = any(before.lifetime.values())
        cycle = goes_round(before.path) if tried else ()
        self._expect(not cycle, f"{name} is helped though it goes round: {cycle}")
        if not self._clocks_differ() and not self._somebody_slept():
            waited = (event.at_us - self._quiet_since_us.get(key, before.created_us)) / 1e6
            limit = THRESHOLDS.get(before.state, 0.0)
            self._expect(
                waited > limit - 1, f"{name} is helped after {waited:.1f} s of {limit:g} s"
            )
        late = _LONG_AGO_SECONDS if self._somebody_slept() else _HURRY_SECONDS
        self._tries.begins(name, before, event, late)
        for breaker in (GLOBAL, breaker_of_repo(key[0])):
            open_for = self._open_for(breaker, event.at_us)
            self._expect(open_for < late, f"{name} is helped, {breaker} open for {open_for:.1f} s")

    def _ends(self, name: str, key: Key, intent: Intent, event: PullEvent) -> None:
        """A try is given back only where nothing came of it, after a look for its effect."""
        known = event.payload["outcome"] != "unavailable" or event.key.endswith("so far")
        if known or self.ledger is None or event.payload["intent"] != intent.id:
            return
        strategy = next(one for one in STRATEGIES if one == intent.strategy)
        early = (intent.verify_by_us - event.at_us) / 1e6
        if not self._clocks_differ():
            self._expect(early <= 0, f"{name}: {strategy} was given up {early:.1f} s too early")
        if self._stage.server.skew_us:  # nobody knows whether it began before that jump
            return
        at = self.ledger.last_made.get((key, strategy), 0.0)
        visible = strategy in _VISIBLE or (strategy, key[0]) == ("retrigger_automerge_bot", PLAIN)
        ago = self.ledger.world.now - at
        unseen = visible and at >= intent.began_us / 1e6 and ago > _SETTLING_SECONDS
        self._expect(
            not unseen, f"{name}: {strategy} arrived {ago:.1f} s ago, and was {_TRY_AGAIN}"
        )

    def _is_told(self, db: Any, name: str, event: PullEvent) -> None:
        jobs = db.execute("SELECT params FROM towline_jobs WHERE kind = 'escalate'").fetchall()
        told = any(orjson.loads(params)["key"] == event.key for (params,) in jobs)
        self._expect(told, f"{name} was escalated, and nobody will be told")

    # ------------------------------------------------------------------ the world

    def arrived(self, key: Key, strategy: Strategy) -> None:
        """What arrives at the world was written down before."""
        if self.ledger is None:
            return
        name, log = f"{key[0]}#{key[1]}", self.logs.get(key, [])
        begun = sum(REMEDY_OF.get(event.event_type) == strategy for event in log)
        cancels = sum(event.payload.get("command") == "/cancel" for event in log)
        if strategy == "close_and_reopen":
            begun += cancels
        made = self.ledger.made[key, strategy]
        self._stage.tell(current.get(), f"arrived {name} {strategy} {made}")
        self._expect(made <= begun, f"{name}: {strategy} arrived {made} times, begun {begun} times")
        if strategy == "retrigger_approver_bot" and current.get() is not WORLD:
            self._was_needed(name, key)
        elif strategy == "close_and_reopen" and not cancels:
            self._is_the_only_one(name, key)

    def _was_needed(self, name: str, key: Key) -> None:
        """Nobody is asked for an approval that has long been there to be seen."""
        if self.ledger is None or self._somebody_slept():
            return
        world = self.ledger.world
        pull = world.known_pull(*key)
        ages = [
            world.now - review.submitted_at
            for review in world.standing_reviews(pull)
            if review.state == "APPROVED" and review.commit_id == pull.head_sha
        ]
        oldest = max(ages, default=0.0)
        self._expect(
            oldest < _NEWS_SECONDS, f"{name} was approved {oldest:.1f} s before that was asked for"
        )

    def _is_the_only_one(self, name: str, key: Key) -> None:
        """Nothing is closed for a fresh one beside another that was known when that began."""
        record = self.known.get(key)
        intent = record.intent if record is not None else None
        if record is None or intent is None or intent.strategy != "close_and_reopen":
            return
        twins = [
            one.ref.number
            for one in self.known.values()
            if one.vulnerability_id == record.vulnerability_id and one.ref != record.ref
            if one.state not in _ENDED and one.created_us < intent.began_us
        ]
        self._expect(not twins, f"{name} is closed for a fresh one beside {twins}")

    def replaces(self, key: Key) -> None:
        """A fresh one is asked for only in place of one that we have closed, and said so."""
        if self.ledger is None:
            return
        ours = self.ledger.ended_by.get(key) == OURS or key in self.ledger.said_to_close
        self._expect(ours, f"{key} is replaced, which {self.ledger.ended_by.get(key)} closed")

    def heard(self, line: str) -> None:
        """People are not told again of what is marked as told, unless two are at it.

        That may be if one of them slept, and a call that is carried out late may come after.
        """
        self._heard.add(line)
        if self._somebody_slept() or self._stage.jumped or current.get() is WORLD:
            return
        marked = [
            event
            for log in self.logs.values()
            for event in log
            if event.event_type == SENT and line.endswith(str(event.payload["escalation"]))
        ]
        self._expect(not marked, f"told again though it is marked: {line}")

    # ------------------------------------------------------------------ breakers

    def _look_at_breakers(self, db: Any) -> None:
        now = self._stage.server.clock.now_us()
        for name, body in db.execute(
            "SELECT name, body FROM towline_documents WHERE name LIKE 'breaker %'"
        ):
            after = orjson.loads(body)
            before = self.breakers.get(name, after)
            self.breakers[name] = after
            self.rules.circuit_changed(name, before, after)
            taken = before["probe"] and after["probe"] not in ("", before["probe"])
            over = before["probe_until_us"] <= now
            self._expect(not taken or over, f"{name} has two probes at a time")

    def _open_for(self, name: str, now_us: int) -> float:
        """Seconds since it opened, while it lets nobody through; zero else."""
        circuit = self.breakers.get(f"breaker {name}")
        if circuit is None or not circuit["opened_us"] or circuit["probe"]:
            return 0.0
        seconds = (now_us - int(circuit["opened_us"])) / 1e6
        return seconds if seconds < COOLDOWN_SECONDS else 0.0

    # ------------------------------------------------------------------ parts

    def _heads(self, key: Key) -> Sequence[str]:
        return self.ledger.heads[key] if self.ledger is not None else ()

    def _clocks_differ(self) -> bool:
        return any(actor.node.skew_us for actor in self._stage.actors.values())

    def _somebody_slept(self) -> bool:
        long_ago = self._stage.loop.time() - _LONG_AGO_SECONDS
        nodes = [actor.node for actor in self._stage.actors.values()]
        return any(node.pauses and node.paused_until > long_ago for node in nodes)

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self._stage.violation(what)


def goes_round(path: Sequence[State]) -> tuple[State, ...]:
    """Three times through the same states at its end; builds that fail are none of that."""
    for length in range(2, len(path) // 3 + 1):
        last = tuple(path[-length:])
        if tuple(path[-3 * length :]) == last * 3 and len(set(last)) > 1:
            return () if set(last) == {"CHECKS_RUNNING", "CHECKS_FAILED"} else last
    return ()
