"""Planted bugs of the tow: budgets, its breakers, the lifecycle, remedies and escalations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from towline.forges.snapshot import PullRef, Snapshot
from towline.jobs.ids import mark_of
from towline.jobs.model import Claimed, NewJob
from towline.pulls import apply_event, budgets, drift, lifecycle, transitions
from towline.pulls.budgets import Counts, Strategy, none_used
from towline.pulls.facts import Facts
from towline.pulls.lifecycle import TERMINAL, Happening, Move, State
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.pulls.signals import Signals
from towline.pulls.store import Change, whole_log
from towline.reconciler import decision, diagnosis_input
from towline.reconciler import rules as classify
from towline.reconciler import sweep as reconcile_one
from towline.reconciler.sweep import Reconciler
from towline.remediation import breakers, record_changes, replacement
from towline.remediation import escalation as escalate
from towline.remediation.breakers import (
    GLOBAL,
    Breakers,
    Leave,
    breaker_of_check,
    breaker_of_repo,
)
from towline.remediation.escalation import Escalations, params_of
from towline.remediation.escalation_text import escalation
from towline.remediation.record_changes import Ending, Order, Remedied
from towline.remediation.replacement import Closer
from towline.remediation.service import Remediator
from towline.remediation.strategies import REMEDIES
from towline.remediation.triggers import Poke
from towline_once.coordination.circuit_breaker import Report
from towline_once.errors import Unavailable
from towline_sim.proof.mutations import instead
from towline_sim.proof.planted_bugs import Planted, plant


def _tow(area: str, name: str, meant: str, *switches: Any) -> Planted:
    return plant(area, "tow", name, meant, *switches)


# ---------------------------------------------------------------------- budgets


def _one_try_more(
    strategy: Strategy, counts: Counts, lifetime: Counts, limits: Counts = budgets.MAX_TRIES
) -> str | None:
    more = {name: most + 1 for name, most in limits.items()}
    ever = {name: used + 4 for name, used in lifetime.items()}
    return _exhausted(strategy, counts, ever, more)


def _one_life_more(
    strategy: Strategy, counts: Counts, lifetime: Counts, limits: Counts = budgets.MAX_TRIES
) -> str | None:
    return _exhausted(strategy, counts, {n: used - 1 for n, used in lifetime.items()}, limits)


def _below_zero(counts: Counts, strategy: Strategy) -> dict[Strategy, int]:
    return {**counts, strategy: counts.get(strategy, 0) - 1}


def _given_back_again(ending: Ending) -> Callable[[PullRecord | None, int], Change | None]:
    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        change = _ended(ending)(record, now_us)
        before = record.intent if record is not None else None
        if change is None or change.record.intent is None or before is None:
            return change
        kept = change.record.intent._replace(spent=before.spent)
        return change._replace(record=change.record._replace(intent=kept))

    return decide


def _of_this_one_alone(*given: Any, reopened: int = 0, **how: Any) -> Any:
    return _case_of(*given, **how)


def _all_forgiven(counts: Counts) -> Counts:
    return none_used()


_exhausted, _ended, _case_of = budgets.exhausted, record_changes.ended, decision.case_of
_RESET: Final[Mapping[Strategy, frozenset[State]]] = {
    **budgets._RESET_BY,
    "rebuild": frozenset({"CHECKS_RUNNING", "CHECKS_PASSED"}),
}
_RESET_BY_BEGINNING: Final[Mapping[Strategy, frozenset[State]]] = {
    **budgets._RESET_BY,
    "retrigger_policy_bot": frozenset({"POLICY_EVALUATING", "POLICY_PASSED", "POLICY_FAILED"}),
    "retrigger_approver_bot": frozenset({"POLICY_PASSED", "APPROVED"}),
}

BUDGETS: Final = (
    _tow("budgets", "one-try-too-many", "a budget of three is used up after three",
         instead(classify, "exhausted", _one_try_more)),
    _tow("budgets", "one-life-try-too-many", "a cap is exceeded when it is passed",
         instead(classify, "exhausted", _one_life_more)),
    _tow("budgets", "refund-below-zero", "what was counted can be taken off again",
         instead(record_changes, "_one_less", _below_zero)),
    _tow("budgets", "given-back-twice", "an intent that stays is as it was",
         instead(record_changes, "ended", _given_back_again)),
    _tow("budgets", "arrived-after-all-is-free", "a try that was given back is given back",
         instead(record_changes, "_spent_after_all", lambda record, intent: record)),
    _tow("budgets", "new-run-forgives-rebuilds", "counts start anew when the checks do",
         instead(budgets, "_RESET_BY", _RESET)),
    _tow("budgets", "being-asked-forgives-bots", "a bot that begins again has a fresh budget",
         instead(budgets, "_RESET_BY", _RESET_BY_BEGINNING)),
    _tow("budgets", "reopened-for-each-pull", "counts belong to the pull request",
         instead(diagnosis_input, "case_of", _of_this_one_alone)),
    _tow("budgets", "push-forgives-reopening", "a person's push starts everything anew",
         instead(transitions, "after_persons_push", _all_forgiven)),
)  # fmt: skip


# ---------------------------------------------------------------------- breakers of the tow


async def _half_a_leave(
    self: Breakers, repo: str, checks: Sequence[str] = ()
) -> tuple[Leave | None, str]:
    permits = []
    for name in [GLOBAL, breaker_of_repo(repo), *map(breaker_of_check, checks)]:
        permit = await self.named(name).admit()
        if permit is None:
            return None, name
        permits.append((name, permit))
    return Leave(permits), ""


async def _refusals_are_told(leave: Leave, result: Remedied) -> None:
    if result.outcome == "failed":
        await leave.failed()
    elif result.outcome in ("done", "pending", "unavailable"):
        await leave.succeeded()


async def _nothing_to_say(self: Leave) -> None:
    return None


def _told_at_each_trip(report: Report) -> NewJob:
    return _notice_job(report._replace(opening_us=report.opened_us))


_notice_job = breakers._notice_job

BREAKERS: Final = (
    _tow("breaker", "half-a-leave-kept", "what was not used runs out",
         instead(Breakers, "ask", _half_a_leave)),
    _tow("breaker", "outage-is-no-failure", "a failure is what the forge calls one",
         instead(reconcile_one, "_tell", _refusals_are_told)),
    _tow("breaker", "leave-not-given-back", "each outcome was told above",
         instead(Leave, "ignored", _nothing_to_say)),
    _tow("breaker", "told-at-each-trip", "one message for each time that it opens",
         instead(breakers, "_notice_job", _told_at_each_trip)),
)  # fmt: skip


# ---------------------------------------------------------------------- lifecycle


def _hoped_whatever(record: PullRecord, intent: Intent, now_us: int) -> PullRecord:
    target = REMEDIES[record_changes.as_strategy(intent)].target
    if record.state in TERMINAL or target == "CLOSED":
        return record
    return record_changes.entered(record, target, now_us)


def _anybodys_push(state: State, happening: Happening, *, by_person: bool = False) -> Move:
    return _move(state, happening, by_person=True)


def _ended_is_closed(
    facts: Facts, signals: Signals, record: PullRecord, doubted_us: int | None = None
) -> State:
    if facts.condition != "open":
        return "CLOSED"
    return _actual(facts, signals, record, doubted_us)


def _since_it_began(record: PullRecord, *given: Any) -> PullRecord:
    return _entered(record, *given)._replace(since_us=record.since_us)


def _never(*_: Any, **__: Any) -> bool:
    return False


def _always(*_: Any, **__: Any) -> bool:
    return True


def _nothing(*_: Any, **__: Any) -> None:
    return None


_move, _actual, _entered = lifecycle.move, drift.actual_state, transitions.entered

LIFECYCLE: Final = (
    _tow("lifecycle", "hope-overrules-events", "a remedy that was taken sets its state",
         instead(record_changes, "hoped", _hoped_whatever)),
    _tow("lifecycle", "bot-calls-back", "new commits restart the checks",
         instead(transitions, "move", _anybodys_push)),
    _tow("lifecycle", "merged-taken-for-closed", "what is not open any more is closed",
         instead(drift, "actual_state", _ended_is_closed)),
    _tow("lifecycle", "clock-not-started-anew", "it is stale since it last did well",
         instead(transitions, "entered", _since_it_began),
         instead(drift, "entered", _since_it_began)),
    _tow("lifecycle", "late-word-counts", "events come in their order",
         instead(apply_event, "_is_before", _never)),
    _tow("lifecycle", "late-check-counts", "the last word on a check is the one that came last",
         instead(apply_event, "is_newer", _always)),
    _tow("lifecycle", "old-failure-believed", "a failed check has failed",
         instead(transitions, "doubted_since", _nothing), instead(drift, "doubted_since", _nothing),
         instead(transitions, "doubted_since", _nothing)),
    _tow("lifecycle", "no-catching-up", "what came too early comes again",
         instead(transitions._Journey, "catch_up", _nothing)),
    _tow("lifecycle", "nothing-implied", "each event has its line in the table",
         instead(lifecycle, "_IMPLIED", {})),
    _tow("lifecycle", "own-echo-heard", "a status is a status, whoever sends it",
         instead(transitions, "_is_our_echo", _never)),
)  # fmt: skip


# ---------------------------------------------------------------------- remedies, escalations


def _beside_another(record: PullRecord, order: Order) -> str | None:
    return _why_not(record._replace(intent=None), order)


def _decided_long_ago(record: PullRecord, order: Order) -> str | None:
    return _why_not(record, replace(order, decided=None))


async def _asks_again(self: Remediator, record: PullRecord, sight: Snapshot) -> Poke:
    try:
        return await self._once(record, sight)
    except Unavailable:
        return await self._once(record, sight)


async def _no_twin(self: Closer, record: PullRecord) -> None:
    return None


async def _nothing_is_due(self: Reconciler, tally: Any) -> None:
    return None


async def _marked_first(self: Escalations, job: Claimed) -> dict[str, Any]:
    params = params_of(job)
    ref = PullRef(str(params["forge"]), str(params["repo"]), int(params["number"]))
    key = str(params["key"])
    record = await self._store.read(ref.repo, ref.number)
    if record is None or record.state in TERMINAL:
        return {"told": False}
    events = await whole_log(self._store, ref)
    if any(event.key == escalate._mark(key) for event in events):
        return {"told": False, "why": "it was told before"}
    await self._store.change(ref, escalate._marked(key))
    notice = escalation(record, events)
    await self._comment(ref, notice.text, key)
    if self._notifier is not None:
        await self._notifier.notify(notice.title, f"{notice.text}\nEscalation: {mark_of(key)}")
    return {"told": True}


async def _log_without_marks(store: Any, ref: PullRef) -> list[PullEvent]:
    return [event for event in await whole_log(store, ref) if not event.key.startswith("sent ")]


_why_not = record_changes.why_not

REMEDYING: Final = (
    _tow("remedies", "beside-another-remedy", "who decides has looked for an open intent",
         instead(record_changes, "why_not", _beside_another)),
    _tow("remedies", "decided-long-ago", "a decision holds",
         instead(record_changes, "why_not", _decided_long_ago)),
    _tow("remedies", "asks-again-on-silence", "one more try costs nothing",
         instead(Remediator, "_patiently", _asks_again)),
    _tow("remedies", "nobody-looks-after-intents", "whoever acts looks for the effect",
         instead(Reconciler, "_finish_what_is_due", _nothing_is_due)),
    _tow("remedies", "anybodys-close-is-ours", "a closed one with our intent was closed by us",
         instead(replacement, "_ours", _always)),
    _tow("remedies", "closed-beside-its-twin", "there is one pull request for a vulnerability",
         instead(Closer, "_twin", _no_twin)),
    _tow("escalation", "marked-before-told", "the mark is written first, so that it is told once",
         instead(Escalations, "escalate", _marked_first)),
    _tow("escalation", "told-at-each-try", "a job that is run again has told nobody",
         instead(escalate, "whole_log", _log_without_marks)),
)  # fmt: skip

PLANTED: Final = (*BUDGETS, *BREAKERS, *LIFECYCLE, *REMEDYING)
