"""GitHub: whose credentials these are, what they open, and whether its clock is ours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from towline.app.tow import github_app_of
from towline.config import Settings
from towline.doctor.findings import (
    Finding,
    failure,
    judge_app_rights,
    judge_clock,
    judge_repo_rights,
    judge_scopes,
    ok,
    one_line,
    warning,
)
from towline.forges.client import Answer
from towline.forges.github.auth import GitHubApp
from towline.forges.github.client import bearer, date_us, github_client
from towline_once.clock import SystemClock
from towline_once.errors import TowlineError

CHECK: Final = "github"
MOST_REPOS: Final = 50
_REFUSALS: Final = (401, 403, 404)
_RENEW: Final = "make a new token, and set github.token (TOWLINE_GITHUB__TOKEN)"
_REACH: Final = "check github.api_url (TOWLINE_GITHUB__API_URL) and the way there: curl -I {}"


def is_configured(settings: Settings) -> bool:
    github = settings.github
    return bool(github.token or github.app_id or github.app_key_file)


def how_to_reach(settings: Settings) -> str:
    return _REACH.format(settings.github.api_url)


def repos_at_github(settings: Settings) -> list[str]:
    """Those that the settings name; where there is no other forge, all of them."""
    github, gitlab = is_configured(settings), bool(settings.gitlab.token)
    named = [*settings.polling.github, *(text.partition(":")[0] for text in settings.github.hooks)]
    if github:
        named += settings.tow.repos
    if settings.fix.forge == "github" or not gitlab:
        named += settings.fix.repos
    return list(dict.fromkeys(named))


class GitHub:
    """Questions, as the token's user or as the App; nothing is written."""

    def __init__(self, settings: Settings, seconds: float) -> None:
        self.app: GitHubApp | None = github_app_of(settings)
        self._token = settings.github.token
        self._rest = github_client(settings.github.api_url, SystemClock(), deadline_seconds=seconds)

    async def ask(self, path: str, about: str) -> Answer:
        """A refusal is an answer; silence and breakdowns are raised."""
        if self.app is None:
            signed = bearer(self._token or "")
        else:
            signed = bearer(self.app.token(self._rest.now_us() / 1e6))
        return await self._rest.send(
            "GET", path, about=about, headers={"authorization": signed}, also=_REFUSALS
        )

    async def aclose(self) -> None:
        await self._rest.aclose()


async def look_at_github(settings: Settings, seconds: float) -> list[Finding]:
    if not is_configured(settings):
        return [_not_configured(settings)]
    github = GitHub(settings, seconds)
    try:
        if github.app is not None:
            return await _look_as_app(github, settings)
        return await _look_with_token(github, settings)
    finally:
        await github.aclose()


def _not_configured(settings: Settings) -> Finding:
    tow = settings.tow
    if not (tow.authors or tow.branch_prefixes or tow.labels or settings.fix.repos):
        return ok(CHECK, "not configured, and nothing is towed or fixed")
    if settings.gitlab.token:
        return ok(CHECK, "not configured; GitLab is")
    fix = "set github.token (TOWLINE_GITHUB__TOKEN), or github.app_id and github.app_key_file"
    return warning(CHECK, "pull requests are only heard of, and never acted on", fix)


async def _look_with_token(github: GitHub, settings: Settings) -> list[Finding]:
    answer = await github.ask("/user", "user")
    clock = _clock(answer)
    if answer.status == 401:
        refused = f"GitHub does not take the token (401: {one_line(answer.says)})"
        return [failure(CHECK, refused, _RENEW), *clock]
    login = str(_object(answer).get("login") or "an installation")
    told = answer.headers.get("x-oauth-scopes")
    scopes = None if told is None else [word.strip() for word in told.split(",") if word.strip()]
    return [
        judge_scopes(CHECK, login, scopes),
        *clock,
        *await _each_repo(settings, lambda repo: _repo_by_token(github, repo, login)),
    ]


async def _repo_by_token(github: GitHub, repo: str, login: str) -> list[Finding]:
    answer = await github.ask(f"/repos/{repo}", f"repository {repo}")
    if answer.status != 200:
        fix = f"give the token access to {repo}, or take it out of tow.repos and fix.repos"
        return [failure(CHECK, f"{repo} is not there, or closed to the token", fix)]
    rights = _object(answer).get("permissions")
    if not isinstance(rights, dict):
        rights = await _role_of(github, repo, login)
    return [judge_repo_rights(CHECK, repo, rights)]


async def _role_of(github: GitHub, repo: str, login: str) -> Mapping[str, bool]:
    """Asked for where the repository does not tell it."""
    path = f"/repos/{repo}/collaborators/{quote(login, safe='')}/permission"
    role = str(_object(await github.ask(path, f"permission on {repo}")).get("permission"))
    writes = role in ("admin", "maintain", "write")
    return {"admin": role == "admin", "push": writes, "pull": True}


async def _look_as_app(github: GitHub, settings: Settings) -> list[Finding]:
    answer = await github.ask("/app", "App")
    if answer.status == 401:  # the first answer tells GitHub's time, by which the second is signed
        answer = await github.ask("/app", "App")
    clock = _clock(answer)
    if answer.status != 200:
        fix = "make a new private key for the App, and name its file in github.app_key_file"
        refused = f"GitHub does not take the App's id and key ({answer.status})"
        return [failure(CHECK, f"{refused}: {one_line(answer.says)}", fix), *clock]
    slug = one_line(str(_object(answer).get("slug", "?")))
    return [
        ok(CHECK, f"GitHub takes the App {slug}"),
        *clock,
        *await _each_repo(settings, lambda repo: _repo_by_app(github, repo)),
    ]


async def _repo_by_app(github: GitHub, repo: str) -> list[Finding]:
    answer = await github.ask(f"/repos/{repo}/installation", f"installation on {repo}")
    if answer.status != 200:
        fix = f"install the App on {repo}, or take it out of tow.repos and fix.repos"
        return [failure(CHECK, f"the App is not installed on {repo}", fix)]
    granted = _object(answer).get("permissions")
    return [judge_app_rights(CHECK, repo, granted if isinstance(granted, dict) else {})]


async def _each_repo(
    settings: Settings, look: Callable[[str], Awaitable[list[Finding]]]
) -> list[Finding]:
    """One that cannot be looked at does not hide the others."""

    async def guarded(repo: str) -> list[Finding]:
        try:
            return await look(repo)
        except TowlineError as error:
            return [failure(CHECK, f"{repo}: {one_line(str(error))}", how_to_reach(settings))]

    repos = repos_at_github(settings)
    found = await asyncio.gather(*map(guarded, repos[:MOST_REPOS]))
    left = len(repos) - MOST_REPOS
    more = [ok(CHECK, f"{left} more repositories were not looked at")] if left > 0 else []
    return [finding for some in found for finding in some] + more


def _clock(answer: Answer) -> list[Finding]:
    """The header has whole seconds: half of one is added."""
    theirs = date_us(answer.headers.get("date"))
    if theirs is None:
        return []
    return [judge_clock("clock", "GitHub", theirs / 1e6 + 0.5 - time.time())]


def _object(answer: Answer) -> Mapping[str, Any]:
    if answer.status != 200:
        return {}
    found = answer.json()
    return found if isinstance(found, dict) else {}
