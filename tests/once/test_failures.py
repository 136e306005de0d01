"""Transient or persistent: which rule decides, what it shows as evidence, and how well it does."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from towline_once.errors import Rejected
from towline_once.failure_patterns import BUILT_IN, Kind, Pattern, rules
from towline_once.failures import EVIDENCE_CHARS, INTERRUPTED, Failure, classify_failure

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "ci-failures"

TRANSIENT = [
    ("runner-lost", "The self-hosted runner: builder-7 lost communication with the server."),
    ("runner-lost", "We stopped hearing from agent pool-3. Verify the agent machine is running."),
    ("no-runner", "ERROR: Job failed (system failure): prepare environment: pod was pending"),
    ("evicted", "Status: container main was OOMKilled"),
    ("rate-limited", "You have exceeded a secondary rate limit. Please wait a few minutes."),
    ("rate-limited", "toomanyrequests: pull quota used up"),
    ("dns", "dial tcp: lookup registry.example.com: no such host"),
    ("dns", "npm ERR! code EAI_AGAIN"),
    ("tls", "Get https://registry.example.com/v2/: net/http: TLS handshake timeout"),
    ("connection", "read tcp 10.1.2.3:443: connection reset by peer"),
    ("connection", "Error: connect ETIMEDOUT 192.0.2.7:443"),
    ("client-exception", "requests.exceptions.ChunkedEncodingError: response ended early"),
    ("http-5xx", "Response status code does not indicate success: 503 (try elsewhere)."),
    ("http-5xx", "npm ERR! 502 Bad Gateway - GET https://registry.example.com/left-pad"),
    ("git-transport", "error: RPC failed; curl 92 HTTP/2 stream 5 was not closed cleanly"),
    ("ssh", "kex_exchange_identification: banner line contains invalid characters"),
    ("package-mirror", "Error: Cannot prepare internal mirrorlist for appstream"),
    ("broken-download", "wheel.whl: sha256 checksum mismatch after download"),
    ("container-registry", "##[error]Docker pull failed with exit code 1"),
    ("contended", "listen tcp 0.0.0.0:5432: bind: address already in use"),
    ("exhausted-machine", "OSError: [Errno 28] No space left on device: '/tmp/cache'"),
    ("provisioning", "0/5 nodes can take it: 5 Insufficient memory."),
    ("database-not-ready", "psql: FATAL:  the database system is starting up"),
    ("browser-or-device", "ChromeHeadless have not captured in 60000 ms, killing."),
    ("could-not-fetch", "Failed to upload coverage to the server"),
    ("time-ran-out", "The step took longer than 20 minutes"),
    ("killed", "make: process exited with code 137"),
    ("called-passing", "The service asks you to try again later."),
]

PERSISTENT = [
    ("merge-conflict", "CONFLICT (content): Merge conflict in src/app.py"),
    ("syntax-error", "src/app.js: Unexpected token (12:4)"),
    ("compile-error", "src/main.rs:3:5: error: mismatched types"),
    ("compile-error", "lib.c:(.text+0x1f): undefined reference to `connect_timeout'"),
    ("missing-module", "Error: Cannot find module './connection'"),
    ("code-exception", "KeyError: 'timeout'"),
    ("code-exception", "TypeError: connect() got an unexpected keyword argument 'timeout'"),
    ("assertion", "AssertionError: expected 503 Service Unavailable, got 200 OK"),
    ("assertion", "Expected status <200> but was <502>"),
    ("lint", "app.py:1:80: E501 line too long"),
    ("lint", "Found 3 errors in 2 files (checked 40 source files)"),
    ("usage-error", "timeout.sh: line 3: waitfor: command not found"),
    ("dependency-conflict", "npm ERR! ERESOLVE could not be satisfied"),
    ("refused", "remote: Permission to acme/app.git denied to ci-bot."),
    ("refused", "fatal: unable to access 'https://x/': The requested URL returned error: 403"),
    ("missing-version", "docker: manifest for acme/base:9 not found: manifest unknown"),
    ("database-schema", 'psycopg.errors.UndefinedTable: relation "users" does not exist'),
    ("quality-gate", "Coverage check failed: 78% is below 80%"),
    ("test-failed", "--- FAIL: TestDialTimeout (0.01s)"),
    ("test-failed", "FAILED tests/test_net.py::test_connection_reset"),
    ("not-found", "cp: cannot stat 'dist': No such file or directory"),
    ("default", "Error: Process completed with exit code 1."),
    ("default", ""),
]


@pytest.mark.parametrize(("rule", "text"), TRANSIENT)
def test_infrastructure_that_gives_way_is_transient(rule: str, text: str) -> None:
    """A log that tells of network, machine or service is worth another run."""
    assert classify_failure(text)[:2] == ("transient", rule)


@pytest.mark.parametrize(("rule", "text"), PERSISTENT)
def test_faults_of_the_code_are_persistent(rule: str, text: str) -> None:
    """A log that tells of the code is not, whatever names its tests and symbols have."""
    assert classify_failure(text)[:2] == ("persistent", rule)


@pytest.mark.parametrize(
    ("lines", "rule"),
    [
        (["connection reset by peer", "exit code 1"], "connection"),
        (["FAILED tests/test_a.py::test_b", "E  socket.gaierror: no such host"], "dns"),
        (["src/a.c:3:1: error: bad token", "upload: 503 Service Unavailable"], "compile-error"),
        (["operation timed out", "AssertionError: 1 != 2"], "assertion"),
        (["AssertionError: 1 != 2", "runner has received a shutdown signal"], "runner-lost"),
        (["gave up waiting for it", "FAIL: test_login"], "test-failed"),
        (["TypeError: fetch failed", "cause: Error: read ECONNRESET"], "connection"),
    ],
)
def test_the_stronger_evidence_wins(lines: list[str], rule: str) -> None:
    """A lost machine beats a code fault, that beats an outage, that beats a failed test."""
    assert classify_failure("\n".join(lines)).pattern == rule
    assert classify_failure("\n".join(reversed(lines))).pattern == rule


def test_weak_words_count_only_near_the_end() -> None:
    """A time-out that was followed by a page of output did not end the run."""
    assert classify_failure("it timed out\n" + "more\n" * 10).kind == "transient"
    assert classify_failure("it timed out\n" + "more\n" * 100).pattern == "default"


@pytest.mark.parametrize("conclusion", sorted(INTERRUPTED))
def test_an_interrupted_run_proves_nothing(conclusion: str) -> None:
    """Without a log the conclusion decides; with one that names a code fault, the log does."""
    silent = classify_failure("", conclusion=conclusion)
    assert silent == ("transient", f"conclusion:{conclusion}", conclusion)
    assert classify_failure("make: Error 2", conclusion=conclusion).kind == "transient"
    spoken = classify_failure("SyntaxError: bad input", conclusion=conclusion)
    assert spoken.pattern == "syntax-error"


@pytest.mark.parametrize("conclusion", [None, "", "failure", "neutral", "script_failure", "?"])
def test_a_plain_conclusion_leaves_it_to_the_log(conclusion: str | None) -> None:
    """Conclusions that say no more than failed change nothing."""
    assert classify_failure("exit code 1", conclusion=conclusion).pattern == "default"
    assert classify_failure("no such host", conclusion=conclusion).pattern == "dns"


def test_action_required_waits_for_a_person() -> None:
    """No second run gives an approval, not even when the log mentions an outage."""
    found = classify_failure("503 Service Unavailable", conclusion="action_required")
    assert found[:2] == ("persistent", "conclusion:action_required")


def test_conclusions_are_read_in_any_spelling() -> None:
    """Services write them in capitals, with spaces or with dashes."""
    for spelling in ("TIMED_OUT", "Timed out", " timed-out "):
        assert classify_failure("", conclusion=spelling).pattern == "conclusion:timed_out"


@pytest.mark.parametrize("check", ["lint", "ci / Type-Check (3.12)", "style", "eslint", "DCO"])
def test_a_check_that_only_reads_code_is_hardly_flaky(check: str) -> None:
    """Weak words do not count there; an outage that is named still does."""
    assert classify_failure("the rule timed out", check=check).kind == "persistent"
    assert classify_failure("could not resolve host: a.example", check=check).kind == "transient"
    assert classify_failure("", check=check, conclusion="timed_out").kind == "transient"


@pytest.mark.parametrize("check", [None, "", "e2e", "client tests", "information"])
def test_other_check_names_change_nothing(check: str | None) -> None:
    """A word that merely contains such a name is not one."""
    assert classify_failure("it timed out", check=check).kind == "transient"


def test_patterns_of_the_caller_are_asked_first() -> None:
    """They override the built-in rules and each other, in their order, in any case."""
    mine = [
        Pattern("our-vpn", "transient", r"vpn gateway \d+ is down", "the VPN fails at night"),
        Pattern("our-flag", "persistent", r"flag \w+ is down", "flags are set by people"),
    ]
    log = "SyntaxError: no\nVPN Gateway 3 is down\nflag x is down"
    assert classify_failure(log, patterns=mine)[:2] == ("transient", "our-vpn")
    assert classify_failure(log, patterns=mine[::-1])[:2] == ("persistent", "our-flag")
    assert classify_failure(log, patterns=mine[:1], conclusion="action_required").pattern == (
        "our-vpn"
    )
    assert classify_failure("it timed out", patterns=mine).pattern == "time-ran-out"


@pytest.mark.parametrize(
    ("kind", "regex"), [("flaky", "x"), ("transient", "("), ("transient", b"x")]
)
def test_a_pattern_that_cannot_work_is_refused(kind: Any, regex: Any) -> None:
    """The mistake shows where the pattern is made, not in the middle of a sweep."""
    with pytest.raises(Rejected, match="mine"):
        Pattern("mine", kind, regex, "why")


@pytest.mark.parametrize(
    "arguments", [{"text": b"x"}, {"text": None}, {"text": "", "check": 1}, {"conclusion": 2}]
)
def test_only_text_is_read(arguments: dict[str, Any]) -> None:
    """Bytes and numbers are refused instead of being guessed at."""
    with pytest.raises(Rejected, match="must be a str"):
        classify_failure(**{"text": "", **arguments})


def test_evidence_is_the_last_line_that_matched() -> None:
    """What is said last is nearest to the end of the run; stamps and colours are left out."""
    log = (
        "2026-01-02T03:04:05.678Z first: connection reset\r\n"
        "2026-01-02T03:04:06.678Z ##[error]\x1b[31mlast: connection refused\x1b[0m\r\n"
        "2026-01-02T03:04:07.678Z bye"
    )
    assert classify_failure(log) == ("transient", "connection", "last: connection refused")


def test_evidence_is_short_and_shows_the_match() -> None:
    """Of a line without end, the part around the match is shown."""
    found = classify_failure("x " * 5000 + "no such host" + " y" * 5000)
    assert "no such host" in found.evidence
    assert len(found.evidence) <= EVIDENCE_CHARS


def test_evidence_without_a_rule_is_the_last_complaint() -> None:
    """Where nothing decided, the line that sounds most like the failure is shown."""
    assert classify_failure("ok\nbuild failed badly\ncleaning up\n\n").evidence == (
        "build failed badly"
    )
    assert classify_failure("ok\ncleaning up\n\n").evidence == "cleaning up"


def test_a_long_log_is_read_at_both_ends() -> None:
    """Evidence counts at the start and at the end of a log that is too long to read whole."""
    filler = "all is well\n" * 100_000
    assert classify_failure("no such host\n" + filler).pattern == "dns"
    assert classify_failure(filler + "no such host").pattern == "dns"


@given(st.text(), st.none() | st.text(), st.none() | st.text())
@example("\ud800\x00İ\u2028ſ", "İ", "\x00")
@example("İ" * 300 + " no such host", None, None)
def test_every_text_is_classified(text: str, conclusion: str | None, check: str | None) -> None:
    """No text raises, and the answer always has its shape."""
    found = classify_failure(text, conclusion=conclusion, check=check)
    assert found.kind in ("transient", "persistent")
    assert found.pattern
    assert len(found.evidence) <= max(EVIDENCE_CHARS, len(conclusion or ""))
    assert "\n" not in found.evidence


@pytest.mark.parametrize(
    "piece",
    [
        *("a", " ", "\n", "1", "fail", "failed to ", "error: ", "x:1:", "git fetch ", "pod "),
        "[error]  ",
    ],
)
def test_hostile_logs_take_linear_time(piece: str) -> None:
    """Five megabytes of what the rules look for are read in bounded time."""
    text = piece * (5_000_000 // len(piece))
    started = time.perf_counter()
    classify_failure(text)
    assert time.perf_counter() - started < 10


def test_no_built_in_rule_can_backtrack_without_bound() -> None:
    """Every repetition has an upper limit."""
    for rule in BUILT_IN:
        bare = re.sub(r"\\.|\[[^\]]*\]", "x", rule.regex)
        assert not re.search(r"[*+]|\{\d*,\}", bare), rule.name


def test_built_in_rules_are_in_small_letters() -> None:
    """They are searched in a log put into small letters, so a capital could never match."""
    for rule in BUILT_IN:
        assert not re.search(r"[A-Z]", re.sub(r"\\.", "", rule.regex)), rule.name


def test_built_in_rules_have_a_name_and_a_reason_each() -> None:
    """A decision can be looked up by the name that it gives."""
    assert len({rule.name for rule in BUILT_IN}) == len(BUILT_IN)
    assert all(rule.name and rule.reason and rule.regex for rule in BUILT_IN)


def test_a_table_is_read_line_by_line() -> None:
    """Lines are alternatives, and a line indented further continues the one above."""
    assert rules("transient", "\nname: why so\n  a|b\n  (?:c\n    |d)\n") == (
        Pattern("name", "transient", "a|b|(?:c|d)", "why so"),
    )


def labelled() -> list[tuple[str, Kind]]:
    path = DATA / "ci_failures_dev.json"
    if not path.exists():
        pytest.skip("the labelled CI failures are not beside this checkout")
    return [(entry["text"], entry["label"]) for entry in json.loads(path.read_text("utf-8"))]


def test_accuracy_on_real_failures() -> None:
    """Nine of ten real messages are read right, and 97 of 100 of those called transient."""
    entries = labelled()
    read: list[tuple[Failure, Kind]] = [(classify_failure(text), label) for text, label in entries]
    right = sum(found.kind == label for found, label in read)
    called_transient = [label for found, label in read if found.kind == "transient"]
    assert right / len(read) >= 0.90
    assert called_transient.count("transient") / len(called_transient) >= 0.97
