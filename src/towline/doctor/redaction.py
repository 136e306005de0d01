"""Keeps secrets out of whatever is shown or sent to other people.

Three nets, one behind the other. A setting that is a secret (its field has `repr=False`) is shown
as set or not. The value of every such setting is then looked for in all texts, also as it looks
in a URL or in base64. What has the form of a well-known secret goes, too, wherever it came from.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from towline.config import Settings
from towline.fix.secret_patterns import KINDS

HIDDEN: Final = "[redacted]"
_SHORTEST: Final = 8
"""A shorter one is a word of ours as well; such a setting is hidden, but not looked for."""
_USERINFO: Final = re.compile(r"(?<=://)(?!\[user\[?:password\]?@\])[^\s/@'\"]+@")
_QUERY: Final = re.compile(r"(?<=[?&])(?!allow_eviction=1\])([\w.-]+)=[^\s&#'\"]+")
"""Neither finds the forms of addresses that our own messages show."""
_COMMAND_LINES: Final = ("argv",)
_STORES: Final = ("sqlite", "postgresql", "postgres", "redis", "rediss", "unix")


class Redactor:
    """Takes known secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= _SHORTEST}
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    @classmethod
    def of(cls, settings: Settings | None, more: Iterable[str] = ()) -> Redactor:
        found = list(secrets_in(settings)) if settings is not None else []
        return cls([*found, *more])

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for _, pattern in KINDS:
            text = pattern.sub(HIDDEN, text)
        return _QUERY.sub(rf"\1={HIDDEN}", _USERINFO.sub(f"{HIDDEN}@", text))

    def data(self, value: Any) -> Any:
        """The same in everything that can be written as JSON, names of members included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(name)): self.data(one) for name, one in value.items()}
        if isinstance(value, Sequence):
            return [self.data(one) for one in value]
        return value if isinstance(value, bool | int | float | None) else self.text(str(value))


def _forms(secret: str) -> set[str]:
    """As it may stand in a text: plain, in a URL, in an Authorization header."""
    raw = os.fsencode(secret)  # the environment may hold bytes that are no text
    return {
        secret,
        quote(raw, safe=""),
        quote_plus(raw),
        unquote(secret),
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
    }


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Every setting as it counts, without the secrets."""
    return _shown_table(settings)


def _shown_table(table: BaseModel) -> dict[str, Any]:
    return {
        name: _shown_field(name, field, getattr(table, name))
        for name, field in type(table).model_fields.items()
    }


def _shown_field(name: str, field: FieldInfo, value: Any) -> Any:
    if field.repr is False:
        return None if value is None or value == () else _hidden(value)
    if name in _COMMAND_LINES and isinstance(value, tuple):
        return [value[0], f"and {len(value) - 1} words"] if value else []
    return _shown(value)


def _hidden(value: Any) -> Any:
    """How many there are is worth knowing; so is where an address points."""
    if isinstance(value, tuple):
        return [_hidden(one) for one in value]
    parts = urlsplit(str(value)) if "://" in str(value) else None
    if parts is None or parts.scheme not in _STORES:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    user = f"{HIDDEN}@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{user}{host}{parts.path}{'?…' if parts.query else ''}"


def _shown(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _shown_table(value)
    if isinstance(value, Mapping):
        return {str(name): _shown(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_shown(one) for one in value]
    if isinstance(value, re.Pattern):
        return value.pattern
    return value if isinstance(value, bool | int | float | None) else str(value)


def secrets_in(value: Any) -> Iterator[str]:
    """Every value of a secret setting, and what is secret in the addresses among the others."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            held = getattr(value, name)
            if field.repr is False:
                yield from _texts_of_secret(held)
            elif name in _COMMAND_LINES and isinstance(held, tuple):
                yield from (part for word in held[1:] for part in _likely_secrets(word))
            else:
                yield from secrets_in(held)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from secrets_in(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from secrets_in(one)
    elif isinstance(value, str) and "://" in value:
        yield from _parts_of_address(value)


def _likely_secrets(word: str) -> Iterator[str]:
    """Of a word of a command line, which is not shown itself."""
    value = word.partition("=")[2] or word
    if len(value) >= _SHORTEST and any(char.isdigit() for char in value):
        yield value


def _texts_of_secret(held: Any) -> Iterator[str]:
    if isinstance(held, tuple | list):
        for one in held:
            yield from _texts_of_secret(one)
    elif isinstance(held, str) and urlsplit(held).scheme in ("sqlite", "postgresql", "redis"):
        yield from _parts_of_address(held)
    elif isinstance(held, str) and held:
        yield held
        yield from _parts_of_address(held)


def _parts_of_address(text: str) -> Iterator[str]:
    """The password, the user where there is no password, and the values of the query."""
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        user, password = parts.username, parts.password
    except ValueError:
        yield text
        return
    if password or user:
        yield password or user or ""
    for _, value in parse_qsl(parts.query):
        yield value
