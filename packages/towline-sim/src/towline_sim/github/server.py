"""A GitHub over HTTP: REST at the root, GraphQL at `/graphql`, git below each repository's name.

The world is moved by the clock: before each request, by `run` while nobody asks, and by `settle`
where a test is the clock's master. Operations run to their end without an await, so that each sees
and leaves a whole world.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from towline_once.ports import Clock
from towline_sim.github import graphql
from towline_sim.github.auth import AppIdentity, Caller, Doorkeeper
from towline_sim.github.entities import ROLES, Role, WorldRefusal
from towline_sim.github.fault_dice import FaultDice
from towline_sim.github.faults import HttpFault, drawn
from towline_sim.github.git_server import MOST_BYTES, GitRequest, GitServer, git_request
from towline_sim.github.limits import Limits, Meter, Resource
from towline_sim.github.messages import (
    Sent,
    parsed,
    problem_response,
    read_request,
    shown,
    spoilt,
)
from towline_sim.github.problems import Problem
from towline_sim.github.rest.calls import Call, Match
from towline_sim.github.rest.routes import ROUTES
from towline_sim.github.shapes import Shapes
from towline_sim.github.webhooks import Fates, Target, Webhooks, arrives
from towline_sim.github.world import World
from towline_sim.http import Simulator, json_response, mark_date, until_left

_LONGEST_NAP: Final = 1.0
_GRAPHQL: Final = frozenset({"/graphql", "/api/graphql"})
_REMEMBERED: Final = 100_000
_INSTALLATION: Final = 815


class Asked(NamedTuple):
    """A request that came in, and its answer's status; 0 if it got none."""

    method: str
    path: str
    query: Mapping[str, str]
    login: str | None
    status: int


class GitHubSim(Simulator):
    """Over one world.

    `token` is that of `login`, who may do everything everywhere; `tokens` maps those of others to
    their logins. The App has `app_slug` and one installation, which sees every repository.
    """

    def __init__(
        self,
        world: World,
        clock: Clock,
        token: str,
        *,
        login: str = "towline-bot",
        tokens: Mapping[str, str] | None = None,
        app_slug: str = "towline",
        limits: Limits | None = None,
        fates: Fates = arrives,
        dice: FaultDice | None = None,
        root: str = "http://127.0.0.1",
    ) -> None:
        self.world = world
        self.clock = clock
        self.login = world.user(login).login
        self.app = world.app(app_slug)
        self.limits = limits or Limits()
        self.faults: list[HttpFault] = []
        self.dice = dice
        self.asked: deque[Asked] = deque(maxlen=_REMEMBERED)
        self._wake = asyncio.Event()
        self.webhooks = Webhooks(world, fates, root, self._wake.set)
        identity = AppIdentity(self.app.id, app_slug, _INSTALLATION)
        self._door = Doorkeeper({token: login, **(tokens or {})}, identity)
        self._meters: dict[str, Meter] = {}
        self._git = GitServer(world)
        self._requests = 0

    @property
    def installation_id(self) -> int:
        return self._door.app.installation_id

    def add_app_hook(self, url: str, secret: str = "") -> Target:
        """The App's hook: which gets everything in every repository."""
        target = Target(self.app.id, url, secret, "integration", self.app.id)
        self.webhooks.app_hook = target
        return target

    def advance(self) -> None:
        """Let happen what is due by the clock, and send out what there is to tell of it."""
        self.world.run_until(self.clock.now_us() / 1e6)
        self.webhooks.collect()
        self.webhooks.send_due()

    async def settle(self) -> None:
        """Advance, and wait until all webhooks that are due have been answered."""
        self.advance()
        await self.webhooks.settle()

    async def run(self, speed: float = 1.0) -> None:
        """Keep the world moving until cancelled; `speed` is how much faster its clock goes."""
        while True:
            self._wake.clear()
            self.advance()
            due = [at for at in (self.world.next_due(), self.webhooks.next_due()) if at is not None]
            wait = (min(due) - self.clock.now_us() / 1e6) / speed if due else _LONGEST_NAP
            try:
                async with asyncio.timeout(min(max(wait, 0.001), _LONGEST_NAP)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def aclose(self) -> None:
        await self.webhooks.aclose()
        self._git.close()

    async def respond(self, request: Request) -> Response | None:
        return await self._answer(await read_request(request), request)

    async def _answer(self, sent: Sent, request: Request) -> Response | None:
        """None if there is to be no answer at all."""
        self.webhooks.root = sent.root
        self.advance()
        caller = self._door.admit(sent.headers.get("authorization", ""), self.world.now)
        meter = self._meter(caller)
        meter.running += 1
        try:
            response = await self._through_faults(sent, caller, request)
        finally:
            meter.running -= 1
        login, status = caller.login if caller else None, response.status_code if response else 0
        self.asked.append(Asked(sent.method, sent.path, sent.query, login, status))
        if response is not None:
            self._mark(response)
        return response

    async def _through_faults(
        self, sent: Sent, caller: Caller | None, request: Request
    ) -> Response | None:
        fault = self._fault(sent)
        kind = fault.kind if fault else None
        if fault is not None and kind == "slow":
            await asyncio.sleep(fault.seconds)
        if fault is not None and kind == "failing":
            after = {"retry-after": str(fault.retry_after)} if fault.retry_after else None
            return problem_response(Problem(fault.status, fault.message, headers=after))
        if kind != "silent":
            response = await self._take(sent, caller)
            self.advance()
            self._wake.set()
            if kind != "reply_silent":
                return spoilt(response, fault)
        await until_left(request)
        return None

    def _fault(self, sent: Sent) -> HttpFault | None:
        """One that was asked for here, or else what the dice say."""
        for one in self.faults:
            if one.strikes(sent.method, sent.path):
                return one
        if self.dice is None:
            return None
        return drawn(self.dice.draw("forge", self.world.now, write=_writes(sent)))

    async def _take(self, sent: Sent, caller: Caller | None) -> Response:
        if len(sent.body) > MOST_BYTES:
            return problem_response(Problem(413, "Payload Too Large"))
        asked = git_request(sent.method, sent.path, sent.query)
        if asked is not None:
            return await self._take_git(asked, sent, caller)
        if caller is None:
            return problem_response(Problem(401, "Bad credentials"))
        meter = self._meter(caller)
        resource: Resource = "graphql" if sent.path in _GRAPHQL else "core"
        try:
            response = self._operate(sent, caller, meter, resource)
        except Problem as problem:
            response = problem_response(problem)
        except WorldRefusal as refusal:
            response = problem_response(Problem(refusal.status, refusal.message, refusal.errors))
        response.headers.update(meter.window(resource, self._now_us()).headers(resource))
        return response

    def _meter(self, caller: Caller | None) -> Meter:
        key = caller.key if caller else ""
        if key not in self._meters:
            self._meters[key] = Meter(self.limits)
        return self._meters[key]

    def _operate(self, sent: Sent, caller: Caller, meter: Meter, resource: Resource) -> Response:
        if resource == "graphql":
            return self._ask(sent, caller, meter)
        found = ROUTES.find(sent.method, sent.path)
        if sent.path != "/rate_limit":
            meter.charge(sent.method, resource, self._now_us())
        if found is None:
            raise Problem(404, "Not Found")
        self._check_rights(found, caller)
        call = Call(
            world=self.world,
            method=sent.method,
            path=sent.path,
            root=sent.root,
            caller=caller,
            params=found.params,
            query=sent.query,
            body=parsed(sent.body),
            accept=sent.headers.get("accept", ""),
            show=Shapes(self.world, sent.root),
            webhooks=self.webhooks,
            door=self._door,
            meter=meter,
        )
        response = shown(found.route.operation(call))
        if sent.method == "GET" and response.status_code == 200:
            return self._with_tag(response, sent, meter)
        return response

    def _ask(self, sent: Sent, caller: Caller, meter: Meter) -> Response:
        if sent.method != "POST":
            raise Problem(404, "Not Found")
        question = graphql.read(parsed(sent.body))
        meter.charge("POST", "graphql", self._now_us(), question.cost.points)
        window = meter.window("graphql", self._now_us())
        context = graphql.Context(self.world, sent.root, caller.login, window)
        return json_response(graphql.ask(question, context))

    def _with_tag(self, response: Response, sent: Sent, meter: Meter) -> Response:
        tag = f'W/"{hashlib.sha256(response.body).hexdigest()}"'
        known = [one.strip() for one in sent.headers.get("if-none-match", "").split(",")]
        if tag in known:
            if sent.path != "/rate_limit":
                meter.give_back("core", self._now_us())
            return Response(status_code=304, headers={"etag": tag})
        response.headers["etag"] = tag
        return response

    def _check_rights(self, found: Match, caller: Caller) -> None:
        path = found.route.path
        for_app = path.startswith("/app") or path.endswith("/installation")
        if for_app != caller.as_app and path != "/rate_limit":
            if for_app:
                raise Problem(401, "A JSON web token could not be decoded")
            raise Problem(403, "Resource not accessible by integration")
        if "owner" not in found.params or caller.as_app:
            return
        role = self._role(f"{found.params['owner']}/{found.params['repo']}", caller)
        if role == "none":
            raise Problem(404, "Not Found")
        if ROLES.index(role) < ROLES.index(found.route.needs()):
            raise Problem(403, "Resource not accessible by personal access token")

    def _role(self, repo: str, caller: Caller) -> Role:
        """What the caller has in the repository; our own login and the App's are let in first."""
        ours = caller.login == self.login or caller.app_slug is not None
        if ours and self.world.permission(repo, caller.login) != "admin":
            self.world.set_permission(repo, caller.login, "admin")
        return self.world.permission(repo, caller.login)

    async def _take_git(self, asked: GitRequest, sent: Sent, caller: Caller | None) -> Response:
        if caller is None and "authorization" in sent.headers:
            return problem_response(Problem(401, "Bad credentials"))
        try:
            role = None if caller is None else self._role(asked.repo, caller)
        except WorldRefusal:
            role = "none"
        login = caller.login if caller else ""
        answer = await self._git.answer(asked, role, login, sent.headers, sent.body)
        return Response(answer.body, answer.status, dict(answer.headers))

    def _mark(self, response: Response) -> None:
        self._requests += 1
        mark_date(response, self._now_us() / 1e6)
        response.headers["x-github-request-id"] = f"SIM0:{self._requests:08X}"
        response.headers["x-github-media-type"] = "github.v3; format=json"

    def _now_us(self) -> int:
        return self.clock.now_us()


def _writes(sent: Sent) -> bool:
    return sent.method not in ("GET", "HEAD") and sent.path not in _GRAPHQL
