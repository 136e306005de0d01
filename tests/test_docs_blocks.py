"""Every block of code in README and docs is run or checked, or its page says why it cannot be."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

import towline
from tests.clocks import ManualClock
from tests.docs_pages import SHELLS, Block, all_blocks, shown
from tests.forges.samples import NOW, SECRET, hex_hmac, shared_headers
from towline import config, keys
from towline.db import database_for
from towline.fix.fixers import GROUP
from towline.fix.fixers.base import Plan
from towline.fix.fixers.command import plan_json
from towline.fix.fixers.config import FixerConfig
from towline.fix.model import Errand
from towline.inbox.sources import SOURCES
from towline.integrations import generic_ci

CHECKED_BY_LANGUAGE = ("toml", "json", "sql", "mermaid", "nginx")
"""`mermaid` is compared with what `scripts.reference` writes, `nginx` runs in `tests/deploy`."""
WORDS_OF_OTHERS = {"docs/how-to/write-a-fixer.md": ("[project.entry-points",)}
"""TOML that is not ours: a package's own file."""
PRINTED = ("packages/towline-once/README.md", "packages/towline-sim/README.md")
"""Pages whose text is what their program prints; `tests/test_docs.py` compares it."""


async def in_a_function(text: str, **names: Any) -> dict[str, Any]:
    """Run a snippet that awaits; what it made."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    space: dict[str, Any] = {"towline": towline, **names}
    exec(f"async def snippet({', '.join(names)}):\n{lines}    return dict(locals())\n", space)
    made: dict[str, Any] = await space["snippet"](**names)
    return made


def one(page: str, holding: str) -> str:
    (found,) = [text for text in shown(page, "python") if holding in text]
    return found


async def protects_an_endpoint(folder: Path, _: str) -> None:
    """The middleware wraps a plain application, and replays."""
    calls = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"made"})

    text = one("docs/how-to/index.md", "IdempotencyMiddleware")
    text = text.replace("sqlite:///towline.db", f"sqlite:///{folder / 'once.db'}")
    made = await in_a_function(text, app=app, tenant_of=lambda scope: "acme")
    transport = httpx2.ASGITransport(app=made["app"])
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        for replayed in (None, "true"):
            answer = await client.post("/", content=b"{}", headers={"Idempotency-Key": "one"})
            assert (answer.text, answer.headers.get("Idempotent-Replayed")) == ("made", replayed)
    assert len(calls) == 1


async def holds_a_lock(_: Path, postgres_url: str) -> None:
    """The lease's token is a number to be compared."""
    tokens = []

    async def write_with(token: int) -> None:
        tokens.append(token)

    text = one("docs/how-to/index.md", 'Locks.open("postgresql')
    text = text.replace("postgresql://towline@db/towline", postgres_url)
    await in_a_function(text, write_with=write_with)
    assert isinstance(tokens[0], int)


async def joins_a_transaction(_: Path, postgres_url: str) -> None:
    """The invoice and the record are there together."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("CREATE TABLE invoices (number int)")
        async with towline.Idempotency.open(postgres_url) as idem:
            key, body = keys.Api("shop", "1"), {"total": 7}
            text = one("docs/how-to/index.md", "check_and_set")
            await in_a_function(text, idem=idem, key=key, body=body, connection=connection)
            record = await idem.get(key, "acme")
        assert record is not None
        assert record.response == {"invoice": 7}
        assert await connection.fetchval("SELECT number FROM invoices") == 7
    finally:
        await connection.close()


async def simulates_in_tests(_: Path, __: str) -> None:
    """The world of the simulator in a test of one's own."""
    made = await in_a_function(
        one("docs/how-to/use-the-simulator.md", "HttpFault"), clock=ManualClock()
    )
    assert [fault.kind for fault in made["sim"].faults] == ["reply_silent"]
    await made["sim"].aclose()


async def is_a_fixer(_: Path, __: str) -> None:
    """The class has what the port asks for, and its builder makes one."""
    space: dict[str, Any] = {}
    exec(one("docs/how-to/write-a-fixer.md", "class Gofmt"), space)
    fixer = space["build"](FixerConfig())
    assert fixer.fits(None, "gofmt: app.go differs") == "the log names gofmt"
    assert fixer.fits(None, "all is well") is None


async def reads_a_delivery(_: Path, __: str) -> None:
    """A source by its name, with the arguments of the page."""
    body = b'{"zen": "Keep it logically awesome.", "hook_id": 1}'
    headers = {
        "content-type": "application/json",
        "x-github-event": "ping",
        "x-github-delivery": "1",
        "x-hub-signature-256": f"sha256={hex_hmac(SECRET, body)}",
    }
    text = one("docs/reference/sources.md", "SOURCES").split("#")[0].strip()
    delivery = eval(
        text,
        {"SOURCES": SOURCES, "headers": headers, "body": body, "secrets": [SECRET], "now": NOW},
    )
    assert str(delivery.key) == "github:1"


PYTHON: dict[tuple[str, str], Callable[[Path, str], Awaitable[None]] | str] = {
    ("README.md", "Idempotency.open"): "tests/test_docs.py",
    ("packages/towline-once/README.md", "Idempotency"): "tests/test_docs.py",
    ("packages/towline-sim/README.md", "GitHubSim"): "tests/test_docs.py",
    ("docs/tutorial/index.md", "start_run"): "tests/test_docs.py",
    ("docs/how-to/use-the-simulator.md", "from github"): "tests/test_docs_sessions.py",
    ("docs/how-to/index.md", "IdempotencyMiddleware"): protects_an_endpoint,
    ("docs/how-to/index.md", 'Locks.open("postgresql'): holds_a_lock,
    ("docs/how-to/index.md", "check_and_set"): joins_a_transaction,
    ("docs/how-to/use-the-simulator.md", "HttpFault"): simulates_in_tests,
    ("docs/how-to/write-a-fixer.md", "class Gofmt"): is_a_fixer,
    ("docs/reference/sources.md", "SOURCES"): reads_a_delivery,
}


@pytest.mark.parametrize(
    "run",
    [run for run in PYTHON.values() if not isinstance(run, str)],
    ids=lambda run: run.__name__,
)
async def test_python(
    run: Callable[[Path, str], Awaitable[None]], tmp_path: Path, postgres_url: str
) -> None:
    """The snippet runs as it stands, with the names that its page speaks of."""
    await run(tmp_path, postgres_url)


def of_language(*languages: str) -> list[Block]:
    return [b for b in all_blocks() if b.language in languages and b.not_run is None]


@pytest.mark.parametrize("block", of_language("toml"), ids=str)
def test_toml(block: Block, tmp_path: Path) -> None:
    """Settings are accepted as they stand; where a part of another table is needed, with that."""
    if block.text.startswith(WORDS_OF_OTHERS.get(block.page, ("\0",))):
        assert GROUP in tomllib.loads(block.text)["project"]["entry-points"]
        return
    file = tmp_path / "towline.toml"
    file.write_text(block.text, encoding="utf-8")
    environment = {}
    if '"jenkins"' in block.text and "[jenkins]" not in block.text:
        environment["TOWLINE_JENKINS__URL"] = "https://ci.example"
    config.load(file, environment)


@pytest.mark.parametrize("block", of_language("json"), ids=str)
def test_json(block: Block) -> None:
    """What a CI sends is read by its source; what an agent reads has the members that it gets."""
    value = json.loads(block.text)
    if "errand" not in value:
        body = block.text.encode()
        delivery = generic_ci.receive(shared_headers(body), body, [SECRET], NOW, provider="any")
        assert len(delivery.events) == 1
        return
    errand = Errand(cause="failure", forge="github", repo="octo-org/app", base_ref="main")
    told = json.loads(plan_json(Plan(errand, "command", "it failed", "it may help")))
    assert set(value) == set(told)
    assert set(value["errand"]) - {"…"} <= set(told["errand"])


@pytest.mark.parametrize("block", of_language("sql"), ids=str)
async def test_sql(block: Block, sqlite_url: str) -> None:
    """A statement for an operator fits the tables as they are."""
    database = database_for(sqlite_url)
    await database.connect()
    await database.aclose()
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(block.text)


def test_every_block_is_covered() -> None:
    """A block is of a kind that is checked, belongs to a session, is run above, or has a reason."""
    uncovered = []
    for block in all_blocks():
        known = block.language in (*CHECKED_BY_LANGUAGE, *SHELLS)
        if block.language == "python":
            known = any(block.page == page and word in block.text for page, word in PYTHON)
        if block.language == "text":
            known = block.page in PRINTED
        if not known and not block.not_run:
            uncovered.append(f"{block} ({block.language or 'no language'})")
    assert uncovered == []


def test_reasons_are_reasons() -> None:
    """What is not run says so in more than a word or two."""
    for block in all_blocks():
        assert block.not_run is None or len(re.findall(r"\w+", block.not_run)) > 4, block


def test_make_targets_exist() -> None:
    """Whatever a page tells one to make is a target."""
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    asked = {
        word
        for block in all_blocks()
        if block.language in SHELLS
        for word in re.findall(r"(?:^|&& )make (\w+)", block.text, flags=re.MULTILINE)
    }
    assert asked
    assert asked <= targets
