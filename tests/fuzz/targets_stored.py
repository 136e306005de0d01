"""Files that operators write, and what Towline wrote itself: tables, caches, its audit file."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import orjson

from tests.fuzz.target import TOKEN, Target, joined, parts_of, refusing, sound_text_of, text_of
from towline.config import Settings, load
from towline.dashboard.audit import matching, tail
from towline.doctor.reading import where_of
from towline.doctor.redaction import Redactor, shown_settings
from towline.forges import delivery_log
from towline.forges import polling as watermarks
from towline.forges.snapshot import PullRef
from towline.inbox import store as bodies
from towline.pulls.budgets import STRATEGIES
from towline.pulls.facts import CheckFact, Facts, ReviewFact, Said
from towline.pulls.model import Intent, PullEvent, PullRecord
from towline.pulls.sql import COLUMNS, event_of, event_row, record_of, row_of
from towline_once.asgi.exchange import Answer, Request, reply
from towline_once.asgi.messages import Message
from towline_once.canonical_json import parse_json
from towline_once.errors import Rejected
from towline_once.idempotency.types import Claim, Tombstone, decode_response, encode_response


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="towline-fuzz-")


def _file(name: str, content: bytes) -> Path:
    path = Path(_folder().name, name)
    path.write_bytes(content)
    return path


def settings_files(data: bytes) -> None:
    """A settings file gives settings, or one line that says what is wrong with it."""
    with refusing(Rejected):
        _can_be_shown(load(_file("towline.toml", data), {}))


def environments(data: bytes) -> None:
    """So do variables of the environment; a value is never repeated."""
    lines = [line.partition("=") for line in text_of(data).replace("\0", "").split("\n")]
    given = {f"TOWLINE_{name}": value for name, _, value in lines}
    given["TOWLINE_GITHUB__TOKEN"] = TOKEN
    with refusing(Rejected):
        _can_be_shown(load(_file("empty.toml", b""), given))


def _can_be_shown(settings: Settings) -> None:
    """As a bundle of the doctor has them, without the secrets."""
    assert TOKEN not in str(shown_settings(settings))
    assert settings.github.token not in Redactor.of(settings).text(f"token {TOKEN}").split()
    where_of(settings.database_url)


def kept_bodies(data: bytes) -> None:
    """What is packed comes back; what cannot be unpacked is nothing, and never an error."""
    lot = [data, b"", data[:7]]
    assert [bodies.unpacked(kept) for kept in bodies.packed(lot)] == lot
    assert [bodies.unpacked(kept) for kept in bodies.packed([data])] == [data]
    found = bodies.unpacked(data)
    assert found is None or isinstance(found, bytes)


def kept_responses(data: bytes) -> None:
    """A response is kept as it was, or as a tombstone that says why not."""
    try:
        value = parse_json(data)
    except Rejected:
        return
    text, tombstone = encode_response(value, 500)
    back = decode_response(text, tombstone)
    assert isinstance(back, Tombstone) if tombstone else orjson.dumps(back) == orjson.dumps(value)


def cached_answers(data: bytes) -> None:
    """The answer that a duplicate gets is the one that the first request got."""
    status, kind, location, body = parts_of(data, 4)
    request = Request("t", "r", {}, b"")
    sent: list[Message] = []
    headers = [(b"content-type", kind), (b"location", location)]

    async def played() -> Answer:
        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        answer = Answer(request, receive, send, 4000)
        answer.recorded.set()
        start = {"type": "http.response.start", "status": 200 + sum(status) % 300}
        await answer.send({**start, "headers": headers})
        await answer.send({"type": "http.response.body", "body": body})
        return answer

    answer = asyncio.run(played())
    kept = orjson.loads(orjson.dumps(answer.kept(frozenset({b"content-type", b"location"}))))
    claim = Claim("duplicate", "k", "t", "api", response=kept)
    start, said = reply(claim, 409)
    assert start["status"] == answer.status
    if "unkept" not in kept and answer.status not in (204, 304):
        assert said["body"] == body
        assert set(headers) <= set(start["headers"])


def marks(data: bytes) -> None:
    """How far pollers and hooks have been read comes back from its text as it was."""
    one, two, three = (int.from_bytes(part[:6], "big") for part in parts_of(data, 3))
    texts = tuple(sound_text_of(data).split(" ", 4))
    mark = watermarks.Mark(one, two, three or None)
    assert watermarks.mark_from(watermarks.mark_text(mark)) == mark
    hooked = delivery_log.Mark(one, two, texts[:2], texts[2:], {three: 1})
    assert delivery_log.mark_from(delivery_log.mark_text(hooked)) == hooked


def pull_rows(data: bytes) -> None:
    """A pull request, with whatever texts a forge gave it, comes back from its row as it was."""
    texts = [sound_text_of(part) for part in parts_of(data, 6)]
    record = _record(texts, int.from_bytes(data[:6], "big"))
    row = row_of(record, 3, 4)
    assert len(row) == len(COLUMNS)
    assert record_of(row) == record._replace(version=3)
    event = PullEvent("seen", "admin-api", 5, {"text": texts[0], "labels": texts[1:]}, texts[2])
    written = event_row(record, event, 7)
    assert event_of((7, *written[3:])) == event._replace(id=7)


def _record(texts: list[str], number: int) -> PullRecord:
    one, two, three, four, five, six = texts
    facts = Facts(
        head_sha=one, labels=(two, three), evidence=four, approved_by=(five,), former_heads=(six,),
        checks={one: CheckFact(status="completed", conclusion="failure", summary=two)},
        reviews={three: ReviewFact(state="approved", body=four)}, said={four: Said(by=five)},
        as_of=number / 7,
    )  # fmt: skip
    counts = dict.fromkeys(STRATEGIES, number)
    return PullRecord(
        PullRef("github", one, number), two, three, four, five, six, one, None, "CREATED", two,
        number, number, number, counts, counts, ("CREATED",), facts,
        Intent(one, "rebuild", two, number, number, three) if number % 2 else None, None, three,
        {"rule": four, "says": [five, number]}, None, None, None, 3,
    )  # fmt: skip


def audit_files(data: bytes) -> None:
    """Of an audit file, cut anywhere, the lines that can be read are shown."""
    found = tail(_file("audit.log", data), 3000)
    assert len(matching(found, None, None, None)) == len(found)
    assert all(isinstance(text, str) for entry in found for text in entry)


def _settings_seeds() -> Iterator[bytes]:
    yield b'database_url = "sqlite:///a"\n[github]\nwebhook_secrets = ["12345678"]\n[tow]\nx=2\n'
    yield b'[repo."octo-org/app"]\n[repo."octo-org/app".budgets]\nrebuild = 1\n[staleness]\n'
    yield b'[schedules.nightly]\ncron = "0 0 * * *"\n[failure_patterns]\ntransient = ["a+"]\n'
    yield b'[triggers]\nallowed_hosts=["h"]\n[triggers.policy_bot]\nkind="http"\nurl="https://h/x"\n'
    yield b'[api_keys.ops]\nkey="k"\nscopes=["read"]\n[tow]\nauthors=["dependabot[bot]"]\n'


def _environment_seeds() -> Iterator[bytes]:
    yield b'GITHUB__WEBHOOK_SECRETS=["the new","the old one"]\nENGINE=celery\nREDIS_URL=redis://h\nDATABASE_URL=postgres://[x'
    yield b'BUDGETS={"rebuild": 3}\nTOW__AUTHORS=a,b\nPIPELINE__MAX_ATTEMPTS=3\nINGEST=1\n'
    yield b"API_KEYS__OPS__KEY=k\nAPI_KEYS__OPS__SCOPES=read\n__=\nREPO=[[[[\n"


_TOML_WORDS: Final = (
    *(b"[budgets]\n", b"[staleness]\n", b"[reconciler]\n", b'[repo."o/n"]\n', b"[tow]\n", b" = "),
    *(b'"', b"'''", b"[[", b"]]", b"{", b"1e999", b"nan", b"0x", b"1979-05-27", b"true", b"__"),
)
TARGETS: Final = (
    Target("settings.file", settings_files, _settings_seeds, _TOML_WORDS),
    Target("settings.environment", environments, _environment_seeds, (*_TOML_WORDS, b"\n", b"={")),
    Target("stored.bodies", kept_bodies, lambda: [b"{}", *bodies.packed([b"a" * 500])]),
    Target("stored.responses", kept_responses, lambda: [b'{"a":[1,2.5]}', b'"%b"' % (b"x" * 600)]),
    Target("stored.answers", cached_answers, lambda: [joined(b"\x01", b"text/plain", b"/a", b"ok"),
           joined(b"\x04", b"", b"", b"\xff"), joined(b"", b"", b"", b"a" * 5000)], (b"\x1e",)),
    Target("stored.marks", marks, lambda: [joined(b"\x01\x02", b"a b c", b"d e")], (b"\x1e", b" ")),
    Target("stored.pulls", pull_rows, lambda: [joined(b"a", b"b", b"c", b"d", b"e")], (b"\x1e",)),
    Target("stored.audit", audit_files, lambda: [b'{"at":"t","event":"E","by":"o","x":1}\n{"a"\n'],
           (b"\n", b'{"at":', b'"by":null', b"\x85", b"\x0c")),
)  # fmt: skip
