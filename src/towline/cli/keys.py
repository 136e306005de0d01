"""`towline keys`: make, list and revoke the API keys that the database holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towline.cli import progress
from towline.cli.database import opened_database
from towline_once.errors import Rejected

if TYPE_CHECKING:
    from towline.app.files import SecretSource
    from towline.http.key_store import ApiKeyStore, StoredKey

keys = typer.Typer(help="API keys.", no_args_is_help=True)

_Config = Annotated[
    Path | None, typer.Option("--config", help="The settings file; towline.toml if not given.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", help="read, submit, work, command or admin; give it more than once."),
]
_Name = Annotated[str, typer.Option("--name", help="A name that says what the key is for.")]
_Prefix = Annotated[str, typer.Argument(help="The key's prefix, as `towline keys list` shows it.")]


@keys.command("create")
def create(
    scope: _Scopes = None, name: _Name = "", config: _Config = None, json: _Json = False
) -> None:
    """Make a key and print it once: only its hash is stored."""
    made = progress.run("Making the key", _created(config, name, scope or []))
    try:
        if json:
            _print_json(made)
            return
        typer.echo(made["key"])
    except Rejected as error:
        ended_by = f"towline keys revoke {made['prefix']}"
        raise Rejected(f"{error}; the key was made all the same, and {ended_by} ends it") from None
    typer.echo("Keep it: it is not shown again.", err=True)


@keys.command("list")
def listing(config: _Config = None, json: _Json = False) -> None:
    """List the keys of the database, without their secrets and without those of the settings."""
    found = progress.run("Reading the keys", _listed(config))
    if json:
        _print_json(found)
        return
    from towline.cli.keys_text import show_keys

    show_keys(found)
    if not found:
        typer.echo("there are no keys in the database", err=True)


@keys.command("revoke")
def revoke(prefix: _Prefix, config: _Config = None, json: _Json = False) -> None:
    """End a key; it is refused everywhere within five seconds."""
    revoked = progress.run("Ending the key", _revoked(config, prefix))
    if json:
        _print_json(revoked)
        return
    typer.echo(f"{revoked['prefix']} is revoked since {revoked['revoked_at']}")


async def _created(config: Path | None, name: str, scopes: list[str]) -> dict[str, Any]:
    from towline.http.auth import make_key

    async with _store(config) as (store, secret):
        made = await make_key(store, name, scopes, secret())
        stored = await store.find(made.prefix)
    if stored is None:
        raise Rejected("the key was deleted at once; nothing was made")
    return {"key": made.text, **_shown(stored)}


async def _listed(config: Path | None) -> list[dict[str, Any]]:
    async with _existing_store(config) as store:
        return [_shown(key) for key in await store.listing()]


async def _revoked(config: Path | None, text: str) -> dict[str, Any]:
    from towline.http.key_text import prefix_in

    prefix = prefix_in(text)
    async with _existing_store(config) as store:
        key = await store.revoke(prefix)
    if key is None:
        raise Rejected(f"there is no key with the prefix {prefix}")
    return _shown(key)


@asynccontextmanager
async def _existing_store(config: Path | None) -> AsyncIterator[ApiKeyStore]:
    """The keys of a database that is there: a command that reads creates none."""
    from towline.http.key_store import SqlApiKeys

    async with opened_database(config) as (_, database, _):
        yield SqlApiKeys(database)


@asynccontextmanager
async def _store(config: Path | None) -> AsyncIterator[tuple[ApiKeyStore, SecretSource]]:
    from towline import config as settings
    from towline.app.files import SecretSource
    from towline.db import database_for
    from towline.http.key_store import SqlApiKeys

    loaded = settings.load(config)
    database = database_for(loaded.database_url)
    try:
        await database.connect()
        yield SqlApiKeys(database), SecretSource(loaded)
    finally:
        await database.aclose()


def _shown(key: StoredKey) -> dict[str, Any]:
    return {
        "prefix": key.prefix,
        "name": key.name,
        "scopes": list(key.scopes),
        "created_at": iso(key.created_us),
        "revoked_at": iso(key.revoked_us) if key.revoked_us is not None else None,
    }


def iso(us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _print_json(value: Any) -> None:
    import orjson

    typer.echo(orjson.dumps(value).decode())
