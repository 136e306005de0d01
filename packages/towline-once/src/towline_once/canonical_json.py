"""JSON as Towline reads, hashes and compares it.

`canonical` is RFC 8785. The `rfc8785` package is the reference, and `orjson` a shortcut taken
only where it is known to write the same bytes; the tests compare the two.

`parse_json` is strict: one reading per text, or none. `orjson` alone would keep the last of
several members of one name, and turn integers that need more than 64 bits into floats.

`field_digests` makes a collision explainable without keeping the payload: it stores short keyed
digests of the payload's fields, and `differing_pointers` tells which of them changed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

import orjson
import rfc8785

from towline_once.errors import Rejected

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
Writer: TypeAlias = Callable[[Any], bytes]

MAX_DEPTH: Final = 254  # what any orjson can write; older ones let one level more pass
MAX_INTEGER: Final = 2**53 - 1
MAX_POINTERS: Final = 64
MAX_POINTER_LENGTH: Final = 200
MAX_NAMED: Final = 20

_CONTAINERS: Final = frozenset({dict, list, tuple})
_SCALARS: Final = frozenset({str, bool, int, type(None)})
_SORTED: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER

# All digits alike, and all that a number may follow: in a string nearly no long run of digits does.
_NUMBERS_ALIKE: Final = bytes.maketrans(b"123456789 \t\n\r,[-", b"000000000:::::::")
_LONG_NUMBER: Final = b"0" * 19  # the shortest integer beyond 64 bits, -2^63-1, has 19 digits


def canonical(value: object) -> bytes:
    """The RFC 8785 form of `value`; `Rejected` says where and why it has none."""
    return _written(value)[0]


def payload_hash(value: object) -> str:
    """Return the SHA-256, in hexadecimal, of the RFC 8785 form of `value`.

    Raises: `Rejected` for NaN, infinities, integers beyond 2^53-1, and what is not JSON.

    Guarantees: values that are equal as JSON have one hash, whatever the order of their members.

    ```python
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert towline_once.payload_hash(one) == towline_once.payload_hash(other)
    ```
    """
    return hashlib.sha256(canonical(value)).hexdigest()


def opaque_hash(body: bytes) -> str:
    """SHA-256, in hexadecimal, of a body that is not JSON, apart from all hashes of JSON."""
    return hashlib.sha256(b"opaque:" + body).hexdigest()


def _written(value: object) -> tuple[bytes, Writer]:
    """The canonical form of `value`, and what also writes that of every value within it."""
    try:
        written = _write_sorted(value)
        if _orjson_was_canonical(value):
            return written, _write_sorted
    except orjson.JSONEncodeError:
        pass  # beyond RFC 8785 as well, or only of an unusual type: told apart next
    _reject_unfit(value)
    return rfc8785.dumps(value), rfc8785.dumps  # type: ignore[arg-type]


def _write_sorted(value: Any) -> bytes:
    return orjson.dumps(value, option=_SORTED)


def _orjson_was_canonical(value: object) -> bool:
    """Whether what orjson wrote of `value` is its RFC 8785 form.

    As it was written, it is not nested too deep, all its member names are text, all its integers
    are in range, and no text has a lone surrogate. Strings are escaped alike. Left to see:

    * names are ASCII, and thus sort the same by UTF-8 (orjson) and by UTF-16 (RFC 8785);
    * types are exactly those of JSON, as orjson also writes enums, UUIDs and dataclasses;
    * floats are those that both write alike.
    """
    pending: list[Any] = [value if type(value) is dict else [value]]
    while pending:
        children = pending.pop()
        if type(children) is dict:
            if not "".join(children).isascii():
                return False
            children = children.values()
        if _SCALARS.issuperset(map(type, children)):
            continue
        for child in children:
            kind = type(child)
            if kind in _CONTAINERS:
                pending.append(child)
            elif kind not in _SCALARS and not (kind is float and _is_written_alike(child)):
                return False
    return True


def _is_written_alike(number: float) -> bool:
    """Whether orjson writes `number` as ECMAScript does.

    Both give the shortest digits that read back as the same number. They differ in when an
    exponent is used, and in `1.0`, so only fractions of ordinary size are let through.
    """
    return 1e-3 <= abs(number) < 1e15 and not number.is_integer()


def _reject_unfit(value: object) -> None:
    """Raise `Rejected` for the first thing, in document order, that RFC 8785 cannot express."""
    pending: list[tuple[str, object, int]] = [("", value, 1)]
    while pending:
        pointer, node, depth = pending.pop()
        if problem := _problem(node, depth):
            raise Rejected(f"JSON value {_at(pointer)} {problem}")
        if isinstance(node, dict):
            inner = [(_child(pointer, name), item, depth + 1) for name, item in node.items()]
            pending += reversed(inner)
        elif isinstance(node, list | tuple):
            inner = [(f"{pointer}/{i}", item, depth + 1) for i, item in enumerate(node)]
            pending += reversed(inner)


def _problem(node: object, depth: int) -> str | None:
    """What is wrong with `node` itself, as the end of a sentence."""
    match node:
        case None | bool():
            return None
        case int():
            return None if abs(node) <= MAX_INTEGER else f"is an integer beyond ±{MAX_INTEGER}"
        case str():
            return None if _is_encodable(node) else "is text with a lone surrogate"
        case float():
            return None if math.isfinite(node) else "is NaN or infinite"
        case list() | tuple() | dict() if depth > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels"
        case list() | tuple():
            return None
        case dict():
            return _problem_of_names(node)
    return f"is of type {type(node).__name__}, which is not a JSON type"


def _problem_of_names(node: dict[Any, Any]) -> str | None:
    for name in node:
        if not isinstance(name, str):
            return f"has a member name of type {type(name).__name__}, which must be text"
        if not _is_encodable(name):
            return "has a member name with a lone surrogate"
    return None


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _at(pointer: str) -> str:
    if not pointer:
        return "at the root"
    shown = pointer if len(pointer) <= MAX_POINTER_LENGTH else f"{pointer[:MAX_POINTER_LENGTH]}…"
    return f"at {shown!r}"


def _child(pointer: str, name: str) -> str:
    """The JSON pointer (RFC 6901) of a member."""
    if "~" in name or "/" in name:
        name = name.replace("~", "~0").replace("/", "~1")
    return pointer + "/" + name  # an f-string would write the label of an enum, not its text


def parse_json(body: bytes | str) -> JsonValue:
    """Read JSON strictly: `Rejected` unless the text has exactly one meaning.

    Integers are kept exact at any size, and fractions become the nearest float; a number whose
    nearest float would be infinite is rejected, as are duplicate member names, NaN, Infinity,
    invalid UTF-8, a byte order mark, lone surrogates and more than `MAX_DEPTH` levels.
    """
    try:
        raw = body.encode() if isinstance(body, str) else body
        value: JsonValue = orjson.loads(raw)
        written = orjson.dumps(value)
    except UnicodeEncodeError:
        raise Rejected("body cannot be read as JSON: it has a lone surrogate") from None
    except orjson.JSONDecodeError as error:
        raise Rejected(f"body cannot be read as JSON: {error}") from None
    except orjson.JSONEncodeError:
        raise Rejected(f"body is nested deeper than {MAX_DEPTH} levels") from None
    if written == raw or _nothing_was_lost(raw, written):
        return value
    return _parse_exactly(raw)


def _nothing_was_lost(raw: bytes, written: bytes) -> bool:
    """Whether orjson surely read all that `raw` says, given what it wrote of the value again.

    `written` has one colon per member that was kept, and all colons of its strings. `raw` has
    those as well, unless some string spells a colon as an escape, and at least one more for
    every member that was dropped as a duplicate. So equal counts prove that none was dropped.
    """
    if raw.count(b":") != written.count(b":") or (b"\\" in raw and b"\\u003" in raw):
        return False
    alike = raw.translate(_NUMBERS_ALIKE)
    return b":" + _LONG_NUMBER not in alike and not alike.startswith(_LONG_NUMBER)


def _parse_exactly(raw: bytes) -> JsonValue:
    """Read what orjson already found to be well-formed; slower, but it sees every member."""
    value: JsonValue = json.loads(raw.decode(), object_pairs_hook=_distinct_members)
    return value


def _distinct_members(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    members = dict(pairs)
    if len(members) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        shown = repeated[:MAX_POINTER_LENGTH]
        raise Rejected(f"body has the member name {shown!r} more than once in one object")
    return members


def field_digests(value: object, key: bytes, *, limit: int = MAX_POINTERS) -> str:
    """Keyed digests of at most `limit` fields of `value`, for `differing_pointers`.

    The text is a JSON object from pointers to digests. Objects are opened breadth-first while
    the pointers stay within the limit; all members of an object are listed, or none. An opened
    object keeps a digest of its own, so that it can be compared with one that was not opened;
    only the root, whose opening depends on nothing else, has one just when it is not opened.

    The pointer is part of what is digested: equal values in two places do not look equal, and
    without the key not even a boolean can be told. 48 bits are ample to tell two values apart.
    """
    return _digests_of(value, _written(value), key, limit)


def hash_and_digests(value: object, key: bytes, *, limit: int = MAX_POINTERS) -> tuple[str, str]:
    """`payload_hash` and `field_digests` of one value, which is inspected only once."""
    form = _written(value)
    return hashlib.sha256(form[0]).hexdigest(), _digests_of(value, form, key, limit)


def _digests_of(value: object, form: tuple[bytes, Writer], key: bytes, limit: int) -> str:
    whole, write = form
    keyed = _keyed(key)
    digests = {}
    for pointer, node in _opened(value, limit).items() or (("", None),):
        state = keyed.copy()
        state.update(b"%b\0%b" % (pointer.encode(), write(node) if pointer else whole))
        digests[pointer] = state.hexdigest()
    return orjson.dumps(digests).decode()


@lru_cache(maxsize=16)
def _keyed(key: bytes) -> hashlib.blake2b:
    """The digest's state after its key; a store has one key for all its records."""
    if not 16 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise Rejected("the key for field digests must have 16 to 64 bytes")
    return hashlib.blake2b(key=key, digest_size=6)


def _opened(value: object, limit: int) -> dict[str, object]:
    """The values at the pointers below the root, in an order that ignores how dicts are ordered."""
    fields: dict[str, object] = {}
    unopened = [("", value)]
    for pointer, node in unopened:  # grows while it is read: breadth-first
        if not isinstance(node, dict) or len(fields) + len(node) > limit:
            continue
        members: dict[str, object] = {}
        for name in sorted(node):
            child = _child(pointer, name)
            if len(child) > MAX_POINTER_LENGTH:
                break
            members[child] = node[name]
        else:
            fields |= members
            unopened += members.items()
    return fields


def differing_pointers(stored: str, other: str) -> list[str]:
    """The first few JSON pointers, sorted, at which two payloads differ.

    Both texts must come from `field_digests` with one key and limit. A pointer is named only if its
    values differ, and only below objects that both sides opened: where just one did, the object.
    """
    if not stored or not other:
        return []
    left, right = orjson.loads(stored), orjson.loads(other)
    opened = {_parent(p) for p in left if p} & {_parent(p) for p in right if p}
    named = (
        pointer
        for pointer in left.keys() | right.keys()
        if left.get(pointer) != right.get(pointer)
        and pointer not in opened
        and (not pointer or _parent(pointer) in opened)
    )
    return sorted(named)[:MAX_NAMED]


def _parent(pointer: str) -> str:
    return pointer.rpartition("/")[0]
