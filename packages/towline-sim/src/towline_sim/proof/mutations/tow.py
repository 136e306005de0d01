"""The safeguards of the tow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from towline.commands import service as bridge
from towline.forges.snapshot import PullRef
from towline.pulls import budgets, drift, lifecycle, tracker, transitions
from towline.pulls import sql as q
from towline.pulls.budgets import after_move
from towline.pulls.lifecycle import RESULT_OF, TERMINAL, Move
from towline.pulls.model import Intent, PullRecord
from towline.pulls.parking import head_of
from towline.pulls.parking_store import Parked
from towline.pulls.store import Change, Changed, PullStore
from towline.pulls.tracker import Tracker
from towline.reconciler import decision
from towline.reconciler import rules as classify
from towline.reconciler.rules import STRATEGY_OF
from towline.reconciler.sweep import Handled, Handling
from towline.remediation import record_changes
from towline.remediation import service as remediate
from towline.remediation.breakers import Breakers, Leave
from towline.remediation.record_changes import Order, Remedied
from towline.remediation.service import Remediator
from towline_sim.proof.mutations import Mutation, instead, sql

_begun = record_changes.begun
_hoped = record_changes.hoped
_end = Remediator._end
_change = PullStore.change
_move = lifecycle.move


def _nothing(*_: Any, **__: Any) -> None:
    return None


async def _not_seen(self: Remediator, *_: Any) -> bool:
    return False


async def _end_at_once(self: Remediator, *given: Any, **how: Any) -> Remedied:
    return await _end(self, *given, **{**how, "keeps_intent": False})


async def _begin_in_mind(self: Remediator, ref: PullRef, order: Order) -> tuple[Remedied, int]:
    record = await self._store.read(ref.repo, ref.number)
    now_us = self._clock.now_us()
    change = _begun(order, 1_000_000)(record, now_us)
    if change is None:
        return Remedied("refused", "", record), now_us
    return Remedied("pending", "", change.record), now_us


def _uncounted(order: Order, verify_us: int) -> Any:
    return _begun(replace(order, spends=False), verify_us)


def _same(counts: Any, *_: Any) -> Any:
    return counts


def _hoped_anew(record: PullRecord, intent: Intent, now_us: int) -> PullRecord:
    hoped = _hoped(record, intent, now_us)
    return hoped._replace(counts=after_move(hoped.counts, [hoped.state]))


def _hoped_without_patience(record: PullRecord, intent: Intent, now_us: int) -> PullRecord:
    return _hoped(record, intent, now_us)._replace(since_us=record.since_us)


async def _leave_of_nobody(self: Breakers, repo: str, checks: Any = ()) -> tuple[Leave, str]:
    return Leave([]), ""


async def _always_closed(self: Breakers) -> str:
    return "closed"


def _moved_on(state: Any, happening: Any, *, by_person: bool = False) -> Move:
    target = RESULT_OF.get(happening)
    if state in TERMINAL and target is not None and target != state:
        return Move("moved", state, target, (target,))
    return _move(state, happening, by_person=by_person)


def _for_nothing(*_: Any) -> tuple[int, ...]:
    return ()


async def _park_and_go(self: Tracker, stored: Any, place: int, event: Any, numbers: Any) -> None:
    head = head_of(event)
    await self._parking.park([Parked.of(stored, place, event, one, head) for one in numbers])


async def _jobs_afterwards(self: PullStore, ref: PullRef, decide: Any) -> Changed:
    jobs: list[Any] = []

    def without_jobs(record: PullRecord | None, now_us: int) -> Change | None:
        change = decide(record, now_us)
        if change is None:
            return None
        jobs[:] = change.jobs
        return Change(change.record, change.events)

    changed = await _change(self, ref, without_jobs)
    if jobs:
        from towline.jobs.store import ENQUEUE

        await self._database.run(ENQUEUE, jobs)
    return changed


async def _acts_all_the_same(
    self: Handling, record: PullRecord, diagnosis: Any, mode: Any, so_far: Handled
) -> Handled:
    if diagnosis.action not in STRATEGY_OF:
        return so_far
    known: Any = SimpleNamespace(failed=())
    sight: Any = None
    return await self._act(record, sight, diagnosis, known, mode, so_far)


def _tow(name: str, rule: str, *switches: Any) -> Mutation:
    return Mutation(name, rule, "tow", switches)


MUTATIONS: Final = (
    _tow(
        "acts-without-a-look",
        "what is there already is not asked for",
        instead(remediate, "needless", _nothing),
    ),
    _tow(
        "effect-not-looked-for",
        "an effect is looked for before a try is given back",
        instead(Remediator, "_seen", _not_seen),
    ),
    _tow(
        "lost-reply-not-read-back",
        "what nobody answered is looked for before it is tried again",
        instead(Remediator, "_end", _end_at_once),
    ),
    _tow(
        "acts-before-intent",
        "the intent is recorded before the action is made",
        instead(Remediator, "_begin", _begin_in_mind),
    ),
    _tow(
        "tries-not-counted",
        "each try costs one of its budget",
        instead(record_changes, "spent", _same),
    ),
    _tow(
        "counted-after-success",
        "a try is counted before it is made",
        instead(record_changes, "begun", _uncounted),
    ),
    _tow(
        "hope-resets-budget",
        "only a state that was observed resets a count",
        instead(record_changes, "hoped", _hoped_anew),
    ),
    _tow(
        "remedy-without-patience",
        "after a remedy the clock of staleness starts anew",
        instead(record_changes, "hoped", _hoped_without_patience),
    ),
    _tow(
        "lifetime-cap-off",
        "over its life a pull request gets so many tries and no more",
        instead(budgets, "LIFETIME_FACTOR", 1000),
    ),
    _tow(
        "circles-not-noticed",
        "what goes round in circles is a person's matter",
        instead(classify, "oscillates", _nothing),
    ),
    _tow(
        "breaker-ignored",
        "nothing is done while the breaker is open",
        instead(Breakers, "ask", _leave_of_nobody),
        instead(Breakers, "state", _always_closed),
    ),
    _tow(
        "green-for-good",
        "a check that begins or fails later leads back from green",
        instead(transitions, "led_back", _nothing),
        instead(transitions, "led_back", _nothing),
    ),
    _tow(
        "early-events-lost",
        "what comes before its pull request is recorded waits for it",
        instead(tracker, "waits_for", _for_nothing),
    ),
    _tow(
        "parked-for-good",
        "who parks an event looks once more whether its pull request is there",
        instead(Tracker, "_park", _park_and_go),
    ),
    _tow(
        "same-event-again",
        "an event is applied once for its key",
        sql(q.KNOWN_EVENT, "AND e.key = b.key", "AND e.key = b.key || 'x'"),
    ),
    _tow(
        "two-writers",
        "a record is changed only in the version that was read",
        sql(q.UPDATE, "AND towline_prs.version = b.expected", ""),
    ),
    _tow(
        "ended-lives-again",
        "terminal states are final",
        instead(transitions, "TERMINAL", frozenset()),
        instead(transitions, "move", _moved_on),
        instead(drift, "TERMINAL", frozenset()),
    ),
    _tow(
        "drift-not-corrected",
        "what a lost event would have told is found by looking",
        instead(decision, "correct", _nothing),
        instead(tracker, "correct", _nothing),
        instead(remediate, "correct", _nothing),
    ),
    _tow(
        "escalated-without-job",
        "an escalation and its job are written together",
        instead(PullStore, "change", _jobs_afterwards),
    ),
    _tow(
        "command-in-any-state",
        "a command is checked again when its job runs",
        instead(bridge, "refusal", _nothing),
    ),
    _tow(
        "observer-acts",
        "who only observes does nothing",
        instead(Handling, "_observe", _acts_all_the_same),
    ),
)
