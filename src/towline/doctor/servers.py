"""Redis, GitLab, Jenkins and Jira: whether each answers, and takes what the settings give it."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from towline.ci.jenkins_http import JenkinsHttp
from towline.core.checkup import (
    Finding,
    RedisFacts,
    failure,
    judge_clock,
    judge_redis,
    ok,
    one_line,
)
from towline.errors import TowlineError
from towline.forges.gitlab_api import GitLabApi, project_path
from towline.forges.http_client import Answer, json_of
from towline.forges.jira import Jira
from towline.settings import Settings
from towline.store.clock import SystemClock

if TYPE_CHECKING:
    from towline.store.redis import Redis

_REFUSALS: Final = (401, 403, 404)
_DEVELOPER: Final = 30
_MOST_REPOS: Final = 50


async def look_at_redis(settings: Settings, seconds: float) -> list[Finding]:
    """The service refuses a Redis that may drop things; here it is let in, to be told about."""
    from towline.store.redis import Redis
    from towline.store.redis_address import parse_url

    url = settings.redis_url or ""
    address, _ = parse_url(url)
    lenient = (
        url if address.allow_eviction else f"{url}{'&' if '?' in url else '?'}allow_eviction=1"
    )
    redis = Redis(lenient, clock=SystemClock(), timeout=seconds)
    try:
        server = _facts(await redis.call("INFO", "server"))
        memory = _facts(await redis.call("INFO", "memory"))
        persists = await _persists(redis)
        sent = time.time()
        told = await redis.call("TIME")
        ours = (sent + time.time()) / 2
    finally:
        await redis.aclose()
    theirs = int(told[0]) + int(told[1]) / 1e6
    facts = RedisFacts(
        server.get("redis_version", "?"),
        memory.get("maxmemory_policy", "?"),
        persists,
    )
    holds_state = settings.state_backend == "redis"
    return [
        *judge_redis(
            "redis", str(address), facts, holds_state=holds_state, accepted=address.allow_eviction
        ),
        judge_clock("clock", f"Redis at {address}", theirs - ours),
    ]


async def _persists(redis: Redis) -> bool:
    """A hosted server may not tell when it saves; it is then taken to do so."""
    if _facts(await redis.call("INFO", "persistence")).get("aof_enabled") == "1":
        return True
    try:
        saves = await redis.call("CONFIG", "GET", "save")
    except TowlineError:
        return True
    return bool(saves.get("save")) if isinstance(saves, dict) else True


def _facts(text: Any) -> dict[str, str]:
    lines = (line.partition(":") for line in str(text).splitlines())
    return {name: value.strip() for name, colon, value in lines if colon}


def look_at_engine(settings: Settings) -> list[Finding]:
    if settings.engine == "embedded":
        return [ok("engine", "embedded workers; nothing else is needed")]
    if importlib.util.find_spec("celery") is None:
        fix = "pip install 'towline[celery]'"
        return [failure("engine", "engine = celery, but Celery is not installed", fix)]
    if not settings.redis_url:
        fix = "set redis_url (TOWLINE_REDIS_URL)"
        return [failure("engine", "engine = celery needs Redis as its broker", fix)]
    return [ok("engine", "Celery; run as many `towline worker` as you need")]


# ------------------------------------------------------------------ GitLab


async def look_at_gitlab(settings: Settings, seconds: float) -> list[Finding]:
    api = GitLabApi(settings.gitlab.api_url, SystemClock(), settings.gitlab.token or "", seconds)
    try:
        answer = await api.http.send("GET", "/user", about="user", also=_REFUSALS)
        clock = _clock("GitLab", answer.headers)
        if answer.status != 200:
            fix = (
                "make a new token with the scope api, and set gitlab.token (TOWLINE_GITLAB__TOKEN)"
            )
            refused = f"GitLab does not take the token ({answer.status})"
            return [failure("gitlab", refused, fix), *clock]
        user = _object(answer, "GitLab")
        scopes = await _gitlab_scopes(api)
        name = one_line(str(user.get("username", "?")))
        found = [_judge_gitlab_scopes(name, scopes), *clock]
        repos = gitlab_repos(settings)[:_MOST_REPOS]
        return found + list(await asyncio.gather(*(_project(api, user, repo) for repo in repos)))
    finally:
        await api.http.aclose()


def gitlab_repos(settings: Settings) -> list[str]:
    """GitHub, where it is configured too, has those of which nothing else is said."""
    named = [*settings.polling.gitlab]
    if not (settings.github.token or settings.github.app_id):
        named += settings.tow.repos
    if settings.fix.forge == "gitlab":
        named += settings.fix.repos
    return list(dict.fromkeys(named))


async def _gitlab_scopes(api: GitLabApi) -> list[str] | None:
    """Only a personal or project token tells its scopes."""
    path = "/personal_access_tokens/self"
    answer = await api.http.send("GET", path, about="token", also=_REFUSALS)
    scopes = _object(answer, "GitLab").get("scopes") if answer.status == 200 else None
    return [str(scope) for scope in scopes] if isinstance(scopes, list) else None


def _judge_gitlab_scopes(name: str, scopes: list[str] | None) -> Finding:
    whose = f"GitLab takes the token of {name}"
    if scopes is None:
        return ok("gitlab", whose)
    if "api" not in scopes:
        shown = ", ".join(scopes) or "none"
        return failure("gitlab", f"{whose}, but its scopes are: {shown}", "give it the scope api")
    return ok("gitlab", f"{whose}; scopes: {', '.join(scopes)}")


async def _project(api: GitLabApi, user: Mapping[str, Any], repo: str) -> Finding:
    path = f"{project_path(repo)}/members/all/{user.get('id')}"
    fix = f"make the token's user a Developer or Maintainer of {repo}"
    try:
        there = await api.http.send("GET", project_path(repo), about=repo, also=_REFUSALS)
        if there.status != 200:
            return failure("gitlab", f"{repo} is not there, or closed to the token", fix)
        answer = await api.http.send("GET", path, about=f"member of {repo}", also=_REFUSALS)
    except TowlineError as error:
        return failure("gitlab", f"{repo}: {one_line(str(error))}", "try again")
    level = _object(answer, "GitLab").get("access_level") if answer.status == 200 else None
    if not isinstance(level, int) or level < _DEVELOPER:
        return failure("gitlab", f"{repo} can be read, not written to (level {level})", fix)
    return ok("gitlab", f"{repo} can be read and written to (level {level})")


# ------------------------------------------------------------------ Jenkins and Jira


async def look_at_jenkins(settings: Settings, seconds: float) -> list[Finding]:
    jenkins = settings.jenkins
    if not (jenkins.url and jenkins.user and jenkins.token):
        fix = "set jenkins.user and jenkins.token (TOWLINE_JENKINS__USER, TOWLINE_JENKINS__TOKEN)"
        return [failure("jenkins", "jenkins.url is set without a user and a token", fix)]
    http = JenkinsHttp(jenkins.url, SystemClock(), jenkins.user, jenkins.token, seconds)
    try:
        await http.read("/queue/api/json", "the queue", tree="items[id]")
    finally:
        await http.aclose()
    return [ok("jenkins", f"Jenkins answers, and takes the token of {one_line(jenkins.user)}")]


async def look_at_jira(settings: Settings, seconds: float) -> list[Finding]:
    """Its server's facts are open to everybody: who we are is asked first."""
    jira = settings.jira
    if not jira.token:
        fix = "set jira.token (TOWLINE_JIRA__TOKEN), and for Cloud jira.user"
        return [failure("jira", "jira.url is set without a token", fix)]
    client = Jira(
        jira.url or "", SystemClock(), token=jira.token, user=jira.user, deadline_seconds=seconds
    )
    try:
        answer = await client.who()
        if answer.status == 404:
            await client.ask_time()  # raises where this is no Jira
    finally:
        await client.aclose()
    clock = _clock("Jira", answer.headers)
    if answer.status in (401, 403):
        fix = "make a new token, and set jira.token (TOWLINE_JIRA__TOKEN); Cloud's needs jira.user"
        return [failure("jira", f"Jira does not take the token ({answer.status})", fix), *clock]
    return [ok("jira", "Jira answers, and takes the token"), *clock]


def _clock(whose: str, headers: Mapping[str, str]) -> list[Finding]:
    try:
        theirs = parsedate_to_datetime(headers.get("date", "")).timestamp()
    except ValueError:
        return []
    return [judge_clock("clock", whose, theirs + 0.5 - time.time())]


def _object(answer: Answer, forge: str) -> Mapping[str, Any]:
    found = json_of(answer, forge)
    return found if isinstance(found, dict) else {}
