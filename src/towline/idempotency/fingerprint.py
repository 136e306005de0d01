"""What of a request is stored: never its payload, only digests of it."""

from __future__ import annotations

import hashlib
from typing import Any

from towline.core.canonical import hash_and_digests, opaque_hash, parse_json
from towline.errors import Rejected

_LONGEST_PLAIN = 512
_LONGEST_NOTE = 2000
_MARK = "\x1a"


def fingerprint(payload: Any, digest_key: bytes) -> tuple[str, str]:
    """The payload's hash and its field digests.

    Bytes that hold JSON count as the JSON value, other bytes as themselves.
    """
    if isinstance(payload, (bytes, bytearray, memoryview)):
        body = bytes(payload)
        try:
            payload = parse_json(body)
        except Rejected:
            return opaque_hash(body), ""
    return hash_and_digests(payload, digest_key)


def storable_text(text: str, what: str) -> str:
    """A name that every store can hold."""
    if not isinstance(text, str) or not text:
        raise Rejected(f"{what} is a text of at least one character, not {text!r}")
    if not text.isprintable() or not _is_short(text):
        raise Rejected(f"{what} is printable text of at most {_LONGEST_PLAIN} bytes")
    return text


def storable_key(text: str) -> str:
    """The key itself; or, where a store could not hold or index it, a digest marked as one."""
    if _is_short(text) and "\x00" not in text and _MARK not in text:
        return text
    shown = text[:64].replace("\x00", "").replace(_MARK, "")
    return f"{shown}{_MARK}{hashlib.sha256(text.encode()).hexdigest()}"


def storable_note(note: object) -> str | None:
    """A run id or an error as a text that every store can hold."""
    if note is None:
        return None
    try:
        text = str(note)[:_LONGEST_NOTE]
    except Exception:
        text = f"a {type(note).__name__} that cannot be written as text"
    return text.encode(errors="replace").decode().replace("\x00", "\ufffd")


def _is_short(text: str) -> bool:
    return len(text) <= _LONGEST_PLAIN and (text.isascii() or len(text.encode()) <= _LONGEST_PLAIN)
