"""What a Redis URL may say."""

from __future__ import annotations

import pytest

from towline.errors import Rejected
from towline.store.redis_address import parse_url


def test_a_full_url_is_read() -> None:
    """User, password, host, port, database and the option all have their place."""
    address, credentials = parse_url("rediss://ann:s%40cr%2Fet@[::1]:6400/7?allow_eviction=1")
    assert address == ("::1", 6400, 7, True, True)
    assert credentials is not None
    assert (credentials.user, credentials.password) == ("ann", "s@cr/et")


def test_the_shortest_url_is_read() -> None:
    """Port, database and options have defaults; without a password nobody logs in."""
    address, credentials = parse_url("redis://cache")
    assert address == ("cache", 6379, 0, False, False)
    assert credentials is None


def test_a_password_alone_belongs_to_the_default_user() -> None:
    """As in redis-cli."""
    _, credentials = parse_url("redis://:pw@cache")
    assert credentials is not None
    assert credentials.user == "default"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@",
        "redis://:hunter2@cache:port",
        "redis://:hunter2@cache/zero",
        "redis://:hunter2@cache/0?timeout=3",
        "redis://:hunter2@cache?allow_eviction=perhaps",
        "redis://:hun/ter2@cache",
        "redis://:hun#ter2@cache",
        "http://:hunter2@cache",
        "redis://[:hunter2@cache",
    ],
)
def test_a_bad_url_is_rejected_without_its_password(url: str) -> None:
    """The sentence shows the right form and keeps the secret."""
    with pytest.raises(Rejected, match="Redis URL") as rejected:
        parse_url(url)
    assert "ter2" not in str(rejected.value)
    assert rejected.value.__cause__ is None
    assert rejected.value.__suppress_context__ or rejected.value.__context__ is None


def test_credentials_do_not_show_in_a_repr() -> None:
    """Nor in a log line that prints the object."""
    _, credentials = parse_url("redis://ann:hunter2@cache")
    assert "hunter2" not in repr(credentials)
