"""How an App signs in: a short-lived RS256 token, made with the App's private key."""

from __future__ import annotations

from pathlib import Path

from towline.errors import MissingExtra, Rejected

_LIFE_SECONDS = 540
_RENEW_SECONDS = 120
_CLOCK_ERROR_SECONDS = 60


class GitHubApp:
    """Signs once at the start, so that a key which is no use is noticed then."""

    def __init__(self, app_id: str, key_file: Path) -> None:
        try:
            import cryptography  # noqa: F401 - RS256 needs it, and PyJWT says so only when it signs
            import jwt
        except ImportError as missing:
            raise MissingExtra(
                "a GitHub App needs an extra: pip install 'towline[app]'"
            ) from missing
        self.app_id = app_id
        self._encode = jwt.encode
        self._key = _key_in(key_file)
        self._token = ""
        self._expires = 0.0
        try:
            self.token(0.0)
        except (ValueError, TypeError, jwt.PyJWTError):
            raise Rejected(f"{key_file} holds no RSA private key in PEM form") from None

    def token(self, now: float) -> str:
        """Valid at `now`, in seconds since 1970 by GitHub's clock."""
        if not self._expires - _LIFE_SECONDS <= now < self._expires - _RENEW_SECONDS:
            claims = {
                "iat": int(now) - _CLOCK_ERROR_SECONDS,
                "exp": int(now) + _LIFE_SECONDS,
                "iss": self.app_id,
            }
            self._token = self._encode(claims, self._key, algorithm="RS256")
            self._expires = now + _LIFE_SECONDS
        return self._token


def _key_in(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Rejected(f"cannot read the GitHub App's key {file}: {error.strerror}") from None
