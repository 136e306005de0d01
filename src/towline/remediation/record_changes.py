"""What each step of a remedy writes: pure functions from a record to a change, or to none.

Each writes only if the intent that it is about is still the one in the record, so that a step
that is repeated, or that comes after another process has taken over, writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from towline.jobs.model import NewJob
from towline.pulls.budgets import Counts, Strategy, after_move, spent
from towline.pulls.lifecycle import TERMINAL, State
from towline.pulls.model import EventSource, Intent, PullEvent, PullRecord
from towline.pulls.store import Change, Decide
from towline.pulls.transitions import KEEP_ENDED_US, KEPT_STATES, Context, Entry, after_hope
from towline.remediation.strategies import OUTCOME, REMEDIES, Judged

BY_SWEEP: Final = "reconciler"
"""Who orders a remedy that no person did."""

Outcome: TypeAlias = Literal[
    "done",
    "unneeded",
    "pending",
    "failed",
    "unavailable",
    "limited",
    "conflict",
    "moved",
    "refused",
    "unseen",
]
"""`done`, as the effect was seen; `unneeded`; `pending`, made but not seen yet; `failed`, refused
by the forge; `unavailable`, the forge or the CI did not answer; `limited`, it asks to be left alone
for a while; `conflict` with the base; `moved`, the head is another by now; `refused`, as another
remedy is under way or the record has moved on; `unseen`, made without an effect in time."""


class Decided(NamedTuple):
    """What a decision was made upon; if any of it is different by now, it is void."""

    state: State
    head_sha: str | None
    last_remediation_us: int | None


def decided_on(record: PullRecord) -> Decided:
    return Decided(record.state, record.head_sha, record.last_remediation_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A remedy to be made. `id` is the same each time the same order is tried."""

    id: str
    strategy: Strategy
    by: str
    source: EventSource
    decided: Decided | None = None
    spends: bool = True
    """Whether it costs a try of the budget: a person's order does not."""
    why: Mapping[str, object] = field(default_factory=dict)
    before: str = ""


class Remedied(NamedTuple):
    outcome: Outcome
    detail: str = ""
    record: PullRecord | None = None

    @property
    def took(self) -> bool:
        return self.outcome in ("done", "pending", "unneeded")


Recorder: TypeAlias = Callable[[PullRecord, int], Change | None]


def begun(order: Order, verify_us: int) -> Callable[[PullRecord | None, int], Change | None]:
    """The intent, the try that it costs and the event, all of them or none."""

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        if record is None or why_not(record, order) is not None:
            return None
        remedy = REMEDIES[order.strategy]
        intent = Intent(
            order.id, order.strategy, record.head_sha, now_us, now_us + verify_us, order.by,
            spent=order.spends, before=order.before,
        )  # fmt: skip
        counts, lifetime = record.counts, record.lifetime
        if order.spends:
            counts = spent(counts, order.strategy)
            lifetime = spent(lifetime, order.strategy)
        payload = {"strategy": order.strategy, "by": order.by, "intent": order.id, **order.why}
        payload["attempt"] = counts.get(order.strategy, 0)
        event = PullEvent(
            remedy.event_type, order.source, now_us, payload, key=f"remedy {order.id}"
        )
        changed = record._replace(
            counts=counts,
            lifetime=lifetime,
            intent=intent,
            last_remediation_us=now_us,
            remediation_action=order.strategy,
        )
        return Change(changed, [event])

    return decide


def why_not(record: PullRecord, order: Order) -> str | None:
    """Why an order may not begin now."""
    if record.state in TERMINAL:
        return f"it is {record.state}"
    if record.intent is not None:
        return f"{record.intent.strategy} is under way"
    if order.decided is not None and order.decided != decided_on(record):
        return "it has moved on since that was decided"
    return None


def as_known(step: Decide, context: Context, key: str) -> Decide:
    """The step, and what is known of the checks where it hopes for a state past them."""

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        change = step(record, now_us)
        if change is None:
            return None
        entry = Entry(key=key, source="reconciler", now_us=now_us)
        tracked = after_hope(change.record, context, entry)
        if tracked is None:
            return change
        return Change(tracked.record, [*change.events, *tracked.events], change.jobs)

    return decide


def made(
    intent_id: str, watch: str, expected_us: int
) -> Callable[[PullRecord | None, int], Change | None]:
    """The forge or the CI took it: the state that is hoped for, whose clock starts now."""

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        intent = intent_of(record, intent_id)
        if record is None or intent is None or intent.made:
            return None
        taken = intent._replace(made=True, watch=watch, verify_by_us=now_us + expected_us)
        return Change(hoped(record, intent, now_us)._replace(intent=taken))

    return decide


def hoped(record: PullRecord, intent: Intent, now_us: int) -> PullRecord:
    """As a remedy leaves it: no count starts anew, as nothing was observed yet.

    An event that came since the remedy began has the last word.
    """
    target = REMEDIES[as_strategy(intent)].target
    overtaken = record.since_us >= intent.began_us or record.head_sha != intent.head_sha
    if record.state in TERMINAL or overtaken or target == "CLOSED":
        return record
    return move_to(record, target, now_us)


def move_to(
    record: PullRecord, state: State, now_us: int, substatus: str | None = None
) -> PullRecord:
    """The record in a state that we put it in ourselves: nothing was observed, so no count and no
    fact changes (`pulls.transitions.entered` is for what was seen)."""
    path = record.path
    if state != record.state:
        path = (*path, state)[-KEPT_STATES:]
    ended = state in TERMINAL
    return record._replace(
        state=state,
        substatus=substatus,
        since_us=now_us,
        path=path,
        expires_us=now_us + KEEP_ENDED_US if ended else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a remedy ended; `refund` gives its try back, `state` is set if it is not None."""

    intent_id: str
    outcome: Outcome
    detail: str
    source: EventSource
    refund: bool = False
    keeps_intent: bool = False
    """The outcome is not known for sure: until its time is up nothing else is tried."""
    adjust: Recorder | None = None
    """What else changes with it."""


def ended(ending: Ending) -> Callable[[PullRecord | None, int], Change | None]:
    """The outcome as an event, the intent gone, and the try given back if there was none."""

    def decide(record: PullRecord | None, now_us: int) -> Change | None:
        intent = intent_of(record, ending.intent_id)
        if record is None or intent is None:
            return None
        payload = {
            "intent": intent.id,
            "strategy": intent.strategy,
            "outcome": ending.outcome,
            "detail": ending.detail[:500],
            "by": intent.by,
            "budget_returned": ending.refund and intent.spent,
        }
        key = f"outcome {intent.id} {ending.outcome}" + (" so far" if ending.keeps_intent else "")
        event = PullEvent(OUTCOME, ending.source, now_us, payload, key=key)
        if ending.refund and intent.spent:
            record = refunded(record, as_strategy(intent))
            intent = intent._replace(spent=False)
        elif ending.outcome == "done" and not intent.spent and intent.by == BY_SWEEP:
            record = _spent_after_all(record, intent)
        left = record._replace(intent=intent if ending.keeps_intent else None)
        more = ending.adjust(left, now_us) if ending.adjust is not None else None
        if more is None:
            return Change(left, [event])
        return Change(more.record, [event, *more.events], more.jobs)

    return decide


def refunded(record: PullRecord, strategy: Strategy) -> PullRecord:
    return record._replace(
        counts=_one_less(record.counts, strategy), lifetime=_one_less(record.lifetime, strategy)
    )


def _spent_after_all(record: PullRecord, intent: Intent) -> PullRecord:
    """Its answer was lost and its try given back, but it had arrived: it costs its try again.

    Where the pull request has gone further since, its count has started anew.
    """
    strategy = as_strategy(intent)
    lifetime = spent(record.lifetime, strategy)
    further = record.since_us >= intent.began_us and record.state != REMEDIES[strategy].target
    counts = record.counts if further else spent(record.counts, strategy)
    return record._replace(lifetime=lifetime, counts=counts)


def _one_less(counts: Counts, strategy: Strategy) -> dict[Strategy, int]:
    return {**counts, strategy: max(0, counts.get(strategy, 0) - 1)}


def intent_of(record: PullRecord | None, intent_id: str) -> Intent | None:
    if record is None or record.intent is None or record.intent.id != intent_id:
        return None
    return record.intent


def try_id(record: PullRecord) -> str:
    """Of the try under way; the same if it is made again because it may not have arrived.

    A try that was given back counts anew, and what it would change is as it was.
    """
    intent = record.intent
    if intent is None:
        return ""
    if intent.by != BY_SWEEP:
        return intent.id.rpartition(" ")[0] or intent.id
    tries = record.lifetime.get(as_strategy(intent), 0)
    return f"sweep {record.ref.forge} {record.ref} {intent.strategy} {tries} {intent.before}"


def as_strategy(intent: Intent) -> Strategy:
    return next(strategy for strategy in REMEDIES if strategy == intent.strategy)


def closing(
    reason: str, source: EventSource, key: str, substatus: str | None, jobs: Sequence[NewJob] = ()
) -> Recorder:
    """It was closed by us; if a webhook reported that first, only what it could not know is new."""

    def record_it(record: PullRecord, now_us: int) -> Change:
        payload: dict[str, object] = {"reason": reason, "from": record.state}
        if record.state == "CLOSED":
            return Change(record._replace(substatus=substatus or record.substatus), [], jobs)
        event = PullEvent("PR_CLOSED", source, now_us, payload, key=key)
        return Change(move_to(record, "CLOSED", now_us, substatus), [event], jobs)

    return record_it


def judging(judged_on: PullRecord, verdict: Judged) -> Recorder:
    """Our own evaluation counts as observed; an approval that was there before it counts then."""
    state: State = "POLICY_PASSED" if verdict.passed else "POLICY_FAILED"

    def record_it(record: PullRecord, now_us: int) -> Change | None:
        if record.head_sha != judged_on.head_sha or record.since_us > judged_on.since_us:
            return None
        place = f"{record.head_sha} {now_us}"
        payload = {"native": True, "says": verdict.says, "substatus": verdict.substatus}
        events = [PullEvent(state, "reconciler", now_us, payload, key=f"judged {place}")]
        moved = move_to(record, state, now_us, verdict.substatus)
        reached: list[State] = [state]
        if verdict.passed and record.facts.approved_by:
            by = {"by": list(record.facts.approved_by), "caught_up": True}
            key = f"judged {place} approved"
            events.append(PullEvent("APPROVAL_GRANTED", "approver-bot", now_us, by, key=key))
            moved = move_to(moved, "APPROVED", now_us)
            reached.append("APPROVED")
        counts = after_move(moved.counts, reached, verdict.substatus)
        return Change(moved._replace(counts=counts), events)

    return record_it
