"""A fleet's history under its own policy and under another one, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from towline.core.backtest_history import History, Step
from towline.core.backtest_terms import ESCALATE, Choice, Learned, Replayed
from towline.core.budgets import Strategy, after_move
from towline.core.lifecycle import RESULT_OF, State
from towline.core.snapshot import PullRef

MODEL: Final = (
    "What the world did by itself happens at the same times, and so does what people did.",
    "What followed a remedy follows it after the same delay when it is made at another time.",
    "A remedy that is not made has no consequences; an escalation moves nothing.",
    "A remedy in a wait that ended by itself is needless: it costs a try and changes nothing else.",
    "A remedy that was never tried there may help or not: the range has both.",
    "Sweeps that got to nobody who was due (a breaker, an outage) get to nobody still.",
    "A remedy at a time at which nobody answered it anywhere is in vain, and its try is returned.",
)
FEWEST_TRIES: Final = 5
_MOST_DIFFERENCES: Final = 1000
_SAME_US: Final = 1_000_000


class Difference(NamedTuple):
    ref: PullRef
    what: str
    why: str
    state_before: State
    state_after: State | None
    """None if it is not known."""
    first_before_us: int | None
    first_after_us: int | None
    merged_before_us: int | None
    """How long it took from its opening."""
    merged_after_us: int | None


@dataclass(slots=True)
class Side:
    """What a policy came to."""

    merged: int = 0
    escalated: int = 0
    """Pull requests that were given to a person, at least once."""
    escalations: int = 0
    remedies: Counter[str] = field(default_factory=Counter)
    needless: int = 0
    in_vain: int = 0
    """Remedies that nobody answered; their tries were returned."""
    premature: int = 0
    """Escalations of what went on by itself."""
    first_seconds: Counter[int] = field(default_factory=Counter)
    """From the opening to the first remedy or escalation."""
    merge_seconds: Counter[int] = field(default_factory=Counter)
    """From the opening to the merge, of those that both sides merged."""

    def add(self, history: History, replayed: Replayed) -> None:
        self.merged += replayed.state == "MERGED"
        escalations = [choice for choice in replayed.choices if choice.what == ESCALATE]
        self.escalated += bool(escalations)
        self.escalations += len(escalations)
        self.premature += sum(choice.needless for choice in escalations)
        for choice in replayed.choices:
            if choice.what != ESCALATE:
                self.remedies[choice.what] += 1
                self.needless += choice.needless
                self.in_vain += choice.in_vain
        if replayed.choices:
            first_us = replayed.choices[0].at_us - history.opened_us
            self.first_seconds[round(first_us / 1e6)] += 1


@dataclass(slots=True)
class Tries:
    """How often a remedy helped: a state was seen that lets its count start anew."""

    made: int = 0
    helped: int = 0

    @property
    def share(self) -> float | None:
        return self.helped / self.made if self.made >= FEWEST_TRIES else None


@dataclass(slots=True)
class Experience:
    """What remedies came to, by repository and over all of them."""

    tries: dict[tuple[str, str], Tries] = field(default_factory=dict)

    def add(self, history: History) -> None:
        for place, step in enumerate(history.steps):
            if step.kind != "remedy" or step.strategy is None:
                continue
            helped = has_helped(step.strategy, history.steps[place + 1 :])
            for repo in (history.ref.repo, ""):
                tries = self.tries.setdefault((repo, step.strategy), Tries())
                tries.made += 1
                tries.helped += helped

    def share(self, repo: str, strategy: Strategy) -> float | None:
        """In this repository; over all where too few were made there; None if too few at all."""
        for place in (repo, ""):
            share = self.tries.get((place, strategy), Tries()).share
            if share is not None:
                return share
        return None


def has_helped(strategy: Strategy, afterwards: Sequence[Step]) -> bool:
    for step in afterwards:
        if step.kind == "escalated" or (step.kind == "remedy" and step.strategy == strategy):
            return False
        reached = step.state or (RESULT_OF.get(step.happening) if step.happening else None)
        if reached == "CLOSED":
            return strategy == "close_and_reopen"
        if reached and not after_move({strategy: 1}, [reached], step.substatus)[strategy]:
            return True
    return False


@dataclass(slots=True)
class Comparison:
    """`expected` of the unknown ones need no person, as far as experience tells."""

    before: Side = field(default_factory=Side)
    after: Side = field(default_factory=Side)
    pulls: int = 0
    unread: int = 0
    """Pull requests whose log does not begin with their opening."""
    faithful: int = 0
    unfaithful: list[PullRef] = field(default_factory=list)
    held: int = 0
    """Sweeps that did not get to one that was due, counted for each."""
    unknown: int = 0
    untold: int = 0
    """Unknown ones for which there is too little experience to expect anything."""
    expected: float = 0.0
    absent: int = 0
    """Replacements of what would not have been closed."""
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)

    def tell_faith(
        self,
        history: History,
        same: Replayed,
        done: Sequence[Choice],
        state: State,
        learned: Learned,
    ) -> None:
        """Whether the replay under the same policy did exactly what was done."""
        self.held += len(learned.held)
        if same.state == state and same.choices == list(done) and not learned.out_of_turn:
            self.faithful += 1
        else:
            self.unfaithful.append(history.ref)

    def add(self, history: History, before: Replayed, after: Replayed, share: float | None) -> None:
        """`share` is how often the remedy that is unknown there helped."""
        self.pulls += 1
        self.before.add(history, before)
        self.after.add(history, after)
        if after.unknown:
            self.unknown += 1
            self.untold += share is None
            self.expected += 0.0 if share is None else 1 - (1 - share) ** after.tries
        if before.state == after.state == "MERGED" and before.ended_us and after.ended_us:
            for side, ended_us in ((self.before, before.ended_us), (self.after, after.ended_us)):
                side.merge_seconds[round((ended_us - history.opened_us) / 1e6)] += 1
        difference = difference_of(history, before, after)
        if difference is not None:
            self.differing += 1
            if len(self.differences) < _MOST_DIFFERENCES:
                self.differences.append(difference)

    def add_absent(self, history: History, before: Replayed) -> None:
        """It replaced one that would not have been closed."""
        self.pulls += 1
        self.absent += 1
        self.differing += 1
        self.before.add(history, before)
        what, why = "would not exist", "the one that it replaces would not have been closed"
        self.differences.append(_described(history, before, None, what, why))

    @property
    def escalated_range(self) -> tuple[int, int]:
        """Of pull requests under the other policy that need a person: if all unknown remedies
        help, and if none does."""
        return self.after.escalated, self.after.escalated + self.unknown


def quantile(counted: Counter[int], share: float) -> int | None:
    """The smallest value that at least this share does not exceed."""
    wanted, so_far = share * counted.total(), 0
    for value in sorted(counted):
        so_far += counted[value]
        if so_far >= wanted:
            return value
    return None


def difference_of(history: History, before: Replayed, after: Replayed) -> Difference | None:
    """None if both did the same at the same time, to the second, and came to the same end."""
    for place in range(max(len(before.choices), len(after.choices))):
        old = before.choices[place] if place < len(before.choices) else None
        new = after.choices[place] if place < len(after.choices) else None
        if not _same(old, new):
            what, why = _told(old, new, after)
            return _described(history, before, after, what, why)
    if before.state != after.state or _apart(before.ended_us, after.ended_us):
        return _described(history, before, after, "found at another time", "a missed event")
    return None


def _described(
    history: History, before: Replayed, after: Replayed | None, what: str, why: str
) -> Difference:
    known = after is not None and not after.unknown
    return Difference(
        ref=history.ref,
        what=what,
        why=why,
        state_before=before.state,
        state_after=after.state if after is not None and known else None,
        first_before_us=before.choices[0].at_us if before.choices else None,
        first_after_us=after.choices[0].at_us if after is not None and after.choices else None,
        merged_before_us=_merged_after(history, before),
        merged_after_us=_merged_after(history, after) if after is not None and known else None,
    )


def _merged_after(history: History, replayed: Replayed) -> int | None:
    merged = replayed.state == "MERGED" and replayed.ended_us is not None
    return (replayed.ended_us or 0) - history.opened_us if merged else None


def _same(old: Choice | None, new: Choice | None) -> bool:
    if old is None or new is None:
        return False
    return old.what == new.what and not _apart(old.at_us, new.at_us)


def _apart(one_us: int | None, other_us: int | None) -> bool:
    if one_us is None or other_us is None:
        return one_us is not other_us
    return abs(one_us - other_us) >= _SAME_US


def _told(old: Choice | None, new: Choice | None, after: Replayed) -> tuple[str, str]:
    if new is None and old is not None:
        moved = "it would have moved on by itself first"
        why = moved if after.state != "NEEDS_INTERVENTION" else "it would be with a person by then"
        return f"no {old.what}", why
    if new is None:
        return "", ""
    why = f"{new.rule}: {new.reason}"
    if new.what == ESCALATE and new.needless:
        what = "given to a person too early: it went on by itself"
    elif old is None or new.needless:
        what = f"{new.what} besides, needlessly" if new.needless else f"{new.what} besides"
    elif old.what == new.what:
        minutes = (new.at_us - old.at_us) / 60e6
        when = f"{abs(minutes):.0f} min {'earlier' if minutes < 0 else 'later'}"
        what = f"{new.what} {when}"
    else:
        what = f"{new.what} instead of {old.what}"
    if new.in_vain:
        what = f"{what}, in vain: nobody answered then"
    return (f"{what}; what comes of it is not known" if after.unknown else what), why
