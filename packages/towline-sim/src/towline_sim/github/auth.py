"""Who is calling: a person's token, an App by its JSON Web Token, or an App's installation.

A JSON Web Token is taken at its word: its times and its issuer count, its signature is not checked.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

_TOKEN_SECONDS: Final = 3600
_LONGEST_JWT_SECONDS: Final = 600


class AppIdentity(NamedTuple):
    """The App of this world, and its one installation, which sees every repository."""

    id: int = 4711
    slug: str = "towline"
    installation_id: int = 815

    @property
    def login(self) -> str:
        return f"{self.slug}[bot]"


class Caller(NamedTuple):
    """`as_app` if it is the App itself, which may do nothing but ask for tokens and its hook."""

    key: str
    login: str
    app_slug: str | None = None
    as_app: bool = False


class Doorkeeper:
    """Knows the tokens and whose they are; `now` is in seconds by the world's clock."""

    def __init__(self, tokens: Mapping[str, str], app: AppIdentity) -> None:
        self._logins = dict(tokens)
        self.app = app
        self._installations: dict[str, float] = {}

    def admit(self, authorization: str, now: float) -> Caller | None:
        scheme, _, credentials = authorization.strip().partition(" ")
        token = credentials.strip()
        if scheme.lower() == "basic":
            token = _password(token)
        elif scheme.lower() not in ("bearer", "token"):
            return None
        return self._holder(token) or self._installation(token, now) or self._as_app(token, now)

    def new_token(self, now: float) -> tuple[str, float]:
        """An installation's token, and until when it holds."""
        seed = f"{self.app.installation_id}:{len(self._installations)}:{now}"
        token = f"ghs_{hashlib.sha256(seed.encode()).hexdigest()[:36]}"
        self._installations[token] = now + _TOKEN_SECONDS
        return token, self._installations[token]

    def _holder(self, token: str) -> Caller | None:
        for known, login in self._logins.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                return Caller(known, login)
        return None

    def _installation(self, token: str, now: float) -> Caller | None:
        if self._installations.get(token, 0.0) <= now:
            return None
        return Caller(token, self.app.login, self.app.slug)

    def _as_app(self, token: str, now: float) -> Caller | None:
        claims = _claims(token)
        try:
            in_time = claims["iat"] <= now < claims["exp"] <= now + _LONGEST_JWT_SECONDS + 60
        except (KeyError, TypeError):
            return None
        if not in_time or str(claims.get("iss")) != str(self.app.id):
            return None
        return Caller(f"app:{self.app.id}", self.app.login, self.app.slug, as_app=True)


def _password(credentials: str) -> str:
    try:
        text = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    user, _, password = text.partition(":")
    return password or user


def _claims(token: str) -> Mapping[str, Any]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}
