"""The whole checkup: which checks an installation gets, and the report of what they found."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from towline import settings as settings_module
from towline.core.checkup import Finding, failure, ok, one_line, tally
from towline.doctor import database, github, machine, private, servers, signals, webhooks
from towline.doctor.probe import Heard, Look, Probe, looked
from towline.doctor.redaction import Redactor
from towline.errors import TowlineError
from towline.settings import Settings

CALL_SECONDS: Final = 5.0
_SANDBOX_SECONDS: Final = 30.0
_MANY_CALLS_SECONDS: Final = 25.0


class Report(NamedTuple):
    findings: list[Finding]
    settings: Settings | None
    """None where they could not be read."""
    redactor: Redactor

    @property
    def failed(self) -> bool:
        return any(finding.verdict == "failure" for finding in self.findings)

    def as_data(self) -> dict[str, Any]:
        counts = tally(self.findings)
        return {
            "healthy": not self.failed,
            "counts": dict(counts),
            "findings": [finding._asdict() for finding in self.findings],
        }


async def check_up(
    config: Path | None,
    seconds: float = CALL_SECONDS,
    on_start: Callable[[int], None] = lambda _: None,
    on_end: Heard = lambda _: None,
) -> Report:
    """`seconds` bounds each call to a server; the whole takes a few of them, whoever is silent."""
    try:
        loaded = settings_module.load(config)
    except TowlineError as error:
        loaded = None
        first = failure("settings", one_line(str(error)), _how_to_mend(config))
    else:
        first = _read_from(config)
    probes = _probes(loaded or Settings(), seconds, config, knows=loaded is not None)
    on_start(len(probes))
    redactor = Redactor.of(loaded)
    found = [first, *await looked(probes, on_end)]
    return Report([_clean(finding, redactor) for finding in found], loaded, redactor)


def _clean(finding: Finding, redactor: Redactor) -> Finding:
    return finding._replace(found=redactor.text(finding.found), fix=redactor.text(finding.fix))


def _read_from(config: Path | None) -> Finding:
    file = config or Path(settings_module.DEFAULT_FILE)
    if file.exists():
        return ok("settings", f"{file} and the environment are understood")
    return ok(
        "settings", f"there is no {file}: defaults and the environment; towline init writes one"
    )


def _how_to_mend(config: Path | None) -> str:
    file = config or Path(settings_module.DEFAULT_FILE)
    return f"mend it in {file} or in the environment; docs/reference/settings.md lists every name"


def _probes(settings: Settings, seconds: float, config: Path | None, *, knows: bool) -> list[Probe]:
    """Without settings only the machine is looked at."""
    here = [
        Probe("git", lambda: machine.look_at_git(settings), "run git --version by hand"),
        Probe(
            "sandbox",
            lambda: machine.look_at_sandbox(settings),
            "run bwrap --ro-bind / / true by hand",
            _SANDBOX_SECONDS,
        ),
    ]
    if not knows:
        return [_python(), *here]
    return [
        _python(),
        _start(settings),
        *_stores(settings, seconds),
        *_private(settings, seconds, config),
        *_outside(settings, seconds),
        *here,
        Probe("fixers", _at_once(lambda: machine.look_at_fixers(settings)), "check fix.fixers"),
        Probe(signals.CHECK, _at_once(lambda: signals.look_at_signals(settings)), "check signals"),
        Probe("notify", _at_once(lambda: machine.look_at_notifiers(settings)), "check notify.urls"),
        Probe("folders", _at_once(lambda: machine.look_at_folders(settings)), "check fix.folder"),
    ]


def _stores(settings: Settings, seconds: float) -> list[Probe]:
    slow = 3 * seconds
    reach = (
        "start the server, and check host, port, user and database in database_url "
        "(TOWLINE_DATABASE_URL)"
    )
    probes = [
        Probe("database", lambda: database.look_at_database(settings, seconds), reach, slow),
        Probe("keys", lambda: database.look_at_keys(settings, seconds), "mend the database", slow),
        Probe("engine", _at_once(lambda: servers.look_at_engine(settings)), "check engine"),
    ]
    if settings.redis_url or settings.redis_host:
        reach = "start Redis, and check host, port and password in redis_url (TOWLINE_REDIS_URL)"
        if settings.redis_host:
            reach = (
                "check redis_host and redis_port, and that the identity (azure_client_id, or the "
                "environment's) has a data access policy on the cache"
            )
        probes.append(Probe("redis", lambda: servers.look_at_redis(settings, seconds), reach, slow))
    return probes


def _private(settings: Settings, seconds: float, config: Path | None) -> list[Probe]:
    """Read without writing: a check that closes a file would hide how long it was open."""
    slow = 3 * seconds
    return [
        Probe(
            private.FILES,
            _at_once(lambda: private.look_at_files(settings, config)),
            "look at the files with ls -l",
        ),
        Probe(
            private.SIGNING,
            lambda: private.look_at_secret(settings, seconds),
            "mend the database",
            slow,
        ),
        Probe(
            private.SECRETS,
            _at_once(lambda: private.look_at_secrets(settings)),
            "check the secrets of the settings",
        ),
    ]


def _outside(settings: Settings, seconds: float) -> list[Probe]:
    slow = max(_MANY_CALLS_SECONDS, 5 * seconds)
    reach = github.how_to_reach(settings)
    asked: list[tuple[str, Callable[[Settings, float], Awaitable[list[Finding]]], str]] = [
        ("github", github.look_at_github, reach)
    ]
    if settings.gitlab.token:
        asked.append(("gitlab", servers.look_at_gitlab, servers.GITLAB_ADDRESS))
    if settings.jenkins.url:
        there = "check jenkins.url, jenkins.user and jenkins.token (TOWLINE_JENKINS__TOKEN)"
        asked.append(("jenkins", servers.look_at_jenkins, there))
    if settings.jira.url:
        asked.append(("jira", servers.look_at_jira, f"{servers.JIRA_ADDRESS}, and the way there"))
    asked.append((webhooks.CHECK, webhooks.look_at_address, "check serve.host and serve.port"))
    asked.append((webhooks.CHECK, webhooks.look_at_hooks, reach))
    return [
        *(Probe(name, _with(look, settings, seconds), fix, slow) for name, look, fix in asked),
        Probe(webhooks.CHECK, _at_once(lambda: webhooks.look_at_senders(settings)), "as above"),
    ]


def _with(
    look: Callable[[Settings, float], Awaitable[list[Finding]]], settings: Settings, seconds: float
) -> Look:
    return lambda: look(settings, seconds)


def _at_once(look: Callable[[], list[Finding]]) -> Look:
    async def looking() -> list[Finding]:
        return look()

    return looking


def _python() -> Probe:
    from towline import __version__

    version = ".".join(map(str, sys.version_info[:3]))
    found = ok("towline", f"Towline {__version__} on Python {version}, {sys.platform}")
    return Probe("towline", _at_once(lambda: [found]), "install it again")


def _start(settings: Settings) -> Probe:
    """The service is built as `towline serve` does, and not opened."""

    async def built() -> list[Finding]:
        from towline.service import Service
        from towline.settings import TraceSettings

        quiet = {"traces": TraceSettings()}
        await Service(settings.model_copy(update=quiet)).close()
        return [ok("start", "towline serve would start with these settings")]

    return Probe("start", built, "mend what the line names; towline serve refuses to start with it")
