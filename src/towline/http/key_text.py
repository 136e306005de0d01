"""The text of an API key, and what a key may do.

A key reads `tow_<prefix>_<secret>`. The prefix finds its record and may be shown. Of the whole text
the database has an HMAC under a secret that the database does not have:
`v2:<fingerprint of the secret>:<HMAC-SHA256>`. Earlier versions kept the plain SHA-256; such a key
goes on working and is sealed when it is next used.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Sequence
from typing import Final

from towline.http.signing import SigningSecret
from towline_once.errors import Rejected

SCOPES: Final = ("read", "submit", "work", "command", "admin")
ALL_POWERFUL: Final = "admin"
PREFIX_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
PREFIX_LENGTH: Final = 8
LONGEST_NAME: Final = 100
_SEALED: Final = "v2"

_KEY: Final = re.compile(rb"tow_([a-z0-9]{8})_[A-Za-z0-9_-]{32,}")
_PREFIX: Final = re.compile(r"[a-z0-9]{8}")


def compose(prefix: str, secret: str) -> str:
    return f"tow_{prefix}_{secret}"


def prefix_of(text: bytes) -> str | None:
    """The prefix of a key; None if the text is not that of a key."""
    found = _KEY.fullmatch(text)
    return found[1].decode() if found else None


def is_prefix(text: str) -> bool:
    return _PREFIX.fullmatch(text) is not None


def prefix_in(text: str) -> str:
    """The prefix that a person means, who gives it alone or within its key."""
    prefix = prefix_of(text.encode(errors="replace")) or text
    if not is_prefix(prefix):
        raise Rejected("a prefix is 8 small letters and digits, as `towline keys list` shows it")
    return prefix


def plain_digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def sealed(text: bytes, secret: SigningSecret) -> str:
    return f"{_SEALED}:{secret.fingerprint}:{secret.mac('api key', text).hex()}"


def is_of(stored: str, text: bytes, secret: SigningSecret) -> bool:
    """Whether this digest is that of the text; in constant time."""
    expected = sealed(text, secret) if is_sealed(stored) else plain_digest(text)
    return hmac.compare_digest(stored.encode(), expected.encode())


def is_sealed(stored: str) -> bool:
    return stored.startswith(f"{_SEALED}:")


def sealed_elsewhere(stored: str, secret: SigningSecret) -> bool:
    """Whether it was sealed under another secret, so that nothing can be compared with it."""
    return is_sealed(stored) and stored.split(":")[1] != secret.fingerprint


def allows(scopes: Collection[str], wanted: str) -> bool:
    return wanted in scopes or ALL_POWERFUL in scopes


def checked_scopes(names: Sequence[str]) -> tuple[str, ...]:
    """The scopes in their usual order, each once."""
    unknown = [name for name in names if name not in SCOPES]
    if unknown or not names:
        wrong = (
            f"unknown scope {unknown[0][:50]!a}" if unknown else "a key needs at least one scope"
        )
        raise Rejected(f"{wrong}; allowed: {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in names)


def checked_name(name: str) -> str:
    if len(name) > LONGEST_NAME or not (name.isprintable() or not name):
        raise Rejected(f"the name of a key is at most {LONGEST_NAME} printable characters")
    return name
