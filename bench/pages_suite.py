"""The suite of the dashboard's pages at a large fleet."""

from __future__ import annotations

from bench.pages_visit import EVENTS, PULLS, pages
from bench.plan import Column, Contender, Figure, Goal, Suite

_SHOWN = (
    "fleet", "state", "stale", "rule", "search", "search, none", "pull", "long log", "health",
    "health, 30 days", "inbox", "jobs", "runs",
)  # fmt: skip

PAGES_SUITE = Suite(
    "pages",
    "The dashboard's pages",
    f"{PULLS:,} pull requests in 200 repositories with {EVENTS:,} events, {2 * PULLS:,} deliveries "
    f"and jobs, {PULLS // 5:,} fix runs, on SQLite. Each page and each filter is asked for over "
    "HTTP by somebody who is signed in, one at a time; nothing is kept between two. One pull "
    "request has a log of 5,000 lines. The server has no workers. A column is the p95 of a page "
    "in ms; the slowest is that of all, also those that are not shown.",
    (Contender("towline-sqlite", "ours", "`towline serve` without workers", pages),),
    (
        Column("slowest.p50_ms", "slowest page, p50", 1),
        Column("slowest.p95_ms", "slowest page, p95", 1),
        Column("fleet.kb", "fleet, kB"),
        *(Column(f"{name}.p95_ms", name, 1) for name in _SHOWN),
        Column("fill_s", "filling, s"),
    ),
    (
        Goal("slowest page, p95 ms", Figure("towline-sqlite", "slowest.p95_ms"), at_most=100),
        Goal("fleet page, kB", Figure("towline-sqlite", "fleet.kb"), at_most=300),
    ),
    page="tow",
)
