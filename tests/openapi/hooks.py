"""What schemathesis loads: how each request is authenticated, and two checks more than its own."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import os
import re
import time
import unicodedata
from typing import Any, Final
from urllib.parse import urlsplit

import requests
import rfc8785
import schemathesis
from schemathesis.auths import GLOBAL_AUTH_STORAGE

from towline.http.problem_docs import CODES_MEMBER

KEY: Final = os.environ.get("TOWLINE_TEST_API_KEY", "")
SECRET: Final = os.environ.get("TOWLINE_TEST_WEBHOOK_SECRET", "")
_DIGEST: Final = re.compile("[0-9A-Fa-f]{64}")
_LARGEST: Final = 2**53 - 1
_PLAIN_HEADERS: Final = {"content-type", "content-length", "date", "connection"}
_IN_WORDS: Final = ("idempotency_key", "node_id", "worker")
"""Members of which the OpenAPI says in words that they are printable; a pattern cannot."""


_CLIENTS: Final = itertools.count(1)


class Signed(requests.auth.AuthBase):
    """Signs a webhook as its sender does, and gives every other request the admin's key.

    What schemathesis set by itself stays, since it looks whether that is refused.
    """

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        for name, value in self._credentials(request).items():
            request.headers.setdefault(name, value)
        return request

    def _credentials(self, request: requests.PreparedRequest) -> dict[str, str]:
        path = urlsplit(request.url or "").path
        body = request.body or b""
        raw = body if isinstance(body, bytes) else str(body).encode()
        if not path.startswith("/webhooks/"):
            return {} if "authorization" in request.headers else {"X-API-Key": KEY}
        if path.startswith("/webhooks/github"):
            return {"X-Hub-Signature-256": f"sha256={_hmac(raw)}"}
        if path.startswith("/webhooks/gitlab"):
            return {"X-Gitlab-Token": SECRET}
        if path.startswith("/webhooks/slack"):
            now = str(int(time.time()))
            signature = _hmac(b"v0:%b:%b" % (now.encode(), raw))
            return {"X-Slack-Request-Timestamp": now, "X-Slack-Signature": f"v0={signature}"}
        return {"X-Towline-Token": SECRET}


def _hmac(signed: bytes) -> str:
    return hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()


class OfManyClients(requests.adapters.HTTPAdapter):
    """Each request comes from another address, behind a proxy of this machine.

    Else wrong keys, which schemathesis tries by the hundred, would soon be answered with 429.
    """

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]
        number = next(_CLIENTS)
        request.headers["X-Forwarded-For"] = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        return super().send(request, **options)


GLOBAL_AUTH_STORAGE.set_from_requests(Signed())
requests.sessions.HTTPAdapter = OfManyClients  # type: ignore[attr-defined]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Keep what the OpenAPI says in words: numbers as in RFC 8785, whole ones without a fraction,
    and names that are printable.
    """
    return _kept(body)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A digest that has the right form becomes the right one."""
    body = case.body
    if isinstance(body, dict) and _DIGEST.fullmatch(str(body.get("sha256"))):
        with contextlib.suppress(rfc8785.CanonicalizationError):
            form = rfc8785.dumps(body.get("result"))
            case.body = {**body, "sha256": hashlib.sha256(form).hexdigest()}


def _kept(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _kept(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_kept(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return _kept(int(value), name)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return 1 + value % (_LARGEST - 1)
    if isinstance(value, str) and name in _IN_WORDS:
        return "".join("x" if _is_odd(letter) else letter for letter in value)
    return value


def _is_odd(letter: str) -> bool:
    """Not printable, although the pattern allows it; control characters stay refused."""
    return not letter.isprintable() and unicodedata.category(letter) != "Cc"


@schemathesis.check
def documented_problem(context: Any, response: Any, case: Any) -> None:
    """An error answer has a code that the operation declares for its status."""
    if response.status_code < 400 or response.status_code == 405:
        return
    declared = case.operation.definition.raw["responses"].get(str(response.status_code), {})
    code = response.json().get("code")
    if code not in declared.get(CODES_MEMBER, ()):
        raise AssertionError(f"{response.status_code} with the undeclared code {code}")


@schemathesis.check
def documented_headers(context: Any, response: Any, case: Any) -> None:
    """An answer has no header but the usual ones and those that are declared."""
    if response.status_code == 405:
        return
    declared = case.operation.definition.raw["responses"].get(str(response.status_code), {})
    known = _PLAIN_HEADERS | {name.lower() for name in declared.get("headers", ())}
    unknown = {name.lower() for name in response.headers} - known
    if unknown:
        raise AssertionError(f"undeclared headers: {', '.join(sorted(unknown))}")
