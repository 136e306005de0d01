"""The kinds of values that settings have, and how each is written in the environment."""

from __future__ import annotations

import ipaddress
import json
import re
import warnings
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_LONGEST_REGEX: Final = 2000
_HOST_NAME: Final = re.compile(
    r"\*|(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?|\[?[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+\]?"
)
_HOST: Final = re.compile(r"[A-Za-z0-9]([\w.-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*")
_REPO: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)+")

LONGEST_SECONDS: Final = 315_360_000
"""Ten years: in microseconds, and added to a date, it is far from where anything overflows."""
MOST: Final = 2**31 - 1
SHORTEST_SECRET: Final = 8
LONG_SECRET: Final = 32
"""A shorter secret can be guessed; between the two numbers the doctor warns."""
SHORTEST_KEY: Final = 16

Seconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Bytes = Annotated[int, Field(ge=1, le=2**40)]
Port = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]


class Table(BaseModel):
    """A table of settings, in which every name is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def list_of(value: Any) -> Any:
    """A list comes from the environment as JSON; any other text is a list of one."""
    if not isinstance(value, str):
        return value
    if not value.startswith("["):
        return [value] if value else []
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError('a list is written as JSON, like ["one", "two"]') from None


def _secrets_of(value: Any) -> Any:
    """As a list, but that an empty text is an empty secret, which is refused."""
    return [value] if value == "" else list_of(value)


def _no_shorter_than(least: int) -> AfterValidator:
    def long_enough(text: str) -> str:
        if len(text.strip()) < least:
            raise ValueError(
                f"it is blank or too short: at least {least} characters are needed, not counting "
                "blanks around them"
            )
        return text

    return AfterValidator(long_enough)


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError("it is an address or a network, like 10.0.0.7 or 10.0.0.0/8") from None


def words_of(value: Any) -> Any:
    """Names may also be parted by commas or blanks."""
    if isinstance(value, str) and not value.startswith("["):
        return value.replace(",", " ").split()
    return list_of(value)


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or not text.isprintable() or " " in text:
        raise ValueError("an address starts with http:// or https:// and has a host")
    return text


def _store_url(text: str | None) -> str | None:
    """What it may be is the store's to say; here only what nothing could read is refused."""
    try:
        urlsplit(text or "")
    except ValueError:
        raise ValueError("this address cannot be read; only an IPv6 address has brackets") from None
    return text


def _redis_url(text: str | None) -> str | None:
    """Whatever else is wrong with it is reported by the part that uses it."""
    parts = urlsplit(_store_url(text) or "")
    place = parts.path if parts.scheme == "unix" else parts.hostname
    if text and not (parts.scheme in ("redis", "rediss", "unix") and place):
        raise ValueError(
            "an address of Redis starts with redis:// or rediss:// and has a host, or with unix:// "
            "and has the path of a socket; escape #, /, ? and @ in the password"
        )
    return text


def _host(text: str | None) -> str | None:
    if text is not None and not _HOST.fullmatch(text):
        raise ValueError(
            "a host is a name or an address alone, as in cache.example.com, without a scheme, a "
            "port or a password"
        )
    return text


def _regex(value: Any) -> Any:
    """Compiled without regard to case; one that finds something in nothing would always hold."""
    if not isinstance(value, str):
        return value
    if len(value) > _LONGEST_REGEX:
        raise ValueError(f"a regular expression has at most {_LONGEST_REGEX} characters")
    try:
        with warnings.catch_warnings():  # of what Python may read otherwise one day
            warnings.simplefilter("ignore")
            compiled = re.compile(value, re.IGNORECASE | re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if compiled.search("") is not None:
        raise ValueError("this regular expression finds something in every text")
    return compiled


def repo_name(text: str) -> str:
    if not _REPO.fullmatch(text):
        raise ValueError(f"a repository is written OWNER/NAME, not {text[:100]!a}")
    return text


def _host_name(text: str) -> str:
    if not _HOST_NAME.fullmatch(text):
        raise ValueError(
            f"a host is a name or an address without scheme, port or path, *.NAME or *, "
            f"not {text[:100]!a}"
        )
    return text


def _apprise_url(text: str) -> str:
    if not re.match(r"[A-Za-z][\w+.-]*://\S", text):
        raise ValueError("an apprise address looks like slack://… or mailto://…")
    return text


Name = Annotated[str, Field(min_length=1)]
Secret = Annotated[str | None, Field(repr=False)]
SharedSecret = Annotated[
    Annotated[str, _no_shorter_than(SHORTEST_SECRET)] | None, Field(repr=False)
]
SharedSecrets = Annotated[
    tuple[Annotated[str, _no_shorter_than(SHORTEST_SECRET)], ...],
    BeforeValidator(_secrets_of),
    Field(repr=False),
]
LongSecret = Annotated[Annotated[str, _no_shorter_than(LONG_SECRET)] | None, Field(repr=False)]
KeyText = Annotated[str, _no_shorter_than(SHORTEST_KEY), Field(repr=False)]
Networks = Annotated[
    tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(words_of)
]
StoreUrl = Annotated[str, Field(repr=False), AfterValidator(_store_url)]
SecondStoreUrl = Annotated[str | None, Field(repr=False), AfterValidator(_redis_url)]
Host = Annotated[str | None, AfterValidator(_host)]
Strings = Annotated[tuple[str, ...], BeforeValidator(list_of)]
Names = Annotated[tuple[Name, ...], BeforeValidator(list_of)]
Words = Annotated[tuple[Name, ...], BeforeValidator(words_of)]
HostNames = Annotated[
    tuple[Annotated[str, AfterValidator(_host_name)], ...], BeforeValidator(words_of)
]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Regex = Annotated[re.Pattern[str], BeforeValidator(_regex)]
Regexes = Annotated[tuple[Regex, ...], BeforeValidator(list_of)]
RepoName = Annotated[str, AfterValidator(repo_name)]
RepoNames = Annotated[tuple[RepoName, ...], BeforeValidator(words_of)]
AppriseUrls = Annotated[
    tuple[Annotated[str, AfterValidator(_apprise_url)], ...], BeforeValidator(list_of)
]
