"""Builds on a Jenkins controller.

A job is named by its path, as in `folder/app`. A branch of a multibranch job is one part of it,
with its own slashes as `%2F`, as in `folder/app/fix%2Fcve-1`.

The build that a lost reply hides must not be asked for twice. If the parameters hold
`TOWLINE_INTENT`, the queue and then the newest builds are searched for one with the same value,
and it is used. Jenkins keeps only the parameters that a job declares, so that the job must declare
it; a job which does not is built on each call. A job without parameters is built without any.

Jenkins may believe that it has another address than the one it is reached at: of its URLs the path
counts, below the address that is configured, and no request ever goes elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from towline.forges import payload
from towline.forges.payload import Object
from towline.integrations.ci import Build, BuildState, CiRefused, CiUnavailable
from towline.integrations.jenkins.client import JenkinsHttp
from towline_once.errors import Rejected
from towline_once.ports import Clock

INTENT: Final = "TOWLINE_INTENT"

_MOST_BUILDS: Final = 50
_ITEM: Final = re.compile(r"/queue/item/(?P<id>\d{1,18})/?$")
_BUILD: Final = re.compile(r"(?P<job>(?:/job/[^/]+)+)/(?P<number>\d{1,10})/?$")
_JOB_PATH: Final = re.compile(r"(?P<job>(?:/job/[^/]+)+)/?$")
_RESULTS: Final[Mapping[str, BuildState]] = {
    "SUCCESS": "succeeded",
    "UNSTABLE": "failed",
    "FAILURE": "failed",
    "ABORTED": "cancelled",
    "NOT_BUILT": "cancelled",
}
_PARAMETERS: Final = "actions[parameters[name,value]]"
_QUEUE: Final = f"items[id,task[url],{_PARAMETERS}]"
_JOB: Final = (
    "buildable,property[parameterDefinitions[name]],"
    f"builds[number,building,result,{_PARAMETERS}]{{0,{_MOST_BUILDS}}}"
)


class JenkinsCi:
    """`user` and `token` are an account's name and API token.

    The deadline is that of a request; a call makes five of them at most.
    """

    def __init__(
        self, url: str, clock: Clock, *, user: str, token: str, deadline_seconds: float = 15.0
    ) -> None:
        self._http = JenkinsHttp(url, clock, user, token, deadline_seconds)

    async def build(self, job: str, parameters: Mapping[str, str]) -> Build:
        path = job_path(job)
        queue: Object = {}
        if intent := parameters.get(INTENT):
            # The queue first: what leaves it meanwhile is found among the builds.
            queue = await self._http.read("/queue/api/json", "the queue", tree=_QUEUE)
        known = await self._http.read(f"{path}/api/json", f"job {job}", tree=_JOB)
        if intent and (found := self._intended(path, intent, queue, known)):
            return found
        if payload.flag(known, "buildable") is False:
            raise CiRefused(f"the Jenkins job {job} is disabled, or cannot be built")
        verb = "buildWithParameters" if _has_parameters(known) else "build"
        return await self._start(job, f"{path}/{verb}", parameters)

    def _intended(self, path: str, intent: str, queue: Object, known: Object) -> Build | None:
        for item in payload.objects(queue, "items", most=10_000):
            task = payload.text(payload.inner(item, "task"), "url", payload.LONGEST_URL) or ""
            number = payload.number(item, "id")
            if number and _is_job(task, path) and _intent(item) == intent:
                return Build(self._http.url(f"/queue/item/{number}/"), "queued")
        for one in payload.objects(known, "builds", most=_MOST_BUILDS):
            number = payload.number(one, "number")
            if number and _intent(one) == intent:
                return Build(self._http.url(f"{path}/{number}/"), _state(one), number)
        return None

    async def _start(self, job: str, path: str, parameters: Mapping[str, str]) -> Build:
        location = await self._http.post(path, f"job {job}", parameters)
        item = _ITEM.search(_path_of(location))
        if item is None:
            raise CiUnavailable(f"Jenkins does not say where it queued job {job}")
        return Build(self._http.url(f"/queue/item/{item['id']}/"), "queued")

    async def read(self, url: str) -> Build:
        """Of an item in the queue, or of its build once that has begun; `gone` if Jenkins forgot.

        Jenkins forgets an item some five minutes after it left the queue.
        """
        path = _path_of(url)
        if item := _ITEM.search(path):
            return await self._read_item(item["id"])
        return await self._read_build(*_build_path(path))

    async def _read_item(self, number: str) -> Build:
        path = f"/queue/item/{number}/"
        tree = "cancelled,executable[number,url]"
        item = await self._http.find(f"{path}api/json", f"item {number} of the queue", tree=tree)
        url = self._http.url(path)
        if item is None:
            return Build(url, "gone")
        begun = payload.url(payload.inner(item, "executable"), "url")
        if begun is not None:
            return await self._read_build(*_build_path(_path_of(begun)))
        return Build(url, "cancelled" if payload.flag(item, "cancelled") else "queued")

    async def _read_build(self, job: str, number: int) -> Build:
        path = f"{job}/{number}/"
        found = await self._http.find(f"{path}api/json", f"build {number}", tree="building,result")
        return Build(self._http.url(path), "gone" if found is None else _state(found), number)

    async def log(self, url: str, most_bytes: int) -> str:
        """Empty while there is no build."""
        seen = await self.read(url)
        if seen.number is None or seen.state == "gone":
            return ""
        job, number = _build_path(_path_of(seen.url))
        end = await self._http.tail(f"{job}/{number}/logText/progressiveText", most_bytes)
        return end.decode(errors="replace").replace("\0", "")

    async def aclose(self) -> None:
        await self._http.aclose()


def job_path(job: str) -> str:
    parts = job.strip("/").split("/")
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise Rejected("a Jenkins job is named by its path, as in folder/app")
    return "".join(f"/job/{quote(part, safe='')}" for part in parts)


def _path_of(url: str) -> str:
    """Empty if it is no URL."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _build_path(path: str) -> tuple[str, int]:
    found = _BUILD.search(path)
    if found is None or any(part in (".", "..") for part in found["job"].split("/")):
        raise CiRefused("this is not the URL of a Jenkins build, or of an item of its queue")
    return found["job"], int(found["number"])


def _is_job(url: str, path: str) -> bool:
    found = _JOB_PATH.search(_path_of(url))
    return found is not None and unquote(found["job"]) == unquote(path)


def _has_parameters(job: Object) -> bool:
    found = payload.objects(job, "property")
    return any(payload.objects(one, "parameterDefinitions") for one in found)


def _intent(node: Object) -> str | None:
    for action in payload.objects(node, "actions"):
        for parameter in payload.objects(action, "parameters"):
            if parameter.get("name") == INTENT:
                return payload.text(parameter, "value")
    return None


def _state(build: Object) -> BuildState:
    """A result is set before the build has quite ended."""
    result = payload.text(build, "result")
    if payload.flag(build, "building") or result is None:
        return "running"
    return _RESULTS.get(result, "failed")
