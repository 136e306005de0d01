"""Looking at many pull requests: few calls, whole lists, and ways around what does not work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.forges.github_script import (
    HEAD,
    REF,
    REPO,
    Asked,
    Naps,
    Play,
    Reply,
    ScriptedGitHub,
    played,
    pull,
)
from tests.hook_world import TOKEN, served
from tests.sim.github_server import REPO as SIM_REPO
from tests.sim.github_server import TOKEN as SIM_TOKEN
from tests.sim.github_server import Forge, forge
from towline.forges.delivery_log import ForgeUnavailable
from towline.forges.github.forge import GitHubForge
from towline.forges.snapshot import PullRef
from towline_once.errors import Rejected

PULL = f"GET /repos/{REPO}/pulls/7"
ASK = "POST /graphql"
WAITS = (1.5, 4.0)
RATE = {"cost": 2, "limit": 5000, "remaining": 4990, "resetAt": "2030-01-01T00:00:00Z"}


def node(**fields: Any) -> dict[str, Any]:
    """A pull request as GraphQL shows it."""
    return {
        "number": 7,
        "state": "OPEN",
        "mergeable": "MERGEABLE",
        "mergeStateStatus": "CLEAN",
        "headRefOid": HEAD,
        "headRefName": "bump",
        "updatedAt": "2026-01-02T03:04:05Z",
        **fields,
    }


def data(shown: Any, *errors: Any) -> Reply:
    body: dict[str, Any] = {"data": {"rateLimit": RATE, "r0": {"p7": shown}}}
    return Reply(200, body | ({"errors": list(errors)} if errors else {}))


def error(message: str, kind: str | None = None, path: Any = None) -> dict[str, Any]:
    given = {"message": message, "type": kind, "path": path}
    return {name: value for name, value in given.items() if value is not None}


def just_opened(sim: Forge, branch: str) -> PullRef:
    """A pull request of which nobody knows yet whether it conflicts."""
    main = sim.world.ref(SIM_REPO, "refs/heads/main")
    sim.world.create_ref(SIM_REPO, f"refs/heads/{branch}", main, "octocat")
    sim.world.write_files(SIM_REPO, branch, {branch: b"x"}, "Fix", "octocat")
    opened = sim.world.open_pull(SIM_REPO, head=branch, base="main", title="Fix", by="octocat")
    return PullRef("github", SIM_REPO, opened.number)


async def test_a_hundred_pull_requests_cost_a_handful_of_calls() -> None:
    """Mergeability included, which is not known at first: at most one call for 25 of them."""
    async with forge() as sim:
        refs = [just_opened(sim, f"fix/{index}") for index in range(100)]
        naps = Naps(sim.clock)
        client = GitHubForge(sim.url, sim.clock, token=SIM_TOKEN, sleep=naps, mergeable_waits=WAITS)
        seen = await client.look(refs)
        assert list(seen) == refs
        assert {one.conflicts for one in seen.values()} == {False}
        assert (client.calls.total, client.calls.graphql) == (4, 4)
        assert client.calls.points < 20
        assert naps.taken == [1.5, 4.0]
        allowance = await client.allowance()
        assert allowance is not None
        assert allowance.remaining < allowance.limit
        await client.aclose()


@pytest.mark.parametrize("graphql", [True, False])
async def test_a_look_tells_when_it_was_begun_by_githubs_clock(graphql: bool) -> None:
    """Whatever the clock is here, and however long the look waited."""
    async with forge() as sim:
        await sim.pass_time(3_600)
        began = sim.clock.now_us() / 1e6
        elsewhere = ManualClock()
        naps = Naps(elsewhere)

        async def nap(seconds: float) -> None:
            await naps(seconds)
            sim.clock.advance(seconds)

        ref = just_opened(sim, "fix/1")
        client = GitHubForge(
            sim.url, elsewhere, token=SIM_TOKEN, sleep=nap, graphql=graphql, mergeable_waits=(60.0,)
        )
        seen = (await client.look([ref]))[ref]
        await client.aclose()
    assert naps.taken == [60.0]
    assert seen.asked_at == pytest.approx(began, abs=10)


async def test_lists_that_go_on_are_read_to_their_end() -> None:
    """More checks, suites and reviews than an answer holds, all of them seen."""
    async with forge() as sim:
        number = await sim.pull()
        sha = sim.world.pull(SIM_REPO, number).head_sha
        for index in range(60):
            for name in ("a", "b"):
                app = f"app-{index}"
                sim.world.create_run(SIM_REPO, sha, f"{name}{index}", app, conclusion="success")
            sim.world.review(SIM_REPO, number, f"person-{index}", "APPROVE")
        sim.world.set_status(SIM_REPO, sha, "ci/jenkins", "failure", "jenkins")
        client = GitHubForge(sim.url, sim.clock, token=SIM_TOKEN, sleep=Naps(sim.clock))
        ref = PullRef("github", SIM_REPO, number)
        seen = (await client.look([ref]))[ref]
        kinds = [one.check for one in seen.checks]
        counts = [kinds.count(kind) for kind in ("check_run", "check_suite", "status")]
        assert counts == [120, 60, 1]
        assert len(seen.reviews) == 60
        await client.aclose()


async def test_what_is_not_worked_out_stays_unknown(clock: ManualClock) -> None:
    """It is asked for twice more, with a growing delay, and no longer; or by the caller."""
    async with played(clock) as play:
        play.github.on(ASK, data(node(mergeable="UNKNOWN", mergeStateStatus="UNKNOWN")))
        assert (await play.forge.look([REF]))[REF].conflicts is None
        assert (play.naps.taken, play.github.count(ASK)) == ([], 1)
    async with played(clock, mergeable_waits=WAITS) as play:
        play.github.on(ASK, data(node(mergeable="UNKNOWN", mergeStateStatus="UNKNOWN")))
        seen = (await play.forge.look([REF]))[REF]
        assert (seen.conflicts, seen.behind, seen.blocked) == (None, None, None)
        assert (play.naps.taken, play.github.count(ASK)) == ([1.5, 4.0], 3)
        play.github.on(ASK, data(node(mergeable="UNKNOWN")), Reply(502), data(node()))
        assert (await play.forge.look([REF]))[REF].conflicts is False


async def test_a_closed_one_is_not_waited_for(clock: ManualClock) -> None:
    """GitHub works nothing out for what is closed."""
    async with played(clock, mergeable_waits=WAITS) as play:
        play.github.on(ASK, data(node(state="CLOSED", mergeable="UNKNOWN")))
        assert (await play.forge.look([REF]))[REF].pull.state == "closed"
        assert play.naps.taken == []


def by_rest(play: Play) -> None:
    play.github.on(PULL, Reply(200, pull()))
    for name in ("check-runs", "check-suites", "status"):
        within = {"status": "statuses"}.get(name, name.replace("-", "_"))
        play.github.on(f"GET /repos/{REPO}/commits/{HEAD}/{name}", Reply(200, {within: []}))
    play.github.on(f"GET /repos/{REPO}/pulls/7/reviews", Reply(200, []))
    play.github.on(f"GET /repos/{REPO}/issues/7/comments", Reply(200, []))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(404, {"message": "Not Found"}),
        Reply(501),
        Reply(200, {"data": None, "errors": [error("gone", "NOT_FOUND")]}),
        Reply(200, {"errors": [{"message": "Field 'x' doesn't exist", "locations": []}]}),
    ],
)
async def test_without_graphql_rest_does(reply: Reply, clock: ManualClock) -> None:
    """It is not asked again for an hour, then it is."""
    async with played(clock) as play:
        by_rest(play)
        play.github.on(ASK, reply)
        for _ in range(2):
            assert (await play.forge.look([REF]))[REF].pull.title == "Bump left-pad"
        assert play.github.count(ASK) == 1
        clock.advance(3601)
        await play.forge.look([REF])
        assert play.github.count(ASK) == 2


async def test_a_hole_in_an_answer_is_not_taken_for_nothing(clock: ManualClock) -> None:
    """Checks that the credentials do not open by GraphQL are read by REST."""
    async with played(clock) as play:
        by_rest(play)
        runs = [{"id": 1, "name": "build", "head_sha": HEAD, "status": "queued"}]
        where = f"GET /repos/{REPO}/commits/{HEAD}/check-runs"
        play.github.on(where, Reply(200, {"check_runs": runs}))
        path = ["r0", "p7", "commits", "nodes", 0, "commit", "statusCheckRollup"]
        play.github.on(ASK, data(node(), error("not accessible", "FORBIDDEN", path)))
        seen = (await play.forge.look([REF]))[REF]
        assert [one.name for one in seen.checks] == ["build"]


@pytest.mark.parametrize(
    ("errors", "gone"),
    [
        ([error("no such number", "NOT_FOUND", ["r0", "p7"])], True),
        ([error("no such repository", "NOT_FOUND", ["r0"])], True),
        ([error("SAML enforcement", "FORBIDDEN", ["r0"])], False),
        ([error("Something went wrong")], False),
    ],
)
async def test_only_what_is_not_found_is_gone(
    errors: list[Any], gone: bool, clock: ManualClock
) -> None:
    """Anything else that is missing from an answer is looked for by REST."""
    async with played(clock) as play:
        by_rest(play)
        play.github.on(ASK, data(None, *errors))
        assert (REF not in await play.forge.look([REF])) == gone
        assert (play.github.count(PULL) == 0) == gone


def refs_of(asked: Asked) -> int:
    return str(asked.body["query"]).count("pullRequest(number")


@pytest.mark.parametrize(
    "refusal",
    [
        Reply(502, {"message": "We couldn't respond to your request in time."}),
        Reply(200, {"data": None, "errors": [error("may be the result of a timeout")]}),
    ],
)
async def test_a_batch_that_is_too_large_is_halved(refusal: Reply, clock: ManualClock) -> None:
    """GitHub answers for a dozen at a time, and so it is asked."""
    async with played(clock) as play:

        def answer(asked: Asked) -> Reply:
            if refs_of(asked) > 12:
                return refusal
            pulls = {f"p{number}": node(number=number) for number in range(1, 41)}
            return Reply(200, {"data": {"rateLimit": RATE, "r0": pulls}})

        play.github.on(ASK, answer)
        refs = [PullRef("github", REPO, number) for number in range(1, 41)]
        assert set(await play.forge.look(refs)) == set(refs)
        assert [refs_of(one) for one in play.github.asked] == [40, 20, 10, 10, 20, 10, 10]
        play.github.on(ASK, refusal)
        with pytest.raises(ForgeUnavailable):
            await play.forge.look(refs[:5])


async def test_names_travel_as_variables(clock: ManualClock) -> None:
    """Nothing of a repository's name stands in the question, and each is named once."""
    async with played(clock) as play:
        play.github.on(ASK, data(node()))
        await play.forge.look([REF, PullRef("github", REPO, 8), PullRef("github", "a/b", 7)])
        asked = play.github.asked[0].body
        assert asked["variables"] == {"o0": "octo-org", "n0": "app", "o1": "a", "n1": "b"}
        assert "octo-org" not in asked["query"]
        assert asked["query"].count("repository(") == 2


async def test_an_enterprise_server_has_graphql_beside_its_rest(clock: ManualClock) -> None:
    """Below /api/v3 is REST; the question goes to /api/graphql."""
    github = ScriptedGitHub(clock)
    github.on("POST /api/graphql", data(node()))
    async with served(github) as url:
        client = GitHubForge(f"{url}/api/v3", clock, token=TOKEN, sleep=Naps(clock))
        assert set(await client.look([REF])) == {REF}
        github.on(f"GET /api/v3/repos/{REPO}/pulls", Reply(200, [pull()]))
        assert len(await client.open_pulls(REPO)) == 1
        await client.aclose()


async def test_no_refs_cost_nothing_and_strangers_are_refused(clock: ManualClock) -> None:
    """Nothing is asked for nothing; another forge's pull request is not looked for here."""
    async with played(clock) as play:
        assert await play.forge.look([]) == {}
        with pytest.raises(Rejected, match="not of GitHub"):
            await play.forge.look([PullRef("gitlab", REPO, 1)])
        assert play.github.asked == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"data": 5}', b"\xff"])
async def test_garbage_is_one_error(body: bytes, clock: ManualClock) -> None:
    """What is no answer of GraphQL's is unreadable."""
    async with played(clock) as play:
        play.github.on(ASK, Reply(200, body))
        with pytest.raises(ForgeUnavailable, match="GitHub"):
            await play.forge.look([REF])


@pytest.mark.parametrize("body", [b'{"data": {}}', b'{"data": {"r0": 1}}', b'{"data": {"r0": {}}}'])
async def test_an_answer_with_holes_says_nothing(body: bytes, clock: ManualClock) -> None:
    """What it does not speak of is not gone, but read by REST."""
    async with played(clock) as play:
        by_rest(play)
        play.github.on(ASK, Reply(200, body))
        assert set(await play.forge.look([REF])) == {REF}


async def test_a_sweep_of_red_ones_stays_within_its_calls() -> None:
    """The attempts of the newest ten are read, and no more."""
    async with forge() as sim:
        refs = []
        for index in range(12):
            number = await sim.pull(f"fix/{index}")
            sha = sim.world.pull(SIM_REPO, number).head_sha
            run = sim.world.start_workflow(SIM_REPO, sha, "ci", ["build"], "octocat")
            (job,) = sim.world.jobs(SIM_REPO, run.id)
            sim.world.finish_job(SIM_REPO, job.id, "failure")
            refs.append(PullRef("github", SIM_REPO, number))
        client = GitHubForge(sim.url, sim.clock, token=SIM_TOKEN, sleep=Naps(sim.clock))
        seen = await client.look(refs)
        verdicts = {one.conclusion for sight in seen.values() for one in sight.checks}
        assert verdicts == {"failure"}
        assert (client.calls.graphql, client.calls.reads) == (1, 10)
        await client.look(refs)
        assert client.calls.unchanged == 10
        await client.aclose()
