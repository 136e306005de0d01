"""Settings: `towline.toml`, overridden by `TOWLINE_…` with `__` for nesting.

This is the only module that reads the environment. Whatever is wrong with a setting ends the
start with one line that names it and says what is allowed.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from towline.errors import Rejected

PREFIX = "TOWLINE_"
DEFAULT_FILE = "towline.toml"
_NOT_SETTINGS = ("TOWLINE_TEST_", "TOWLINE_CONFIG")


Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


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


class Settings(_Table):
    """Everything that can be set."""

    database_url: str = "sqlite:///towline.db"
    state_backend: Literal["memory", "sql", "redis"] = "sql"
    redis_url: str | None = None
    idempotency: IdempotencySettings = IdempotencySettings()


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
        field = table.model_fields.get(name)
        table = field.annotation if field is not None else Settings
    allowed = sorted(table.model_fields)
    close = difflib.get_close_matches(path[-1], allowed, n=1)
    return f"; did you mean {close[0]}?" if close else f"; allowed here: {', '.join(allowed)}"
