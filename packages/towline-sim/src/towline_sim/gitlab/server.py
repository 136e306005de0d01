"""The simulated GitLab over HTTP: its REST API, as far as towing needs it, and faults."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from towline_sim.gitlab import world as shapes
from towline_sim.gitlab.world import (
    COMMIT,
    PIPELINE,
    PROJECT,
    REQUEST,
    ROUTES,
    Answered,
    Call,
    GitLabWorld,
    SimNote,
    answer,
    missing,
    problem,
    refuse,
    route,
)
from towline_sim.http import Simulator, mark_date, path_of

# ----------------------------------------------------------- gitlab_routes
# What the simulated GitLab does when it is asked about merge requests and pipelines.

__all__ = ["ROUTES"]


@route("GET", "/user")
def _user(call: Call) -> Response:
    return answer(shapes.user(call.world, call.user))


@route("GET", "/users")
def _users(call: Call) -> Response:
    wanted = call.query.get("username", "").lower()
    return call.page([shapes.user(call.world, n) for n in call.world.users if n.lower() == wanted])


@route("GET", f"{PROJECT}/members/all/{{user}}")
def _member(call: Call) -> Response:
    levels = {str(call.world.user(name)): level for name, level in call.project.members.items()}
    level = levels.get(call.named["user"])
    if level is None:
        return problem(404, "404 Not found")
    return answer({"id": int(call.named["user"]), "state": "active", "access_level": level})


@route("GET", PROJECT)
def _project(call: Call) -> Response:
    return answer(shapes.project(call.world, call.project))


@route("GET", f"{PROJECT}/merge_requests")
def _list(call: Call) -> Response:
    wanted, state = call.listed.get("iids[]"), call.query.get("state", "all")
    after_us = _moment_us(call.query.get("updated_after"))
    found = [
        one
        for one in call.project.requests.values()
        if (wanted is None or str(one.iid) in wanted)
        and state in ("all", one.state)
        and one.updated_us // 1000 * 1000 >= after_us
    ]
    if call.query.get("order_by") == "updated_at":
        ascending = call.query.get("sort") == "asc"
        found.sort(key=lambda one: (one.updated_us, one.iid), reverse=not ascending)
    return call.page([shapes.request(call.world, one, whole=False) for one in found])


def _moment_us(text: str | None) -> int:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e6) if text else 0
    except ValueError:
        return int(refuse(400, "updated_after is invalid"))


@route("GET", REQUEST)
def _show(call: Call) -> Response:
    request = call.request
    shown = shapes.request(call.world, request, whole=True)
    if "include_diverged_commits_count" in call.query:
        shown["diverged_commits_count"] = request.diverged
    if "include_rebase_in_progress" in call.query:
        shown["rebase_in_progress"] = request.rebase_until_us is not None
    return answer(shown)


@route("PUT", REQUEST)
def _change(call: Call) -> Response:
    request, told = call.request, call.body
    if told.get("state_event") == "close":
        request.state = "closed"
    if isinstance(told.get("labels"), str):
        request.labels = [label for label in told["labels"].split(",") if label]
    if (label := told.get("remove_labels")) in request.labels:
        request.labels.remove(label)
        request.label_log.append(f"-{label}")
    if (label := told.get("add_labels")) and label not in request.labels:
        request.labels.append(label)
        request.label_log.append(f"+{label}")
    call.world.touch(request)
    return answer(shapes.request(call.world, request, whole=True))


@route("PUT", f"{REQUEST}/rebase")
def _rebase(call: Call) -> Response:
    request = call.request
    if call.project.members.get(call.user, 0) < 30:
        return problem(403, "403 Forbidden - Cannot push to source branch")
    if request.rebase_until_us is not None:
        return problem(409, "Failed to enqueue the rebase operation")
    call.world.start_rebase(request)
    return answer({"rebase_in_progress": True}, 202)


@route("PUT", f"{REQUEST}/merge")
def _merge(call: Call) -> Response:
    request = call.request
    if call.project.members.get(call.user, 0) < 40:
        return problem(401, "401 Unauthorized")
    word = call.world.merge_status(request)
    if word == "conflict":
        return problem(422, "Branch cannot be merged")
    if word != "mergeable":
        return problem(405, "405 Method Not Allowed")
    if call.body.get("sha") not in (None, request.sha):
        return problem(409, "SHA does not match HEAD of source branch: " + request.sha)
    call.world.merge(request)
    return answer(shapes.request(call.world, request, whole=True))


@route("GET", f"{REQUEST}/approvals")
def _approvals(call: Call) -> Response:
    return answer(shapes.approvals(call.world, call.request, call.user))


@route("POST", f"{REQUEST}/approve")
def _approve(call: Call) -> Response:
    request = call.request
    if call.body.get("sha") not in (None, request.sha):
        return problem(409, "SHA does not match HEAD of source branch")
    if call.user in (request.author, *request.approved_by):
        return problem(401, "401 Unauthorized")
    request.approved_by.append(call.user)
    return answer(shapes.approvals(call.world, request, call.user), 201)


@route("GET", f"{REQUEST}/reviewers")
def _reviewers(call: Call) -> Response:
    given = call.request.changes_requested_by
    return call.page(
        [{"user": shapes.user(call.world, name), "state": "requested_changes"} for name in given]
    )


@route("GET", f"{REQUEST}/notes")
def _notes(call: Call) -> Response:
    ordered = sorted(call.request.notes, key=lambda note: note.id)
    if call.query.get("sort", "desc") == "desc":
        ordered.reverse()
    return call.page([shapes.note(call.world, note) for note in ordered])


@route("POST", f"{REQUEST}/notes")
def _add_note(call: Call) -> Response:
    note = call.world.add_note(call.request, call.user, call.body["body"])
    return answer(shapes.note(call.world, note), 201)


@route("GET", f"{REQUEST}/notes/{{note}}/award_emoji")
def _emoji(call: Call) -> Response:
    note = _note(call)
    return call.page(
        [{"name": name, "user": shapes.user(call.world, user)} for name, user in note.emoji]
    )


@route("POST", f"{REQUEST}/notes/{{note}}/award_emoji")
def _add_emoji(call: Call) -> Response:
    note, given = _note(call), (call.body["name"], call.user)
    if given in note.emoji:
        return problem(404, "404 Award Emoji Name has already been taken Not Found")
    note.emoji.append(given)
    return answer({"name": given[0]}, 201)


def _note(call: Call) -> SimNote:
    wanted = call.named["note"]
    found = next((note for note in call.request.notes if str(note.id) == wanted), None)
    return found or missing()


@route("GET", f"{REQUEST}/pipelines")
def _request_pipelines(call: Call) -> Response:
    iid = call.request.iid
    found = [one for one in call.project.pipelines.values() if one.number == iid]
    return call.page([shapes.pipeline(call.world, one, basic=True) for one in reversed(found)])


@route("POST", f"{REQUEST}/pipelines")
def _new_request_pipeline(call: Call) -> Response:
    request = call.request
    if not call.project.has_request_pipelines:
        return problem(400, "Cannot create a pipeline for this merge request: no stages / jobs.")
    before = request.head_pipeline
    names = [job.name for job in before.current] if before else ["test"]
    pipeline = call.world.add_pipeline(request, *names)
    return answer(shapes.pipeline(call.world, pipeline), 201)


@route("POST", f"{PROJECT}/pipeline")
def _new_pipeline(call: Call) -> Response:
    project, branch = call.project, call.body["ref"]
    if not branch:
        refuse(400, "Reference not found")
    given = {one["key"]: one["value"] for one in call.body.get("variables", [])}
    project.started.append((branch, given))
    return answer({"id": call.world.new_id(), "status": "pending"}, 201)


@route("GET", PIPELINE)
def _pipeline(call: Call) -> Response:
    return answer(shapes.pipeline(call.world, call.pipeline, named=True))


@route("POST", f"{PIPELINE}/retry")
def _retry(call: Call) -> Response:
    call.world.retry(call.pipeline)
    return answer(shapes.pipeline(call.world, call.pipeline), 201)


@route("GET", f"{PIPELINE}/jobs")
def _jobs(call: Call) -> Response:
    pipeline = call.pipeline
    return call.page([shapes.job(call.world, pipeline, job) for job in reversed(pipeline.current)])


@route("GET", f"{PROJECT}/jobs/{{job}}/trace")
def _trace(call: Call) -> Response:
    jobs = [job for one in call.project.pipelines.values() for job in one.jobs]
    found = next((job for job in jobs if str(job.id) == call.named["job"]), None)
    return problem(404, "404 Not found") if found is None else PlainTextResponse(found.trace)


@route("GET", COMMIT)
def _commit(call: Call) -> Response:
    sha = call.named["sha"]
    parents = call.project.parents.get(sha)
    return missing() if parents is None else answer({"id": sha, "parent_ids": list(parents)})


@route("GET", f"{COMMIT}/statuses")
def _statuses(call: Call) -> Response:
    sha, name = call.named["sha"], call.query.get("name")
    newest = {one.name: one for one in call.project.statuses.get(sha, [])}
    shown = [shapes.status(call.world, sha, one) for one in newest.values()]
    shown += [
        shapes.job_as_status(call.world, pipeline, job)
        for pipeline in call.project.pipelines.values()
        for job in pipeline.current
        if pipeline.sha == sha
    ]
    return call.page([one for one in shown if name in (None, one["name"])])


@route("POST", f"{PROJECT}/statuses/{{sha}}")
def _set_status(call: Call) -> Response:
    told, sha = call.body, call.named["sha"]
    status = call.world.set_status(call.project, sha, told["name"], told["state"], call.user)
    status.description, status.target_url = told.get("description"), told.get("target_url")
    return answer(shapes.status(call.world, sha, status), 201)


@route("GET", f"{COMMIT}/merge_requests")
def _of_commit(call: Call) -> Response:
    sha = call.named["sha"]
    found = [one for one in call.project.requests.values() if one.sha == sha]
    return call.page([shapes.request(call.world, one, whole=False) for one in found])


@route("POST", f"{PROJECT}/repository/commits")
def _new_commit(call: Call) -> Response:
    if not (call.project.allows_empty_commits and call.body.get("allow_empty")):
        return problem(400, "400 Bad request - actions is required")
    branch = call.body["branch"]
    for request in call.project.requests.values():
        if request.source_branch == branch:
            call.world.push(request)
    return answer({"id": call.world.new_sha(), "message": call.body["commit_message"]}, 201)


# ------------------------------------------------------------- gitlab_http

FaultKind = Literal["failing", "limited", "silent", "lost", "garbled"]

_ROOT: Final = "/api/v4"


class GitLabFault(NamedTuple):
    """`lost`: it is done, but the answer is an error. `path` is found anywhere in the path."""

    kind: FaultKind
    path: str = ""
    method: str = ""
    headers: Mapping[str, str] = {}
    status: int = 500


class Asked(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    status: int


class GitLabSim(Simulator):
    """Over a world. `tokens` tell whose they are."""

    def __init__(self, world: GitLabWorld, *, tokens: Mapping[str, str]) -> None:
        self.world = world
        self.tokens = tokens
        self.faults: list[GitLabFault] = []
        self.asked: list[Asked] = []
        self.limit = 2000
        self.remaining = 2000

    async def respond(self, request: Request) -> Response | None:
        path = path_of(request)
        kinds = {
            fault.kind: fault
            for fault in self.faults
            if fault.path in path and fault.method in ("", request.method)
        }
        place = len(self.asked)
        asked = Asked(request.method, path, dict(request.headers), 0)
        self.asked.append(asked)
        if "silent" in kinds:
            return None
        response = await self._struck(kinds, request, path)
        self._dress(response, request)
        self.asked[place] = asked._replace(status=response.status_code)
        return response

    async def _struck(
        self, kinds: Mapping[FaultKind, GitLabFault], request: Request, path: str
    ) -> Response:
        if fault := kinds.get("limited") or kinds.get("failing"):
            status = 429 if fault.kind == "limited" else fault.status
            said = problem(status, f"simulated: {fault.kind}")
            said.headers.update(fault.headers)
            return said
        response = await self._served(request, path)
        if lost := kinds.get("lost"):
            return problem(lost.status, "simulated")
        if "garbled" in kinds:
            return PlainTextResponse("<html>", response.status_code)
        return response

    async def _served(self, request: Request, path: str) -> Response:
        user = self.tokens.get(request.headers.get("private-token", ""))
        if user is None:
            return problem(401, "401 Unauthorized")
        self.world.user(user)
        self.world.settle()
        raw = await request.body()
        for method, pattern, handler in ROUTES:
            found = pattern.fullmatch(path.removeprefix(_ROOT))
            if found and method == request.method:
                named = {name: unquote(value) for name, value in found.groupdict().items()}
                query = request.query_params
                listed = {name: query.getlist(name) for name in query}
                body = orjson.loads(raw) if raw else {}
                call = Call(self.world, user, named, dict(query), listed, body)
                try:
                    return handler(call)
                except Answered as ended:
                    return ended.response
        return problem(404, "404 Not Found")

    def _dress(self, response: Response, request: Request) -> None:
        now = self.world.clock.now_us() // 1_000_000
        self.remaining = max(self.remaining - 1, 0)
        mark_date(response, now)
        response.headers.setdefault("ratelimit-limit", str(self.limit))
        response.headers.setdefault("ratelimit-remaining", str(self.remaining))
        response.headers.setdefault("ratelimit-reset", str(now + 60))
        if request.method == "GET" and response.status_code == 200:
            etag = f'W/"{hashlib.sha256(response.body).hexdigest()[:32]}"'
            response.headers["etag"] = etag
            if request.headers.get("if-none-match") == etag:
                response.status_code = 304
                response.body = b""
                response.headers["content-length"] = "0"
