"""Keys: what they are called, that nothing is lost in their text, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import pickle
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, StrEnum
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from towline_once import keys
from towline_once.errors import Rejected

GUID = "550e8400-e29b-41d4-a716-446655440000"

TEXTS = [
    (keys.GitHub(GUID), f"github:{GUID}"),
    (keys.GitHub(GUID, hook_id=12), f"github:12:{GUID}"),
    (keys.GitHub("a:b"), "github:a%3Ab"),
    (keys.GitHub("b", hook_id="a"), "github:a:b"),
    (keys.GitHub("100%"), "github:100%25"),
    (keys.GitHub("b:%3A", hook_id="a:%"), "github:a%3A%25:b:%3A"),
    (keys.GitLab(GUID, hook_id="hook"), f"gitlab:hook:{GUID}"),
    (keys.Api("cli-abc123", "req-xyz789"), "api:cli-abc123:req-xyz789"),
    (keys.Api("a:b", "c:d%"), "api:a%3Ab:c:d%"),
    (keys.Api("%3A", "%3A"), "api:%253A:%3A"),
    (keys.Slack("T12345678", "1234567890.123456"), "slack:T12345678:1234567890.123456"),
    (
        keys.Scheduler("daily-cleanup", "2024-12-19T00:00:00Z"),
        "scheduler:daily-cleanup:2024-12-19T00:00:00Z",
    ),
    (keys.Jira("a:b"), "jira:a:b"),
    (keys.Jenkins("asgard", 18, "COMPLETED"), "jenkins:asgard:18:COMPLETED"),
    (keys.Ci("circleci", "d-1"), "ci:circleci:d-1"),
]

# Small alphabets of the characters that carry meaning make clashes likely, where there are any.
tricky = st.text(st.sampled_from(":%23A5a/é\0\n\U0001f600"), min_size=1, max_size=6)
parts = tricky | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
numbered = parts | st.integers()
any_key: st.SearchStrategy[keys.Key] = st.one_of(
    st.builds(keys.GitHub, parts, st.none() | numbered),
    st.builds(keys.GitLab, parts, st.none() | numbered),
    st.builds(keys.Api, parts, parts),
    st.builds(keys.Slack, parts, parts),
    st.builds(keys.Scheduler, parts, parts | st.datetimes(timezones=st.just(UTC))),
    st.builds(keys.Jira, parts),
    st.builds(keys.Jenkins, parts, numbered, parts),
    st.builds(keys.Ci, parts, parts),
)


@pytest.mark.parametrize(("key", "text"), TEXTS)
def test_text_of_each_scheme(key: keys.Key, text: str) -> None:
    """Each source's key has the documented text, and is read back from it."""
    assert str(key) == text
    assert keys.parse(text) == key


@given(any_key)
def test_every_key_survives_its_text(key: keys.Key) -> None:
    """Whatever the parts hold, the text reads back as an equal key of the same source."""
    again = keys.parse(str(key))
    assert again == key
    assert hash(again) == hash(key)
    assert str(key).startswith(f"{key.source}:")


@given(any_key, any_key)
def test_distinct_keys_have_distinct_texts(one: keys.Key, two: keys.Key) -> None:
    """No two keys share a text."""
    assert (one == two) == (str(one) == str(two))


@given(tricky, tricky, tricky, tricky)
def test_parts_cannot_flow_into_each_other(a: str, b: str, c: str, d: str) -> None:
    """Moving a colon from one part to its neighbour gives another text."""
    assume((a, b) != (c, d))
    assert str(keys.Api(a, b)) != str(keys.Api(c, d))
    assert str(keys.GitHub(a, b)) != str(keys.GitHub(c, d))
    assert str(keys.GitHub(a, b)) != str(keys.GitHub(c))


@given(st.sampled_from(sorted(keys.SCHEMES)), st.text(st.sampled_from(":%23AaBb5\n"), max_size=12))
@example("github", "a%3ab")
@example("api", "%41:b")
def test_only_texts_that_str_writes_are_read(source: str, rest: str) -> None:
    """A text is refused, or else it is exactly the text of the key it gives."""
    text = f"{source}:{rest}"
    try:
        key = keys.parse(text)
    except Rejected:
        return
    assert str(key) == text


@given(st.text(st.characters()))
def test_arbitrary_text_is_refused_or_exact(text: str) -> None:
    """Text from anywhere, surrogates included, raises nothing but Rejected."""
    with contextlib.suppress(Rejected):
        assert str(keys.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "api, ci, github, gitlab, jenkins, jira, scheduler, slack"),
        ("github", "and a colon"),
        ("GitHub:1", "start with one of"),
        ("bitbucket:1", "start with one of"),
        ("github:", "GitHub key: delivery_id"),
        ("github::x", "GitHub key: hook_id"),
        ("github:x:", "GitHub key: delivery_id"),
        ("github:a%3ab", "%25 or %3A"),
        ("github:%41", "%25 or %3A"),
        ("github:100%", "%25 or %3A"),
        ("api:a%2:b", "%25 or %3A"),
        ("api:a", "api:{client_id}:{request_id}"),
        ("api::b", "Api key: client_id"),
        ("jenkins:job:18", "jenkins:{job}:{build}:{phase}"),
        ("jira:", "Jira key: webhook_id"),
        ("jira:\ud800", "surrogate"),
        (None, "str"),
        (b"github:1", "str"),
    ],
)
def test_malformed_text_is_explained(text: Any, says: str) -> None:
    """One sentence says what is allowed."""
    with pytest.raises(Rejected) as caught:
        keys.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", ["", None, 0, 1, True, 1.5, b"x", [], "\ud800", "ok\udfff"])
@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (scheme, part)
        for scheme in keys.SCHEMES.values()
        for part in scheme.parts
        if part not in ("hook_id", "build")
    ],
)
def test_parts_must_be_text(kind: type[keys.Key], part: str, bad: Any) -> None:
    """A part that is empty, missing or no text is refused by its name."""
    given_parts: dict[str, Any] = dict.fromkeys(kind.parts, "x")
    with pytest.raises(Rejected, match=rf"^{kind.__name__} key: {part} "):
        kind(**{**given_parts, part: bad})


@pytest.mark.parametrize("kind", keys.SCHEMES.values())
def test_a_part_left_out_is_refused(kind: type[keys.Key]) -> None:
    """Leaving a part out is the same mistake as leaving it empty."""
    with pytest.raises(Rejected, match="empty or missing"):
        kind()


@pytest.mark.parametrize("bad", ["", True, False, 1.5, b"1", "\ud800"])
def test_numbers_must_be_integers(bad: Any) -> None:
    """Where senders use numbers, text and integers are taken, and nothing else."""
    for make in (keys.GitHub, keys.GitLab):
        with pytest.raises(Rejected, match="hook_id"):
            make(GUID, hook_id=bad)
    with pytest.raises(Rejected, match="build"):
        keys.Jenkins("job", bad, "STARTED")


def test_numbers_too_long_to_write_are_refused() -> None:
    """An integer beyond Python's own limit for text is refused like any other wrong part."""
    with pytest.raises(Rejected, match="hook_id has too many digits"):
        keys.GitHub(GUID, hook_id=10**5000)


def test_numbers_become_text() -> None:
    """An integer id equals its text."""
    assert keys.GitHub(GUID, hook_id=7) == keys.GitHub(GUID, hook_id="7")
    assert keys.Jenkins("j", 18, "p").build == "18"


def test_schedule_times_are_written_in_utc() -> None:
    """Aware datetimes that mean one moment give one key; fractions appear only if there are any."""
    berlin = timezone(timedelta(hours=1))
    due = keys.Scheduler("s", datetime(2024, 12, 19, 1, tzinfo=berlin))
    assert due == keys.Scheduler("s", "2024-12-19T00:00:00Z")
    precise = datetime(2024, 12, 19, 0, 0, 0, 250, tzinfo=UTC)
    assert str(keys.Scheduler("s", precise)) == "scheduler:s:2024-12-19T00:00:00.000250Z"


def test_schedule_times_without_zone_are_refused() -> None:
    """A naive datetime means another moment on every host; one outside of the calendar, none."""
    with pytest.raises(Rejected, match="time zone"):
        keys.Scheduler("s", datetime(2024, 12, 19))  # noqa: DTZ001 - what is refused here
    with pytest.raises(Rejected, match="9999"):
        keys.Scheduler("s", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))))


def test_keys_are_values() -> None:
    """Keys are frozen, hashable, copyable, and differ between sources."""
    key = keys.GitHub(GUID)
    with pytest.raises(FrozenInstanceError):
        key.delivery_id = "other"  # type: ignore[misc]
    assert len({key, keys.GitHub(GUID), keys.GitHub(GUID, hook_id="1"), keys.GitLab(GUID)}) == 3
    assert copy.deepcopy(key) == key == pickle.loads(pickle.dumps(key))
    assert not hasattr(key, "__dict__")
    assert repr(keys.Api("c", "r")) == "Api(client_id='c', request_id='r')"


def test_enum_members_count_as_their_text() -> None:
    """A part given as a member of an enum of texts is kept as plain text."""

    class Plain(StrEnum):
        SMITH = "smith"

    class Mixed(str, Enum):  # noqa: UP042 - the kind whose format() is not its text
        SMITH = "smith"

    for provider in (Plain.SMITH, Mixed.SMITH):
        key = keys.Ci(provider, "1")
        assert type(key.provider) is str
        assert str(key) == "ci:smith:1"


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        (f"github:{GUID}", "github:550e8400…"),
        ("github:12345678", "github:12345678"),
        ("api:cli-abc123:req", "api:cli-abc1…"),
        ("my-own-secret:x", "my-own-s…"),
        ("secret-without-source", "secret-w…"),
        ("jira:a\nb\x1b[0m", "jira:a?b?[0m"),
        ("", ""),
    ],
)
def test_only_a_prefix_is_logged(text: str, logged: str) -> None:
    """Logs get the source and eight printable characters, and no more of a text from elsewhere."""
    assert keys.prefix(text) == logged
