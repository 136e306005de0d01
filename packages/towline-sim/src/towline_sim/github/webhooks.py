"""Webhooks, from what the world tells to the hook's URL, and the log of all attempts.

An event has one GUID for all the hooks it goes to. What becomes of a delivery on its way is a
matter of faults: it may be lost, come twice, or come late and so out of order. A lost one is in
the log as one without an answer. Nothing is repeated unless a client asks for it, as at GitHub.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import random
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

import httpx2
import orjson

from towline_sim.github.entities import (
    CheckRun,
    CheckSuite,
    CommitFacts,
    Emitted,
    Hook,
    Pull,
    Review,
    Status,
    WorkflowRun,
)
from towline_sim.github.fault_dice import HookFaults
from towline_sim.github.shapes import Shapes, when
from towline_sim.github.world import World

# ---------------------------------------------------------------- payloads
# What a hook is sent: the payload of each event, as GitHub writes it.
#
# Everything is rendered from what was emitted, so a late delivery shows the world as it was then.
# Objects look as in the REST API, with the few differences that GitHub's webhooks have.

Payload: TypeAlias = dict[str, Any]
_NO_COMMIT: Final = "0" * 40
_VERDICT_WORDS: Final[Mapping[str, str]] = {
    "APPROVED": "approved",
    "CHANGES_REQUESTED": "changes_requested",
    "COMMENTED": "commented",
    "DISMISSED": "dismissed",
}


class _HookShapes(Shapes):
    """Looking at what is told must leave the world as it is."""

    def pull_minimal(self, repo: str, number: int) -> Payload:
        pull = self.world.known_pull(repo, number)
        return {
            "id": pull.id,
            "number": pull.number,
            "url": f"{self.repo_url(repo)}/pulls/{pull.number}",
            "head": self._short_end(pull.head_repo, pull.head_ref, pull.head_sha),
            "base": self._short_end(pull.repo, pull.base_ref, pull.base_sha),
        }


def payload_of(world: World, root: str, told: Emitted) -> Payload:
    """`root` is where the API is served."""
    shapes = _HookShapes(world, root)
    about = _RENDERERS[told.name](shapes, told) if told.name in _RENDERERS else {}
    action = {} if told.action is None else {"action": told.action}
    return {
        **action,
        "repository": shapes.repo(told.repo),
        "sender": shapes.user(told.sender),
        **about,
    }


def ping_of(world: World, root: str, repo: str, hook: Mapping[str, Any]) -> Payload:
    """What a new hook is sent first; `hook` is itself as the REST API shows it."""
    shapes = _HookShapes(world, root)
    held = world.repo(repo)
    return {
        "zen": "Keep it logically awesome.",
        "hook_id": hook["id"],
        "hook": dict(hook),
        "repository": shapes.repo(held),
        "sender": shapes.user(held.owner),
    }


def _pull_request(shapes: Shapes, told: Emitted) -> Payload:
    pull = _given(told.pull)
    shown: Payload = {"number": pull.number, "pull_request": _pull(shapes, pull, told)}
    if told.label is not None:
        shown["label"] = shapes.label(told.repo, told.label)
    if told.before is not None:
        shown |= {"before": told.before, "after": pull.head_sha}
    if told.action == "edited":
        shown["changes"] = {}
    return shown


def _pull(shapes: Shapes, pull: Pull, told: Emitted) -> Payload:
    shown = shapes.pull(pull)
    return {**shown, "mergeable": pull.mergeable, "mergeable_state": told.mergeable_state}


def _review(shapes: Shapes, told: Emitted) -> Payload:
    review, pull = _given(told.review), _given(told.pull)
    return {"review": _review_shown(shapes, review), "pull_request": shapes.pull_simple(pull)}


def _review_shown(shapes: Shapes, review: Review) -> Payload:
    state = _VERDICT_WORDS[review.state]
    return {**shapes.review(review), "state": state, "updated_at": when(review.updated_at)}


def _comment(shapes: Shapes, told: Emitted) -> Payload:
    shown = {
        "issue": shapes.issue(_given(told.pull)),
        "comment": shapes.comment(_given(told.comment)),
    }
    return {**shown, "changes": {}} if told.action == "edited" else shown


def _check_run(shapes: Shapes, told: Emitted) -> Payload:
    run, suite = _given(told.run), _given(told.suite)
    return {"check_run": {**_run_shown(shapes, run), "check_suite": _suite_within(shapes, suite)}}


def _run_shown(shapes: Shapes, run: CheckRun) -> Payload:
    return shapes.run(run)


def _suite_within(shapes: Shapes, suite: CheckSuite) -> Payload:
    left_out = ("repository", "head_commit", "latest_check_runs_count", "check_runs_url")
    shown = shapes.suite(suite)
    return {name: value for name, value in shown.items() if name not in left_out}


def _check_suite(shapes: Shapes, told: Emitted) -> Payload:
    return {"check_suite": shapes.suite(_given(told.suite))}


def _status(shapes: Shapes, told: Emitted) -> Payload:
    status, commit = _given(told.status), _given(told.commit)
    return {
        "id": status.id,
        "sha": status.sha,
        "name": status.repo,
        "avatar_url": f"{shapes.root}/avatars/u/{status.creator.id}",
        "target_url": status.target_url,
        "context": status.context,
        "description": status.description,
        "state": status.state,
        "commit": shapes.commit(told.repo, commit),
        "branches": [_branch(shapes, status, name) for name in told.branches],
        "created_at": when(status.created_at),
        "updated_at": when(status.updated_at),
    }


def _branch(shapes: Shapes, status: Status, name: str) -> Payload:
    commit = {"sha": status.sha, "url": f"{shapes.repo_url(status.repo)}/commits/{status.sha}"}
    return {"name": name, "commit": commit, "protected": False}


def _workflow_run(shapes: Shapes, told: Emitted) -> Payload:
    run = _given(told.workflow_run)
    return {"workflow_run": shapes.workflow_run(run), "workflow": _workflow(shapes, run)}


def _workflow(shapes: Shapes, run: WorkflowRun) -> Payload:
    page = shapes.page_url(run.repo)
    return {
        "id": run.workflow_id,
        "node_id": f"W_{run.workflow_id}",
        "name": run.name,
        "path": run.path,
        "state": "active",
        "created_at": when(0),
        "updated_at": when(0),
        "url": f"{shapes.repo_url(run.repo)}/actions/workflows/{run.workflow_id}",
        "html_url": f"{page}/blob/main/{run.path}",
        "badge_url": f"{page}/workflows/{run.name}/badge.svg",
    }


def _workflow_job(shapes: Shapes, told: Emitted) -> Payload:
    job, run = _given(told.job), _given(told.workflow_run)
    return {"workflow_job": shapes.job(job), "workflow": _workflow(shapes, run)}


def _push(shapes: Shapes, told: Emitted) -> Payload:
    change = _given(told.ref_change)
    before, after = change.before or _NO_COMMIT, change.after or _NO_COMMIT
    commits = [_pushed_commit(shapes, told, facts) for facts in change.commits]
    page = shapes.page_url(told.repo.full_name)
    return {
        "ref": change.ref,
        "before": before,
        "after": after,
        "base_ref": None,
        "created": change.before is None,
        "deleted": change.after is None,
        "forced": change.forced,
        "compare": f"{page}/compare/{before[:12]}...{after[:12]}",
        "commits": commits,
        "head_commit": commits[-1] if commits else None,
        "pusher": {"name": told.sender.login, "email": None},
        "repository": _pushed_repo(shapes, told),
    }


def _pushed_repo(shapes: Shapes, told: Emitted) -> Payload:
    """A push alone tells these two times in seconds since 1970."""
    return {
        **shapes.repo(told.repo),
        "created_at": int(told.repo.created_at),
        "pushed_at": int(told.repo.pushed_at),
        "stargazers": 0,
        "master_branch": told.repo.default_branch,
    }


def _pushed_commit(shapes: Shapes, told: Emitted, facts: CommitFacts) -> Payload:
    who = {"name": facts.author_name, "email": facts.author_email}
    return {
        "id": facts.sha,
        "tree_id": facts.tree,
        "distinct": True,
        "message": facts.message,
        "timestamp": when(facts.at),
        "url": f"{shapes.page_url(told.repo.full_name)}/commit/{facts.sha}",
        "author": who,
        "committer": who,
        "added": [],
        "removed": [],
        "modified": [],
    }


def _dispatch(shapes: Shapes, told: Emitted) -> Payload:
    return {"branch": told.repo.default_branch, "client_payload": dict(told.dispatch_payload or {})}


def _given(thing: Any) -> Any:
    """What an event of this name always is about."""
    if thing is None:
        raise ValueError("the event lacks what it is about")
    return thing


_RENDERERS: Final[Mapping[str, Callable[[Shapes, Emitted], Payload]]] = {
    "pull_request": _pull_request,
    "pull_request_review": _review,
    "issue_comment": _comment,
    "check_run": _check_run,
    "check_suite": _check_suite,
    "status": _status,
    "workflow_run": _workflow_run,
    "workflow_job": _workflow_job,
    "push": _push,
    "repository_dispatch": _dispatch,
}


# ---------------------------------------------------------------- webhooks

DEADLINE: Final = 10.0
KEPT_SECONDS: Final = 3 * 86400.0
MOST_KEPT: Final = 10_000
_AT_ONCE: Final = 32
_NO_ANSWER: Final = 504


@dataclass(slots=True, kw_only=True)
class Delivery:
    """One attempt. `status_code` is 504 if no answer came, and 0 until it is known."""

    id: int
    guid: str
    hook_id: int
    event: str
    action: str | None
    repo_id: int | None
    packed: bytes = field(repr=False)
    """The body, compressed: a log of thousands is mostly bodies, and they are much alike."""
    headers: Mapping[str, str] = field(repr=False)
    delivered_at: float
    redelivery: bool = False
    status_code: int = 0
    duration: float = 0.0
    answer: str = ""

    @property
    def body(self) -> bytes:
        return zlib.decompress(self.packed)

    @property
    def ok(self) -> bool:
        return 200 <= self.status_code < 300


class Target(NamedTuple):
    """Where a hook's deliveries go: a repository's hook, or the App's."""

    hook_id: int
    url: str
    secret: str
    kind: str
    target_id: int
    content_type: str = "json"


class Fate(NamedTuple):
    """What becomes of one copy of a delivery."""

    late: float = 0.0
    lost: bool = False


Fates: TypeAlias = Callable[[Emitted], Sequence[Fate]]
"""Of an event's delivery to one hook: a fate for each copy that is sent."""


def arrives(_: Emitted) -> Sequence[Fate]:
    return (Fate(),)


class HookDice:
    """Fates by chance, the same again for the same seed."""

    def __init__(self, faults: HookFaults, seed: int = 0) -> None:
        self.faults = faults
        self._dice = random.Random(seed)  # noqa: S311  a simulation wants the same dice again

    def __call__(self, _: Emitted) -> Sequence[Fate]:
        if self._dice.random() < self.faults.lose:
            return (Fate(lost=True),)
        copies = 2 if self._dice.random() < self.faults.duplicate else 1
        return tuple(Fate(late=self._delay()) for _ in range(copies))

    def _delay(self) -> float:
        late = self._dice.random() < self.faults.reorder
        return self._dice.uniform(*(self.faults.late if late else self.faults.usual))


class Due(NamedTuple):
    at: float
    order: int
    target: Target
    delivery: Delivery
    lost: bool


class Webhooks:
    """`wake` is called when something has been put on the way."""

    def __init__(
        self, world: World, fates: Fates, root: str, wake: Callable[[], None] = lambda: None
    ) -> None:
        self.world = world
        self.fates = fates
        self.root = root
        self.wake = wake
        self.app_hook: Target | None = None
        self.most_kept = MOST_KEPT
        self._log: dict[int, list[Delivery]] = {}
        self._last_id = 0
        self._due: list[Due] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._client = httpx2.AsyncClient(timeout=DEADLINE, trust_env=False)

    def collect(self) -> None:
        """Put what the world has told since the last time on its way."""
        told, self.world.outbox[:] = list(self.world.outbox), []
        for event in told:
            self._address(event)

    def _address(self, event: Emitted) -> None:
        targets = list(self._targets(event))
        if not targets:
            return
        guid = str(uuid.UUID(int=self.world.random.getrandbits(128), version=4))
        payload = payload_of(self.world, self.root, event)
        for target in targets:
            for late, lost in self.fates(event):
                delivery = self._new(target, guid, event.name, payload, event.repo.id)
                self._put(target, delivery, self.world.now + late, lost=lost)

    def _targets(self, event: Emitted) -> Iterator[Target]:
        for hook in self.world.hooks(event.repo.full_name):
            if hook.wants(event.name):
                yield target_of(hook, event.repo.id)
        if self.app_hook is not None:
            yield self.app_hook

    def ping(self, hook: Hook, payload: Mapping[str, Any]) -> None:
        repo = self.world.repo(hook.repo)
        target = target_of(hook, repo.id)
        delivery = self._new(target, str(uuid.uuid4()), "ping", payload, repo.id)
        self._put(target, delivery, self.world.now, lost=False)

    def redeliver(self, target: Target, delivery: Delivery) -> None:
        """A new attempt of the same delivery: GUID, headers and body are as they were."""
        again = Delivery(
            id=self._next_id(),
            guid=delivery.guid,
            hook_id=delivery.hook_id,
            event=delivery.event,
            action=delivery.action,
            repo_id=delivery.repo_id,
            packed=delivery.packed,
            headers=delivery.headers,
            delivered_at=self.world.now,
            redelivery=True,
        )
        self._put(target, again, self.world.now, lost=False)

    def log(self, hook_id: int) -> list[Delivery]:
        """Newest first, of the last three days."""
        since = self.world.now - KEPT_SECONDS
        kept = [one for one in self._log.get(hook_id, ()) if one.delivered_at >= since]
        return kept[::-1]

    def next_due(self) -> float | None:
        return self._due[0].at if self._due else None

    def send_due(self) -> None:
        """Start on everything whose time has come."""
        while self._due and self._due[0].at <= self.world.now:
            due = heappop(self._due)
            task = asyncio.get_running_loop().create_task(self._send(due))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def settle(self) -> None:
        """Until everything that was started is answered or given up."""
        while self._sending:
            await asyncio.wait(self._sending)

    async def aclose(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._client.aclose()

    def _new(
        self, target: Target, guid: str, event: str, payload: Mapping[str, Any], repo_id: int
    ) -> Delivery:
        body = orjson.dumps(payload)
        return Delivery(
            id=self._next_id(),
            guid=guid,
            hook_id=target.hook_id,
            event=event,
            action=payload.get("action"),
            repo_id=repo_id,
            packed=zlib.compress(body, 1),
            headers=headers_of(target, guid, event, body),
            delivered_at=self.world.now,
        )

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _put(self, target: Target, delivery: Delivery, at: float, *, lost: bool) -> None:
        heappush(self._due, Due(at, delivery.id, target, delivery, lost))
        self.wake()

    async def _send(self, due: Due) -> None:
        delivery = due.delivery
        delivery.delivered_at = self.world.now
        log = self._log.setdefault(delivery.hook_id, [])
        log.append(delivery)
        del log[: max(0, len(log) - self.most_kept)]
        if due.lost:
            delivery.status_code, delivery.answer = _NO_ANSWER, "simulated: lost"
            return
        started = time.monotonic()
        async with self._slots:
            delivery.status_code, delivery.answer = await self._post(due.target, delivery)
        delivery.duration = round(time.monotonic() - started, 3)

    async def _post(self, target: Target, delivery: Delivery) -> tuple[int, str]:
        url, wire = target.url, wire_of(target, delivery.body)
        with contextlib.suppress(httpx2.HTTPError, httpx2.InvalidURL, TimeoutError):
            async with asyncio.timeout(DEADLINE):
                answer = await self._client.post(url, content=wire, headers=dict(delivery.headers))
            return answer.status_code, answer.text[:1000]
        return _NO_ANSWER, "failed to connect"


def target_of(hook: Hook, repo_id: int) -> Target:
    return Target(hook.id, hook.url, hook.secret, "repository", repo_id, hook.content_type)


def wire_of(target: Target, body: bytes) -> bytes:
    """The bytes that are sent and signed: the payload itself, or a form that holds it."""
    return body if target.content_type == "json" else urlencode({"payload": body}).encode()


def headers_of(target: Target, guid: str, event: str, body: bytes) -> dict[str, str]:
    kind = "json" if target.content_type == "json" else "x-www-form-urlencoded"
    headers = {
        "Content-Type": f"application/{kind}",
        "User-Agent": "GitHub-Hookshot/simulated",
        "Accept": "*/*",
        "X-GitHub-Delivery": guid,
        "X-GitHub-Event": event,
        "X-GitHub-Hook-ID": str(target.hook_id),
        "X-GitHub-Hook-Installation-Target-Type": target.kind,
        "X-GitHub-Hook-Installation-Target-ID": str(target.target_id),
    }
    if target.secret:
        signed = wire_of(target, body)
        digest = hmac.new(target.secret.encode(), signed, hashlib.sha256).hexdigest()
        headers["X-Hub-Signature-256"] = f"sha256={digest}"
    return headers
