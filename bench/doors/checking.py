"""Signature and JSON, as every server here checks them."""

from __future__ import annotations

import hmac
from typing import Any

import orjson

from bench.doors.bodies import SECRET

_KEY = SECRET.encode()


def genuine(body: bytes, signature: str | None) -> bool:
    expected = "sha256=" + hmac.digest(_KEY, body, "sha256").hex()
    return signature is not None and hmac.compare_digest(expected, signature)


def parsed(body: bytes) -> dict[str, Any]:
    event = orjson.loads(body)
    assert event["repository"]["full_name"]
    found: dict[str, Any] = event
    return found
