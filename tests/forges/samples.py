"""Real payloads, used where they lie, and what senders do to sign them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
ABSENT = f"the folder with real payloads is not there: {DATA.parent.name}/{DATA.name}"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=ABSENT)

SECRET = "a test secret"
OLD_SECRET = "the secret before"
SIGNING_SECRET = "whsec_" + base64.b64encode(b"thirty-two bytes of a signing key").decode()
NOW = 1_700_000_000.0
GUID = "550e8400-e29b-41d4-a716-446655440000"


class Sample(NamedTuple):
    name: str
    event: str
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


def indexed(folder: str, event: str) -> list[Sample]:
    """The payloads that an index lists; `event` is the index's word for what they are."""
    if not DATA.is_dir():
        return []
    entries = json.loads((DATA / folder / "INDEX.json").read_bytes())
    return [
        Sample(entry["file"], entry[event], (DATA / folder / entry["file"]).read_bytes())
        for entry in entries
    ]


def listed(pattern: str) -> list[Sample]:
    """All files of a pattern below the data."""
    files = sorted(DATA.glob(pattern)) if DATA.is_dir() else []
    return [Sample(file.name, "", file.read_bytes()) for file in files]


def each(samples: Sequence[Sample]) -> pytest.MarkDecorator:
    """One test for every sample, or one that is skipped with the reason."""
    absent = [pytest.param(None, marks=pytest.mark.skip(reason=ABSENT), id="absent")]
    present = [pytest.param(sample, id=sample.name) for sample in samples]
    return pytest.mark.parametrize("sample", present or absent)


def hex_hmac(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, "sha256").hexdigest()


def github_headers(body: bytes, event: str = "ping", secret: str = SECRET) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-github-delivery": GUID,
        "x-github-event": event,
        "x-github-hook-id": "12",
        "x-hub-signature-256": f"sha256={hex_hmac(secret, body)}",
    }


def gitlab_headers(body: bytes, token: str = SECRET) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "idempotency-key": GUID,
        "x-gitlab-webhook-uuid": "hook",
        "x-gitlab-token": token,
    }


def standard_webhooks_headers(
    body: bytes, key: bytes, at: float = NOW, message_id: str = "msg_1"
) -> dict[str, str]:
    signed = f"{message_id}.{int(at)}.".encode() + body
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def slack_headers(
    body: bytes, secret: str = SECRET, at: float = NOW, content_type: str = "application/json"
) -> dict[str, str]:
    signed = f"v0:{int(at)}:".encode() + body
    return {
        "content-type": content_type,
        "x-slack-request-timestamp": str(int(at)),
        "x-slack-signature": f"v0={hex_hmac(secret, signed)}",
    }


def shared_headers(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-hub-signature": f"sha256={hex_hmac(secret, body)}",
    }


SIGNERS: dict[str, Callable[[bytes], dict[str, str]]] = {
    "ci": shared_headers,
    "github": github_headers,
    "gitlab": gitlab_headers,
    "jenkins": shared_headers,
    "jira": shared_headers,
    "scheduler": shared_headers,
    "slack": slack_headers,
}
