"""The proxy of `docs/operations/many-machines.md`: a real nginx in front of real doors."""

from __future__ import annotations

import hashlib
import hmac
import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.deploy.nginx import PROGRAM, Nginx
from tests.docs_pages import shown
from tests.e2e.programs import Program
from tests.servers import free_port, psql

PAGE = "docs/operations/many-machines.md"
SECRET = "behind a proxy"
GITHUB_WAITS_SECONDS = 10
SOME = 12
TAKEN = {(202, "accepted"), (200, "duplicate_ignored")}
"""The second is told where one door had taken it and the other answered, as on a busy machine."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed; .ci/run installs it"),
]


class Place:
    """Two doors on one PostgreSQL, a third machine that is down, and nginx in front of them."""

    def __init__(self, doors: tuple[Program, Program], proxy: Nginx, postgres_url: str) -> None:
        self.doors = doors
        self.proxy = proxy
        self._postgres_url = postgres_url
        trusted = ssl.create_default_context(cafile=str(proxy.certificate))
        self.client = httpx2.Client(
            base_url=proxy.url, verify=trusted, timeout=GITHUB_WAITS_SECONDS
        )
        self.sent: list[str] = []

    def send(self, body: bytes = b'{"zen": "1 < 2"}', delivery_id: str = "") -> tuple[int, str]:
        """As GitHub does, once; what was answered."""
        delivery_id = delivery_id or str(uuid.uuid4())
        self.sent.append(delivery_id)
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {
            "content-type": "application/json",
            "x-github-event": "ping",
            "x-github-delivery": delivery_id,
            "x-hub-signature-256": f"sha256={signature}",
        }
        answer = self.client.post("/webhooks/github", content=body, headers=headers)
        return answer.status_code, answer.json()["status"]

    def stored(self) -> list[str]:
        text = "SELECT delivery_id FROM towline_deliveries ORDER BY 1"
        return psql(self._postgres_url, text).split()


@pytest.fixture
def place(bare_postgres_url: str, tmp_path: Path) -> Iterator[Place]:
    settings = {
        "TOWLINE_DATABASE_URL": bare_postgres_url,
        "TOWLINE_GITHUB__WEBHOOK_SECRETS": f'["{SECRET}"]',
        "TOWLINE_SERVE__ALLOWED_HOSTS": "towline.example",
        "TOWLINE_API_KEYS__ADMIN__KEY": "a-key-of-the-admin-plane",
        "TOWLINE_API_KEYS__ADMIN__SCOPES": '["admin"]',
    }
    (servers,) = shown(PAGE, "nginx")
    with Program(tmp_path, settings, "serve") as one, Program(tmp_path, settings, "serve") as two:
        ports = (one.port, two.port, free_port())
        machines = [
            (f"10.0.0.1{number}:8788", f"127.0.0.1:{port}") for number, port in enumerate(ports, 1)
        ]
        with Nginx(servers, machines) as proxy:
            place = Place((one, two), proxy, bare_postgres_url)
            with place.client:
                yield place


def test_what_comes_is_passed_on_as_it_is(place: Place) -> None:
    """Signatures hold, also of a large body; a repeat is known at whichever door it comes in."""
    first = str(uuid.uuid4())
    assert place.send(delivery_id=first) == (202, "accepted")
    assert {place.send(delivery_id=first) for _ in range(6)} == {(200, "duplicate_ignored")}
    large = b'{"zen": "%b"}' % (b"\xc3\xa9" * 1_000_000)
    assert place.send(large) == (202, "accepted")
    assert place.stored() == sorted(set(place.sent))


def test_only_the_data_plane_is_led_through(place: Place) -> None:
    """Whoever can reach the proxy cannot try the keys of the control plane there."""
    key = {"x-api-key": "a-key-of-the-admin-plane"}
    for path in ("/", "/api/prs", "/metrics", "/docs", "/readyz"):
        assert place.client.get(path, headers=key).status_code == 404
    assert place.client.post("/mesh/submit_request", json={}).status_code == 401


def test_a_door_that_dies_is_not_noticed(place: Place) -> None:
    """What would have been its own is taken by the other, once."""
    assert {place.send() for _ in range(SOME)} <= TAKEN
    place.doors[0].kill()
    assert {place.send() for _ in range(SOME)} <= TAKEN
    assert place.stored() == sorted(place.sent)


def test_a_silent_door_holds_up_few_and_loses_none(place: Place) -> None:
    """It accepts and never answers: its deliveries go to the other, in the time that GitHub has."""
    place.doors[0].freeze()
    began = time.monotonic()
    assert {place.send() for _ in range(SOME)} <= TAKEN
    assert time.monotonic() - began < 2 * GITHUB_WAITS_SECONDS
    place.doors[0].thaw()
    assert {place.send() for _ in range(SOME)} <= TAKEN
    assert place.stored() == sorted(place.sent)
