"""`towline simulate`: everything goes wrong, and nothing may be lost or done twice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from towline_once.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from towline_sim.proof.gate import Caught
    from towline_sim.proof.mutations import Mutation
    from towline_sim.proof.run_seed import Played
    from towline_sim.proof.sweep import Summary

_MOST_SEEDS = 10_000_000
_SEEDS_PER_SAFEGUARD = 300
_USUAL_SEEDS = 200

_Seeds = Annotated[
    int | None,
    typer.Option(help="How many seeds to play; 200 if neither this nor --seed is given."),
]
_Seed = Annotated[
    int | None,
    typer.Option(help="The first seed; without --seeds the only one, to repeat a failure."),
]
_First = Annotated[int | None, typer.Option("--from", help="The first seed.")]
_Trace = Annotated[bool, typer.Option(help="Print everything that happened; for a single seed.")]
_Jobs = Annotated[int | None, typer.Option(help="Processes to use; all cores if not given.")]
_Gate = Annotated[
    bool,
    typer.Option(
        "--mutations",
        help="Remove each safeguard in turn, and plant bugs: each must be detected.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    seeds: _Seeds = None,
    first: _First = None,
    seed: _Seed = None,
    trace: _Trace = False,
    jobs: _Jobs = None,
    mutations: _Gate = False,
    as_json: _Json = False,
) -> None:
    """Run the product on a virtual clock with random faults, and check what must hold."""
    count = seeds if seeds is not None else _USUAL_SEEDS if seed is None else 1
    if not 1 <= count <= _MOST_SEEDS:
        raise Rejected(f"--seeds is a number from 1 to {_MOST_SEEDS}, not {count}")
    if seed is not None and (first is not None or mutations):
        raise Rejected(f"--seed and {'--mutations' if mutations else '--from'} exclude each other")
    start = seed or first or 0
    if start < 0:
        raise Rejected("a seed is a whole number from 0 on")
    if trace and count != 1:
        raise Rejected("--trace needs --seed or --seeds 1: it prints one play")
    cores = jobs or os.cpu_count() or 1
    if not 1 <= cores <= 512:
        raise Rejected(f"--jobs is a number from 1 to 512, not {cores}")
    if mutations:
        _gate(cores, as_json)
    elif count == 1:
        _one(start, trace, as_json)
    else:
        _many(start, count, cores, as_json)


# ---------------------------------------------------------------------- one seed


def _one(seed: int, trace: bool, as_json: bool) -> None:
    """In a process of its own, whose sets have the order that they always have."""
    from towline.config import same_hashes_in_children

    if sys.flags.hash_randomization:
        same_hashes_in_children()
        os.execv(sys.executable, [sys.executable, "-m", "towline", *sys.argv[1:]])  # noqa: S606
    from towline_sim.proof.run_seed import play
    from towline_sim.proof.sweep import shrunk

    played = play(seed, trace=trace)
    faults = shrunk(seed) if played.violations else []
    if as_json:
        _print(_told_of_one(played, faults))
    else:
        for line in played.lines or ():
            print(line)
        _say_one(played, faults)
    raise typer.Exit(bool(played.violations))


def _told_of_one(played: Played, faults: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "seeds": 1,
        "seed": played.seed,
        "scene": played.scene,
        "virtual_hours": round(played.virtual_seconds / 3600, 4),
        "prs": played.prs,
        "faults": played.faults,
        "violations": _listed({played.seed: played.violations}),
        "trace_hash": played.trace_hash,
    }
    if faults:
        told["fewest_faults"] = faults
    if played.lines is not None:
        told["trace"] = played.lines
    return told


def _say_one(played: Played, faults: list[str]) -> None:
    print(
        f"seed {played.seed}: {played.scene}, {played.virtual_seconds:.0f} virtual seconds, "
        f"{sum(played.faults.values())} faults, trace {played.trace_hash}"
    )
    for violation in played.violations:
        print(f"  violated {violation}")
    for fault in faults:
        print(f"  needs    {fault}")


# ---------------------------------------------------------------------- many


def _many(first: int, count: int, jobs: int, as_json: bool) -> None:
    from towline_sim.proof.sweep import sweep

    with _progress("seeds", count) as advance:
        summary = sweep(first, count, jobs, advance)
    if as_json:
        _print(_told(summary))
    else:
        _say(summary)
    raise typer.Exit(bool(summary.violations))


def _told(summary: Summary) -> dict[str, Any]:
    return {
        "seeds": summary.seeds,
        "virtual_hours": round(summary.virtual_hours, 2),
        "prs": summary.prs,
        "commits": summary.commits,
        "faults": summary.faults,
        "scenes": summary.scenes,
        "violations": _listed(summary.violations),
    }


def _listed(violations: Mapping[int, list[str]]) -> list[dict[str, Any]]:
    return [
        {"seed": seed, "violation": what} for seed, found in violations.items() for what in found
    ]


def _say(summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{summary.seeds} seeds, {summary.virtual_hours:.1f} virtual hours")
    table.add_column("fault")
    table.add_column("times", justify="right")
    for kind, times in summary.faults.items():
        table.add_row(kind, f"{times:,}")
    console.print(table)
    scenes = ", ".join(f"{name} {times}" for name, times in summary.scenes.items())
    console.print(f"{summary.prs:,} pull requests, {summary.commits:,} commits; {scenes}")
    if not summary.violations:
        console.print("[green]no violation[/green]")
    for seed, found in summary.violations.items():
        console.print(f"[red]seed {seed}[/red]: {found[0]}")
    if summary.violations:
        console.print("replay one: towline simulate --seed N --trace")


# ---------------------------------------------------------------------- without safeguards


def _gate(jobs: int, as_json: bool) -> None:
    from towline_sim.proof.gate import try_all
    from towline_sim.proof.mutations import all_mutations
    from towline_sim.proof.planted_bugs import all_planted

    safeguards = all_mutations()
    known = safeguards | all_planted()
    with _progress("safeguards and planted bugs", len(known)) as advance:
        caught = []
        for one in try_all(list(known.values()), _SEEDS_PER_SAFEGUARD, jobs):
            caught.append(one)
            advance(1)
    survived = [one for one in caught if one.seed is None]
    gone = [one for one in sorted(caught) if one.name in safeguards]
    planted = [one for one in sorted(caught) if one.name not in safeguards]
    if as_json:
        groups = {"mutations": gone, "planted": planted}
        told = {group: [one._asdict() for one in found] for group, found in groups.items()}
        _print({**told, "survived": len(survived)})
    else:
        _show_gate([(one, known[one.name]) for one in (*gone, *planted)])
        print(f"{_noticed(gone)} of {len(gone)} safeguards are missed when gone")
        print(f"{_noticed(planted)} of {len(planted)} planted bugs are found")
    raise typer.Exit(bool(survived))


def _show_gate(tried: Sequence[tuple[Caught, Mutation]]) -> None:
    from rich.text import Text

    from towline.cli.listing import Column, show_rows

    columns = (Column("taken out"), Column("scene"), Column("found"), Column("rule", folds=True))
    rows = []
    for one, known in tried:
        found = Text("SURVIVED", style="bold red")
        if one.seed is not None:
            found = Text(f"seed {one.seed}, after {one.tried}", style="green")
        rows.append([Text(one.name), Text(known.scene), found, Text(known.rule)])
    show_rows(columns, rows)


def _noticed(tried: Sequence[Caught]) -> int:
    return sum(one.seed is not None for one in tried)


def _print(told: object) -> None:
    print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; silence elsewhere."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
