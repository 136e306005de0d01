"""Canonical JSON: one form, one hash, one reading of a text, and names for what differs."""

from __future__ import annotations

import hashlib
import json
import struct
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from towline_once.canonical_json import (
    MAX_DEPTH,
    MAX_INTEGER,
    MAX_NAMED,
    canonical,
    differing_pointers,
    field_digests,
    hash_and_digests,
    opaque_hash,
    parse_json,
    payload_hash,
)
from towline_once.errors import Rejected

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
KEY = b"0123456789abcdef"

with_shared_data = pytest.mark.skipif(
    not (DATA / "jcs").is_dir(), reason="the shared test data is not beside this checkout"
)

text = st.text(max_size=8) | st.text(st.sampled_from('\0\x1f\x7f"\\/\b\f\n\r\té\u2028\ue000😀'))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(-1000, 1000, places=3).map(float)
    | text
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)
# Few names and few values, so that two documents often agree in part.
names = st.sampled_from(["a", "b", "c", "~/", "", "é\n"])
small: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 1, 1.0, 1.5, "x", "", [], [1], {}]),
    lambda inner: st.dictionaries(names, inner, max_size=5),
    max_leaves=25,
)


def nested(depth: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    """A value of exactly this many levels."""
    value: Any = []
    for _ in range(depth - 1):
        value = wrap(value)
    return value


def at(value: Any, pointer: str) -> Any:
    """What a JSON pointer leads to; a member that is absent differs from any value."""
    for step in pointer.split("/")[1:]:
        if not isinstance(value, dict):
            return ...
        value = value.get(step.replace("~1", "/").replace("~0", "~"), ...)
    return value


@given(values)
@example({"\ue000": 1, "😀": 2})
@example({"b": [1.5, {"a": (2, None)}], "a": "\x7f\u2028\u2029\x00"})
@example([0.001, 0.00099, 999999999999999.9, 1e15, 1e16, 1e21, 5e-324, -0.0, 2.0, -1e-7])
def test_shortcut_writes_what_the_reference_writes(value: Any) -> None:
    """Whichever way is taken, the bytes are those of the reference implementation."""
    assert canonical(value) == rfc8785.dumps(value)


@given(st.floats(1e-3, 1e15, exclude_max=True))
def test_shortcut_writes_fractions_as_the_reference_does(number: float) -> None:
    """The window of floats that the shortcut takes is safe."""
    assert canonical([number, -number]) == rfc8785.dumps([number, -number])


def test_shortcut_escapes_every_character_as_the_reference_does() -> None:
    """Not one character of Unicode is written in two ways."""
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    assert canonical(everything) == rfc8785.dumps(everything)


@with_shared_data
@pytest.mark.parametrize("name", ["arrays", "structures", "values"])
def test_published_vectors(name: str) -> None:
    """The vectors of the RFC's authors give their bytes."""
    value = parse_json((DATA / "jcs" / "input" / f"{name}.json").read_bytes())
    assert canonical(value) == (DATA / "jcs" / "output" / f"{name}.json").read_bytes()
    assert canonical(value) == bytes.fromhex((DATA / "jcs" / "outhex" / f"{name}.txt").read_text())


@with_shared_data
def test_published_numbers() -> None:
    """Ten thousand numbers are written as ECMAScript writes them, and read back."""
    for line in (DATA / "jcs" / "es6_10000.txt").read_text().splitlines():
        bits, expected = line.split(",")
        (number,) = struct.unpack(">d", bytes.fromhex(bits.zfill(16)))
        assert canonical(number).decode() == expected
        assert float(expected) == number


@with_shared_data
def test_real_payloads() -> None:
    """Real webhooks are read as they stand, and hashed as the reference hashes them."""
    found = list((DATA / "github-webhooks").glob("*/*.json"))
    assert found
    for path in found:
        value: Any = parse_json(path.read_bytes())
        assert value == json.loads(path.read_bytes())
        assert payload_hash(value) == hashlib.sha256(rfc8785.dumps(value)).hexdigest()
        digests = field_digests(value, KEY)
        assert len(json.loads(digests)) <= 64
        assert differing_pointers(digests, field_digests({**value, "new": 1}, KEY))


def test_hashes() -> None:
    """A hash ignores the order of members and how a number was spelt, and bodies have their own."""
    assert payload_hash({"b": 1.0, "a": 2}) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()
    assert opaque_hash(b"{}") == hashlib.sha256(b"opaque:{}").hexdigest() != payload_hash({})


def test_subclasses_count_as_their_json_type() -> None:
    """Values that only look special are written as what they are."""

    class Name(str):
        __slots__ = ()

    class Level(IntEnum):
        HIGH = 3

    value = OrderedDict({Name("b"): Level.HIGH, Name("a"): (Name("x"),)})
    assert canonical(value) == b'{"a":["x"],"b":3}'


@pytest.mark.parametrize(
    ("value", "where", "what"),
    [
        (float("nan"), "at the root", "NaN or infinite"),
        ({"a": [1, float("inf")]}, "'/a/1'", "NaN or infinite"),
        ({"a": {"b/c~": MAX_INTEGER + 1}}, "'/a/b~1c~0'", "beyond ±9007199254740991"),
        ([-MAX_INTEGER - 1], "'/0'", "beyond ±9007199254740991"),
        pytest.param([10**5000], "'/0'", "beyond ±9007199254740991", id="5000 digits"),
        ({"a": {1: 2}}, "'/a'", "member name of type int"),
        ({"a": {None: 2}}, "'/a'", "member name of type NoneType"),
        ({"a": "\ud800"}, "'/a'", "lone surrogate"),
        ({"a": {"\udfff": 1}}, "'/a'", "member name with a lone surrogate"),
        ({"a": b"x"}, "'/a'", "type bytes"),
        ({"a": {1, 2}}, "'/a'", "type set"),
        ({"a": UUID(int=1)}, "'/a'", "type UUID"),
        ({"a": datetime(2024, 1, 1, tzinfo=UTC)}, "'/a'", "type datetime"),
        ([Decimal(1)], "'/0'", "type Decimal"),
        ([orjson.Fragment(b"1")], "'/0'", "type Fragment"),
        ([...], "'/0'", "type ellipsis"),
    ],
)
def test_what_has_no_canonical_form_is_named(value: Any, where: str, what: str) -> None:
    """The refusal says where and what, in one line that can be sent anywhere."""
    for refuse in (canonical, payload_hash, lambda v: field_digests(v, KEY)):
        with pytest.raises(Rejected) as caught:
            refuse(value)
        assert where in str(caught.value)
        assert what in str(caught.value)
        assert "\n" not in str(caught.value).encode().decode()


@pytest.mark.parametrize("leaf", [None, 1.0, "😀"], ids=str)
@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"é": v}, lambda v: {"a": v}])
def test_nesting_has_a_limit(wrap: Callable[[Any], Any], leaf: Any) -> None:
    """The deepest value allowed is written on both ways; deeper ones are refused."""
    deepest = nested(MAX_DEPTH, wrap)
    assert canonical([leaf, nested(MAX_DEPTH - 1, wrap)])
    assert canonical(deepest)
    assert field_digests(deepest, KEY)
    for depth in (MAX_DEPTH + 2, 100_000):
        with pytest.raises(Rejected, match="deeper than 254 levels"):
            canonical(nested(depth, wrap))


def test_a_value_within_itself_is_refused() -> None:
    """A cycle, even one that branches, ends as nesting that is too deep."""
    cycle: list[Any] = []
    cycle += [cycle, cycle, 1.0]
    with pytest.raises(Rejected, match="deeper"):
        canonical(cycle)


@given(values, st.sampled_from([None, 2]), st.booleans())
def test_any_spelling_of_a_document_is_read(value: Any, indent: int | None, ascii_: bool) -> None:
    """Reading gives back what was written, whatever the spelling."""
    body = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    assert canonical(parse_json(body)) == canonical(parse_json(body.encode())) == canonical(value)


def spelt_with_duplicates(draw: st.DrawFn) -> tuple[str, bool]:
    """A document with colons in all places and spellings, and whether it repeats a name."""
    spelling = st.sampled_from(['"a"', '"\\u0061"', '":"', '"\\u003a"', '"\\u003A"', '"b:c"'])
    members = draw(st.lists(st.tuples(spelling, spelling | st.just("{}")), max_size=4))
    inner = "{" + ",".join(f"{name} :{value}" for name, value in members) + "}"
    body = draw(st.sampled_from(["%s", "[%s]", '{"x": %s}', '{"x": [{"x": ":"}, %s]}'])) % inner
    spelt = [json.loads(name) for name, _ in members]
    return body, len(set(spelt)) < len(spelt)


@given(st.composite(spelt_with_duplicates)())
def test_duplicate_names_are_always_found(case: tuple[str, bool]) -> None:
    """However names and colons are spelt, exactly the documents that repeat a name are refused."""
    body, repeats = case
    if repeats:
        with pytest.raises(Rejected, match="more than once in one object"):
            parse_json(body)
    else:
        assert parse_json(body) == json.loads(body)


@given(st.integers())
@example(2**63)
@example(-(2**63) - 1)
@example(2**64)
@example(10**300)
def test_integers_are_read_exactly(number: int) -> None:
    """No integer turns into a float, however long."""
    read: Any = parse_json(f'{{"n": [{number}]}}')
    assert read == {"n": [number]}
    assert type(read["n"][0]) is int


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"{", b"[1,]", b"{} {}", b"1 x", b"01", b"'a'", b'"\t"', b"\xef\xbb\xbf{}"),
        *(b"NaN", b"[Infinity]", b"-Infinity", b"1e400", b"1" + b"0" * 400, b"1" * 5000),
        *(b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', '"\ud800"', "{}".encode("utf-16"), None, 7),
        *(b"[" * 256 + b"]" * 256, b"[" * 100_000, b'{"a":' * 100_000, b"[" * 2000 + b"]" * 2000),
    ],
    ids=lambda body: repr(body)[:20],
)
def test_what_is_not_strict_json_is_refused(body: Any) -> None:
    """Anything without exactly one meaning is refused in one line of text."""
    with pytest.raises(Rejected, match=r"^body (cannot be read as JSON: |is nested deeper).+$"):
        parse_json(body)


def test_the_deepest_body_is_read() -> None:
    """Reading and hashing agree on how deep a document may be."""
    assert payload_hash(parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH))


@given(small, small, st.sampled_from([0, 1, 3, 5, 8, 64]))
def test_differences_are_found_and_none_is_made_up(one: Any, two: Any, limit: int) -> None:
    """Pointers are named if and only if the values differ, and differ at each of them."""
    stored, other = (field_digests(value, KEY, limit=limit) for value in (one, two))
    named = differing_pointers(stored, other)
    assert bool(named) == (canonical(one) != canonical(two))
    assert named == differing_pointers(other, stored) == sorted(named)
    for pointer in named:
        left, right = at(one, pointer), at(two, pointer)
        assert ... in (left, right) or canonical(left) != canonical(right)
        assert not any(pointer.startswith(f"{longer}/") for longer in named)


@given(small, st.integers(0, 70))
def test_digests_stay_within_their_limit(value: Any, limit: int) -> None:
    """At most as many pointers are stored as asked for, or the root alone."""
    assert len(json.loads(field_digests(value, KEY, limit=limit))) <= max(1, limit)


@given(small)
def test_digests_ignore_the_order_of_members(value: Any) -> None:
    """Two payloads with one canonical form have one text of digests."""

    def turned(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        return {name: turned(node[name]) for name in reversed(node)}

    for limit in (3, 64):
        one = field_digests(value, KEY, limit=limit)
        two = field_digests(turned(value), KEY, limit=limit)
        assert one == two


@pytest.mark.parametrize(
    ("one", "two", "named"),
    [
        ({"n": 1}, {"n": 2}, ["/n"]),
        ({"n": 1}, {"n": 1, "m": 1}, ["/m"]),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 1, "d": 3}}}, ["/a/b/d"]),
        ({"a": {"b": 1}}, {"a": 1}, ["/a"]),
        ({"a": {"b": {"c": 1}}}, {}, [""]),
        ({"a": {"b": {"c": 1}}, "x": 1}, {"x": 1}, ["/a"]),
        ({"a/b": {"~": 1}}, {"a/b": {"~": 2}}, ["/a~1b/~0"]),
        ({"": {"": 1}}, {"": {"": 2}}, ["//"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, ["/a"]),
        ([1], [2], [""]),
        (1, {"a": 1}, [""]),
        ({"y": 1, "x": {"p": 1, "q": 2}}, {"y": 2, "x": {"p": 1, "q": 3}}, ["/x/q", "/y"]),
    ],
)
def test_differences_are_named_as_people_would(one: Any, two: Any, named: list[str]) -> None:
    """The names are the innermost members that changed, or what both sides still have."""
    assert differing_pointers(field_digests(one, KEY), field_digests(two, KEY)) == named


def test_only_one_side_opened() -> None:
    """An object too large to open on one side is named as a whole, but only if it changed."""
    wide, wider = ({f"n{i:03}": i for i in range(size)} for size in (50, 70))
    for changed, named in ((wide, []), ({**wide, "n000": 1}, ["/same"])):
        one = field_digests({"same": wide, "pad": {}}, KEY)
        two = field_digests({"same": changed, "pad": dict.fromkeys(wide)}, KEY)
        assert differing_pointers(one, two) == ["/pad", *named]
    assert differing_pointers(field_digests(wide, KEY), field_digests(wider, KEY)) == [""]


def test_few_names_are_given() -> None:
    """A long list of differences is cut after the first names in order."""
    one, two = ({f"n{i:02}": i + more for i in range(60)} for more in (0, 1))
    named = differing_pointers(field_digests(one, KEY), field_digests(two, KEY))
    assert named == [f"/n{i:02}" for i in range(MAX_NAMED)]


def test_nothing_stored_names_nothing() -> None:
    """Where no digests were kept, there is nothing to compare."""
    assert differing_pointers("", field_digests({}, KEY)) == []
    assert differing_pointers(field_digests({}, KEY), "") == []


def test_digests_tell_nothing_without_the_key() -> None:
    """Digests depend on the key and on the place, so equal values cannot be matched up."""
    stored = json.loads(field_digests({"a": True, "b": True}, KEY))
    assert stored["/a"] != stored["/b"]
    assert stored != json.loads(field_digests({"a": True, "b": True}, KEY[::-1]))
    for bad in (b"", b"short", b"x" * 65):
        with pytest.raises(Rejected, match="16 to 64 bytes"):
            field_digests({}, bad)


def test_digests_can_be_stored_as_text() -> None:
    """Names with any characters end up in text that every database takes, and of bounded size."""
    stored = field_digests({"\0\n": 1, "é": 2}, KEY)
    assert stored.isprintable()
    assert set(json.loads(stored)) == {"/\0\n", "/é"}
    assert len(field_digests({"x" * 1_000_000: 1}, KEY)) < 100


@given(values)
def test_hash_and_digests_agree_with_each_alone(value: Any) -> None:
    """Taking both at once gives what each gives."""
    assert hash_and_digests(value, KEY) == (payload_hash(value), field_digests(value, KEY))
