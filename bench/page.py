"""The pages of figures, `core.md`, `door.md`, `tow.md` and `scale.md`, made of the results."""

from __future__ import annotations

from collections.abc import Iterator

from bench.chart import pictures
from bench.figures import DISTURBED, Spread, paired, spread, written
from bench.goals import goals_table
from bench.plan import Figure, Page, Suite
from bench.results import Results, SuiteResult
from bench.suites import SUITES

_TITLES: dict[Page, str] = {
    "core": "Figures of the core",
    "door": "Figures of the front door",
    "tow": "Figures of the tow",
    "scale": "Figures of the scale",
}
_EXAMPLES: dict[Page, str] = {
    "core": "cycle-redis", "door": "jobs", "tow": "stale", "scale": "startup",
}  # fmt: skip
_INTRODUCTION = """\
# {title}

Made by `make bench`; `make bench BENCH_ARGS="{suite} --rounds 5"` measures one suite again.
Absolute figures belong to one machine: read the ratios.

Each sample is a fresh process. Contenders take turns, every other round backwards, and the order
rotates after two rounds. A cell is the median of the rounds and, in brackets, the lowest and the
highest. A ratio is taken within each round, and then the median of these. Every asyncio
contender, Towline or not, runs under uvloop. Client and server share the machine's processors.
Differences under a third are noise here.
"""

_KINDS = {"ours": "**Towline**", "floor": "floor", "peer": "peer"}


def pages(results: Results) -> list[Page]:
    """Those that have any figures."""
    return [name for name in _TITLES if any(SUITES[s].page == name for s in results.suites)]


def page(results: Results, name: Page) -> str:
    known = [
        (suite, results.suites[suite.name])
        for suite in SUITES.values()
        if suite.page == name and suite.name in results.suites
    ]
    lines = [_INTRODUCTION.format(title=_TITLES[name], suite=_EXAMPLES[name])]
    lines += goals_table(known)
    for picture in pictures(results, name):
        lines += [f"![{picture.title}]({picture.name}.svg)", ""]
    for suite, result in known:
        lines += _section(suite, result)
    lines += _disturbances(known)
    lines += _facts("Machine", results.machine)
    lines += _facts("Versions", results.versions)
    return "\n".join(lines).rstrip() + "\n"


def _section(suite: Suite, result: SuiteResult) -> Iterator[str]:
    yield from (f"## {suite.title}", "", suite.about, "")
    heads = ["contender", "kind", *(column.title for column in suite.columns)]
    if suite.compared_to:
        heads.insert(2, f"times {suite.compared_to}")
    yield f"| {' | '.join(heads)} |"
    yield "|" + "---|" * len(heads)
    for contender in suite.contenders:
        cells = [f"`{contender.name}`: {contender.about}", _KINDS[contender.kind]]
        if suite.compared_to:
            cells.append(_ratio(suite, result, contender.name))
        for column in suite.columns:
            found = spread(result.samples, Figure(contender.name, column.metric))
            cells.append(_cell(found, column.decimals))
        yield f"| {' | '.join(cells)} |"
    kind = "a quick run: an indication only" if result.quick else "a full run"
    rounds = "1 round" if result.rounds == 1 else f"{result.rounds} rounds"
    yield from ("", f"{rounds} on {result.date}, {kind}.", "")


def _ratio(suite: Suite, result: SuiteResult, name: str) -> str:
    metric = suite.columns[0].metric
    found = paired(result.samples, Figure(name, metric), Figure(suite.compared_to, metric))
    return "" if found is None else written(found.median, 2)


def _cell(found: Spread | None, decimals: int) -> str:
    if found is None:
        return "–"
    middle, low, high = (written(v, decimals) for v in (found.median, found.low, found.high))
    return middle if found.low == found.high else f"{middle} ({low}..{high})"


def _disturbances(known: list[tuple[Suite, SuiteResult]]) -> Iterator[str]:
    yield from ("## Disturbances", "")
    total = sum(len(result.samples) for _, result in known)
    struck = [(suite, sample) for suite, result in known for sample in result.disturbed]
    yield (
        f"{len(struck)} of {total} samples were taken while processes that have nothing to do "
        f"with the run used more than {DISTURBED:.0%} of the processors."
    )
    yield ""
    for suite, sample in struck:
        place = f"{suite.name}, `{sample.contender}`, round {sample.round + 1}"
        yield f"- {place}: {sample.other:.0%}"
    yield ""


def _facts(title: str, facts: dict[str, str]) -> Iterator[str]:
    yield from (f"## {title}", "", "| | |", "|---|---|")
    yield from (f"| {name} | {value} |" for name, value in facts.items())
    yield ""
