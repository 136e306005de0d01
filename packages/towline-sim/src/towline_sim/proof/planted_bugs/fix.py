"""Planted bugs of fix runs."""

from __future__ import annotations

from functools import partial
from typing import Final

from towline_sim.proof.mutations import Edit, Mutation

_RUNS: Final = "towline.fix.store"

row = partial(Mutation, "fix", area="fix runs", not_found="40 seeds")

ROWS: Final = (
    row("attempt-keeps-its-token", "a run has its token",
        [Edit(f"{_RUNS}:BEGIN", "token = {{epoch}}", "token = towline_runs.token")]),
    row("revived-while-alive", "a run that waits has no job",
        [Edit(f"{_RUNS}:STRANDED", "(r.updated_us <= {{now}} - (SELECT idle_us FROM b)",
              "(r.updated_us <= {{now}}"),
         Edit(f"{_RUNS}:STRANDED", "coalesce(r.starts_us, 0) <= {{now}} - (SELECT idle_us FROM b)",
              "coalesce(r.starts_us, 0) <= {{now}}")]),
    row("unblocked-keeps-its-token", "nobody works on a blocked run",
        [Edit(f"{_RUNS}:UNBLOCK", "token = {epoch},", "")]),
)  # fmt: skip
