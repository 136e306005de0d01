"""What a Redis URL may say."""

from __future__ import annotations

from typing import Any

import pytest

from towline_once.db.redis.address import parse_url
from towline_once.errors import Rejected


def login(url: str) -> tuple[str | None, str | None]:
    address = parse_url(url)
    return address.user, address.password


def options(url: str) -> dict[str, Any]:
    """What redis-py is told, but for what it is always told."""
    told = parse_url(url).options
    return {name: value for name, value in told.items() if name != "socket_keepalive"}


def test_a_full_url_is_read() -> None:
    """User, password, host, port, database and the option all have their place."""
    url = "rediss://ann:s%40cr%2Fet@[::1]:6400/7?allow_eviction=1"
    address = parse_url(url)
    assert options(url) == {"host": "::1", "port": 6400, "db": 7}
    assert (address.tls, address.allow_eviction) == (True, True)
    assert login(url) == ("ann", "s@cr/et")


def test_the_shortest_url_is_read() -> None:
    """Port, database and options have defaults; without a password nobody logs in."""
    address = parse_url("redis://cache")
    assert options("redis://cache") == {"host": "cache", "port": 6379, "db": 0}
    assert (address.tls, address.allow_eviction) == (False, False)
    assert login("redis://cache") == (None, None)


def test_a_password_alone_belongs_to_the_default_user() -> None:
    """As in redis-cli."""
    assert login("redis://:pw@cache") == (None, "pw")


def test_a_socket_is_a_file() -> None:
    """With user, password and database as for a host."""
    url = "unix://ann:pw@/run/redis.sock?db=2&allow_eviction=true"
    assert options(url) == {"path": "/run/redis.sock", "db": 2}
    assert login(url) == ("ann", "pw")
    assert str(parse_url(url)) == "/run/redis.sock"


def test_tls_has_options() -> None:
    """An authority and a certificate of one's own; the server is verified in any case."""
    url = "rediss://cache?ssl_ca_certs=/etc/ca.pem&ssl_certfile=/etc/me.pem&ssl_min_version=771"
    assert options(url) == {
        "host": "cache", "port": 6379, "db": 0,
        "ssl_ca_certs": "/etc/ca.pem", "ssl_certfile": "/etc/me.pem", "ssl_min_version": 771,
    }  # fmt: skip
    assert "ssl_ca_certs" not in repr(parse_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@",
        "redis://:hunter2@cache:port",
        "redis://:hunter2@cache/zero",
        "redis://:hunter2@cache/0?timeout=3",
        "redis://:hunter2@cache/0?ssl_certfile=x",
        "redis://:hunter2@cache?allow_eviction=perhaps",
        "redis://:hun/ter2@cache",
        "redis://:hun#ter2@cache",
        "rediss://:hunter2@cache?ssl_cert_reqs=none",
        "rediss://:hunter2@cache?ssl_min_version=newest",
        "unix://:hunter2@",
        "unix://:hunter2@host/run/redis.sock",
        "unix://:hunter2@/run/redis.sock?db=two",
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
    assert "hunter2" not in repr(parse_url("redis://ann:hunter2@cache"))
