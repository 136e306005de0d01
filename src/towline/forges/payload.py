"""Reading what others wrote: whatever is absent or of another type reads as nothing.

Real payloads lack newer fields, were trimmed by proxies, or come from versions that are not known.
So no field is trusted to exist or to have its type, and one bad field does not spoil the rest.
Text that could not be stored (NUL), URLs that could not be shown (`javascript:`) and names that
could not stand in a path (`..`) read as nothing as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard
from urllib.parse import parse_qsl, urlsplit

import orjson

from towline.events import Actor, ActorKind, CheckStatus, Conclusion
from towline.forges.delivery import Headers, Malformed
from towline_once.canonical_json import MAX_INTEGER, JsonValue, parse_json
from towline_once.errors import Rejected

Object: TypeAlias = dict[str, JsonValue]

LONGEST_ID: Final = 255
LONGEST_LINE: Final = 1000
LONGEST_NAME: Final = 1024
LONGEST_URL: Final = 2048
LONGEST_SUMMARY: Final = 2000
LONGEST_COMMENT: Final = 16_384
MOST_ITEMS: Final = 100

_MOST_FORM_FIELDS: Final = 100
_NOTHING: Final[Object] = {}  # shared, so never written to
_COMMIT: Final = re.compile(r"[0-9a-fA-F]{7,64}")
_REPO: Final = re.compile(r"(?!\.{1,2}/)[\w.-]+(?:/(?!\.{1,2}(?:/|$))[\w.-]+)+", re.ASCII)
_SCP_URL: Final = re.compile(r"[^/@]+@[^/:]+:(?!//)(?P<path>.+)")
_ACTOR_KINDS: Final[Mapping[str, ActorKind]] = {
    "User": "user",
    "Bot": "bot",
    "Organization": "organization",
}


def header(headers: Headers, name: str) -> str | None:
    """A header that is an id or a name; `Malformed` if it is too long or not printable ASCII."""
    value = headers.get(name)
    if not value:
        return None
    if len(value) > LONGEST_ID or not (value.isascii() and value.isprintable()):
        raise Malformed(f"the header {name} must be printable ASCII of at most {LONGEST_ID} bytes")
    return value


def required_header(headers: Headers, name: str) -> str:
    value = header(headers, name)
    if value is None:
        raise Malformed(f"the header {name} is missing")
    return value


def json_object(body: bytes | str) -> Object:
    try:
        value = parse_json(body)
    except Rejected as error:
        raise Malformed(str(error)) from None
    if not isinstance(value, dict):
        raise Malformed("the body must be a JSON object")
    return value


def json_object_with_repeats(body: bytes) -> Object:
    """As `json_object`, but a member may be repeated with the same value: it has one meaning."""
    try:
        return json_object(body)
    except Malformed as refused:
        try:
            orjson.loads(body)  # refuses what json.loads would take: NaN, infinity, surrogates
            value = json.loads(body.decode(), object_pairs_hook=_agreeing_members)
            return json_object(orjson.dumps(value))
        except (ValueError, RecursionError, orjson.JSONEncodeError):
            raise refused from None


def _agreeing_members(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members: dict[str, JsonValue] = {}
    for name, value in pairs:
        if name in members and orjson.dumps(members[name]) != orjson.dumps(value):
            raise Malformed("a member is there twice, with two values")
        members[name] = value
    return members


def is_form(headers: Headers, body: bytes) -> bool:
    """Whether the body is form-encoded; curl calls JSON a form unless it is told otherwise."""
    content_type = headers.get("content-type", "").lower()
    return content_type.startswith("application/x-www-form-urlencoded") and body[:1] != b"{"


def form_fields(body: bytes) -> dict[str, str]:
    try:
        pairs = parse_qsl(
            body.decode(),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FORM_FIELDS,
        )
    except ValueError:
        raise Malformed("the body cannot be read as a form in UTF-8") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Malformed("the form has a field more than once")
    if any("\0" in value for value in fields.values()):
        raise Malformed("the form has a field with a NUL character")
    return fields


def body_hash(body: bytes) -> str:
    """An id for a delivery which has none: the same body is the same delivery."""
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


def inner(node: Object, name: str) -> Object:
    value = node.get(name)
    return value if isinstance(value, dict) else _NOTHING


def objects(node: Object, name: str, most: int = MOST_ITEMS) -> list[Object]:
    value = node.get(name)
    if not isinstance(value, list):
        return []
    return [item for item in value[:most] if isinstance(item, dict)]


def texts(node: Object, name: str) -> tuple[str, ...]:
    value = node.get(name)
    if not isinstance(value, list):
        return ()
    return tuple(item for item in value[:MOST_ITEMS] if _is_name(item, LONGEST_NAME))


def text(node: Object, name: str, longest: int = LONGEST_NAME) -> str | None:
    """Text that means something only as a whole."""
    value = node.get(name)
    return value if _is_name(value, longest) else None


def prose(node: Object, name: str, longest: int = LONGEST_SUMMARY) -> str:
    """Text for people and patterns: cut rather than dropped."""
    value = node.get(name)
    return value[:longest].replace("\0", "") if isinstance(value, str) else ""


def line(node: Mapping[str, Any], name: str) -> str:
    """Text on one line, cut rather than dropped; empty where there is none."""
    value = node.get(name)
    if not isinstance(value, str):
        return ""
    sound = value.replace("\0", "").encode("utf-8", "replace").decode()
    return " ".join(sound.split())[:LONGEST_LINE]


def ident(node: Object, name: str) -> str | None:
    """An id, which some write as a number and others as text."""
    value = node.get(name)
    if type(value) is int and abs(value) < 2**64:
        return str(value)
    return text(node, name, LONGEST_ID)


def number(node: Object, name: str) -> int | None:
    """A whole number above zero, as a number or in digits."""
    value = node.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    return value if type(value) is int and 0 < value <= MAX_INTEGER else None


def flag(node: Object, name: str) -> bool | None:
    value = node.get(name)
    return value if isinstance(value, bool) else None


def commit(node: Object, name: str) -> str | None:
    """A commit's hash; the hash of zeros, which stands for no commit, is none."""
    value = node.get(name)
    if not _is_hash(value) or not value.strip("0"):
        return None
    return value.lower()


def has_hashes(node: Object, *names: str) -> bool:
    """Whether all are hashes, be it of zeros: then a commit that is none was told to be so."""
    return all(_is_hash(node.get(name)) for name in names)


def url(node: Object, name: str) -> str | None:
    value = text(node, name, LONGEST_URL)
    return value if value and value.startswith(("https://", "http://")) else None


def moment(node: Object, name: str) -> float | None:
    """Seconds since 1970, of ISO 8601, of GitLab's `2021-02-23 02:41:37 UTC`, or of a number."""
    value = node.get(name)
    if isinstance(value, str):
        return _seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 2**40 else None


def moment_of_ms(node: Object, name: str) -> float | None:
    """Seconds since 1970, of a number of milliseconds."""
    value = node.get(name)
    return value / 1000 if type(value) is int and 0 <= value < 2**50 else None


def _seconds(value: str) -> float | None:
    try:
        read = datetime.fromisoformat(value.replace(" UTC", "Z"))
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def actor(node: Object, name: str, login: str = "login") -> Actor | None:
    """Who is described under `name`; None for a deleted account as well."""
    who = inner(node, name)
    known_as = text(who, login, LONGEST_ID)
    if known_as is None:
        return None
    kind = _ACTOR_KINDS.get(text(who, "type") or "")
    return Actor(known_as, "bot" if known_as.endswith("[bot]") else kind)


def repo_name(value: JsonValue) -> str | None:
    """`owner/name`, or a longer path where groups are nested."""
    if not isinstance(value, str) or len(value) > LONGEST_ID:
        return None
    return value if _is_repo(value) else None


@lru_cache(maxsize=4096)
def _is_repo(value: str) -> bool:
    return _REPO.fullmatch(value) is not None


def repo_of_url(value: JsonValue) -> str | None:
    """The repository that a page's or a clone's URL names."""
    if not isinstance(value, str) or len(value) > LONGEST_URL:
        return None
    if scp := _SCP_URL.fullmatch(value):
        path = scp["path"]
    else:
        try:
            parts = urlsplit(value)
        except ValueError:
            return None
        path = parts.path if parts.netloc else ""
    return repo_name(path.strip("/").removesuffix(".git"))


def _is_hash(value: JsonValue) -> TypeGuard[str]:
    return isinstance(value, str) and _COMMIT.fullmatch(value) is not None


def _is_name(value: JsonValue, longest: int) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= longest and "\0" not in value


# ------------------------------------------------------------------ outcomes of checks
# The words in which forges and CI systems tell how a check stands, and what they mean.


class Outcome(NamedTuple):
    status: CheckStatus
    conclusion: Conclusion


QUEUED: Final = Outcome("queued", "pending")
RUNNING: Final = Outcome("in_progress", "pending")
UNKNOWN: Final = Outcome("completed", "action_required")
"""An end in a word that is not known: surely not a pass, so a person should look."""

_ENDED: Final[Mapping[Conclusion, str]] = {
    "success": "success succeeded successful passed pass ok fixed",
    "failure": "failure failed fail error errored broken unstable",
    "cancelled": "cancelled canceled aborted stopped",
    "timed_out": "timed_out timedout timeout",
    "skipped": "skipped not_built not_run",
    "neutral": "neutral",
    "action_required": "action_required manual blocked",
    "stale": "stale",
    "startup_failure": "startup_failure infrastructure_fail",
}
_QUEUED: Final = (
    "queued created requested waiting waiting_for_resource waiting_for_callback preparing pending"
    " scheduled enqueued"
)
_RUNNING: Final = "in_progress running started building canceling"

WORDS: Final[Mapping[str, Outcome]] = {
    **{word: Outcome("completed", end) for end, words in _ENDED.items() for word in words.split()},
    **dict.fromkeys(_QUEUED.split(), QUEUED),
    **dict.fromkeys(_RUNNING.split(), RUNNING),
}


def outcome_of(word: str) -> Outcome:
    return WORDS.get(word.lower().replace("-", "_").replace(" ", "_"), UNKNOWN)


def outcome_of_two(status: str | None, conclusion: str | None) -> Outcome:
    """Of a sender who has one word for how far it is, and another for how it ended."""
    if status is None or status == "completed":
        return outcome_of(conclusion) if conclusion else RUNNING
    known = outcome_of(status)
    return known if known.conclusion == "pending" else RUNNING
