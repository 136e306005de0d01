"""Tells where a database was used with another secret than this process has.

The database has the fingerprint of the secret with which `towline serve` last used it, and each
sealed key has the fingerprint of its own.
"""

from __future__ import annotations

import logging
from typing import Final

from towline.http.key_store import ApiKeyStore
from towline.http.key_text import sealed_elsewhere
from towline.http.signing import SigningSecret
from towline_once.ports import DocumentStore

FINGERPRINT: Final = "secret fingerprint"
WHAT_FOLLOWS: Final = (
    "sessions and API keys that were made with the other one do not work here: set the same "
    "serve.secret (TOWLINE_SERVE__SECRET) everywhere, or make new keys with `towline keys create`"
)
_RACES: Final = 8
_log = logging.getLogger("towline.auth")


def trouble_with(secret: SigningSecret, noted: str, digests: list[str]) -> str | None:
    """What does not fit to this secret; None if all does. `digests` are of keys in use."""
    foreign = sum(sealed_elsewhere(digest, secret) for digest in digests)
    if foreign:
        keys = "an API key was" if foreign == 1 else f"{foreign} API keys were"
        return f"{keys} made with another secret than {secret.where}"
    if noted not in ("", secret.fingerprint):
        return f"the database was last served with another secret than {secret.where}"
    return None


async def warn_of_other_secrets(
    keys: ApiKeyStore, documents: DocumentStore, secret: SigningSecret
) -> None:
    """One line if this process's secret is another one, which the database notes from now on."""
    digests = [key.digest for key in await keys.listing() if key.revoked_us is None]
    noted = await _note(documents, secret.fingerprint)
    trouble = trouble_with(secret, noted, digests)
    if trouble is not None:
        _log.warning("%s; %s", trouble, WHAT_FOLLOWS)


async def _note(documents: DocumentStore, fingerprint: str) -> str:
    """What was noted before."""
    for _ in range(_RACES):
        document = await documents.read(FINGERPRINT)
        if document.body == fingerprint:
            return fingerprint
        if await documents.swap(FINGERPRINT, document.version, fingerprint) is not None:
            return document.body
    return ""
