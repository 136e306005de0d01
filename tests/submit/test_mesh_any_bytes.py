"""Whatever bytes reach the submit API, the answer is a 4xx at worst."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.http.asgi_client import Reply, call
from tests.sizes import size
from tests.submit.submitting import Mesh as Process
from tests.submit.test_mesh import Doorman
from towline.db import database_for
from towline.submit.http import Mesh

ALICE = ((b"x-api-key", b"alice"),)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["build", "a" * 64, "job_1", 2**53 - 1, 2**64, 1, 60])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
members = st.sampled_from(
    [
        "kind", "params", "idempotency_key", "client", "kinds", "worker", "lease_seconds", "token",
        "result", "sha256", "hmac", "error", "definitive",
    ]
)  # fmt: skip
sound = st.fixed_dictionaries(
    {"kind": st.just("build"), "kinds": st.just(["build"]), "worker": st.just("w")},
    optional={"token": st.integers(0, 5), "error": st.text(), "result": values, "params": values},
)
bodies = st.binary(max_size=200) | st.one_of(
    values,
    st.dictionaries(members, values),
    st.builds(lambda good, odd: good | odd, sound, st.dictionaries(members, values, max_size=2)),
).map(lambda value: json.dumps(value).encode())

names = st.text(max_size=10) | st.sampled_from(["job_1", "\0", "%00", "..", "ü"])
paths = st.one_of(
    st.sampled_from(["/mesh/submit_request", "/mesh/claim", "/mesh/jobs/job_1/complete"]),
    names.map(lambda name: f"/mesh/requests/{name}"),
    st.builds("/mesh/jobs/{}/{}".format, names, st.sampled_from(["heartbeat", "complete", "fail"])),
    st.text(max_size=30),
)


class Site:
    """An app on SQLite, in a loop of its own."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.database = database_for(url, ManualClock())
        self.process = Process(self.database, ManualClock(), max_queued=10**6)
        self.app = Mesh(self.process.service, Doorman())

    def call(self, method: str, path: str, body: bytes) -> Reply:
        return self.loop.run_until_complete(
            call(self.app, None, body, method=method, path=path, headers=ALICE)
        )

    def close(self) -> None:
        self.loop.run_until_complete(self.database.aclose())
        self.loop.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    opened = Site(f"sqlite:///{tmp_path / 'towline.db'}")
    yield opened
    opened.close()


@settings(
    max_examples=size(60, 2_000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(method=st.sampled_from(["POST", "GET", "PUT"]), path=paths, body=bodies)
def test_any_bytes(site: Site, method: str, path: str, body: bytes) -> None:
    """Never a 5xx; each refusal is a problem with a code, each success JSON or nothing."""
    reply = site.call(method, path, body)
    assert 200 <= reply.status < 500
    if reply.status >= 400:
        assert reply.header(b"content-type") == b"application/problem+json"
        assert reply.code
    elif reply.status != 204:
        assert json.loads(reply.body)["job_id"] if "submit" in path else json.loads(reply.body)


@settings(
    max_examples=size(30, 500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(params=st.dictionaries(st.text(), values), key=st.text(min_size=1, max_size=255))
def test_any_work_goes_through_unchanged(site: Site, params: Any, key: str) -> None:
    """What is accepted can be claimed and completed, and comes back as it was sent."""
    body = {"kind": "echo", "params": params, "idempotency_key": key}
    reply = site.call("POST", "/mesh/submit_request", json.dumps(body).encode())
    if reply.status != 200 or json.loads(reply.body)["dedup"]:
        assert reply.status < 500
        return
    claim = json.dumps({"kinds": ["echo"], "worker": "w"}).encode()
    job = json.loads(site.call("POST", "/mesh/claim", claim).body)
    assert job["params"] == params
    done = json.dumps({"token": job["token"], "result": job["params"]}).encode()
    assert site.call("POST", f"/mesh/jobs/{job['job_id']}/complete", done).status == 200
    again = json.loads(site.call("POST", "/mesh/submit_request", json.dumps(body).encode()).body)
    assert (again["status"], again["result"]) == ("completed", params)
