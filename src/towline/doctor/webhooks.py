"""Webhooks: whether they would be believed, whether they can arrive, and whether they do."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import httpx2

from towline.app.tow import github_app_of
from towline.config import Settings
from towline.doctor.database import reading_of
from towline.doctor.findings import (
    DeliveryFacts,
    Finding,
    HookFacts,
    failure,
    judge_deliveries,
    judge_hook,
    ok,
    one_line,
    warning,
)
from towline.doctor.github import MOST_REPOS, GitHub, how_to_reach, is_configured, repos_at_github
from towline.forges.delivery_log import Entry, ForgeRefused, Hook, app_hook, repo_hook
from towline.forges.github.delivery_log import GitHubHookLog
from towline.inbox.sources import SOURCES
from towline_once.clock import SystemClock
from towline_once.errors import TowlineError

CHECK: Final = "webhooks"
_OUR_PATH: Final = "/webhooks/github"
_LAST: Final = 20
_MOST_NAMED: Final = 3
_APPS: Final = "the App's hook"
_POINT_APP: Final = f"in the App's settings, set its webhook URL to https://YOUR-HOST{_OUR_PATH}"
_GUID: Final = re.compile(r"[0-9A-Za-z-]{8,64}")
_ADD: Final = (
    "add a webhook at {repo}: URL https://YOUR-HOST/webhooks/github, content type "
    "application/json, one of github.webhook_secrets as its secret, all events"
)


def look_at_senders(settings: Settings) -> list[Finding]:
    """Which senders have a secret, and which would be believed without one."""
    signed = [name for name in SOURCES if settings.source(name).webhook_secrets]
    unsigned = [name for name in SOURCES if settings.source(name).allow_unsigned]
    found = [
        warning(
            CHECK,
            f"webhooks of {name} are believed without a signature",
            f"set {name}.webhook_secrets and leave {name}.allow_unsigned out",
        )
        for name in unsigned
    ]
    if signed:
        found.append(ok(CHECK, f"secrets are set for {', '.join(signed)}"))
    elif not unsigned:
        found.append(_nobody_is_heard(settings))
    return found


def _nobody_is_heard(settings: Settings) -> Finding:
    if settings.polling.github or settings.polling.gitlab or settings.polling.jira:
        return ok(CHECK, "no secret is set: webhooks are refused, changes are polled for")
    fix = "export TOWLINE_GITHUB__WEBHOOK_SECRETS=$(openssl rand -hex 32), and use it at the forge"
    return warning(CHECK, "no secret is set: every webhook is refused with 401", fix)


async def look_at_address(settings: Settings, seconds: float) -> list[Finding]:
    """Whether a service answers where the settings say, and who can reach that address."""
    root = address_of(settings)
    try:
        async with httpx2.AsyncClient(timeout=seconds) as client:
            answer = await client.get(f"{root}/healthz")
        running = answer.status_code == 200
    except httpx2.HTTPError:
        running = False
    found = [
        ok("service", f"towline serve answers at {root}")
        if running
        else warning("service", f"nothing answers at {root}", "start it: towline serve")
    ]
    return [*found, *_who_reaches(settings, root)]


def address_of(settings: Settings) -> str:
    host = settings.serve.host
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host)  # noqa: S104 - compared, not bound
    if shown is None:
        shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{settings.serve.port}"


def _who_reaches(settings: Settings, root: str) -> list[Finding]:
    hears = [name for name in SOURCES if settings.source(name).webhook_secrets]
    senders = [settings.github.api_url] if "github" in hears else []
    senders += [settings.gitlab.api_url] if "gitlab" in hears else []
    far = [url for url in senders if not _is_here(urlsplit(url).hostname or "")]
    if not far or not _is_here(settings.serve.host):
        return []
    host = urlsplit(far[0]).hostname
    fix = (
        f'put a reverse proxy with TLS in front of {root}, or set serve.host = "0.0.0.0"; '
        f"then give the forge https://YOUR-HOST{_OUR_PATH}. Without a public address, poll: "
        "polling.github"
    )
    return [warning(CHECK, f"only this machine reaches {root}; {host} does not", fix)]


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ------------------------------------------------------------------ hooks at GitHub


async def look_at_hooks(settings: Settings, seconds: float) -> list[Finding]:
    """The hooks of the repositories, or the App's one, and what became of their deliveries."""
    if not is_configured(settings):
        return []
    app = github_app_of(settings)
    token = settings.github.token
    log = GitHubHookLog(
        settings.github.api_url, SystemClock(), token=token, app=app, deadline_seconds=seconds
    )
    github = GitHub(settings, seconds)
    try:
        if app is not None:
            return await _hook_of_app(settings, seconds, github, log, app_hook(app.app_id))
        looks = [
            _hooks_of(settings, seconds, github, log, repo)
            for repo in repos_at_github(settings)[:MOST_REPOS]
        ]
        return [finding for some in await asyncio.gather(*looks) for finding in some]
    finally:
        await log.aclose()
        await github.aclose()


async def _hook_of_app(
    settings: Settings, seconds: float, github: GitHub, log: GitHubHookLog, hook: Hook
) -> list[Finding]:
    found = await _config_of_app(settings, github)
    try:
        return [*found, await _judged_log(settings, seconds, log, hook, _APPS)]
    except ForgeRefused as error:
        return found or [warning(CHECK, one_line(str(error)), _POINT_APP)]


async def _config_of_app(settings: Settings, github: GitHub) -> list[Finding]:
    """Where the App's hook points to, and what it sends; silence where GitHub does not tell."""
    config = await github.ask("/app/hook/config", "hook of the App")
    if config.status != 200:
        return []
    app = await github.ask("/app", "App")
    told = app.json() if app.status == 200 else {}
    events = told.get("events") if isinstance(told, dict) else None
    hook = {"config": config.json(), "events": events if isinstance(events, list) else ["*"]}
    if not _is_ours(hook):
        url = _without_secrets(_config(hook, "url"))
        return [failure(CHECK, f"{_APPS} points elsewhere: {url}", _POINT_APP)]
    facts = _facts(hook, "")._replace(name=_APPS)
    return judge_hook(CHECK, facts, wants_secret=bool(settings.github.webhook_secrets))


async def _hooks_of(
    settings: Settings, seconds: float, github: GitHub, log: GitHubHookLog, repo: str
) -> list[Finding]:
    try:
        answer = await github.ask(f"/repos/{repo}/hooks", f"hooks of {repo}")
        if answer.status == 401:
            return []  # the check of the credentials tells that
        if answer.status != 200:
            return [_closed(repo, answer.status)]
        shown = answer.json()
        listed = [one for one in shown if isinstance(one, dict)] if isinstance(shown, list) else []
        found = _missing_hooks(settings, repo, listed)
        ours = [one for one in listed if _is_ours(one)]
        for one in ours:
            facts = _facts(one, repo)
            wants = bool(settings.github.webhook_secrets)
            found += judge_hook(CHECK, facts, wants_secret=wants)
            hook = repo_hook(f"{repo}:{one.get('id')}")
            found.append(await _judged_log(settings, seconds, log, hook, facts.name, facts.url))
    except TowlineError as error:
        return [failure(CHECK, f"{repo}: {one_line(str(error))}", how_to_reach(settings))]
    if not ours and not found:
        found.append(_without_a_hook(settings, repo, listed))
    return found


def _closed(repo: str, status: int) -> Finding:
    fix = "give the token the scope admin:repo_hook (fine-grained: Webhooks, read), or look there"
    return warning(CHECK, f"the hooks of {repo} are closed to the token ({status})", fix)


def _missing_hooks(settings: Settings, repo: str, listed: Sequence[Any]) -> list[Finding]:
    """Those that github.hooks names, but the repository does not have."""
    wanted = [text.rpartition(":") for text in settings.github.hooks]
    there = {str(one.get("id")) for one in listed}
    fix = f"take the number from https://…/{repo}/settings/hooks into github.hooks"
    return [
        failure(CHECK, f"github.hooks names hook {number} of {repo}, which is not there", fix)
        for named, _, number in wanted
        if named == repo and number not in there
    ]


def _without_a_hook(settings: Settings, repo: str, listed: Sequence[Any]) -> Finding:
    if repo in settings.polling.github:
        return ok(CHECK, f"{repo} has no hook for Towline, and is polled")
    found = f"{repo} has no hook that ends in {_OUR_PATH}"
    others = [_without_secrets(_config(one, "url")) for one in listed][:_MOST_NAMED]
    if others:
        found = f"{found}; its hooks point to {', '.join(others)}"
    return warning(CHECK, found, _ADD.format(repo=repo))


def _is_ours(hook: Any) -> bool:
    return _parts(_config(hook, "url")).path.rstrip("/").endswith(_OUR_PATH)


def _facts(hook: Any, repo: str) -> HookFacts:
    events = hook.get("events")
    return HookFacts(
        name=f"hook {hook.get('id')} of {repo}",
        url=_without_secrets(_config(hook, "url")),
        active=hook.get("active") is not False,
        has_secret=bool(_config(hook, "secret")),
        verifies_tls=_config(hook, "insecure_ssl") in ("", "0"),
        events=[str(event) for event in events] if isinstance(events, list) else [],
    )


def _config(hook: Any, name: str) -> str:
    config = hook.get("config")
    return str(config.get(name) or "") if isinstance(config, dict) else ""


def _parts(url: str) -> SplitResult:
    """A hook may have been given what is no URL: it leads nowhere then."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _without_secrets(url: str) -> str:
    parts = _parts(url)
    if not parts.netloc:
        return "nowhere"
    return one_line(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")


async def _judged_log(
    settings: Settings,
    seconds: float,
    log: GitHubHookLog,
    hook: Hook,
    name: str,
    url: str = "its address",
) -> Finding:
    entries = (await log.page(hook)).entries[:_LAST]
    known = await _known_here(settings, seconds, entries)
    facts = DeliveryFacts([entry.status_code for entry in entries], known)
    return judge_deliveries(CHECK, name, url, facts)


async def _known_here(settings: Settings, seconds: float, entries: Sequence[Entry]) -> int | None:
    """How many of these deliveries the inbox holds; that tells whether the hook points here."""
    guids = [entry.guid for entry in entries if _GUID.fullmatch(entry.guid)]
    try:
        async with reading_of(settings, seconds) as reading:
            if reading is None or "towline_deliveries" not in await reading.tables():
                return 0
            listed = ", ".join(f"'{guid}'" for guid in guids) or "''"
            question = "SELECT count(DISTINCT delivery_id) FROM towline_deliveries"
            return int((await reading.rows(f"{question} WHERE delivery_id IN ({listed})"))[0][0])
    except TowlineError:
        return None  # the check of the database tells why
