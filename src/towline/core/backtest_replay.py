"""One pull request lived through again under a policy: the recorded one, or another.

The model, which `docs/explanation/backtesting.md` explains:

* The lifecycle, the budgets and the classifier are the real ones. What a sweep found of conflicts,
  of its base and of its failure when it acted is taken to have been so since the stay began.
* What the world did by itself, it does at the same time. What followed a remedy follows it after
  the same delay when the remedy is made earlier or later. What people did is never moved.
* An escalation moves nothing in the world; a remedy that is not made has no consequences.
* A remedy in a wait that ended by itself changes nothing but the budget: it was needless.
* A try that found nobody at home is weather: made at another time it does not fail for that, and
  one that is moved into such a time fails.
* A remedy where the history has none, and no end of the wait either, has an unknown outcome: the
  replay stops there and says so.
* A change that nobody told of, and that a sweep found, is taken to have happened after the usual
  time for its state, at the latest when it was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from towline.core.backtest_history import History, Step
from towline.core.backtest_life import FOREVER_US, Life
from towline.core.backtest_sweeps import Sweep, Sweeps
from towline.core.backtest_terms import ESCALATE, Choice, Learned, Replayed, Terms
from towline.core.budgets import Strategy
from towline.core.classify import STRATEGY_OF, Diagnosis
from towline.core.lifecycle import TERMINAL
from towline.core.sweep import diagnosed
from towline.core.sweep_policy import RepoPolicy

_MOST_TURNS: Final = 1000


def replay(history: History, terms: Terms) -> Replayed:
    return _Replay(history, terms).run()


class _Turn(NamedTuple):
    """A decision that is due, and what the history says was found then."""

    at_us: int
    found: Step | None


class _Replay:
    def __init__(self, history: History, terms: Terms) -> None:
        first = history.steps[0]
        self._steps: Sequence[Step] = history.steps
        self._terms = terms
        self._life = Life(first.at_us, first.head)
        self._out = Replayed()
        self._place = 1
        self._shift_us = 0
        self._now_us = first.at_us
        self._again = False
        self._happened: tuple[int, int] | None = None
        self._held: set[int] = set()
        self._listed: set[int] = set()
        self._helped: set[int] = set()
        self._out_of_turn = 0
        self._skipped: set[str] = set()

    def run(self) -> Replayed:
        for _ in range(_MOST_TURNS + 2 * len(self._steps)):
            if self._life.state in TERMINAL or self._out.unknown or not self._advance():
                break
        out, life = self._out, self._life
        out.state = life.state
        out.ended_us = life.since_us if life.state in TERMINAL else None
        out.learned = Learned(
            held=frozenset(self._held - self._helped),
            listed=frozenset(self._listed),
            helped=frozenset(self._helped),
            out_of_turn=self._out_of_turn,
        )
        return out

    def _advance(self) -> bool:
        """One more step of the history, or one more decision; False at the end."""
        head = self._head()
        while head is not None and head.kind == "outcome" and head.intent in self._skipped:
            self._place += 1
            head = self._head()
        found = head if head is not None and self._is_of_a_sweep(self._place) else None
        place = self._place if found is None else self._next_free(found)
        step = self._steps[place] if place is not None and place < len(self._steps) else None
        until_us = self._end_us(found) if step is None else self._due_us(step)
        turn = self._turn(found, until_us)
        if turn is not None:
            self._decide(turn)
        elif step is not None and place is not None:
            self._place = place
            self._let_happen(step, until_us)
        return turn is not None or step is not None

    def _end_us(self, found: Step | None) -> int:
        return self._terms.end_us if found is None else FOREVER_US

    def _head(self) -> Step | None:
        return self._steps[self._place] if self._place < len(self._steps) else None

    def _is_of_a_sweep(self, place: int) -> bool:
        step, learned = self._steps[place], self._terms.learned
        if step.kind == "drift":
            if learned is None:
                return self._is_stale_at(step.at_us)
            ended = self._life.state == "NEEDS_INTERVENTION" and step.state in TERMINAL
            return place not in learned.listed and not ended
        return step.by_sweep and step.kind in ("remedy", "escalated", "observed")

    def _is_stale_at(self, at_us: int) -> bool:
        limit = self._terms.policy.thresholds.get(self._life.state)
        return limit is not None and at_us - self._life.since_us > limit * 1e6

    def _next_free(self, found: Step) -> int | None:
        """What happens next though the sweep does not do what it did in the history."""
        moves_nothing = found.kind in ("escalated", "observed") or found.in_vain
        for place in range(self._place + 1, len(self._steps)):
            step = self._steps[place]
            ours = step.by_sweep or step.kind in ("drift", "outcome")
            if step.by_person or (moves_nothing and not ours):
                return place
            if moves_nothing and step.by_sweep and step.kind == "remedy" and not step.in_vain:
                moves_nothing = False
        return None

    def _due_us(self, step: Step) -> int:
        moved_us = step.at_us if step.by_person else step.at_us + self._shift_us
        return max(self._now_us, moved_us)

    # ------------------------------------------------------------------ whose turn it is

    def _turn(self, found: Step | None, until_us: int) -> _Turn | None:
        """The first sweep before that time that gets to it."""
        if self._life.state == "NEEDS_INTERVENTION":
            return None
        if self._terms.learned is None:
            return self._turn_as_recorded(found, until_us)
        if found is not None and self._again:
            return _Turn(max(self._now_us, found.at_us + self._shift_us), found)
        learned = self._terms.learned
        for sweep, at_us in self._sweeps(found, until_us):
            if sweep.first_us not in learned.held and not self._terms.closed(sweep):
                return _Turn(at_us, found)
        return None

    def _turn_as_recorded(self, found: Step | None, until_us: int) -> _Turn | None:
        end_us = until_us if found is None else found.at_us
        due = False
        for sweep, at_us in self._sweeps(found, end_us + 1):
            if found is not None and at_us == found.at_us:
                due = True
                self._helped.add(sweep.first_us)
            elif at_us < end_us:
                self._held.add(sweep.first_us)
        if found is None:
            return None
        self._out_of_turn += not (due or self._again)
        return _Turn(found.at_us, found)

    def _sweeps(self, found: Step | None, until_us: int) -> Iterator[tuple[Sweep, int]]:
        """Those in which it is due, and when in each of them."""
        limit = self._terms.policy.thresholds.get(self._life.state)
        if limit is None or (self._terms.policy.observe_only and not _is_seen(found)):
            return
        due_us = self._life.since_us + int(limit * 1e6)
        busy_us = self._life.busy_until_us
        if found is not None and found.kind == "drift":
            busy_us = min(busy_us, self._happened_us(found) - 1)
        from_us = max(due_us, busy_us, self._now_us - 1)
        for sweep in self._terms.sweeps.after(from_us):
            at_us = sweep.first_us
            if found is not None and sweep.first_us <= found.at_us <= sweep.last_us:
                at_us = found.at_us
            if at_us >= until_us:
                break
            if at_us > from_us:
                yield sweep, at_us

    # ------------------------------------------------------------------ what happens then

    def _let_happen(self, step: Step, at_us: int) -> None:
        self._now_us = at_us
        self._again = False
        if step.by_person:
            self._shift_us = 0
        if step.kind == "world":
            self._life.happen(step, at_us)
        elif step.kind == "drift":
            if self._terms.learned is None:
                self._listed.add(self._place)
            self._life.correct(step, at_us)
        elif step.kind == "outcome":
            self._life.settle(step, at_us)
            self._again = step.outcome == "conflict"
        elif step.strategy is not None:
            self._life.begin(step.strategy, at_us, step, FOREVER_US)
        self._place += 1

    def _decide(self, turn: _Turn) -> None:
        self._now_us = turn.at_us
        found = turn.found
        if found is not None and found.kind == "drift":
            if turn.at_us >= self._happened_us(found):
                self._shift_us = turn.at_us - found.at_us
                self._life.correct(found, turn.at_us)
                self._place += 1
                return
            found = None
        diagnosis = self._diagnosis(found, turn.at_us)
        strategy = STRATEGY_OF.get(diagnosis.action)
        if strategy is None:
            self._escalate(diagnosis, found, turn.at_us)
        elif self._is_another_time(found, turn.at_us) and self._meets_weather(
            strategy, diagnosis, found, turn.at_us
        ):
            return
        elif found is None or self._goes_on_anyhow(found):
            self._try_needlessly(strategy, diagnosis, found, turn.at_us)
        elif found.kind == "remedy" and found.strategy == strategy:
            self._try_as_recorded(strategy, diagnosis, found, turn.at_us)
        else:
            self._try_the_unknown(strategy, diagnosis, turn.at_us)

    def _is_another_time(self, found: Step | None, at_us: int) -> bool:
        """What is done when it was done comes to what it came to."""
        made = found is not None and found.kind == "remedy" and found.at_us == at_us
        return self._terms.learned is not None and not made

    def _meets_weather(
        self, strategy: Strategy, diagnosis: Diagnosis, found: Step | None, at_us: int
    ) -> bool:
        """Whether that settles it: nobody answers now, or nobody answered then."""
        vain_then = found is not None and found.in_vain and found.strategy == strategy
        vain_now = self._terms.in_vain(strategy, at_us)
        if vain_then and found is not None:
            self._skipped.add(found.intent)
            self._place += 1
        if vain_now:
            attempt = self._life.try_in_vain(strategy, at_us, self._terms.verify_us)
            self._choose(strategy, diagnosis, at_us, attempt, in_vain=True)
        return vain_then or vain_now

    def _happened_us(self, found: Step) -> int:
        """When the world had moved on, though nobody told."""
        if self._terms.learned is None:
            return found.at_us
        if self._happened is None or self._happened[0] != self._place:
            usual = self._terms.usual_us.get(self._life.state)
            seen_us = found.at_us + self._shift_us
            at_us = seen_us if usual is None else min(seen_us, self._life.since_us + usual)
            self._happened = (self._place, at_us)
        return self._happened[1]

    def _diagnosis(self, found: Step | None, at_us: int) -> Diagnosis:
        terms = self._terms
        reopened = sum(closed_us < at_us for closed_us in terms.reopened)
        case = self._life.case(found, reopened)
        diagnosis = diagnosed(case, at_us / 1e6, terms.policy, heal_unlisted=terms.heal_unlisted)
        if found is not None and _ends_all_tries(found):
            finding = diagnosis.finding._replace(rule=found.rule)
            return diagnosis._replace(
                finding=finding, action="NEEDS_INTERVENTION", reason=found.reason
            )
        return diagnosis

    def _goes_on_anyhow(self, found: Step) -> bool:
        """Whether the history shows that the world moved on after we had given it to a person."""
        if found.kind not in ("escalated", "observed"):
            return False
        place = self._next_free(found)
        return place is not None and not self._steps[place].by_person

    def _escalate(self, diagnosis: Diagnosis, found: Step | None, at_us: int) -> None:
        if diagnosis.action == "NO_ACTION":
            self._life.busy_until_us = at_us
            return
        self._choose(ESCALATE, diagnosis, at_us, 0, needless=found is None)
        self._life.escalate(at_us)
        if found is not None and found.kind in ("escalated", "observed"):
            self._place += 1

    def _try_as_recorded(
        self, strategy: Strategy, diagnosis: Diagnosis, found: Step, at_us: int
    ) -> None:
        self._shift_us = at_us - found.at_us
        attempt = self._life.begin(strategy, at_us, found, FOREVER_US)
        self._choose(strategy, diagnosis, at_us, attempt, in_vain=found.in_vain)
        self._place += 1

    def _try_needlessly(
        self, strategy: Strategy, diagnosis: Diagnosis, found: Step | None, at_us: int
    ) -> None:
        attempt = self._life.begin(strategy, at_us, None, self._terms.verify_us)
        self._choose(strategy, diagnosis, at_us, attempt, needless=True)
        if found is not None:
            self._place += 1

    def _try_the_unknown(self, strategy: Strategy, diagnosis: Diagnosis, at_us: int) -> None:
        out = self._out
        out.tried, out.tries = strategy, max(1, diagnosis.budget_left or 1)
        out.unknown = f"{strategy} was never tried there"
        attempt = self._life.begin(strategy, at_us, None, self._terms.verify_us)
        self._choose(strategy, diagnosis, at_us, attempt)

    def _choose(
        self,
        what: str,
        diagnosis: Diagnosis,
        at_us: int,
        attempt: int,
        *,
        needless: bool = False,
        in_vain: bool = False,
    ) -> None:
        rule, reason = diagnosis.finding.rule, diagnosis.reason
        self._again = False
        self._out.choices.append(Choice(at_us, what, rule, reason, attempt, needless, in_vain))


def _is_seen(found: Step | None) -> bool:
    return found is not None and found.kind == "drift"


def _ends_all_tries(found: Step) -> bool:
    return found.rule == "gone" or found.reason.startswith("Nobody answered")


def traces_of(history: History, policy: RepoPolicy) -> list[int]:
    """The times at which sweeps did something here, under the policy of that time."""
    listed: Collection[int] = ()
    if any(step.kind == "drift" for step in history.steps):
        listed = replay(history, Terms(policy=policy, sweeps=Sweeps(()))).learned.listed
    return [
        step.at_us
        for place, step in enumerate(history.steps)
        if step.by_sweep or (step.kind == "drift" and place not in listed)
    ]
