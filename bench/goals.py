"""Every goal in one table, `goals.md`, with its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

from bench.chart import Bar, Panel, Picture, svg
from bench.figures import Spread, verdict
from bench.plan import Suite
from bench.results import Results, SuiteResult
from bench.suites import SUITES

_LABELS = 390
_MOST_SHOWN = 10.0
"""Beyond that a goal is no longer interesting, and would make the others short."""
_INTRODUCTION = """\
# All figures

Every goal that was set, and what was measured; made by `make bench` together with the pages that
explain how: [the core](core.md), [the front door](door.md), [the tow](tow.md) and
[the scale](scale.md). Of the {measured} that were measured {holding} hold.
"""
_PICTURE = "How much of its goal each figure reaches, logarithmic: from 1 on it holds"


def write_goals(results: Results, docs: Path) -> None:
    known = [
        (suite, results.suites[suite.name])
        for suite in SUITES.values()
        if suite.name in results.suites
    ]
    found = [verdict(result.samples, goal) for suite, result in known for goal in suite.goals]
    measured = [one for one in found if one is not None]
    holding = sum(one.holds for one in measured)
    lines = [
        _INTRODUCTION.format(holding=holding, measured=len(measured)),
        f"![{_PICTURE}](goals.svg)",
        "",
        *goals_table(known),
    ]
    (docs / "goals.md").write_text("\n".join(lines).rstrip() + "\n")
    (docs / "goals.svg").write_text(svg(Picture("goals", [_panel(known)])))


def goals_table(known: Sequence[tuple[Suite, SuiteResult]]) -> Iterator[str]:
    yield from ("## Goals", "", "| suite | figure | goal | measured | |", "|---|---|---|---|---|")
    for suite, result in known:
        for goal in suite.goals:
            found = verdict(result.samples, goal)
            if found is None:
                yield f"| {suite.name} | {goal.text} | {goal.bound} | not measured | |"
                continue
            mark = "holds" if found.holds else "**missed**"
            yield f"| {suite.name} | {goal.text} | {goal.bound} | {found.measured} | {mark} |"
    yield ""


def _panel(known: Sequence[tuple[Suite, SuiteResult]]) -> Panel:
    bars = []
    for suite, result in known:
        for goal in suite.goals:
            found = verdict(result.samples, goal)
            if found is not None:
                kind = "ours" if found.holds else "missed"
                bars.append(Bar(f"{suite.name}: {goal.text}", kind, _shown(found.reached)))
    return Panel(_PICTURE, True, bars, _LABELS)


def _shown(reached: Spread) -> Spread:
    median, low, high = (min(value, _MOST_SHOWN) for value in astuple(reached))
    return Spread(median, low, high)
