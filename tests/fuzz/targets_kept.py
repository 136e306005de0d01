"""What Towline keeps of breakers and fix runs, as it may look after years and other versions.

And what is made of foreign texts on the way to a pull request: errands, titles, bodies, prompts.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import orjson

from tests.clocks import ManualClock
from tests.fuzz.target import Target, joined, parts_of, refusing, sound_text_of, text_of
from towline.dashboard.work import pretty
from towline.events import Actor, Commented, PullRequestChanged
from towline.fix import model as fixrun
from towline.fix import publish as fix_texts
from towline.fix.fixers.llm import files_named, prompt_for
from towline.fix.model import Advisory, Errand, FixPolicy, FixRules, RunRecord, StageRecord
from towline.fix.plan import diff_as_output, diff_in
from towline.fix.requests import errand_of
from towline.fix.store import RECORD, _errand_text, _record, _stage_row
from towline.inbox.admin_http import _readable
from towline.pulls.selection import vulnerability_of
from towline.pulls.signals import Towing
from towline_once.canonical_json import parse_json
from towline_once.coordination.breaker_registry import BreakerBoard
from towline_once.coordination.circuit_breaker import BreakerService, Limits
from towline_once.coordination.memory import MemoryDocuments
from towline_once.errors import Rejected

REPO: Final = "octo-org/app"
_LIMITS: Final = Limits(60_000_000, 0.5, 2, 30_000_000)
_BRANCH: Final = re.compile(r"towline/[a-z0-9]+(?:-[a-z0-9]+)*")


def breakers(data: bytes) -> None:
    """A breaker goes on whatever its document holds; closed by hand, it is closed and readable."""
    asyncio.run(_with_breaker(*map(sound_text_of, parts_of(data, 2))))


async def _with_breaker(body: str, roster: str) -> None:
    clock = ManualClock()
    documents = MemoryDocuments(clock)
    await documents.swap("breaker forge", 0, body)
    await documents.swap("breakers", 0, roster)

    def opened(name: str) -> BreakerService:
        return BreakerService(documents, clock, name, _LIMITS, 1_000_000, lambda *_, **__: None)

    board = BreakerBoard(documents, opened, always=["forge"])
    assert (await board.views())[0].state in ("closed", "open", "half_open")
    permit = await board.open("forge").admit()
    if permit is not None:
        await permit.failed()
    await board.reset("forge", "octocat")
    (first, *others) = await board.views()
    assert first.state == "closed"
    assert [one.name for one in others] == sorted({one.name for one in others})
    assert orjson.loads((await documents.read("breaker forge")).body)["opened_us"] == 0


def runs(data: bytes) -> None:
    """A run, with whatever texts it is about, comes back from its rows as it was."""
    texts = [sound_text_of(part) for part in parts_of(data, 6)]
    errand = _errand(texts)
    stage = StageRecord("PLAN", 1, "passed", "d", "", {"log": texts[4], texts[5]: [1]}, "", 5, 1.5)
    found = _record(_row(_errand_text(errand)), [_stage_row("key", stage)])
    assert found.errand == errand
    assert found.stages == (stage,)
    odd = stage._replace(reason=text_of(data), log=text_of(data), output={"name": text_of(data)})
    (back,) = _record(_row(_errand_text(errand)), [_stage_row("key", odd)]).stages
    assert set(back.output) == {"name"}
    assert diff_in(json.loads(json.dumps(diff_as_output(data)))) == data


def damaged_runs(data: bytes) -> None:
    """An errand or an output that others wrote is read as far as it goes, or refused in a line."""
    errand, output = map(sound_text_of, parts_of(data, 2))
    stage = ("key", "PATCH", 1, "passed", "d", "", output, "", 5, 1_500_000)
    with refusing(Rejected):
        run = _record(_row(errand), [stage])
        assert fixrun.subject_of(run.errand)
        assert run.opening is None
        assert isinstance(diff_in(run.stages[0].output), bytes)
        _written(run, run.errand)


def a_run() -> RunRecord:
    return RunRecord(**dict(zip(RECORD, _row(""), strict=True)))


def _row(errand: str) -> tuple[Any, ...]:
    known: dict[str, Any] = dict.fromkeys(RECORD)
    known |= {"run_key": "key", "run_id": "run_1", "errand": errand, "state": "running"}
    known |= {"attempt_count": 1, "branch": "towline/a", "token": 3}
    return tuple(known[name] for name in RECORD)


def _errand(texts: list[str]) -> Errand:
    one, two, three, four, five, six = texts
    return Errand(
        cause="failure", forge="github", repo=REPO, base_ref=one, title=two, instruction=three,
        check=four, summary=five, url=six, more={one: two, "issue": three},
        advisory=Advisory(id=one, package=two, fixed=three), vulnerability_id=four or None,
    )  # fmt: skip


def requests(data: bytes) -> None:
    """What a comment asks for has a key, a branch that git takes, and a title of one line."""
    body, login, title = map(sound_text_of, parts_of(data, 3))
    rules = FixRules(repos={REPO: FixPolicy()})
    comment = Commented(
        source="github", repo=REPO, number=3, comment_id="9", body=body, author=Actor(login),
        action="created", url="https://h/1",
    )  # fmt: skip
    pull = PullRequestChanged(
        source="github", repo=REPO, number=3, action="opened", state="open", title=title,
        head_ref=login,
    )  # fmt: skip
    known = vulnerability_of(pull, Towing(), body)
    assert known is None or known.casefold() in f"{login} {title} {body}".casefold()
    started = errand_of(comment, rules)
    if started is not None:
        assert "/copilot" in body
        branch = fixrun.branch_of(started.errand, started.run_key)
        assert _BRANCH.fullmatch(branch)
        assert len(branch) < 100


def pull_texts(data: bytes) -> None:
    """Whatever a log or a fixer says stays within its fence, its code and its line."""
    errand = _errand([text_of(part) for part in parts_of(data, 6)])
    _written(a_run(), errand)


def _written(run: RunRecord, errand: Errand) -> None:
    title = fix_texts.title_of(errand, errand.summary)
    assert 0 < len(title) <= fix_texts.LONGEST_TITLE
    assert "\n" not in title
    fix_texts.commit_message(run, errand, title, errand.summary)
    outputs: Mapping[Any, Mapping[str, object]] = {
        "PLAN": {"cause": errand.title, "fixer": errand.title, "why": "", "log": errand.summary},
        "PATCH": {"summary": errand.title, "diff": errand.summary},
    }
    body = fix_texts.body_of(run, errand, outputs, "- none")
    assert len(body) <= fix_texts.LONGEST_BODY
    _check_fences(body)
    named = files_named(errand.summary, ["src/a.py", "a.py", "b/c.txt"])
    assert set(named) <= {"src/a.py", "a.py", "b/c.txt"}
    assert prompt_for(errand, errand.title, errand.summary, {"a.py": "x"}, 10_000)


def _check_fences(body: str) -> None:
    """By the rules of Markdown: what opened a fence is ended by as many backticks alone."""
    fence, after = "", []
    for line in re.split(r"\r\n|\n|\r", body):
        ticks = re.match(r" {0,3}(`{3,})([^`]*)$", line)
        if not fence and ticks:
            fence = ticks[1]
        elif fence and ticks and len(ticks[1]) >= len(fence) and not ticks[2].strip():
            fence = ""
        elif not fence:
            after.append(line)
    headings = [line for line in after if line.startswith("## ")]
    known = ["## Why", "## What was changed", "## Evidence", "## Checks before this was opened"]
    assert [line for line in headings if line not in known] == []
    assert len(headings) == len(set(headings)), "foreign text stands outside of its fence"


def shown_json(data: bytes) -> None:
    """What was stored is shown within JSON that stays JSON, and within a page that can be sent."""
    text = sound_text_of(data)
    answer = orjson.dumps({"payload": _readable(text)})
    assert set(json.loads(answer, parse_constant=_unknown)) == {"payload"}
    assert pretty(text).encode() is not None
    with refusing(Rejected):
        parse_json(data)
        assert _readable(text) is not None


def _unknown(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _breaker_seeds() -> Iterator[bytes]:
    sound = (
        b'{"opened_us":0,"trips":1,"epoch":2,"probe":"","probe_until_us":0,"buckets":[[1,2,3]],'
        b'"opening_us":0,"rate":0.0,"signed_by":"a:1 b:2"}'
    )
    yield joined(sound, b'["forge","ci"]')
    yield joined(sound.replace(b'"opened_us":0', b'"opened_us":1700000000000000'), b"[]")
    yield joined(sound.replace(b'"probe":""', b'"probe":"p","later":[1]'), b'{"forge":1}')
    yield joined(b"", b"")


def _run_seeds() -> Iterator[bytes]:
    yield joined(b"main", b"Fix lint", b"do", b"lint / ruff", b"log", b"https://h/1")
    yield joined(b"\x00", b"\xff", b"``\x1b`\n## Why\n@octocat", b"CVE-2024-1", b"a\tb", b"x")


def _damaged_seeds() -> Iterator[bytes]:
    errand = (
        b'{"cause":"failure","forge":"github","repo":"o/n","base_ref":"main","title":"t","more":'
        b'{"issue":"A-1"},"advisory":{"id":"CVE-1","package":"p","later":1},"later":{}}'
    )
    yield joined(errand, b'{"diff":"--- a\\n","summary":"s"}')
    yield joined(errand, b'{"diff_base64":"////","branch":1,"base_ref":"main"}')
    yield joined(b'{"cause":"failure"}', b"[]")


def _text_seeds() -> Iterator[bytes]:
    yield joined(
        b"main", b"`t`", b"``\x1b`\n## Why\n", b"lint", b"``\x00`\n\n## Why\n", b"https://h"
    )
    yield joined(
        b"a", b"b", b"```\n## x", b"c", b"FAILED src/a.py::t\n````\ndiff --git a/x b/y\n", b""
    )
    yield joined(b"a", b"b", b"c", b"d", b"~~~\n```text\n## Checks", b"")


def _request_seeds() -> Iterator[bytes]:
    yield joined(b"/copilot fix the tests\nplease", b"octocat", b"Bump x (CVE-2024-12345)")
    yield joined(b"text\n  /copilot\n> /copilot no", b"dependabot[bot]", b"ghsa-2222-3333-4444")


_MARKS: Final = (b"\x1e", b"```", b"`", b"\n## ", b"\n", b"\r", b"\x1b", b"~~~", b"    ", b"> ")
_FIELDS: Final = (
    *(b"\x1e", b'"opened_us":', b'"buckets":[[', b'"probe":"', b'"epoch":', b'"rate":', b"null"),
    *(b"18446744073709551615", b"-1", b'"advisory":', b'"more":', b'"diff_base64":"', b'"cause":'),
)
TARGETS: Final = (
    Target("stored.breakers", breakers, _breaker_seeds, _FIELDS),
    Target("stored.runs", runs, _run_seeds, _MARKS),
    Target("stored.run_rows", damaged_runs, _damaged_seeds, _FIELDS),
    Target("stored.shown", shown_json, lambda: [b'{"a":[1,"\\u00e9"]}', b"payload=%7B%7D", b"NaN",
           b'{"a":"\\ud800"}', b"\xff{}"], (b"NaN", b"-Infinity", b"\\ud800", b"1e999", b"[[[[")),
    Target("fixes.requests", requests, _request_seeds, (*_MARKS, b"/copilot ", b"CVE-2024-", b"9")),
    Target("fixes.texts", pull_texts, _text_seeds, (*_MARKS, b"diff --git a/", b" b/", b"a.py")),
)  # fmt: skip
