"""Settings: `towline.toml`, overridden by `TOWLINE_…` with `__` for nesting.

This is the only module that reads the environment. Whatever is wrong with a setting ends the
start with one line that names it and says what is allowed.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    model_validator,
)

from towline.config.complaints import PREFIX, first_complaint, shown, table_at
from towline.config.fix import FixSettings, lacking
from towline.config.polling import PollingSettings, needed
from towline.config.sources import (
    GitHubSettings,
    GitLabSettings,
    JenkinsSettings,
    JiraSettings,
    SourceSettings,
)
from towline.config.tow import (
    BudgetSettings,
    CommandSettings,
    FailurePatternSettings,
    NotifySettings,
    ReconcilerSettings,
    RepoSettings,
    SignalsSettings,
    StalenessSettings,
    TowSettings,
    TriggersSettings,
)
from towline.config.values import (
    LONGEST_SECONDS,
    Bytes,
    Count,
    Host,
    HostNames,
    KeyText,
    LongSecret,
    Name,
    Networks,
    Port,
    Seconds,
    SecondStoreUrl,
    SharedSecret,
    StoreUrl,
    Table,
    repo_name,
    words_of,
)
from towline_once.errors import Rejected

DEFAULT_FILE = "towline.toml"
_NOT_SETTINGS = ("TOWLINE_TEST_", "TOWLINE_CONFIG")

Scope = Literal["read", "submit", "work", "command", "admin"]


class IdempotencySettings(Table):
    """How long results are kept, and how much of them."""

    enabled: bool = True
    """Whether the submit API deduplicates by key."""
    ttl_sec: Seconds = 86400
    """How long a completed request, or the answer to a repeatable write, answers for its key."""
    failed_ttl_sec: Seconds = 3600
    """The same for a failed one."""
    lock_ttl_sec: Seconds = 300
    """How long the key of a repeatable write stays in flight if the process dies before it has
    recorded its answer."""
    max_attempts: Count = 3
    """After which a failing key is answered with its last error."""
    max_cached_bytes: Count = 16384
    """Above which a result is not repeated to duplicates."""
    store_max_items: Count = 200_000
    """Above which finished requests are evicted, oldest first."""


class IngestSettings(Table):
    """What may come in, how fast, and how long it is kept."""

    repo_rate_per_minute: Count = 30
    """Fix runs that events of a repository start; each one in excess starts at its turn."""
    org_rate_per_minute: Count | None = None
    """The same for all repositories of an owner on GitHub, or of a topmost group on GitLab."""
    repo_flood_per_minute: Count = 3_000
    """Deliveries of a repository, commands and reviews aside; each in excess waits its turn."""
    max_body_bytes: Count = 26_214_400
    """Above which a delivery is refused with 413."""
    max_concurrency: Count = 512
    """Deliveries under way in one process, above which the answer is 503."""
    max_inflight_bytes: Bytes = 268_435_456
    """Bytes of requests of any kind that wait for their answer, over all connections of one
    process; above it the answer is 503."""
    body_timeout_seconds: Seconds = 10
    """Within which the body of any request must have arrived."""
    keep_seconds: Seconds = 604_800
    """How long deliveries are kept; not below a sender's redelivery time."""


class PipelineSettings(Table):
    """How often and how soon work is tried again, and how much of it at a time."""

    max_attempts: Count = 3
    """Attempts of a job before it is a dead letter, and of a fix run before it is blocked."""
    base_backoff_seconds: Seconds = 30
    """The pause after the first attempt; doubled each time."""
    max_backoff_seconds: Seconds = 600
    """The longest pause."""
    cooldown_seconds: Seconds = 900
    """How long after its end a job may not be redelivered yet, and how long a fix waits after
    another attempt or proposal for the same thing."""
    repo_concurrency: Count = 2
    """Fix runs and audits of one repository at a time over all workers, and as many other jobs."""


class WorkerSettings(Table):
    """The workers of one process."""

    concurrency: Count = 100
    """Jobs at a time in one process."""
    lease_seconds: Annotated[float, Field(ge=1, le=LONGEST_SECONDS)] = 60
    """After which a silent worker's jobs go to others."""
    job_timeout_seconds: Seconds = 1200
    """After which a job is stopped and tried again."""
    drain_seconds: Seconds = 30
    """How long a stopping worker lets its jobs finish."""
    keep_done_seconds: Seconds = 604_800
    """How long finished jobs are kept."""
    keep_dead_seconds: Seconds = 2_592_000
    """How long dead letters are kept."""
    metrics_host: str = "127.0.0.1"
    """The address of a `towline worker`'s metrics and probes, if they have a port."""
    metrics_port: Port | None = None
    """Their port; without it there are none. `towline serve` has its own."""


class MeshSettings(Table):
    """The submit API: how much may wait, how much may run, and how results are sealed."""

    max_queued: Count = 10_000
    """Submitted jobs that may wait; then 429."""
    max_inflight: Count = 1_000
    """Submitted jobs that may run; then claims wait."""
    max_body_bytes: Count = 1_048_576
    """Above which a request is refused with 413."""
    max_lease_seconds: Seconds = 3600
    """The longest lease a remote worker may ask for."""
    hmac_key: SharedSecret = None
    """The shared key of result seals: at least 8 characters, and it should have 32."""


class ServeSettings(Table):
    """Where to listen. With a control port, all but webhooks and mesh moves to that address."""

    host: str = "127.0.0.1"
    """The address of webhooks and mesh."""
    port: Port = 8788
    """Its port; 0 for any free one."""
    control_host: str = "127.0.0.1"
    """The address of everything else, if it has one of its own."""
    control_port: Port | None = None
    """Its port; without it there is one address for all."""
    allowed_hosts: HostNames = ()
    """The names in `Host` that are answered, beside those of loopback, the address of the
    connection, and `host` and `control_host`; `*.example.com` for all names below, `*` for any."""
    head_timeout_seconds: Seconds = 10
    """Within which the head of a request must have arrived, and the first one begun."""
    secret: LongSecret = None
    """Signs sessions and seals API keys: at least 32 random characters, the same for every
    `serve` and `keys create` on one database. Without it Towline makes a file with one."""
    secret_file: Path | None = None
    """The file that has the secret, instead of `secret`; Towline makes it if it is missing."""
    trusted_proxies: Networks = ("127.0.0.0/8", "::1/128")
    """The proxies in front: their X-Forwarded-For header names the client's address."""

    @model_validator(mode="after")
    def _has_one_secret(self) -> Self:
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("secret and secret_file are not set both: keep one of them")
        return self


class AuditSettings(Table):
    """The audit log: JSON lines in a file that is rotated, or the ordinary log."""

    file: Path | None = None
    """Where audit events go as JSON lines; else to the log."""
    max_bytes: Bytes = 10_485_760
    """When the file is rotated."""
    keep_files: Annotated[int, Field(ge=1, le=1000)] = 5
    """How many old files are kept."""


class LogSettings(Table):
    """Log lines, on standard error."""

    format: Literal["auto", "json", "text"] = "auto"
    """`json`, `text`, or by whether standard error is a terminal."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """What is less urgent than this is not logged."""


class TraceSettings(Table):
    """OpenTelemetry traces, off unless enabled."""

    enabled: bool = False
    """OpenTelemetry traces (extra `traces`)."""
    endpoint: str | None = None
    """The OTLP collector, if not the usual one."""


class ApiKeySettings(Table):
    """A key given by the settings; those made by `towline keys create` are in the database."""

    key: KeyText
    """The key itself: at least 16 characters, and it should have 32."""
    scopes: Annotated[tuple[Scope, ...], BeforeValidator(words_of)] = ("read",)
    """What it opens; `admin` includes the others."""


class ScheduleSettings(Table):
    """A job by cron expression, in UTC."""

    cron: str
    """When its tick is due."""


def _named_repos(repos: dict[str, RepoSettings]) -> dict[str, RepoSettings]:
    for name in repos:
        repo_name(name)
    return repos


class Settings(Table):
    """Everything that can be set."""

    database_url: StoreUrl = "sqlite:///towline.db"
    """The store: `sqlite:///FILE` or `postgresql://…`."""
    state_backend: Literal["memory", "sql", "redis"] = "sql"
    """Where the leader's lease lives; `memory` is for one process."""
    redis_url: SecondStoreUrl = None
    """Redis, for `state_backend = "redis"` and for `engine = "celery"`."""
    redis_host: Host = None
    """Instead of `redis_url`: a Redis with TLS that knows us by Microsoft Entra ID. It serves
    `state_backend = "redis"`; Celery's broker needs a URL. Needs the extra `towline[entra]`."""
    redis_port: Annotated[int, Field(ge=1, le=65_535)] = 6380
    """The port of `redis_host`."""
    azure_client_id: Name | None = None
    """Which managed identity logs in at `redis_host`, where there are several."""
    engine: Literal["embedded", "celery"] = "embedded"
    """Who works: workers inside of each process, or Celery's."""
    store_timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 5.0
    """Within which every call to the store ends."""
    idempotency: IdempotencySettings = IdempotencySettings()
    github: GitHubSettings = GitHubSettings()
    gitlab: GitLabSettings = GitLabSettings()
    slack: SourceSettings = SourceSettings()
    jira: JiraSettings = JiraSettings()
    jenkins: JenkinsSettings = JenkinsSettings()
    ci: SourceSettings = SourceSettings()
    scheduler: SourceSettings = SourceSettings()
    ingest: IngestSettings = IngestSettings()
    pipeline: PipelineSettings = PipelineSettings()
    worker: WorkerSettings = WorkerSettings()
    mesh: MeshSettings = MeshSettings()
    serve: ServeSettings = ServeSettings()
    audit: AuditSettings = AuditSettings()
    log: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()
    api_keys: dict[str, ApiKeySettings] = Field(default_factory=dict)
    schedules: dict[str, ScheduleSettings] = Field(default_factory=dict)
    fix: FixSettings = FixSettings()
    tow: TowSettings = TowSettings()
    reconciler: ReconcilerSettings = ReconcilerSettings()
    staleness: StalenessSettings = StalenessSettings()
    budgets: BudgetSettings = BudgetSettings()
    signals: SignalsSettings = SignalsSettings()
    triggers: TriggersSettings = TriggersSettings()
    commands: CommandSettings = CommandSettings()
    notify: NotifySettings = NotifySettings()
    polling: PollingSettings = PollingSettings()
    failure_patterns: FailurePatternSettings = FailurePatternSettings()
    repo: Annotated[dict[str, RepoSettings], AfterValidator(_named_repos)] = Field(
        default_factory=dict
    )

    def source(self, name: str) -> SourceSettings:
        found: SourceSettings = getattr(self, name)
        return found

    @model_validator(mode="after")
    def _fixes_can_be_made(self) -> Self:
        for name, repo in self.repo.items():
            missing = lacking(self.fix, repo.fix) if repo.fix is not None else None
            if missing is not None:
                raise ValueError(f'repo."{name}".fix: {missing}')
        return self

    @model_validator(mode="after")
    def _polls_can_be_made(self) -> Self:
        absent = needed(
            self.polling,
            gitlab=self.gitlab.token is not None,
            github=self.github.token is not None or self.github.app_id is not None,
            jira=self.jira.url is not None and self.jira.token is not None,
        )
        if absent:
            raise ValueError(absent)
        return self

    @model_validator(mode="after")
    def _triggers_can_be_pulled(self) -> Self:
        """An http trigger calls only hosts that are listed; a Jenkins one needs a Jenkins."""
        allowed = {host.lower() for host in self.triggers.allowed_hosts}
        tables: dict[str, Any] = {"triggers": self.triggers}
        for name, repo in self.repo.items():
            tables[f'repo."{name}".triggers'] = repo.triggers
        for place, table in tables.items():
            for poked, trigger in table.given().items() if table is not None else ():
                if trigger.kind == "http" and trigger.host not in allowed:
                    shown = f"{trigger.host} of {place}.{poked}.url"
                    raise ValueError(f"the host {shown} is not in triggers.allowed_hosts")
                if trigger.kind == "jenkins" and self.jenkins.url is None:
                    raise ValueError(f"{place}.{poked}: kind jenkins needs jenkins.url")
        return self


def load(file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the file (the default one only if it is there) and the environment over it."""
    environment = os.environ if environment is None else environment
    given = _from_file(file)
    for path, value in sorted(_from_environment(environment).items()):
        _place(given, path, value)
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise Rejected(first_complaint(error, Settings)) from None


def state_folder(environment: Mapping[str, str] | None = None) -> Path | None:
    """Where programs of this user keep what outlives them; None where no user has a home."""
    environment = os.environ if environment is None else environment
    given = Path(environment.get("XDG_STATE_HOME", ""))
    if given.is_absolute():
        return given / "towline"
    try:
        return Path.home() / ".local" / "state" / "towline"
    except RuntimeError:
        return None


def variables(names: Sequence[str], setting: str) -> dict[str, str]:
    """Variables of our own environment that a program of the user's is to be given."""
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise Rejected(f"{setting}.environment names {missing[0]}, which is not set")
    return {name: os.environ[name] for name in names}


def _from_file(file: Path | None) -> dict[str, Any]:
    chosen = file or Path(DEFAULT_FILE)
    if file is None and not chosen.exists():
        return {}
    try:
        return tomllib.loads(chosen.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"cannot read {chosen}: {error}") from None
    except (ValueError, RecursionError) as error:  # also of numbers too long, and arrays too deep
        raise Rejected(f"{chosen} is not valid TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    found = {}
    for name, value in environment.items():
        if name.startswith(PREFIX) and not name.startswith(_NOT_SETTINGS):
            found[tuple(part.lower() for part in name[len(PREFIX) :].split("__"))] = value
    return found


def _place(tree: dict[str, Any], path: tuple[str, ...], value: str) -> None:
    *tables, leaf = path
    for name in tables:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise Rejected(f"{shown(path)} sets a part of {name}, which is not a table")
        tree = inner
    if value.lstrip().startswith("{") and table_at(Settings, path) is not None:
        tree[leaf] = _merged(tree.get(leaf), _object_of(path, value))
        return
    if isinstance(tree.get(leaf), dict):
        raise Rejected(f"{shown(path)} is a table; set its parts, or give it as a JSON object")
    tree[leaf] = value


def _object_of(path: tuple[str, ...], text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Rejected(f"setting {shown(path)}: not a JSON object") from None


def _merged(under: Any, over: Any) -> Any:
    """Tables are laid over each other; anything else is replaced."""
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return {**under, **{name: _merged(under.get(name), value) for name, value in over.items()}}


def same_hashes_in_children() -> None:
    """The sets of processes that are started from now on keep one order, in each run the same."""
    os.putenv("PYTHONHASHSEED", "0")
