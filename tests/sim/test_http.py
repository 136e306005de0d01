"""The simulator's HTTP manners: who may, how often, what is new, and what goes wrong."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
import jwt
import pytest

from tests.sim.github_server import REPO, Forge, forge
from towline_sim.github.fault_dice import ApiFaults, FaultDice
from towline_sim.github.faults import HttpFault
from towline_sim.github.limits import Limits

PULLS = f"/repos/{REPO}/pulls"


async def statuses(there: Forge, count: int, method: str, path: str, body: Any = None) -> list[int]:
    return [(await there.call(method, path, body)).status_code for _ in range(count)]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer ghp_simulated_token", 200),
        ("token ghp_simulated_token", 200),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("Basic !!!", 401),
        ("", 401),
    ],
)
async def test_credentials(header: str, status: int) -> None:
    """Both words for a token are taken, a wrong one is told so."""
    async with forge() as there:
        answer = await there.call("GET", "/user", headers={"authorization": header})
        assert answer.status_code == status
        if status == 401:
            assert answer.json()["message"] == "Bad credentials"


async def test_every_answer_bears_the_worlds_time_and_an_id() -> None:
    """Date is the simulated clock's; each request has its own id."""
    async with forge() as there:
        there.clock.advance(86400)
        first, second = [await there.call("GET", "/user") for _ in range(2)]
        date = parsedate_to_datetime(first.headers["date"]).timestamp()
        assert abs(date - there.clock.now_us() / 1e6) < 5
        assert first.headers["x-github-request-id"] != second.headers["x-github-request-id"]


async def test_what_has_not_changed_costs_nothing() -> None:
    """A 304 by entity tag is not counted; a change gives a new body."""
    async with forge(Limits()) as there:
        await there.pull()
        first = await there.call("GET", PULLS)
        tag = {"if-none-match": first.headers["etag"]}
        second = await there.call("GET", PULLS, headers=tag)
        assert (second.status_code, second.content) == (304, b"")
        left = [answer.headers["x-ratelimit-remaining"] for answer in (first, second)]
        assert left[0] == left[1]
        there.world.edit_pull(REPO, 1, "octocat", title="New")
        third = await there.call("GET", PULLS, headers=tag)
        assert third.status_code == 200
        assert third.json()[0]["title"] == "New"


async def test_pages_link_to_each_other() -> None:
    """All items, each once, by following the links."""
    async with forge() as there:
        for number in range(5):
            await there.pull(f"fix/{number}")
        seen, last, url = [], set(), f"{PULLS}?per_page=2&state=open"
        while url:
            page = await there.call("GET", url)
            seen += [one["number"] for one in page.json()]
            last, url = set(page.links), page.links.get("next", {}).get("url", "")
        assert seen == [5, 4, 3, 2, 1]
        assert last == {"prev", "first"}


async def test_the_primary_limit_and_its_end() -> None:
    """So many an hour; /rate_limit is free and agrees with the headers; the hour ends it."""
    async with forge(Limits.none()._replace(per_hour=3)) as there:
        assert await statuses(there, 4, "GET", "/user") == [200, 200, 200, 403]
        refused = await there.call("GET", "/user")
        assert "rate limit" in refused.json()["message"]
        assert "retry-after" not in refused.headers
        shown = (await there.call("GET", "/rate_limit")).json()["resources"]["core"]
        assert (shown["limit"], shown["remaining"]) == (3, 0)
        assert str(shown["reset"]) == refused.headers["x-ratelimit-reset"]
        there.clock.advance(3601)
        assert await statuses(there, 1, "GET", "/user") == [200]


@pytest.mark.parametrize(
    ("limits", "passed"),
    [
        (Limits()._replace(writes_per_minute=4), 4),
        (Limits()._replace(writes_per_hour=3), 3),
        (Limits()._replace(points_per_minute=12), 2),
    ],
)
async def test_secondary_limits_say_when_to_come_again(limits: Limits, passed: int) -> None:
    """Writes weigh five; the refusal names the seconds, after which it works."""
    async with forge(limits._replace(status=429)) as there:
        number = await there.pull()
        path = f"/repos/{REPO}/issues/{number}/comments"
        for _ in range(passed):
            assert (await there.call("POST", path, {"body": "x"})).status_code == 201
        refused = await there.call("POST", path, {"body": "x"})
        assert refused.status_code == 429
        assert "secondary rate limit" in refused.json()["message"]
        there.clock.advance(float(refused.headers["retry-after"]) + 1)
        assert (await there.call("POST", path, {"body": "x"})).status_code == 201
        assert len(there.world.comments(REPO, number)) == passed + 1


async def test_too_many_at_once() -> None:
    """Those in flight count, however long they take."""
    async with forge(Limits.none()._replace(concurrent=2)) as there:
        there.sim.faults = [HttpFault(kind="slow", seconds=0.3)]
        answers = await asyncio.gather(*(there.call("GET", "/user") for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 403]


async def test_a_failure_before_and_one_after_the_effect() -> None:
    """Both look the same from outside; only the second has left a comment."""
    async with forge() as there:
        number = await there.pull()
        path = f"/repos/{REPO}/issues/{number}/comments"
        there.sim.faults = [HttpFault(kind="failing", method="POST", times=1)]
        assert (await there.call("POST", path, {"body": "x"})).status_code == 502
        assert there.world.comments(REPO, number) == []
        there.sim.faults = [HttpFault(kind="reply_failing", method="POST", times=1)]
        assert (await there.call("POST", path, {"body": "x"})).status_code == 502
        assert [one.body for one in there.world.comments(REPO, number)] == ["x"]
        assert (await there.call("POST", path, {"body": "y"})).status_code == 201


@pytest.mark.parametrize(("kind", "comments"), [("silent", 0), ("reply_silent", 1)])
async def test_no_answer_at_all(kind: Any, comments: int) -> None:
    """The client's own deadline ends it; whether it happened is for the client to find out."""
    async with forge() as there:
        number = await there.pull()
        there.sim.faults = [HttpFault(kind=kind, path="/repos", times=1)]
        path = f"/repos/{REPO}/issues/{number}/comments"
        with pytest.raises(httpx2.TimeoutException):
            await there.call("POST", path, {"body": "x"}, timeout=0.3)
        assert len(there.world.comments(REPO, number)) == comments
        assert await statuses(there, 1, "GET", "/user") == [200]


async def test_slow_and_truncated_answers() -> None:
    """A slow answer is whole, a truncated one cannot be read."""
    async with forge() as there:
        there.sim.faults = [HttpFault(kind="slow", seconds=0.01, times=1)]
        assert (await there.call("GET", "/user")).json()["login"] == "towline-bot"
        there.sim.faults = [HttpFault(kind="truncated", times=1)]
        with pytest.raises(ValueError, match=r"JSON|delimiter|Unterminated|Expecting"):
            (await there.call("GET", "/user")).json()


async def test_faults_by_chance() -> None:
    """The dice of the simulation work over HTTP too: errors and limits in their share."""
    dice = FaultDice(ApiFaults(error=0.3, limited=0.2), seed=7)
    async with forge(dice=dice) as there:
        seen = await statuses(there, 60, "GET", "/user")
        assert {200, 429, 502} == set(seen)
        assert dice.counts["error"] == seen.count(502)


async def test_an_app_and_its_installation() -> None:
    """A token for an installation, by the App's own, works for an hour and as the bot."""
    async with forge() as there:
        now = there.clock.now_us() // 1_000_000
        claims = {"iat": now - 60, "exp": now + 540, "iss": str(there.sim.app.id)}
        app = {"authorization": f"Bearer {jwt.encode(claims, 'k' * 32, algorithm='HS256')}"}
        found = await there.call("GET", f"/repos/{REPO}/installation", headers=app)
        path = f"/app/installations/{found.json()['id']}/access_tokens"
        made = await there.call("POST", path, {}, headers=app)
        bearer = {"authorization": f"Bearer {made.json()['token']}"}
        assert (await there.call("GET", PULLS, headers=bearer)).status_code == 200
        assert (await there.call("GET", "/app", headers=bearer)).status_code == 401
        assert (await there.call("GET", PULLS, headers=app)).status_code == 403
        number = await there.pull()
        comments = f"/repos/{REPO}/issues/{number}/comments"
        said = await there.call("POST", comments, {"body": "x"}, headers=bearer)
        assert said.json()["user"] == {
            **said.json()["user"],
            "login": "towline[bot]",
            "type": "Bot",
        }
        there.clock.advance(3601)
        assert (await there.call("GET", PULLS, headers=bearer)).status_code == 401


async def test_rights_of_other_people() -> None:
    """Who may only read, may comment, but neither merge nor see hooks; a stranger sees nothing."""
    async with forge(tokens={"reader": "reader"}) as there:
        number = await there.pull()
        reader = {"authorization": "Bearer reader"}
        comments = f"/repos/{REPO}/issues/{number}/comments"
        said = await there.call("POST", comments, {"body": "hi"}, headers=reader)
        assert said.json()["user"]["login"] == "reader"
        merge = await there.call("PUT", f"{PULLS}/{number}/merge", {}, headers=reader)
        assert merge.status_code == 403
        hooks = await there.call("GET", f"/repos/{REPO}/hooks", headers=reader)
        assert hooks.status_code == 403
        there.world.create_repo("demo/secret", private=True)
        secret = await there.call("GET", "/repos/demo/secret", headers=reader)
        assert secret.status_code == 404
        assert (await there.call("GET", "/repos/demo/secret")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", None, 404),
        ("GET", f"{PULLS}/zero", None, 404),
        ("DELETE", PULLS, None, 404),
        ("GET", f"{PULLS}?state=odd", None, 422),
        ("POST", PULLS, {"title": "x"}, 422),
        ("POST", PULLS, {"title": 1, "head": "x", "base": "main"}, 422),
        ("POST", PULLS, [], 422),
        ("POST", f"/repos/{REPO}/statuses/{'0' * 40}", {"state": "success"}, 422),
        ("POST", f"/repos/{REPO}/git/refs", {"ref": "main", "sha": "0" * 40}, 422),
        ("POST", f"/repos/{REPO}/hooks", {"config": {"url": "nowhere"}}, 422),
        ("GET", f"/repos/{REPO}/hooks/1/deliveries?cursor=x", None, 400),
        ("POST", "/graphql", {}, 400),
        ("POST", "/graphql", {"query": 1}, 400),
    ],
)
async def test_bad_requests_get_one_clear_answer(
    method: str, path: str, body: Any, status: int
) -> None:
    """A status that tells whose fault it is, and a message."""
    async with forge() as there:
        answer = await there.call(method, path, body)
        assert answer.status_code == status, answer.text
        assert answer.json()["message"]


async def test_a_body_that_is_no_json() -> None:
    """Said so, with 400."""
    async with forge() as there:
        answer = await there.client.post(PULLS, content=b"{")
        assert (answer.status_code, answer.json()["message"]) == (400, "Problems parsing JSON")


async def test_the_driver_moves_the_world_by_itself() -> None:
    """With nobody asking, what is due happens by the clock, and hooks are told."""
    async with forge() as there:
        happened = asyncio.Event()
        there.world.after(0.05, happened.set)
        driver = asyncio.create_task(there.sim.run())
        async with asyncio.timeout(10):
            await happened.wait()
        driver.cancel()
        await asyncio.gather(driver, return_exceptions=True)
        assert driver.cancelled()


async def test_a_jobs_log_is_a_redirect_away() -> None:
    """The text of a job's log, as clients fetch it."""
    async with forge() as there:
        await there.pull()
        sha = there.world.pull(REPO, 1).head_sha
        run = there.world.start_workflow(REPO, sha, "build", ["unit"], "octocat")
        (job,) = there.world.jobs(REPO, run.id)
        there.world.finish_job(REPO, job.id, "failure", "Error: connection reset\n")
        path = f"/repos/{REPO}/actions/jobs/{job.id}/logs"
        assert (await there.call("GET", path)).status_code == 302
        answer = await there.call("GET", path, follow_redirects=True)
        assert answer.text == "Error: connection reset\n"
