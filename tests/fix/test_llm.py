"""The fixer `llm`, against a model that says what the test tells it to, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fix.workshop import BareSandbox, Tree
from towline.fix.fixers.base import Plan
from towline.fix.fixers.config import FixerConfig, LlmConfig, Provider
from towline.fix.fixers.llm import build, diff_in, files_named, prompt_for
from towline.fix.model import Errand
from towline_once.errors import Definitive, Rejected, Transient

KEY = "sk-very-secret-1234567890"
ERRAND = Errand(
    cause="failure", forge="github", repo="octo-org/app", base_ref="main", check="tests"
)
PLAN = Plan(ERRAND, "llm", "a test fails", "it fits", "src/a.py:2: AssertionError: wrong sum\n")
FILES = {"src/a.py": "def add(a, b):\n    return a - b\n", "src/other.py": "SECRET = 1\n"}
DIFF = """\
--- a/src/a.py
+++ b/src/a.py
@@ -1,9 +1,9 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


class Model:
    """Answers each request with the next of its answers, and keeps what was asked."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.asked.append((first, headers, json.loads(body)))
        status, told = self.answers.pop(0)
        raw = told if isinstance(told, bytes) else json.dumps(told).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-length: {len(raw)}\r\nlocation: /x\r\n"
            "connection: close\r\n\r\n".encode()
            + raw
        )
        await writer.drain()
        writer.close()


@asynccontextmanager
async def served(model: Model) -> AsyncIterator[str]:
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def anthropic(text: str, stop: str = "end_turn") -> tuple[int, object]:
    return 200, {"content": [{"type": "text", "text": text}], "stop_reason": stop}


def openai(text: str, stop: str = "stop") -> tuple[int, object]:
    return 200, {"choices": [{"message": {"content": text}, "finish_reason": stop}]}


async def fixed(
    tree: Tree, model: Model, provider: Provider = "anthropic", plan: Plan = PLAN
) -> str:
    async with served(model) as url:
        config = LlmConfig(model="m-1", provider=provider, url=url, api_key=KEY, seconds=10)
        report = await build(FixerConfig(llm=config)).fix(plan, tree, BareSandbox())
    return report.summary


async def test_anthropic_s_answer_becomes_the_patch(tmp_path: Path) -> None:
    """The key goes into its header; the prompt has the log and the file that it names."""
    tree = Tree(tmp_path, FILES)
    model = Model(anthropic(f"```diff\n{DIFF}```\n"))
    assert "m-1" in await fixed(tree, model)
    assert tree.read("src/a.py") == "def add(a, b):\n    return a + b\n"
    ((first, headers, body),) = model.asked
    assert first == "POST /v1/messages HTTP/1.1"
    assert headers["x-api-key"] == KEY
    prompt = body["messages"][0]["content"]
    assert "return a - b" in prompt
    assert "AssertionError: wrong sum" in prompt
    assert "SECRET" not in prompt


async def test_an_openai_like_answer_becomes_the_patch(tmp_path: Path) -> None:
    """Below whatever path its root has."""
    tree = Tree(tmp_path, FILES)
    model = Model(openai(DIFF))
    await fixed(tree, model, "openai")
    assert "a + b" in tree.read("src/a.py")
    ((first, headers, body),) = model.asked
    assert first == "POST /chat/completions HTTP/1.1"
    assert headers["authorization"] == f"Bearer {KEY}"
    assert body["model"] == "m-1"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (anthropic("NONE"), Definitive, "no diff"),
        (anthropic(DIFF.replace("a - b", "a * b")), Definitive, "no diff that fits"),
        (anthropic(DIFF, "max_tokens"), Definitive, "longer than"),
        ((429, {"error": {"message": f"slow down {KEY}"}}), Transient, r"429: slow down \*\*\*"),
        ((500, b"oops"), Transient, "500"),
        ((529, {"error": {"message": "overloaded"}}), Transient, "overloaded"),
        ((401, {"error": {"message": f"bad key {KEY}"}}), Definitive, r"401: bad key \*\*\*"),
        ((302, b""), Definitive, "302"),
        ((200, b"not json"), Transient, "agreed"),
        ((200, {"content": 7}), Transient, "agreed"),
    ],
)
async def test_answers_that_do_not_help(
    tmp_path: Path,
    answer: tuple[int, object],
    error: type[Exception],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each says why, whether it may pass, and never the key; redirects are not followed."""
    caplog.set_level(logging.DEBUG)
    tree = Tree(tmp_path, FILES)
    model = Model(answer)
    with pytest.raises(error, match=said) as raised:
        await fixed(tree, model)
    assert KEY not in f"{raised.value!r} {caplog.text}"
    assert len(model.asked) == 1
    assert tree.changes() == b""


async def test_nobody_there_is_tried_again(tmp_path: Path) -> None:
    """A model that cannot be reached or does not answer in time is not the errand's fault."""
    async with served(Model()) as url:
        config = LlmConfig(model="m-1", url=url, api_key=KEY)
    with pytest.raises(Transient, match="cannot be reached"):
        await build(FixerConfig(llm=config)).fix(PLAN, Tree(tmp_path, FILES), BareSandbox())


@pytest.mark.parametrize(
    "url", ["http://example.test", "ftp://127.0.0.1", "https://u:p@h", "https://h/?x=1", "nonsense"]
)
def test_only_a_safe_address_is_taken(url: str) -> None:
    """The key does not travel in the clear."""
    with pytest.raises(Rejected):
        build(FixerConfig(llm=LlmConfig(model="m", url=url)))


def test_the_key_is_not_shown() -> None:
    """Neither by the settings nor by what is built from them."""
    config = LlmConfig(model="m", api_key=KEY)
    assert KEY not in repr(FixerConfig(llm=config)) + repr(vars(build(FixerConfig(llm=config))))


def test_it_needs_something_to_go_by() -> None:
    """A log, a request or a summary."""
    fixer = build(FixerConfig(llm=LlmConfig(model="m")))
    assert fixer.fits(ERRAND, "") is None
    assert fixer.fits(ERRAND, "a log") is not None
    assert fixer.fits(replace(ERRAND, instruction="do it"), "") is not None


def test_diffs_are_taken_out_of_answers() -> None:
    """Fenced or not, with talk around it, and with counts put right."""
    assert b"@@ -1,2 +1,2 @@" in diff_in(f"Sure!\n\n```diff\n{DIFF}```\nDone.")
    assert diff_in(DIFF).endswith(b"+    return a + b\n")
    both = diff_in(DIFF + DIFF.replace("a.py", "b.py"))
    assert both.count(b"@@ -1,2 +1,2 @@") == 2
    for nothing in ("", "NONE", "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\nand so on"):
        with pytest.raises(Rejected):
            diff_in(nothing)


def test_the_prompt_stays_within_its_limit() -> None:
    """The end of the log is kept, and files that do not fit are left out whole."""
    log = "x" * 50_000 + "THE END"
    files = {"big.py": "y" * 50_000, "small.py": "z = 1"}
    prompt = prompt_for(ERRAND, "cause", log, files, 20_000)
    assert len(prompt) < 20_500
    assert "THE END" in prompt
    assert "z = 1" in prompt
    assert "yyy" not in prompt


def test_files_are_found_by_what_a_log_calls_them() -> None:
    """Whole paths, paths with more in front, and bare names; the longest match wins."""
    known = ["src/a.py", "a.py", "src/deep/b.py"]
    assert files_named("at /build/job/src/a.py:3 and b.py, c.py", known) == [
        "src/a.py",
        "src/deep/b.py",
    ]
    assert files_named("a" * 100_000, known) == []


async def test_a_log_does_not_choose_which_keys_are_sent(tmp_path: Path) -> None:
    """A place for keys is not shown to the model, whoever names it."""
    tree = Tree(
        tmp_path, {**FILES, ".env": "TOKEN=very-private\n", "deploy/id_rsa": "very-private"}
    )
    named = PLAN._replace(log=f"{PLAN.log}.env:1: error\ndeploy/id_rsa:1: error\n")
    model = Model(anthropic(DIFF))
    await fixed(tree, model, plan=named)
    ((_, _, body),) = model.asked
    assert "return a - b" in json.dumps(body)
    assert "very-private" not in json.dumps(body)
