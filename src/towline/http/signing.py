"""The secret that signs sessions and seals API keys, and the keys that are derived from it.

The secret is never in the database, so a reader of the database can neither forge a session nor
test a guessed API key. Its fingerprint may be shown: it tells two secrets apart, and no more.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_FINGERPRINT_LENGTH: Final = 12


class SigningSecret:
    """`where` says in messages where the secret comes from."""

    def __init__(self, text: bytes, where: str) -> None:
        self._text = text
        self.where = where
        digest = self.mac("fingerprint", b"")
        self.fingerprint = digest.hex()[:_FINGERPRINT_LENGTH]

    def mac(self, purpose: str, message: bytes) -> bytes:
        """An HMAC-SHA256 under a key of its own for each purpose."""
        key = hmac.digest(self._text, f"towline {purpose}".encode(), hashlib.sha256)
        return hmac.digest(key, message, hashlib.sha256)
