"""What a request to the simulated GitLab names, and the table of those that it serves."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.responses import Response

from towline.sim.gitlab import GitLabWorld, SimMergeRequest, SimPipeline, SimProject

Handler = Callable[["Call"], Response]


class Answered(Exception):
    """Ends a handler with another answer than its own."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


@dataclass
class Call:
    """A request with its parts found, and what the path names."""

    world: GitLabWorld
    user: str
    named: Mapping[str, str]
    query: Mapping[str, str]
    listed: Mapping[str, list[str]]
    body: dict[str, Any]

    @property
    def project(self) -> SimProject:
        return self.world.project(self.named["project"]) or missing("404 Project Not Found")

    @property
    def request(self) -> SimMergeRequest:
        return self.project.requests.get(int(self.named["iid"])) or missing()

    @property
    def pipeline(self) -> SimPipeline:
        return self.project.pipelines.get(int(self.named["pipeline"])) or missing()

    def page(self, items: list[dict[str, Any]]) -> Response:
        size, number = int(self.query.get("per_page", "20")), int(self.query.get("page", "1"))
        start = (number - 1) * size
        response = answer(items[start : start + size])
        more = str(number + 1) if len(items) > start + size else ""
        response.headers["x-next-page"] = more
        return response


def answer(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def problem(status: int, message: str) -> Response:
    return answer({"message": message}, status)


def missing(message: str = "404 Not found") -> Any:
    raise Answered(problem(404, message))


def refuse(status: int, message: str) -> Any:
    raise Answered(problem(status, message))


def route(method: str, path: str) -> Callable[[Handler], Handler]:
    """`{name}` stands for one segment of the path."""
    pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path))

    def keep(handler: Handler) -> Handler:
        ROUTES.append((method, pattern, handler))
        return handler

    return keep


ROUTES: Final[list[tuple[str, re.Pattern[str], Handler]]] = []
PROJECT: Final = "/projects/{project}"
REQUEST: Final = f"{PROJECT}/merge_requests/{{iid}}"
PIPELINE: Final = f"{PROJECT}/pipelines/{{pipeline}}"
COMMIT: Final = f"{PROJECT}/repository/commits/{{sha}}"
