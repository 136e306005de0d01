"""GraphQL: dozens of pull requests in one call, with checks, reviews and comments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.github_server import REPO, Forge, forge
from towline_sim.github.entities import Protection
from towline_sim.github.limits import Limits

FRAGMENT = """
fragment Whole on PullRequest {
  number title body state isDraft url headRefName headRefOid baseRefName isCrossRepository
  author { login __typename }
  labels(first: 50) { nodes { name } }
  mergeable mergeStateStatus merged mergedAt mergeCommit { oid } updatedAt createdAt
  reviewDecision
  latestOpinionatedReviews(first: 50) { nodes { ...Review } }
  latestReviews(first: 50) { nodes { ...Review } }
  reviews(last: 50) { nodes { ...Review } }
  comments(last: 10) { nodes { databaseId body author { login __typename } createdAt url } }
  commits(last: 1) { nodes { commit {
    oid
    statusCheckRollup { state contexts(first: 100) {
      pageInfo { hasNextPage endCursor }
      nodes {
        __typename
        ... on CheckRun {
          databaseId name status conclusion startedAt completedAt detailsUrl title summary
          checkSuite { databaseId app { slug } workflowRun { databaseId runNumber } }
        }
        ... on StatusContext { id context state description targetUrl createdAt }
      }
    } }
    checkSuites(first: 20) { nodes { databaseId status conclusion app { slug } updatedAt } }
  } } }
}
fragment Review on PullRequestReview {
  databaseId state body submittedAt author { login } commit { oid } url
}
"""


async def ask(there: Forge, query: str, variables: Any = None) -> dict[str, Any]:
    answer = await there.call("POST", "/graphql", {"query": query, "variables": variables})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def one(there: Forge, number: int, fields: str = "...Whole") -> Any:
    query = "query($o: String!, $n: String!, $i: Int!) { repository(owner: $o, name: $n) {"
    query += f" pullRequest(number: $i) {{ {fields} }} }} }}"
    if "..." in fields:
        query += FRAGMENT
    owner, name = REPO.split("/")
    body = await ask(there, query, {"o": owner, "n": name, "i": number})
    assert "errors" not in body, body
    return body["data"]["repository"]["pullRequest"]


async def test_twenty_five_in_one_call() -> None:
    """Aliases, variables and fragments; it costs a point or two, and says so."""
    async with forge() as there:
        for number in range(25):
            await there.pull(f"fix/{number}")
        fields = " ".join(f"p{n}: pullRequest(number: {n}) {{ ...Whole }}" for n in range(1, 26))
        query = "query($owner: String!) { rateLimit { cost remaining limit resetAt used } "
        query += f'repository(owner: $owner, name: "app") {{ {fields} }} }} {FRAGMENT}'
        body = await ask(there, query, {"owner": "demo"})
        assert "errors" not in body
        pulls = body["data"]["repository"]
        assert [pulls[f"p{n}"]["number"] for n in range(1, 26)] == list(range(1, 26))
        assert body["data"]["rateLimit"]["cost"] <= 3
        calls = [asked for asked in there.sim.asked if asked.path == "/graphql"]
        assert len(calls) == 1


async def test_everything_about_one() -> None:
    """Checks of both systems, reviews, comments and labels are what the world has."""
    async with forge() as there:
        number = await there.pull()
        world = there.world
        sha = world.pull(REPO, number).head_sha
        run = world.create_run(REPO, sha, "lint", "linter", conclusion="failure", title="2 errors")
        world.set_status(REPO, sha, "ci/jenkins", "success", "jenkins", description="built")
        world.start_workflow(REPO, sha, "build", ["unit"], "octocat")
        world.review(REPO, number, "reviewer", "REQUEST_CHANGES", "no")
        world.review(REPO, number, "reviewer", "APPROVE", "yes")
        world.comment(REPO, number, "dependabot[bot]", "rebased")
        world.add_labels(REPO, number, ["automerge"], "octocat")
        pull = await one(there, number)
        commit = pull["commits"]["nodes"][0]["commit"]
        contexts = {
            c.get("name") or c["context"]: c
            for c in commit["statusCheckRollup"]["contexts"]["nodes"]
        }
        assert commit["statusCheckRollup"]["state"] == "FAILURE"
        assert contexts["lint"]["databaseId"] == run.id
        assert (contexts["lint"]["conclusion"], contexts["lint"]["title"]) == (
            "FAILURE",
            "2 errors",
        )
        assert contexts["unit"]["checkSuite"]["workflowRun"]["runNumber"] == 1
        assert contexts["unit"]["conclusion"] is None
        assert contexts["ci/jenkins"]["state"] == "SUCCESS"
        assert {s["app"]["slug"] for s in commit["checkSuites"]["nodes"]} == {
            "linter",
            "github-actions",
        }
        assert [r["state"] for r in pull["latestOpinionatedReviews"]["nodes"]] == ["APPROVED"]
        assert [r["state"] for r in pull["reviews"]["nodes"]] == ["CHANGES_REQUESTED", "APPROVED"]
        (comment,) = pull["comments"]["nodes"]
        assert comment["author"] == {"login": "dependabot", "__typename": "Bot"}
        assert pull["labels"]["nodes"] == [{"name": "automerge"}]
        assert (pull["state"], pull["mergeable"]) == ("OPEN", "MERGEABLE")


async def test_mergeable_is_unknown_until_worked_out() -> None:
    """The first look asks for it, a later one has it."""
    async with forge() as there:
        number = await there.pull()
        there.world.write_files(REPO, "main", {"other.txt": b"1\n"}, "Other", "octocat")
        fields = "mergeable mergeStateStatus"
        assert (await one(there, number, fields))["mergeable"] == "UNKNOWN"
        await there.pass_time(20)
        assert (await one(there, number, fields))["mergeable"] == "MERGEABLE"


async def test_the_review_decision() -> None:
    """None without a rule; with one it follows the reviews."""
    async with forge() as there:
        number = await there.pull()
        assert (await one(there, number, "reviewDecision"))["reviewDecision"] is None
        there.world.protect(REPO, "main", Protection(required_approvals=1))
        assert (await one(there, number, "reviewDecision"))["reviewDecision"] == "REVIEW_REQUIRED"
        there.world.review(REPO, number, "reviewer", "APPROVE")
        assert (await one(there, number, "reviewDecision"))["reviewDecision"] == "APPROVED"


async def test_lists_page_by_page() -> None:
    """Open ones only, each once, by cursor."""
    async with forge() as there:
        for number in range(5):
            await there.pull(f"fix/{number}")
        there.world.edit_pull(REPO, 2, "octocat", state="closed")
        seen: list[int] = []
        after, page = None, {}
        query = """query($after: String) { repository(owner: "demo", name: "app") {
          pullRequests(states: [OPEN], first: 2, after: $after) {
            totalCount nodes { number } pageInfo { hasNextPage endCursor } } } }"""
        for _ in range(2):
            body = await ask(there, query, {"after": after})
            page = body["data"]["repository"]["pullRequests"]
            seen += [node["number"] for node in page["nodes"]]
            after = page["pageInfo"]["endCursor"]
        assert (seen, page["pageInfo"]["hasNextPage"], page["totalCount"]) == (
            [1, 3, 4, 5],
            False,
            4,
        )


async def test_what_is_missing_is_an_error_beside_the_rest() -> None:
    """A pull request that is not there does not spoil the one that is."""
    async with forge() as there:
        await there.pull()
        query = """{ repository(owner: "demo", name: "app") {
          here: pullRequest(number: 1) { number } gone: pullRequest(number: 99) { number } } }"""
        body = await ask(there, query)
        assert body["data"]["repository"] == {"here": {"number": 1}, "gone": None}
        (error,) = body["errors"]
        assert (error["type"], error["path"]) == ("NOT_FOUND", ["repository", "gone"])
        body = await ask(there, '{ repository(owner: "demo", name: "nope") { id } }')
        assert body["data"] == {"repository": None}
        assert body["errors"][0]["type"] == "NOT_FOUND"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("{ repository(", "Syntax Error"),
        ("{ nonsense }", "Cannot query field"),
        ('{ repository(owner: "demo", name: "app") { pullRequests { totalCount } } }', "`first`"),
        (
            '{ repository(owner: "demo", name: "app"){ pullRequests(first: 999) { totalCount } } }',
            "limited",
        ),
    ],
)
async def test_bad_queries_say_what_is_wrong(query: str, words: str) -> None:
    """As on GitHub, with status 200."""
    async with forge() as there:
        assert words in (await ask(there, query))["errors"][0]["message"]


async def test_points_run_out() -> None:
    """GraphQL has a budget of its own; REST goes on."""
    async with forge(Limits.none()._replace(graphql_per_hour=2)) as there:
        for _ in range(2):
            await ask(there, "{ viewer { login } }")
        refused = await there.call("POST", "/graphql", {"query": "{ viewer { login } }"})
        assert refused.status_code == 403
        assert refused.headers["x-ratelimit-remaining"] == "0"
        assert refused.headers["x-ratelimit-resource"] == "graphql"
        assert (await there.call("GET", "/user")).status_code == 200
