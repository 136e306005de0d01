"""Redis, GitLab, Jenkins and Jira: whether each answers, and takes what the settings give it."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from towline.config import Settings
from towline.doctor.findings import (
    Finding,
    RedisFacts,
    failure,
    judge_clock,
    judge_redis,
    ok,
    one_line,
)
from towline.forges.client import Answer, seconds_of
from towline.forges.delivery_log import ForgeRefused
from towline.forges.gitlab.client import GitLabApi, project_path
from towline.integrations.jenkins.client import JenkinsHttp
from towline.integrations.jira.client import Jira
from towline_once.clock import SystemClock
from towline_once.errors import TowlineError

if TYPE_CHECKING:
    from towline_once.db.redis.client import Redis

_REFUSALS: Final = (401, 403, 404)
_DEVELOPER: Final = 30
_MOST_REPOS: Final = 50
_GITLAB_SCOPE: Final = "give the token the scope api"
GITLAB_ADDRESS: Final = "check gitlab.api_url (TOWLINE_GITLAB__API_URL), which ends in /api/v4"
JIRA_ADDRESS: Final = "check jira.url (TOWLINE_JIRA__URL), with its prefix if Jira has one"


async def look_at_redis(settings: Settings, seconds: float) -> list[Finding]:
    """The service refuses a Redis that may drop things; here it is let in, to be told about."""
    redis, accepted = _lenient_redis(settings, seconds)
    address = redis.address
    try:
        server = _facts(await redis.call("INFO", "server"))
        memory = _facts(await redis.call("INFO", "memory"))
        persists = await _persists(redis)
        sent = time.time()
        told = await redis.call("TIME")
        ours = (sent + time.time()) / 2
    finally:
        await redis.aclose()
    theirs = _time_in(told)
    facts = RedisFacts(
        server.get("redis_version", "?"),
        memory.get("maxmemory_policy", "?"),
        persists,
    )
    holds_state = settings.state_backend == "redis"
    return [
        *judge_redis("redis", str(address), facts, holds_state=holds_state, accepted=accepted),
        *([] if theirs is None else [judge_clock("clock", f"Redis at {address}", theirs - ours)]),
    ]


def _lenient_redis(settings: Settings, seconds: float) -> tuple[Redis, bool]:
    """The Redis of the settings, and whether they accept that it drops things."""
    if settings.redis_host is not None:
        from towline_once.db.redis.entra import connect_redis

        return connect_redis(
            settings.redis_host,
            settings.redis_port,
            azure_client_id=settings.azure_client_id,
            allow_eviction=True,
            timeout=seconds,
        ), False
    from towline_once.db.redis.address import parse_url
    from towline_once.db.redis.client import Redis

    url = settings.redis_url or ""
    accepted = parse_url(url).allow_eviction
    lenient = url if accepted else f"{url}{'&' if '?' in url else '?'}allow_eviction=1"
    return Redis(lenient, clock=SystemClock(), timeout=seconds), accepted


def _time_in(told: Any) -> float | None:
    """Seconds since 1970, of the seconds and microseconds that Redis tells; None of other words."""
    try:
        seconds, micros = told
        return int(seconds) + int(micros) / 1e6
    except (TypeError, ValueError, OverflowError):
        return None


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
        trouble = "engine = celery needs Redis as its broker"
        if settings.redis_host:
            trouble += ", by a URL: it cannot log in with Microsoft Entra ID (redis_host)"
        return [failure("engine", trouble, fix)]
    return [ok("engine", "Celery; run as many `towline worker` as you need")]


# ------------------------------------------------------------------ GitLab


async def look_at_gitlab(settings: Settings, seconds: float) -> list[Finding]:
    api = GitLabApi(settings.gitlab.api_url, SystemClock(), settings.gitlab.token or "", seconds)
    try:
        answer = await api.http.send("GET", "/user", about="user", also=_REFUSALS)
        clock = _clock("GitLab", answer.headers)
        if answer.status != 200:
            return [_refused_by_gitlab(settings, answer), *clock]
        user = _object(answer, "GitLab")
        scopes = await _gitlab_scopes(api)
        name = one_line(str(user.get("username", "?")))
        found = [_judge_gitlab_scopes(name, scopes), *clock]
        repos = gitlab_repos(settings)[:_MOST_REPOS]
        return found + list(await asyncio.gather(*(_project(api, user, repo) for repo in repos)))
    finally:
        await api.http.aclose()


def _refused_by_gitlab(settings: Settings, answer: Answer) -> Finding:
    said = one_line(f"{answer.status}: {answer.says}")
    if answer.status == 404:
        found = f"there is no GitLab API at {settings.gitlab.api_url} ({said})"
        return failure("gitlab", found, GITLAB_ADDRESS)
    if answer.status == 403:
        found = f"GitLab knows the token, which may not even ask whose it is ({said})"
        return failure("gitlab", found, _GITLAB_SCOPE)
    fix = "make a new token with the scope api, and set gitlab.token (TOWLINE_GITLAB__TOKEN)"
    return failure("gitlab", f"GitLab does not take the token ({said})", fix)


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
        return failure("gitlab", f"{whose}, but its scopes are: {shown}", _GITLAB_SCOPE)
    return ok("gitlab", f"{whose}; scopes: {', '.join(scopes)}")


async def _project(api: GitLabApi, user: Mapping[str, Any], repo: str) -> Finding:
    path = f"{project_path(repo)}/members/all/{user.get('id')}"
    fix = f"make the token's user a Developer or Maintainer of {repo}"
    try:
        there = await api.http.send("GET", project_path(repo), about=repo, also=_REFUSALS)
        if there.status == 403:
            said = f"{repo} is closed to the token (403: {there.says})"
            return failure("gitlab", one_line(said), f"{_GITLAB_SCOPE}; {fix}")
        if there.status != 200:
            return failure("gitlab", f"{repo} is not there, or closed to the token", fix)
        answer = await api.http.send("GET", path, about=f"member of {repo}", also=_REFUSALS)
        level = _object(answer, "GitLab").get("access_level") if answer.status == 200 else None
    except TowlineError as error:
        again = "run this again, perhaps with a longer --timeout"
        return failure("gitlab", f"{repo}: {one_line(str(error))}", again)
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
        status, body = await http.look("/queue/api/json", "the queue", tree="items[id]")
    finally:
        await http.aclose()
    user, url = one_line(jenkins.user), jenkins.url
    if status == 200 and _is_object(body):
        return [ok("jenkins", f"Jenkins answers, and takes the token of {user}")]
    return [_refused_by_jenkins(status, user, url)]


def _refused_by_jenkins(status: int, user: str, url: str) -> Finding:
    where = "check jenkins.url (TOWLINE_JENKINS__URL), with its prefix if Jenkins has one"
    if status == 401:
        fix = f"make an API token in {user}'s settings, and set jenkins.user and jenkins.token"
        found = f"Jenkins does not take {user} and the token (401)"
        return failure("jenkins", found, f"{fix} (TOWLINE_JENKINS__USER, TOWLINE_JENKINS__TOKEN)")
    if status == 403:
        fix = f"grant {user} Overall/Read, Job/Read and Job/Build in Jenkins"
        return failure("jenkins", f"Jenkins knows {user}, who may not read there (403)", fix)
    if status == 404:
        return failure("jenkins", f"there is no Jenkins at {url} (404)", where)
    found = f"{url} answers with a page, not with Jenkins' API ({status})"
    return failure("jenkins", found, f"{where}; a sign-in in front must let API tokens pass")


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
        is_there = answer.status != 404 or await _answers(client)
    finally:
        await client.aclose()
    clock = _clock("Jira", answer.headers)
    if answer.status in (401, 403):
        return [_refused_by_jira(answer), *clock]
    if not is_there:
        return [failure("jira", f"there is no Jira at {jira.url} (404)", JIRA_ADDRESS)]
    if answer.status == 200 and not _is_object(answer.body):
        found = f"{jira.url} answers with a page, not with Jira's API"
        return [failure("jira", found, f"{JIRA_ADDRESS}; a sign-in in front must let tokens pass")]
    return [ok("jira", "Jira answers, and takes the token"), *clock]


async def _answers(client: Jira) -> bool:
    """Whether a Jira is there that only does not tell who we are."""
    try:
        await client.ask_time()
    except ForgeRefused:
        return False
    return True


def _refused_by_jira(answer: Answer) -> Finding:
    if answer.status == 403:
        fix = (
            "sign in once as that user in a browser, as Jira may ask for a captcha after wrong"
            " tokens; let the user browse the projects of polling.jira"
        )
        return failure("jira", "Jira knows the token's user, and lets them read nothing (403)", fix)
    fix = "make a new token, and set jira.token (TOWLINE_JIRA__TOKEN); Cloud's needs jira.user"
    return failure("jira", "Jira does not take the token (401)", fix)


def _clock(whose: str, headers: Mapping[str, str]) -> list[Finding]:
    theirs = seconds_of(headers.get("date"))
    if theirs is None:
        return []
    return [judge_clock("clock", whose, theirs + 0.5 - time.time())]


def _object(answer: Answer, forge: str) -> Mapping[str, Any]:
    found = answer.json()
    return found if isinstance(found, dict) else {}


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(orjson.loads(body), dict)
    except orjson.JSONDecodeError:
        return False
