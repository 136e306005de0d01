"""`python -m bench [suite …]`: measure, show a table, write the page of figures."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.chart import pictures, svg
from bench.figures import Sample, paired, spread, verdict, written
from bench.goals import write_goals
from bench.machine import description, versions
from bench.page import page, pages
from bench.plan import Figure, Suite
from bench.results import Results, SuiteResult
from bench.runner import ROOT, Stage, samples
from bench.suites import SUITES

DOCS = ROOT / "docs" / "benchmarks"
KEPT = "results.json"

console = Console()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"any of {', '.join(SUITES)}")
    parser.add_argument("--rounds", type=int, help="default 3, or 1 if quick or long")
    parser.add_argument(
        "--more", action="store_true", help="add the rounds to those that the page has"
    )
    parser.add_argument("--quick", action="store_true", help="short samples, no page")
    parser.add_argument("--json", type=Path, help="write the samples to this file as well")
    parser.add_argument("--docs", type=Path, help="write the page here; default docs/benchmarks")
    asked = parser.parse_args()
    unknown = set(asked.suites) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    if asked.rounds is not None and asked.rounds < 1:
        parser.error("--rounds is at least 1")
    if asked.more and asked.quick:
        parser.error("--more is for full samples: those of --quick cannot be compared with them")
    return asked


def main() -> int:
    asked = arguments()
    chosen = [SUITES[name] for name in asked.suites or SUITES]
    rounds = {suite.name: asked.rounds or (1 if asked.quick else suite.rounds) for suite in chosen}
    with Stage() as stage:
        results = Results(description(stage.folder), versions())
        measure(stage, chosen, rounds, asked.quick, results)
    if asked.more:
        results.join_older((asked.docs or DOCS) / KEPT)
    for suite in chosen:
        show(suite, results.suites[suite.name])
    if any(suite.goals for suite in chosen):
        show_goals(chosen, results)
    if asked.json:
        results.save(asked.json)
    docs = asked.docs or (None if asked.quick else DOCS)
    if docs is not None:
        write_docs(results, docs)
    failed = [
        sample for suite in results.suites.values() for sample in suite.samples if sample.error
    ]
    return 1 if failed else 0


def measure(
    stage: Stage, chosen: list[Suite], rounds: dict[str, int], quick: bool, results: Results
) -> None:
    columns = (
        TextColumn("{task.description:<44}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=sum(rounds[s.name] * len(s.contenders) for s in chosen))
        for suite in chosen:
            result = SuiteResult(f"{datetime.now(UTC):%Y-%m-%d}", rounds[suite.name], quick)
            results.suites[suite.name] = result
            progress.update(task, description=suite.name)
            for sample in samples(stage, suite, rounds[suite.name], quick):
                result.samples.append(sample)
                if sample.error:
                    progress.print(f"[red]{suite.name} {sample.contender}[/]:", sample.error)
                progress.update(task, advance=1, description=f"{suite.name}: {sample.contender}")


def show(suite: Suite, result: SuiteResult) -> None:
    table = Table(title=suite.title, title_justify="left", title_style="bold")
    table.add_column("contender")
    for column in suite.columns:
        table.add_column(column.title, justify="right", overflow="fold")
    if suite.compared_to:
        table.add_column(f"× {suite.compared_to}", justify="right")
    for contender in suite.contenders:
        cells = [
            cell(result.samples, Figure(contender.name, column.metric), column.decimals)
            for column in suite.columns
        ]
        if suite.compared_to:
            metric = suite.columns[0].metric
            other = Figure(suite.compared_to, metric)
            ratio = paired(result.samples, Figure(contender.name, metric), other)
            cells.append(written(ratio.median, 2) if ratio else "–")
        style = "green" if contender.kind == "ours" else "dim" if contender.kind == "floor" else ""
        table.add_row(contender.name, *cells, style=style)
    console.print(table)
    for sample in result.disturbed:
        console.print(
            f"  disturbed: {sample.contender}, round {sample.round + 1}: "
            f"others used {sample.other:.0%} of the processors",
            style="yellow",
        )


def cell(taken: list[Sample], figure: Figure, decimals: int) -> str:
    found = spread(taken, figure)
    if found is None:
        return "–"
    if found.low == found.high:
        return written(found.median, decimals)
    low, high = written(found.low, decimals), written(found.high, decimals)
    return f"{written(found.median, decimals)}\n{low}..{high}"


def show_goals(chosen: list[Suite], results: Results) -> None:
    table = Table(title="Goals", title_justify="left", title_style="bold")
    for title in ("suite", "figure", "goal", "measured", ""):
        table.add_column(title)
    for suite in chosen:
        for goal in suite.goals:
            found = verdict(results.suites[suite.name].samples, goal)
            if found is None:
                table.add_row(suite.name, goal.text, goal.bound, "–", "not measured")
                continue
            mark = "[green]holds[/]" if found.holds else "[red]missed[/]"
            table.add_row(suite.name, goal.text, goal.bound, found.measured, mark)
    console.print(table)


def write_docs(results: Results, docs: Path) -> None:
    """Suites that were not measured now keep the figures of an earlier run, and their page."""
    kept = docs / KEPT
    written_now = pages(results)
    results.absorb_older(kept)
    results.save(kept)
    for name in written_now:
        (docs / f"{name}.md").write_text(page(results, name))
        for picture in pictures(results, name):
            (docs / f"{picture.name}.svg").write_text(svg(picture))
    write_goals(results, docs)
    console.print(f"Written to {docs}")


if __name__ == "__main__":
    sys.exit(main())
