"""A client that a generator makes of `/openapi.json`, used against the running service."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.openapi.fuzzed_service import KEY, fill, running

TOOLS = Path(sys.prefix) / "client" / "bin"
PACKAGE = "generated_towline_client"
Part: TypeAlias = Callable[[str], Any]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with pull requests and fix runs."""
    folder = tmp_path_factory.mktemp("service")
    asyncio.run(fill(f"sqlite:///{folder / 'towline.db'}"))
    with running(folder) as address:
        yield address


@pytest.fixture(scope="module")
def part(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """Imports a module of the client, which is made anew."""
    folder = tmp_path_factory.mktemp("client")
    generator = TOOLS / "openapi-python-client"
    assert generator.is_file(), "run `make .venv/.client`: it installs the generator"
    document = folder / "openapi.json"
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=30) as answer:
        document.write_bytes(answer.read())
    done = subprocess.run(
        [
            *(generator, "generate", "--meta", "none", "--fail-on-warning"),
            *("--path", document, "--output-path", folder / PACKAGE),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(folder))
    try:
        yield lambda name: importlib.import_module(f"{PACKAGE}.{name}")
    finally:
        sys.path.remove(str(folder))


@pytest.fixture
def client(url: str, part: Part) -> Iterator[Any]:
    """The generated client with a key."""
    with part("client").AuthenticatedClient(base_url=url, token=KEY) as made:
        yield made


def test_it_lists_pull_requests(part: Part, client: Any) -> None:
    """Pages follow one another, and each item has its own type."""
    listing = part("api.pull_requests.list_pulls")
    first = listing.sync(client=client, limit=4)
    assert isinstance(first, part("models").PullPage)
    rest = listing.sync(client=client, limit=4, cursor=first.next_)
    assert [(one.repo, one.number) for one in first.items + rest.items] == [
        (repo, number) for repo in ("octo-org/app", "octo-org/lib") for number in (1, 2, 3)
    ]
    assert first.items[0].state == "CHECKS_FAILED"


def test_it_gives_a_command(part: Part, client: Any) -> None:
    """The command is accepted, and its job is there to be looked at."""
    models = part("models")
    body = models.CommandBody(command=models.CommandBodyCommand("/rebuild"))
    accepted = part("api.pull_requests.command_pull").sync(
        "octo-org", "app", 1, client=client, body=body
    )
    assert isinstance(accepted, models.CommandAccepted)
    job = part("api.jobs.show_job").sync(accepted.job_id, client=client)
    assert (job.id, job.kind) == (accepted.job_id, "command")


def test_it_submits_work_once(part: Part, client: Any) -> None:
    """The second submit with the same key is told of the first one's job."""
    models, submit = part("models"), part("api.mesh.submit_request")
    body = models.SubmitBody(kind="build", idempotency_key="one-key")
    first, second = (submit.sync(client=client, body=body) for _ in range(2))
    assert isinstance(first, models.Submitted)
    assert (first.dedup, second.dedup, second.job_id) == (False, True, first.job_id)


@pytest.mark.parametrize(
    ("owner", "number", "command", "status", "code"),
    [
        ("octo-org", 999, "/rebuild", 404, "unknown_pull"),
        ("octo-org", 1, "/merge", 409, "not_now"),
    ],
)
def test_a_refused_command_is_a_typed_problem(
    part: Part, client: Any, owner: str, number: int, command: str, status: int, code: str
) -> None:
    """A refusal is a `Problem` with the status and the code."""
    models = part("models")
    answer = part("api.pull_requests.command_pull").sync_detailed(
        owner,
        "app",
        number,
        client=client,
        body=models.CommandBody(command=models.CommandBodyCommand(command)),
    )
    assert isinstance(answer.parsed, models.Problem)
    assert (answer.status_code, answer.parsed.status, answer.parsed.code) == (status, status, code)


def test_a_wrong_parameter_and_a_wrong_key_are_typed_problems(
    part: Part, client: Any, url: str
) -> None:
    """422 names the parameter; 401 comes before everything else."""
    models, listing = part("models"), part("api.pull_requests.list_pulls")
    refused = listing.sync(client=client, limit=100_000)
    assert isinstance(refused, models.Problem)
    assert (refused.code, "limit" in refused.detail) == ("invalid_request", True)
    with part("client").AuthenticatedClient(
        base_url=url, token="no-key-of-this-service"
    ) as stranger:
        unknown = listing.sync(client=stranger)
    assert isinstance(unknown, models.Problem)
    assert unknown.code == "unauthorized"
