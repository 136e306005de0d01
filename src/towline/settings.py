"""Settings: `towline.toml`, overridden by `TOWLINE_…` with `__` for nesting.

This is the only module that reads the environment. Whatever is wrong with a setting ends the
start with one line that names it and says what is allowed.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from towline.errors import Rejected

PREFIX = "TOWLINE_"
DEFAULT_FILE = "towline.toml"
_NOT_SETTINGS = ("TOWLINE_TEST_", "TOWLINE_CONFIG")


Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]


def _list_of(value: Any) -> Any:
    """A list comes from the environment as JSON; any other text is a list of one."""
    if not isinstance(value, str):
        return value
    if not value.startswith("["):
        return [value] if value else []
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('a list is written as JSON, like ["one", "two"]') from None


def _words_of(value: Any) -> Any:
    """Names may also be parted by commas or blanks."""
    if isinstance(value, str) and not value.startswith("["):
        return value.replace(",", " ").split()
    return _list_of(value)


Strings = Annotated[tuple[str, ...], BeforeValidator(_list_of)]
Scope = Literal["read", "submit", "work", "command", "admin"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class IdempotencySettings(_Table):
    """How long results are kept, and how much of them."""

    enabled: bool = True
    ttl_sec: Seconds = 86400
    failed_ttl_sec: Seconds = 3600
    lock_ttl_sec: Seconds = 300
    max_attempts: Count = 3
    max_cached_bytes: Count = 16384
    store_max_items: Count = 200_000


class SourceSettings(_Table):
    """A sender of webhooks. All its secrets are valid at once, so that one can be changed."""

    webhook_secrets: Strings = ()
    allow_unsigned: bool = False


class GitHubSettings(SourceSettings):
    """GitHub: its API, and the hooks whose delivery log is compared with the inbox."""

    api_url: str = "https://api.github.com"
    token: str | None = None
    app_id: str | None = None
    app_key_file: Path | None = None
    hooks: Strings = ()
    """Repository hooks to watch, each as OWNER/NAME:HOOK_ID; those of an App need none."""
    recovery_seconds: Seconds = 300


class IngestSettings(_Table):
    """What may come in, how fast, and how long it is kept."""

    repo_rate_per_minute: Count = 30
    max_body_bytes: Count = 26_214_400
    max_concurrency: Count = 512
    max_inflight_bytes: Count = 268_435_456
    body_timeout_seconds: Seconds = 10
    keep_seconds: Seconds = 604_800


class PipelineSettings(_Table):
    """How often and how soon work is tried again, and how much of it at a time."""

    max_attempts: Count = 3
    base_backoff_seconds: Seconds = 30
    max_backoff_seconds: Seconds = 600
    cooldown_seconds: Seconds = 900
    repo_concurrency: Count = 2


class WorkerSettings(_Table):
    """The workers of one process."""

    concurrency: Count = 64
    lease_seconds: Annotated[float, Field(ge=1)] = 60
    job_timeout_seconds: Seconds = 1200
    drain_seconds: Seconds = 30
    keep_done_seconds: Seconds = 604_800
    keep_dead_seconds: Seconds = 2_592_000


class MeshSettings(_Table):
    """The submit API: how much may wait, how much may run, and how results are sealed."""

    max_queued: Count = 10_000
    max_inflight: Count = 1_000
    max_body_bytes: Count = 1_048_576
    max_lease_seconds: Seconds = 3600
    hmac_key: str | None = None


class ServeSettings(_Table):
    """Where to listen. With a control port, all but webhooks and mesh moves to that address."""

    host: str = "127.0.0.1"
    port: Port = 8788
    control_host: str = "127.0.0.1"
    control_port: Port | None = None


class AuditSettings(_Table):
    """The audit log: JSON lines in a file that is rotated, or the ordinary log."""

    file: Path | None = None
    max_bytes: Count = 10_485_760
    keep_files: Count = 5


class LogSettings(_Table):
    format: Literal["auto", "json", "text"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class TraceSettings(_Table):
    """OpenTelemetry traces, off unless enabled."""

    enabled: bool = False
    endpoint: str | None = None


class ApiKeySettings(_Table):
    """A key given by the settings; those made by `towline keys create` are in the database."""

    key: Annotated[str, Field(min_length=16)]
    scopes: Annotated[tuple[Scope, ...], BeforeValidator(_words_of)] = ("read",)


class ScheduleSettings(_Table):
    """A job by cron expression, in UTC."""

    cron: str


class Settings(_Table):
    """Everything that can be set."""

    database_url: str = "sqlite:///towline.db"
    state_backend: Literal["memory", "sql", "redis"] = "sql"
    redis_url: str | None = None
    engine: Literal["embedded", "celery"] = "embedded"
    store_timeout_seconds: Seconds = 5.0
    idempotency: IdempotencySettings = IdempotencySettings()
    github: GitHubSettings = GitHubSettings()
    gitlab: SourceSettings = SourceSettings()
    slack: SourceSettings = SourceSettings()
    jira: SourceSettings = SourceSettings()
    jenkins: SourceSettings = SourceSettings()
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
    api_keys: dict[str, ApiKeySettings] = {}
    schedules: dict[str, ScheduleSettings] = {}

    def source(self, name: str) -> SourceSettings:
        found: SourceSettings = getattr(self, name)
        return found


def load(file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read the file (the default one only if it is there) and the environment over it."""
    environment = os.environ if environment is None else environment
    given = _from_file(file)
    for path, value in _from_environment(environment).items():
        _place(given, path, value)
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        raise Rejected(_first_complaint(error)) from None


def _from_file(file: Path | None) -> dict[str, Any]:
    chosen = file or Path(DEFAULT_FILE)
    if file is None and not chosen.exists():
        return {}
    try:
        return tomllib.loads(chosen.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"cannot read {chosen}: {error}") from None
    except tomllib.TOMLDecodeError as error:
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
            raise Rejected(f"{_shown(path)} sets a part of {name}, which is not a table")
        tree = inner
    if isinstance(tree.get(leaf), dict):
        raise Rejected(f"{_shown(path)} is a table; set its parts")
    tree[leaf] = value


def _first_complaint(error: ValidationError) -> str:
    complaint = error.errors(include_url=False, include_input=False)[0]
    path = tuple(str(part) for part in complaint["loc"])
    if complaint["type"] == "extra_forbidden":
        return f"unknown setting {_shown(path)}{_suggestion(path)}"
    return f"setting {_shown(path)}: {complaint['msg'].lower()}"


def _shown(path: tuple[str, ...]) -> str:
    return f"{'.'.join(path)} ({PREFIX}{'__'.join(path).upper()})"


def _suggestion(path: tuple[str, ...]) -> str:
    table: Any = Settings
    for name in path[:-1]:
        if get_origin(table) is dict:
            table = get_args(table)[1]
            continue
        field = table.model_fields.get(name)
        table = field.annotation if field is not None else Settings
    allowed = sorted(table.model_fields)
    close = difflib.get_close_matches(path[-1], allowed, n=1)
    return f"; did you mean {close[0]}?" if close else f"; allowed here: {', '.join(allowed)}"
