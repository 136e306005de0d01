"""A small simulated Jenkins: a queue, executors, and builds that take their time.

It is driven by a clock and knows nothing of HTTP. When a build ends, `on_end` is told, so that
the world which the commit lives in can be given its status.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from towline_once.ports import Clock
from towline_sim.http import BrokenOff, Simulator, json_response, path_of

_FORGET_US: Final = 300 * 1_000_000


@dataclass
class SimJenkinsJob:
    """`outcomes` are the results of its next builds, in order; after them each is SUCCESS."""

    path: str
    parameters: tuple[str, ...] = ()
    """Those that it declares: Jenkins drops all others."""
    duration_seconds: float = 60.0
    buildable: bool = True
    outcomes: list[str] = field(default_factory=list)
    log: str = "Started by user\nFinished\n"
    builds: list[SimBuild] = field(default_factory=list)
    """Oldest first."""


@dataclass
class SimItem:
    id: int
    job: SimJenkinsJob
    parameters: Mapping[str, str]
    queued_us: int
    build: SimBuild | None = None
    left_us: int | None = None
    cancelled: bool = False


@dataclass
class SimBuild:
    job: SimJenkinsJob
    number: int
    parameters: Mapping[str, str]
    queue_id: int
    started_us: int
    ends_us: int
    log: str
    result: str | None = None


class JenkinsWorld:
    """`stuck` keeps everything in the queue, as agents that are offline do."""

    def __init__(
        self,
        clock: Clock,
        *,
        executors: int = 2,
        quiet_seconds: float = 0.0,
        on_end: Callable[[SimBuild], None] | None = None,
    ) -> None:
        self.clock = clock
        self.executors = executors
        self.quiet_us = int(quiet_seconds * 1e6)
        self.on_end = on_end
        self.stuck = False
        self.jobs: dict[str, SimJenkinsJob] = {}
        self.items: dict[int, SimItem] = {}
        self._running: list[SimBuild] = []
        self._reached_us = clock.now_us()

    def add_job(self, path: str, *parameters: str, duration_seconds: float = 60) -> SimJenkinsJob:
        job = SimJenkinsJob(path, parameters, duration_seconds)
        self.jobs[path] = job
        return job

    @property
    def queue(self) -> list[SimItem]:
        return [item for item in self.items.values() if item.left_us is None]

    def ask(self, job: SimJenkinsJob, parameters: Mapping[str, str]) -> SimItem:
        """Queue a build; one that waits with the same parameters already is the same."""
        self.settle()
        kept = {name: value for name, value in parameters.items() if name in job.parameters}
        for item in self.queue:
            if item.job is job and item.parameters == kept:
                return item
        item = SimItem(len(self.items) + 1, job, kept, self.clock.now_us())
        self.items[item.id] = item
        return item

    def cancel(self, item: SimItem) -> None:
        item.cancelled, item.left_us = True, self.clock.now_us()

    def abort(self, build: SimBuild) -> None:
        self._end(build, "ABORTED", self.clock.now_us())

    def item(self, number: int) -> SimItem | None:
        """None also for one that left the queue five minutes ago."""
        item = self.items.get(number)
        if item is None or item.left_us is None:
            return item
        return item if self.clock.now_us() - item.left_us < _FORGET_US else None

    def next_due_us(self) -> int | None:
        """When `settle` has something to do next; None while nothing will happen by itself."""
        due = [build.ends_us for build in self._running]
        if not self.stuck and len(self._running) < self.executors:
            due += [item.queued_us + self.quiet_us for item in self.queue[:1]]
        return min(due, default=None)

    def settle(self) -> None:
        """Let everything happen that is due by now, in the order of its time."""
        now = self.clock.now_us()
        while True:
            self._start_what_can(now)
            ending = min(self._running, key=lambda build: build.ends_us, default=None)
            if ending is None or ending.ends_us > now:
                break
            outcomes = ending.job.outcomes
            self._end(ending, outcomes.pop(0) if outcomes else "SUCCESS", ending.ends_us)
        self._reached_us = now

    def _start_what_can(self, now: int) -> None:
        for item in self.queue:
            at_us = max(item.queued_us + self.quiet_us, self._reached_us)
            if self.stuck or len(self._running) >= self.executors or at_us > now:
                break
            self._start(item, at_us)

    def _start(self, item: SimItem, at_us: int) -> None:
        job = item.job
        item.left_us = at_us
        item.build = SimBuild(
            job=job,
            number=len(job.builds) + 1,
            parameters=item.parameters,
            queue_id=item.id,
            started_us=at_us,
            ends_us=at_us + int(job.duration_seconds * 1e6),
            log=job.log,
        )
        job.builds.append(item.build)
        self._running.append(item.build)

    def _end(self, build: SimBuild, result: str, at_us: int) -> None:
        build.result = result
        self._running.remove(build)
        self._reached_us = max(self._reached_us, at_us)
        if self.on_end is not None:
            self.on_end(build)


# ------------------------------------------------------------ jenkins_http
# The simulated Jenkins over HTTP: the part of its API that starts and follows builds.

Outage = Literal["refuse", "silent", "unavailable"]
"""The connection breaks off, is never answered, or is answered by 503."""

_JOB: Final = r"(?P<job>(?:/job/[^/]+)+)"
_BUILD: Final = rf"{_JOB}/(?P<number>\d+)"
_COOKIE: Final = "JSESSIONID"


class Asked(NamedTuple):
    method: str
    path: str
    query: str


class JenkinsSim(Simulator):
    """Over a world. `believed_url` is what Jenkins takes for its own address."""

    def __init__(self, world: JenkinsWorld, *, user: str, token: str) -> None:
        self.world = world
        self.believed_url = ""
        self.needs_crumb = False
        self.outage: Outage | None = None
        self.lost_replies = 0
        """So many replies to the next POSTs get lost, after what they ask for is done."""
        self.asked: list[Asked] = []
        self._login = base64.b64encode(f"{user}:{token}".encode()).decode()
        self._crumbs: dict[str, str] = {}

    async def respond(self, request: Request) -> Response | None:
        path = path_of(request)
        self.asked.append(Asked(request.method, path, request.url.query))
        if self.outage == "silent":
            return None
        if self.outage == "refuse":
            return BrokenOff()
        if self.outage == "unavailable":
            return PlainTextResponse("Jenkins is getting ready to work", 503)
        response = await self._served(request, path)
        if request.method == "POST" and response.status_code == 201 and self.lost_replies:
            self.lost_replies -= 1
            return BrokenOff()
        return response

    async def _served(self, request: Request, path: str) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Basic {self._login}".encode()):
            return PlainTextResponse("Invalid password/token", 401)
        self.world.settle()
        if request.method == "POST":
            return self._posted(request, path, await request.body())
        base = self.believed_url or str(request.base_url).rstrip("/")
        return self._shown(request, path, base)

    def _posted(self, request: Request, path: str, body: bytes) -> Response:
        if self.needs_crumb and not self._has_crumb(request):
            text = "<h1>HTTP ERROR 403 No valid crumb was included in the request</h1>"
            return Response(text, 403, media_type="text/html")
        asked = re.fullmatch(rf"{_JOB}/(?P<verb>build|buildWithParameters)", path)
        job = self._job(asked["job"]) if asked else None
        if asked is None or job is None:
            return _missing()
        if (asked["verb"] == "build") == bool(job.parameters):
            return PlainTextResponse("This job has parameters, or has none", 400)
        if not job.buildable:
            return PlainTextResponse("The job is disabled", 409)
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        item = self.world.ask(job, {**request.query_params, **form})
        base = self.believed_url or str(request.base_url).rstrip("/")
        return Response(b"", 201, {"location": f"{base}/queue/item/{item.id}/"})

    def _has_crumb(self, request: Request) -> bool:
        session = request.cookies.get(_COOKIE, "")
        crumb = self._crumbs.get(session)
        return crumb is not None and request.headers.get("jenkins-crumb") == crumb

    def _shown(self, request: Request, path: str, base: str) -> Response:
        if path == "/crumbIssuer/api/json":
            return self._crumb()
        if path == "/queue/api/json":
            return json_response(
                {"items": [_item(item, base) for item in reversed(self.world.queue)]}
            )
        if found := re.fullmatch(r"/queue/item/(?P<id>\d+)/api/json", path):
            item = self.world.item(int(found["id"]))
            return _missing() if item is None else json_response(_item(item, base))
        if found := re.fullmatch(rf"{_BUILD}/(?P<what>api/json|logText/progressiveText)", path):
            build = self._build(found["job"], int(found["number"]))
            if build is None:
                return _missing()
            is_log = found["what"] != "api/json"
            return _log(build, request) if is_log else json_response(_build(build, base))
        if found := re.fullmatch(rf"{_JOB}/api/json", path):
            job = self._job(found["job"])
            return _missing() if job is None else json_response(_job(job, base))
        return _missing()

    def _crumb(self) -> Response:
        session, crumb = secrets.token_hex(8), secrets.token_hex(16)
        self._crumbs[session] = crumb
        response = json_response({"crumb": crumb, "crumbRequestField": "Jenkins-Crumb"})
        response.set_cookie(_COOKIE, session)
        return response

    def _job(self, path: str) -> SimJenkinsJob | None:
        parts = path.split("/job/")[1:]
        return self.world.jobs.get("/".join(map(unquote, parts)))

    def _build(self, path: str, number: int) -> SimBuild | None:
        job = self._job(path)
        return next((one for one in job.builds if one.number == number), None) if job else None


def _missing() -> Response:
    return Response("<h1>Not Found</h1>", 404, media_type="text/html")


def _url(job: SimJenkinsJob, base: str) -> str:
    return base + "".join(f"/job/{quote(part, safe='')}" for part in job.path.split("/")) + "/"


def _actions(of: SimItem | SimBuild) -> list[dict[str, Any]]:
    given = [{"name": name, "value": value} for name, value in of.parameters.items()]
    return [{}, {"_class": "hudson.model.ParametersAction", "parameters": given}]


def _item(item: SimItem, base: str) -> dict[str, Any]:
    shown = {
        "id": item.id,
        "url": f"queue/item/{item.id}/",
        "task": {"url": _url(item.job, base)},
        "actions": _actions(item),
        "why": None if item.left_us else "Waiting for next available executor",
    }
    if item.left_us is not None:
        shown["cancelled"] = item.cancelled
    if item.build is not None:
        number = item.build.number
        shown["executable"] = {"number": number, "url": f"{_url(item.job, base)}{number}/"}
    return shown


def _build(build: SimBuild, base: str) -> dict[str, Any]:
    return {
        "number": build.number,
        "url": f"{_url(build.job, base)}{build.number}/",
        "building": build.result is None,
        "result": build.result,
        "queueId": build.queue_id,
        "actions": _actions(build),
    }


def _job(job: SimJenkinsJob, base: str) -> dict[str, Any]:
    definitions = [{"name": name} for name in job.parameters]
    return {
        "url": _url(job, base),
        "buildable": job.buildable,
        "property": [{}, {"parameterDefinitions": definitions}] if definitions else [],
        "builds": [_build(build, base) for build in reversed(job.builds[-50:])],
    }


def _log(build: SimBuild, request: Request) -> Response:
    text = build.log.encode()
    start = int(request.query_params.get("start", "0"))
    # Jenkins takes a start beyond the end for a log that began anew.
    rest = text[start:] if start <= len(text) else text
    headers = {"x-text-size": str(len(text))}
    if build.result is None:
        headers["x-more-data"] = "true"
    return Response(rest, media_type="text/plain", headers=headers)
