"""A sweep over thousands of stale pull requests, at a GitHub that takes 100 ms for each call.

The forge is the simulator over real HTTP, in this process. All of them wait for the policy bot, and
it has passed them, but no webhook told of it: each has to be looked at, and none needs an action.
All bases have just moved, so that the forge works out anew whether each of them conflicts, and only
when it is asked; where they have not, it knows.

Points are those of GitHub's GraphQL limit, as the simulator charges them: one for each hundred
requests that the connections of a query would take one by one, and one at least.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from bench.plan import Bench, Metrics
from bench.raw_sqlite import new_file
from tests.clocks import ManualClock
from tests.hook_world import served
from towline.db import database_for
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef
from towline.jobs.store import JobStore
from towline.pulls.parking_store import Parking
from towline.pulls.policy import RepoPolicy, TowPolicy
from towline.pulls.signals import Signals, Towing
from towline.pulls.store import PullStore
from towline.pulls.tracker import Tracker
from towline.reconciler.sweep import Reconciler
from towline.remediation.breakers import Breakers
from towline.remediation.service import Remediator
from towline.remediation.triggers import Poker
from towline_once.backends import backend_over
from towline_once.coordination.circuit_breaker import BreakerService
from towline_once.coordination.circuit_breaker import Limits as BreakerLimits
from towline_once.db.statement import Database
from towline_once.metrics import audit_to_log
from towline_sim.github.faults import HttpFault
from towline_sim.github.limits import Limits
from towline_sim.github.server import GitHubSim
from towline_sim.github.world import World
from towline_sim.in_process import ROOT, snapshot_of

PULLS, LATENCY_SECONDS = 3_000, 0.1
FLEET, STALE_SHARE, SWEEPS_AN_HOUR = 100_000, 0.03, 12
_ONE_BY_ONE = 60
_REPOS = [f"octo-org/app-{place}" for place in range(20)]
AUTHOR, _TOKEN = "dependabot[bot]", "ghp_simulated_token"
_STALE_SECONDS = 2 * 3600.0
_CHECKS = ("build", "test")


def _policy() -> TowPolicy:
    return TowPolicy(
        general=RepoPolicy(signals=Signals(required=_CHECKS)),
        towing=Towing(authors=frozenset({AUTHOR})),
        own_logins=frozenset({"towline-bot"}),
        max_stale_per_sweep=PULLS,
    )


def peopled(clock: ManualClock, pulls: int) -> tuple[World, list[PullRef]]:
    """Green, and with the policy bot still at work."""
    world = World(clock.now_us() / 1e6)
    refs = []
    for repo in _REPOS:
        world.create_repo(repo, {"README.md": b"# app\n"})
        for login in (AUTHOR, "policy-bot[bot]"):
            world.set_permission(repo, login, "write")
    for place in range(pulls):
        repo, branch = _REPOS[place % len(_REPOS)], f"fix/{place}"
        world.create_ref(repo, f"refs/heads/{branch}", world.branch(repo, "main"), AUTHOR)
        world.write_files(repo, branch, {f"{place}.txt": b"fixed\n"}, f"Fix {place}", AUTHOR)
        pull = world.open_pull(repo, head=branch, base="main", title=f"Fix {place}", by=AUTHOR)
        for check in _CHECKS:
            world.set_status(repo, pull.head_sha, check, "success", AUTHOR)
        world.set_status(repo, pull.head_sha, "policy-bot", "pending", "policy-bot[bot]")
        refs.append(PullRef("github", repo, pull.number))
    return world, refs


async def _forgotten(
    bench: Bench, clock: ManualClock, world: World, refs: list[PullRef], *, moved: bool
) -> Database:
    """All are on record; then the policy bot passes them, and nobody is told. Bases may move."""
    database = database_for(f"sqlite:///{new_file(bench)}", clock)
    await database.connect()
    tracker = Tracker(PullStore(database), Parking(database), _policy().context)
    for ref in refs:
        pull = world.known_pull(ref.repo, ref.number)
        await tracker.observe(ref, snapshot_of(world, pull, ROOT))
        world.set_status(ref.repo, pull.head_sha, "policy-bot", "success", "policy-bot[bot]")
    clock.advance(_STALE_SECONDS)
    world.run_until(clock.now_us() / 1e6)
    for repo in _REPOS if moved else ():
        world.write_files(repo, "main", {"NEWS.md": b"Something else\n"}, "News", AUTHOR)
    return database


def _reconciler(database: Database, clock: ManualClock, forge: GitHubForge) -> Reconciler:
    policy, pulls, jobs = _policy(), PullStore(database), JobStore(database)
    forges = {"github": forge}
    shared = backend_over(database, clock)
    limits = BreakerLimits(900_000_000, 0.5, 5, 600_000_000)
    breakers = Breakers(
        lambda name: BreakerService(
            shared.documents, clock, name, limits, 60_000_000, audit_to_log
        ),
        jobs,
    )
    remediator = Remediator(pulls, forges, Poker(forges), policy, clock)
    return Reconciler(pulls, forges, remediator, breakers, policy, clock)


def sweep(
    *, graphql: bool = True, moved: bool = True, pulls: int = PULLS
) -> Callable[[Bench], Awaitable[Metrics]]:
    async def measure(bench: Bench) -> Metrics:
        count = bench.count(pulls)
        clock = ManualClock()
        world, refs = peopled(clock, count)
        database = await _forgotten(bench, clock, world, refs, moved=moved)
        sim = GitHubSim(world, clock, _TOKEN, limits=Limits.none())
        sim.faults.append(HttpFault(kind="slow", seconds=LATENCY_SECONDS))
        async with served(sim) as url:
            forge = GitHubForge(url, clock, token=_TOKEN, login="towline-bot", graphql=graphql)
            began = time.perf_counter()
            report = await _reconciler(database, clock, forge).sweep()
            seconds = time.perf_counter() - began
            calls, points = forge.calls.total, forge.calls.points
            await forge.aclose()
        await sim.aclose()
        await database.aclose()
        if report.drifted != count:
            raise RuntimeError(f"{report.drifted} of {count} were corrected: {report.trouble}")
        return {
            "seconds": seconds,
            "per_second": count / seconds,
            "calls": calls,
            "calls_per_25": calls / count * 25,
            "points_per_100": points / count * 100,
            "points_an_hour": points / count * FLEET * STALE_SHARE * SWEEPS_AN_HOUR,
        }

    return measure


batched = sweep()
bases_still = sweep(moved=False)
one_by_one = sweep(graphql=False, pulls=_ONE_BY_ONE)
