"""Whatever is asked, there is an answer that is not the server's fault."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any
from urllib.parse import quote

import pytest

from tests.sim.github_server import REPO, Forge, forge
from towline_sim.github.rest.calls import Route
from towline_sim.github.rest.routes import ROUTES

REQUESTS = 500
FIELDS = (
    *("title", "body", "head", "base", "state", "sha", "message", "content", "branch", "ref"),
    *("force", "tree", "parents", "author", "name", "head_sha", "status", "conclusion", "output"),
    *("context", "labels", "reviewers", "event", "event_type", "client_payload", "config"),
    *("events", "merge_method", "expected_head_sha", "base_tree", "encoding", "draft"),
)
QUERIES = ("per_page", "page", "state", "ref", "sha", "filter", "cursor", "since", "sort", "head")
ODD: tuple[Any, ...] = (None, True, 0, -5, 1.5, 10**20, "", " ", "é", "..", "%", "9" * 30)


class Oddities:
    """Requests that are half right: real names and numbers in places where they may not belong."""

    def __init__(self, there: Forge, seed: int) -> None:
        self.dice = random.Random(seed)
        world = there.world
        head = world.pull(REPO, 1).head_sha
        run = world.start_workflow(REPO, head, "build", ["unit"], "octocat")
        comment = world.comment(REPO, 1, "octocat", "hello")
        numbers = [1, 99, run.id, run.suite_id, comment.id, world.jobs(REPO, run.id)[0].id]
        tree = world.objects.facts(head).tree
        names = ["main", "fix/one", "heads/main", "refs/heads/fix/one", "main...fix/one", "octocat"]
        self.texts = [*map(str, numbers), head, tree, "0" * 40, *names, "README.md", "src"]
        self.texts += ["open", "closed", "APPROVE", "success", "completed", "merge", "base64"]

    def value(self, depth: int = 0) -> Any:
        chance = self.dice.random()
        if chance < 0.7 or depth > 2:
            return self.dice.choice(self.texts)
        if chance < 0.8:
            return self.dice.choice(ODD)
        if chance < 0.9:
            return [self.value(depth + 1) for _ in range(self.dice.randint(0, 3))]
        return self.fields(depth + 1)

    def fields(self, depth: int = 0) -> dict[str, Any]:
        names = self.dice.sample(FIELDS, self.dice.randint(0, 8))
        return {name: self.value(depth) for name in names}

    def path(self, route: Route) -> str:
        def part(found: re.Match[str]) -> str:
            usual = {"owner": "demo", "repo": "app", "number": "1"}.get(found[1])
            odd = self.dice.choice([*self.texts, "é", "..", "9" * 30])
            return usual if usual and self.dice.random() < 0.9 else quote(odd, safe="/")

        return re.sub(r"\{(\w+)\*?\}", part, route.path)

    def query(self) -> dict[str, str]:
        names = self.dice.sample(QUERIES, self.dice.randint(0, 2))
        return {name: str(self.value()) for name in names}


@pytest.mark.parametrize("seed", [1, 2])
async def test_odd_requests(seed: int) -> None:
    """Every route, with half right parameters and bodies: never a 5xx."""
    async with forge() as there:
        await there.pull()
        odd = Oddities(there, seed)
        seen: Counter[int] = Counter()
        for _ in range(REQUESTS):
            route = odd.dice.choice(ROUTES.routes)
            body = odd.value() if odd.dice.random() < 0.1 else odd.fields()
            given = None if route.method == "GET" else body
            path = odd.path(route)
            answer = await there.call(route.method, path, given, params=odd.query())
            assert answer.status_code < 500, f"{route.method} {path} {given} {answer.text}"
            seen[answer.status_code] += 1
        assert {200, 404, 422} <= set(seen)
