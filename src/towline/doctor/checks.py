"""The whole checkup: which checks an installation gets, and the report of what they found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from towline import config as settings_module
from towline.config import Settings
from towline.doctor import database, github, machine, secrets, servers, signals, webhooks
from towline.doctor.findings import Finding, failure, ok, one_line, tally
from towline.doctor.probe import SECONDS, Heard, Look, Probe, looked
from towline.doctor.redaction import Redactor
from towline_once.errors import TowlineError

CALL_SECONDS: Final = 5.0
_SANDBOX_SECONDS: Final = 30.0
_MANY_CALLS_SECONDS: Final = 25.0

_DATABASE: Final = (
    "start the server, and check host, port, user and database in database_url "
    "(TOWLINE_DATABASE_URL)"
)
_REDIS_URL: Final = (
    "start Redis, and check host, port and password in redis_url (TOWLINE_REDIS_URL)"
)
_REDIS_HOST: Final = (
    "check redis_host and redis_port, and that the identity (azure_client_id, or the "
    "environment's) has a data access policy on the cache"
)
_JENKINS: Final = "check jenkins.url, jenkins.user and jenkins.token (TOWLINE_JENKINS__TOKEN)"
_GITLAB: Final = servers.GITLAB_ADDRESS
_JIRA: Final = f"{servers.JIRA_ADDRESS}, and the way there"
_ADDRESS: Final = "check serve.host and serve.port"
_BWRAP: Final = "run bwrap --ro-bind / / true by hand"
_FILES: Final = "look at the files with ls -l"
_MEND: Final = "mend the database"
_SECRETS: Final = "check the secrets of the settings"


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
    """`seconds` bounds each call to a server; the whole takes a few of them."""
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
    """The table of all checks: name, look, what to do where the look itself breaks, its time.

    Without settings only the machine is looked at. Private files are read and never changed: a
    check that made a file private would hide how long others could read it.
    """
    one, slow, many = SECONDS, 3 * seconds, max(_MANY_CALLS_SECONDS, 5 * seconds)
    reach, hooks = github.how_to_reach(settings), webhooks.CHECK
    given, asked = (settings,), (settings, seconds)
    here = [
        Probe("git", partial(machine.look_at_git, *given), "run git --version by hand"),
        Probe("sandbox", partial(machine.look_at_sandbox, *given), _BWRAP, _SANDBOX_SECONDS),
    ]
    if not knows:
        return [_python(), *here]
    redis = _REDIS_HOST if settings.redis_host else _REDIS_URL
    has_redis = settings.redis_url or settings.redis_host
    table: list[tuple[object, str, Look, str, float]] = [
        (True, "database", partial(database.look_at_database, *asked), _DATABASE, slow),
        (True, "keys", partial(database.look_at_keys, *asked), _MEND, slow),
        (True, "engine", partial(servers.look_at_engine, *given), "check engine", one),
        (has_redis, "redis", partial(servers.look_at_redis, *asked), redis, slow),
        (True, secrets.FILES, partial(secrets.look_at_files, settings, config), _FILES, one),
        (True, secrets.SIGNING, partial(secrets.look_at_secret, *asked), _MEND, slow),
        (True, secrets.SECRETS, partial(secrets.look_at_secrets, *given), _SECRETS, one),
        (True, "github", partial(github.look_at_github, *asked), reach, many),
        (settings.gitlab.token, "gitlab", partial(servers.look_at_gitlab, *asked), _GITLAB, many),
        (settings.jenkins.url, "jenkins", partial(servers.look_at_jenkins, *asked), _JENKINS, many),
        (settings.jira.url, "jira", partial(servers.look_at_jira, *asked), _JIRA, many),
        (True, hooks, partial(webhooks.look_at_address, *asked), _ADDRESS, many),
        (True, hooks, partial(webhooks.look_at_hooks, *asked), reach, many),
        (True, hooks, partial(webhooks.look_at_senders, *given), "as above", one),
    ]
    return [
        _python(),
        _start(settings),
        *(Probe(name, look, fix, most) for applies, name, look, fix, most in table if applies),
        *here,
        Probe("fixers", partial(machine.look_at_fixers, *given), "check fix.fixers"),
        Probe(signals.CHECK, partial(signals.look_at_signals, *given), "check signals"),
        Probe("notify", partial(machine.look_at_notifiers, *given), "check notify.urls"),
        Probe("folders", partial(machine.look_at_folders, *given), "check fix.folder"),
    ]


def _python() -> Probe:
    from towline import __version__

    version = ".".join(map(str, sys.version_info[:3]))
    found = ok("towline", f"Towline {__version__} on Python {version}, {sys.platform}")
    return Probe("towline", lambda: [found], "install it again")


def _start(settings: Settings) -> Probe:
    """The service is built as `towline serve` does, and not opened."""

    async def built() -> list[Finding]:
        from towline.app.service import Service
        from towline.config import TraceSettings

        quiet = {"traces": TraceSettings()}
        await Service(settings.model_copy(update=quiet)).close()
        return [ok("start", "towline serve would start with these settings")]

    return Probe("start", built, "mend what the line names; towline serve refuses to start with it")
