"""`towline db`: what version the tables have."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import orjson
import typer

from towline import config as settings
from towline.db import database_for


class Schema(NamedTuple):
    database: str
    version: str | None
    newest: str


async def found(config: Path | None) -> Schema:
    url = settings.load(config).database_url
    database = database_for(url)
    try:
        return Schema(without_password(url), await database.version(), database.newest())
    finally:
        await database.aclose()


async def upgraded(config: Path | None) -> Schema:
    database = database_for(settings.load(config).database_url)
    try:
        await database.connect()
    finally:
        await database.aclose()
    return await found(config)


def show(schema: Schema, as_json: bool) -> None:
    if as_json:
        typer.echo(orjson.dumps(schema._asdict()).decode())
        return
    version = schema.version or "none"
    typer.echo(f"{schema.database}: version {version}, newest {schema.newest} ({_state(schema)})")


def _state(schema: Schema) -> str:
    if schema.version == schema.newest:
        return "up to date"
    if schema.version is not None and schema.version > schema.newest:
        return "newer than this Towline: upgrade Towline"
    return "run: towline db upgrade"


def without_password(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user = parts.netloc.rpartition("@")[0].partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))
