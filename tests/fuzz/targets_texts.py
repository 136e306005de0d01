"""Texts of people, clients and programs: keys, commands, logs, cron lines, JSON, submissions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from tests.forges.samples import listed
from tests.fuzz.target import (
    Target,
    joined,
    parts_of,
    refusing,
    sound_text_of,
    text_of,
)
from towline.cli.history import since_us
from towline.fix.fixers.ruff import MOST_FILES, named_files, read_lint_log
from towline.forges import delivery_log
from towline.http import key_text
from towline.inbox import cron
from towline.slash_commands import COMMANDS, parse
from towline.submit.rules import (
    read_claim,
    read_completion,
    read_failure,
    read_renewal,
    read_submission,
    sealed,
)
from towline_once import keys
from towline_once.canonical_json import canonical, hash_and_digests, parse_json, payload_hash
from towline_once.db.redis.address import parse_url
from towline_once.errors import Rejected
from towline_once.failures import EVIDENCE_CHARS, classify_failure

_HOUR_US: Final = 3_600_000_000


def key_texts(data: bytes) -> None:
    """A text is read as the one key that is written so, or refused; no log line has all of it."""
    text = text_of(data)
    with refusing(Rejected):
        key = keys.parse(text)
        assert str(key) == text
        assert keys.parse(str(key)) == key
    shown = keys.prefix(text)
    assert shown.isprintable()
    assert len(shown) < 40


def key_parts(data: bytes) -> None:
    """Whatever its parts, a key reads back equal from its text."""
    which, *given = parts_of(data, 4)
    scheme = list(keys.SCHEMES.values())[sum(which) % len(keys.SCHEMES)]
    make: Callable[..., keys.Key] = scheme
    with refusing(Rejected):
        key = make(*map(text_of, given[: len(scheme.parts)]))
        assert keys.parse(str(key)) == key


def slash_commands(data: bytes) -> None:
    """Each known command is found once, and what is found stands in the comment."""
    text = sound_text_of(data)
    found = parse(text)
    assert len(set(found.commands)) == len(found.commands)
    assert set(found.commands) <= set(COMMANDS)
    assert all(word in text and word not in COMMANDS for word in found.unknown)


def failure_logs(data: bytes) -> None:
    """Every log gets a verdict, with evidence of one short line."""
    log, conclusion, check = map(text_of, parts_of(data, 3))
    told = classify_failure(log, conclusion=conclusion or None, check=check or None)
    assert told.kind in ("transient", "persistent")
    assert told.pattern
    assert len(told.evidence) <= max(EVIDENCE_CHARS, len(conclusion))
    assert "\n" not in told.evidence or "\n" in conclusion


def lint_logs(data: bytes) -> None:
    """The files named are words of the log, and not too many."""
    log, check = map(sound_text_of, parts_of(data, 2))
    read_lint_log(check, log)
    found = named_files(log)
    assert len(found) <= MOST_FILES
    assert all(".py" in name.lower() for name in found)


def cron_lines(data: bytes) -> None:
    """An expression that is taken has a next time, and a tick that was missed is not after now."""
    expression = sound_text_of(data)
    now = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    with refusing(Rejected):
        cron.check("nightly", expression)
        following = cron.first_after(expression, now)
        assert following > now
        turn = cron.turn(expression, now - timedelta(days=400), now)
        assert turn.due is not None
        assert turn.due <= now < turn.next_run


def json_texts(data: bytes) -> None:
    """What is read has one meaning: the standard library reads the same, with every member."""
    with refusing(Rejected):
        value = parse_json(data)
        other = json.loads(data, object_pairs_hook=_each_once)
        assert _same(value, other)
        _hashed_the_same(value)


def _hashed_the_same(value: Any) -> None:
    written = canonical(value)
    assert canonical(parse_json(written)) == written
    digest, fields = hash_and_digests(value, b"k" * 32)
    assert digest == payload_hash(value)
    assert isinstance(orjson.loads(fields), dict)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a member that is there twice was let pass"
    return dict(pairs)


def _same(value: Any, other: Any) -> bool:
    """Equal, and alike in the types of numbers, which `==` does not tell apart."""
    return bool(value == other) and repr(value) == repr(other)


def submissions(data: bytes) -> None:
    """Bodies of the submit API and of remote workers are read, or refused in a sentence."""
    with refusing(Rejected):
        body = parse_json(data)
        for read in (
            read_submission,
            lambda given: read_claim(given, _HOUR_US),
            lambda given: read_renewal(given, _HOUR_US),
            read_failure,
            lambda given: sealed(read_completion(given), b"key"),
        ):
            with refusing(Rejected):
                assert read(body) is not None


def api_key_texts(data: bytes) -> None:
    """Only the form of a key has a prefix; a key is never part of a refusal."""
    prefix = key_text.prefix_of(data)
    assert prefix is None or key_text.is_prefix(prefix)
    with refusing(Rejected):
        assert key_text.is_prefix(key_text.prefix_in(text_of(data)))
    with refusing(Rejected):
        assert key_text.checked_scopes(text_of(data).split(","))
    with refusing(Rejected):
        key_text.checked_name(text_of(data))


def addresses(data: bytes) -> None:
    """Hooks, times and addresses that operators write are taken or refused in a sentence."""
    text = text_of(data)
    for read in (
        delivery_log.repo_hook,
        delivery_log.app_hook,
        lambda given: since_us(given, 10**15),
    ):
        with refusing(Rejected):
            read(text)
    with refusing(Rejected):
        parse_url(text)


def _key_seeds() -> Iterator[bytes]:
    yield b"github:12:550e8400-e29b-41d4-a716-446655440000"
    yield b"github:a%3Ab"
    yield b"jenkins:https%3A//j/job/a:7:FINALIZED:FAILURE"
    yield b"scheduler:daily-cleanup:2024-12-19T00:00:00Z"
    yield from (f"{name}:a:b:c".encode() for name in keys.SCHEMES)


def _part_seeds() -> Iterator[bytes]:
    for number in range(len(keys.SCHEMES)):
        yield joined(bytes([number]), b"a:b%", b"c%3A:", b"%25")


def _command_seeds() -> Iterator[bytes]:
    yield b"/rebuild\n\n> /merge\n```\n/cancel\n```\n    /why\n/unknown-word please\n"
    yield from (word.encode() for word in COMMANDS)


def _log_seeds() -> Iterator[bytes]:
    yield joined(b"2024-01-01T00:00:00Z ##[error]Process completed with exit code 1.", b"failure")
    yield joined(b"\x1b[31mE   AssertionError: assert 1 == 2\x1b[0m\r\n", b"", b"tests")
    yield joined(b"", b"timed_out", b"lint")
    for sample in listed("ci-failures/*.json"):
        found = sample.json
        entries = found if isinstance(found, list) else next(iter(found.values()))
        for entry in entries[:: len(entries) // 40 + 1]:
            log = next((v for k, v in entry.items() if k in ("log", "text", "excerpt")), "")
            yield joined(str(log).encode()[:8000], str(entry.get("conclusion") or "").encode())


def _lint_seeds() -> Iterator[bytes]:
    yield joined(b"src/a.py:1:2: F401 [*] `os` imported\n[*] 1 fixable with the --fix", b"lint")
    yield joined(b"Would reformat: src/a.py\nruff format --check .\n", b"format")
    yield joined(b"F401 [*] unused\n  --> src/a.py:1:8\n--- a.py\n+++ b.py\n", b"")


def _json_seeds() -> Iterator[bytes]:
    yield b'{"a":[1,-0.0,1e400,18446744073709551616,"\\u003a","\\ud83d\\ude00"],"b":{"a":null}}'
    yield b'{"a:":1,"a\\u003a":2}'
    yield b"[" * 260 + b"]" * 260
    for sample in listed("jcs/**/*.json"):
        yield sample.raw[:8000]


def _submission_seeds() -> Iterator[bytes]:
    yield b'{"kind":"build","params":{"a":1.5},"idempotency_key":"k","client":{"node_id":"n"}}'
    yield b'{"kinds":["build"],"worker":"w","lease_seconds":60,"token":3}'
    yield b'{"token":1,"result":{"a":[1]},"sha256":"%b","hmac":"%b"}' % (b"a" * 64, b"B" * 64)
    yield b'{"token":1,"error":"it broke","definitive":true}'


TARGETS: Final = (
    Target("keys.text", key_texts, _key_seeds, (b"%3A", b"%25", b":", b"%", *(
        f"{name}:".encode() for name in keys.SCHEMES))),
    Target("keys.parts", key_parts, _part_seeds, (b"%3A", b"%25", b":", b"\x1e", b"\xed\xa0\x80")),
    Target("commands", slash_commands, _command_seeds, (b"\n/", b"```", b"~~~", b"    ", b"> ")),
    Target("logs.failure", failure_logs, _log_seeds, (
        b"\x1e", b"\n", b"\r", b"\x1b[31m", b"error:", b"FAILED ", b"timed out", b"##[error]",
        b"2024-01-01T00:00:00Z ", b"connection reset", b"npm ERR! ", b"exit code 137")),
    Target("logs.lint", lint_logs, _lint_seeds, (
        b"\x1e", b"ruff check ", b"ruff format ", b"--check", b" --> ", b".py:1:2: F401 ",
        b"would reformat ", b"--- a.py\n+++ ", b"\n", b"/", b"fixable with the ")),
    Target("cron", cron_lines, lambda: [b"*/5 * * * *", b"0 0 29 2 *", b"@daily", b"0 0 L * 5#2",
        b"1-5,7 2/3 LW jan-mar sun"], (b"*/", b"L", b"LW", b"#", b"-", b",", b"feb", b"@")),
    Target("json", json_texts, _json_seeds, (b'"a":', b"\\u003a", b"1e999", b"-0", b"\\ud800",
        b"9223372036854775808", b"NaN", b"\xef\xbb\xbf")),
    Target("submissions", submissions, _submission_seeds, (
        b'"kind":"', b'"params":{', b'"kinds":[', b'"worker":"', b'"lease_seconds":', b'"token":',
        b'"result":', b'"sha256":"', b'"error":"', b'"definitive":', b"1e308", b"\\u0000")),
    Target("api_keys", api_key_texts, lambda: [b"tow_abcdefgh_" + b"a" * 43, b"abcdefgh",
        b"read,submit"], (b"tow_", b"_", b"admin", b",")),
    Target("addresses", addresses, lambda: [b"octo-org/app:12", b"42", b"36h", b"2026-03-01T12:00",
        b"redis://user:pass@host:6379/1?allow_eviction=1"], (b"redis://", b"rediss://", b"@", b":",
        b"/", b"?allow_eviction=", b"[::1]", b"#", b"7d")),
)  # fmt: skip
