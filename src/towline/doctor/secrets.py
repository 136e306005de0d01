"""What must stay private: the files with secrets, the secret of the service, and short secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from towline import config as settings_module
from towline.app.files import SecretSource, given_files, own_files
from towline.config import Settings
from towline.config.values import LONG_SECRET
from towline.doctor.database import reading_of
from towline.doctor.findings import Finding, failure, ok, one_line, warning
from towline.doctor.redaction import secrets_in
from towline.http.secret_check import FINGERPRINT, WHAT_FOLLOWS, trouble_with
from towline.inbox.sources import SOURCES
from towline_once.errors import Rejected
from towline_once.private_files import OpenFile, open_to_anybody, open_to_others, without_followers

FILES: Final = "files"
SIGNING: Final = "secret"
SECRETS: Final = "secrets"
_NOTED: Final = f"SELECT body FROM once_documents WHERE name = '{FINGERPRINT}'"
_DIGESTS: Final = "SELECT digest FROM towline_api_keys WHERE revoked_us IS NULL"
_SET_IT: Final = "set serve.secret (TOWLINE_SERVE__SECRET) to 32 random characters or more"
_RANDOM: Final = "openssl rand -hex 32 makes one that is long enough"


def look_at_files(settings: Settings, config: Path | None) -> list[Finding]:
    """Which files with secrets others may read."""
    opened = [
        *open_to_others([*own_files(settings), settings.fix.folder]),
        *open_to_anybody([*given_files(settings), *_settings_with_secrets(config)]),
    ]
    if not opened:
        return [ok(FILES, "every file with secrets is closed to others")]
    return [_judge(one) for one in without_followers(opened)]


def _judge(one: OpenFile) -> Finding:
    return warning(FILES, one.told, one.fix)


def _settings_with_secrets(config: Path | None) -> list[Path]:
    file = config or Path(settings_module.DEFAULT_FILE)
    if not file.exists():
        return []
    alone = settings_module.load(file, {})
    return [file] if any(secrets_in(alone)) else []


async def look_at_secret(settings: Settings, seconds: float) -> list[Finding]:
    """The secret that signs sessions and seals API keys; nothing is made."""
    source = SecretSource(settings)
    try:
        secret = source.if_there()
    except Rejected as error:
        return [failure(SIGNING, one_line(str(error)), f"{_RANDOM}; {_SET_IT}")]
    if secret is None:
        if source.file is None:
            return [warning(SIGNING, "no file can keep the service's secret", _SET_IT)]
        return [ok(SIGNING, f"there is no secret yet; the first start makes {source.file}")]
    noted, digests = await _in_database(settings, seconds)
    trouble = trouble_with(secret, noted, digests)
    if trouble is not None:
        return [warning(SIGNING, trouble, WHAT_FOLLOWS)]
    return [ok(SIGNING, f"sessions and API keys have one secret: {secret.where}")]


async def _in_database(settings: Settings, seconds: float) -> tuple[str, list[str]]:
    noted, digests = "", []
    async with reading_of(settings, seconds) as reading:
        tables = await reading.tables() if reading is not None else []
        if reading is not None and "once_documents" in tables:
            rows = await reading.rows(_NOTED)
            noted = str(rows[0][0]) if rows else ""
        if reading is not None and "towline_api_keys" in tables:
            digests = [str(row[0]) for row in await reading.rows(_DIGESTS)]
    return noted, digests


def look_at_secrets(settings: Settings) -> list[Finding]:
    """Secrets that are shared with others, and are short enough to be guessed."""
    short = [(name, text) for name, text in _shared(settings) if len(text.strip()) < LONG_SECRET]
    if not short:
        return [ok(SECRETS, f"no shared secret has fewer than {LONG_SECRET} characters")]
    return [
        warning(
            SECRETS,
            f"{name} has {len(text.strip())} characters; with fewer than {LONG_SECRET} it may be "
            "guessed",
            f"{_RANDOM}; set it in {name} and at the other end",
        )
        for name, text in short
    ]


def _shared(settings: Settings) -> Iterator[tuple[str, str]]:
    for source in SOURCES:
        for secret in settings.source(source).webhook_secrets:
            yield f"{source}.webhook_secrets", secret
    if settings.mesh.hmac_key is not None:
        yield "mesh.hmac_key", settings.mesh.hmac_key
    for name, key in settings.api_keys.items():
        yield f"api_keys.{name}.key", key.key
