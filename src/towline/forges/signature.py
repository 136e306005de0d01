"""Is the sender one that knows a secret? Judged over the raw bytes, before anything is parsed.

A scheme is called with all active secrets of its source, so that a secret can be changed without
losing a delivery: add the new one, change the sender, take the old one away. Comparisons take the
same time wherever two texts differ, and all secrets are tried, whichever of them matches.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from towline.forges.delivery import BadSignature, Headers, NoSecret, OutsideWindow

Scheme: TypeAlias = Callable[[Headers, bytes, Sequence[str], float], None]

WINDOW_SECONDS: Final = 300
SIGNING_PREFIX: Final = "whsec_"

_SHARED_SIGNATURES: Final = ("x-hub-signature-256", "x-hub-signature", "x-towline-signature")
_LONGEST_TIMESTAMP: Final = 15


def authenticate(
    scheme: Scheme,
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool,
) -> None:
    """Raise `BadSignature` unless `scheme` is satisfied.

    Without secrets everything is refused, or with `allow_unsigned` let pass. An empty secret,
    which anybody knows, does not count as one; a lone text is one secret, not its characters.
    """
    given = [secrets] if isinstance(secrets, str) else secrets
    active = [secret for secret in given if secret]
    if active:
        scheme(headers, body, active, now)
    elif not allow_unsigned:
        raise NoSecret("this source has no secret configured, so that no delivery can be trusted")


def check_github(headers: Headers, body: bytes, secrets: Sequence[str], now: float) -> None:
    """`X-Hub-Signature-256: sha256=…`. SHA-1, which GitHub sends as well, is never looked at."""
    offered = headers.get("x-hub-signature-256")
    if offered is None:
        raise BadSignature("the header X-Hub-Signature-256 is missing")
    if not _is_hex_hmac(offered, body, secrets):
        raise BadSignature("X-Hub-Signature-256 does not match the body under any active secret")


def check_slack(headers: Headers, body: bytes, secrets: Sequence[str], now: float) -> None:
    """`X-Slack-Signature: v0=…` over version, timestamp and body."""
    timestamp = _timestamp(headers, "x-slack-request-timestamp")
    offered = headers.get("x-slack-signature", "")
    signed = b"v0:%b:%b" % (timestamp.encode(), body)
    if not _equals_any(offered, [f"v0={_hex_hmac(secret, signed)}" for secret in secrets]):
        raise BadSignature("X-Slack-Signature does not match under any active secret")
    _check_window(timestamp, now)


def check_gitlab(headers: Headers, body: bytes, secrets: Sequence[str], now: float) -> None:
    """A signature in the format of Standard Webhooks, or the plain `X-Gitlab-Token`.

    GitLab sends both where both are configured. The signature decides where one of our secrets
    is for signing, or no token came along; a secret for signing is never taken for a token.
    """
    tokens = [secret for secret in secrets if not secret.startswith(SIGNING_PREFIX)]
    if is_signed(headers) and (len(tokens) < len(secrets) or "x-gitlab-token" not in headers):
        check_standard_webhooks(headers, body, secrets, now)
    elif not _equals_any(headers.get("x-gitlab-token", ""), tokens):
        raise BadSignature("X-Gitlab-Token is not an active secret, and there is no signature")


def is_signed(headers: Headers) -> bool:
    return "webhook-signature" in headers


def check_standard_webhooks(
    headers: Headers, body: bytes, secrets: Sequence[str], now: float
) -> None:
    """`webhook-signature`: one or more of `v1,…`, over id, timestamp and body."""
    timestamp = _timestamp(headers, "webhook-timestamp")
    message_id = _encoded(headers.get("webhook-id", ""))
    signed = b"%b.%b.%b" % (message_id, timestamp.encode(), body)
    offered = headers.get("webhook-signature", "").split(" ")
    expected = [f"v1,{_base64_hmac(key, signed)}" for key in _signing_keys(secrets)]
    if not message_id or not any(_equals_any(one, expected) for one in offered):
        raise BadSignature("webhook-signature does not match under any active secret")
    _check_window(timestamp, now)


def check_shared(headers: Headers, body: bytes, secrets: Sequence[str], now: float) -> None:
    """What programs without a scheme of their own send: an HMAC of the body, or the secret.

    A signature is `sha256=…` in `X-Hub-Signature-256`, `X-Hub-Signature` (Jira) or
    `X-Towline-Signature`, and decides if it is there. The secret itself comes as
    `Authorization: Bearer …`, as the password of `Basic …`, or in `X-Towline-Token`.
    """
    signatures = [headers[name] for name in _SHARED_SIGNATURES if name in headers]
    if signatures:
        if not any(_is_hex_hmac(offered, body, secrets) for offered in signatures):
            raise BadSignature("the signature does not match the body under any active secret")
    elif not any(_equals_any(offered, secrets) for offered in _tokens(headers)):
        raise BadSignature("there is neither a signature nor a token with an active secret")


def _tokens(headers: Headers) -> Iterator[str]:
    if token := headers.get("x-towline-token"):
        yield token
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield credentials.strip()
    elif scheme.lower() == "basic":
        yield _password(credentials.strip())


def _password(credentials: str) -> str:
    decoded = (_from_base64(credentials) or b"").decode("utf-8", "replace")
    user, colon, password = decoded.partition(":")
    return password if colon else user


def _signing_keys(secrets: Sequence[str]) -> Iterator[bytes]:
    """The bytes a secret stands for; without its prefix it may also be meant as it is."""
    for secret in secrets:
        if key := _from_base64(secret.removeprefix(SIGNING_PREFIX)):
            yield key
        if not secret.startswith(SIGNING_PREFIX):
            yield _encoded(secret)


def _from_base64(text: str) -> bytes | None:
    padded = text.rstrip("=")
    try:
        return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def _timestamp(headers: Headers, name: str) -> str:
    text = headers.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_TIMESTAMP):
        raise BadSignature(f"the header {name} must be a number of seconds")
    return text


def _check_window(timestamp: str, now: float) -> None:
    if abs(now - int(timestamp)) > WINDOW_SECONDS:
        raise OutsideWindow(
            f"the delivery was signed more than {WINDOW_SECONDS} s from now: check the clocks"
        )


def _is_hex_hmac(offered: str, body: bytes, secrets: Sequence[str]) -> bool:
    return _equals_any(offered, [f"sha256={_hex_hmac(secret, body)}" for secret in secrets])


def _hex_hmac(secret: str, signed: bytes) -> str:
    return hmac.digest(_encoded(secret), signed, hashlib.sha256).hex()


def _base64_hmac(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _equals_any(offered: str, expected: Iterable[str]) -> bool:
    raw = _encoded(offered)
    matches = [hmac.compare_digest(raw, _encoded(one)) for one in expected]
    return any(matches)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
