"""Deliveries: their headers, signatures, payloads and ids, of every source.

An input is written like a request: lines of headers, an empty line, the body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tests.forges.samples import NOW, SECRET, SIGNERS, SIGNING_SECRET, Sample, indexed, listed
from tests.forges.test_any_bytes import HEADERS, MADE, check_event, check_refusal
from tests.fuzz.target import Target, check_message
from towline.forges.delivery import BadSignature, Delivery, DeliveryRejected, Malformed
from towline.inbox.ingest import storable
from towline.inbox.sources import SOURCES, events_of
from towline_once import keys

FORM: Final = b"content-type: application/x-www-form-urlencoded\n\n"
PROOFS: Final = frozenset(
    {
        *("authorization", "x-towline-token", "x-hub-signature-256", "x-hub-signature"),
        *("x-towline-signature", "x-gitlab-token", "webhook-signature", "x-slack-signature"),
        *("x-slack-request-timestamp",),
    }
)
"""Headers that say who sends: a sound delivery has its own."""

_MOST_SAMPLES: Final = 40
_WORDS: Final = (
    *(f"\n{name}: ".encode() for name in HEADERS),
    *(b"sha256=", b"v0=", b"v1,", b"Basic ", b"Bearer ", b"whsec_", b"\n\n", b"integration"),
    *(b"payload=", b"%7B%22", b"%00", b"%ff", b'{"type":"url_verification","challenge":"'),
    *(b'"repository":{"full_name":"o/n"}', b'"number":', b'"\\u0000"', b'"\\ud800"', b"1e999"),
    *(b"18446744073709551616", b"2024-01-01T00:00:00Z", b"0001-01-01T00:00:00+23:59", b" UTC"),
)


def headers_and_body(data: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = data.partition(b"\n\n")
    lines = (line.partition(b": ") for line in head.split(b"\n"))
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, _, value in lines}, (
        body
    )


def genuine(name: str, data: bytes) -> None:
    """A delivery of somebody who knows the secret: it is read, or refused as malformed."""
    given, body = headers_and_body(data)
    mine = {**SIGNERS[name](body)}
    proofs = {header: mine[header] for header in PROOFS & mine.keys()}
    headers = {**mine, **{n: v for n, v in given.items() if n not in PROOFS}, **proofs}
    try:
        delivery = SOURCES[name].receive(headers, body, [SECRET], NOW)
    except DeliveryRejected as refused:
        check_refusal(refused)
        check_message(str(refused))
        return
    check_delivery(name, delivery)


def check_delivery(name: str, delivery: Delivery) -> None:
    """Its key reads back, its events can be stored, and reading it again gives the same events."""
    key = str(delivery.key)
    assert keys.parse(key) == delivery.key
    assert delivery.source == delivery.key.source == name
    assert 0 < len(delivery.delivery_id) < 1500
    assert len(key) < 1500
    try:
        storable(key)
    except Malformed as refused:
        check_refusal(refused)
        return
    for event in delivery.events:
        check_event(event)
    payload = delivery.payload
    assert isinstance(payload, dict)
    assert events_of(name, key, delivery.event_name, payload) == delivery.events


def forged(data: bytes) -> None:
    """Whoever does not know the secret is refused by every source, whatever they send."""
    headers, body = headers_and_body(data)
    for name, source in SOURCES.items():
        for secrets in ([SECRET], [SIGNING_SECRET, SECRET], [], [""]):
            try:
                source.receive(headers, body, secrets, NOW)
            except BadSignature as refused:
                check_refusal(refused)
                check_message(str(refused))
            else:
                raise AssertionError(f"{name} took a delivery that nobody signed")


def unsigned(data: bytes) -> None:
    """With signatures switched off nothing but the form of a delivery is judged."""
    headers, body = headers_and_body(data)
    for name, source in SOURCES.items():
        try:
            delivery = source.receive(headers, body, [], NOW, allow_unsigned=True)
        except DeliveryRejected as refused:
            check_refusal(refused)
            continue
        check_delivery(name, delivery)


def _sampled(name: str) -> list[Sample]:
    found = {
        "github": lambda: indexed("github-webhooks", "event"),
        "gitlab": lambda: indexed("gitlab-webhooks", "kind"),
        "slack": lambda: listed("slack/bolt-payloads/*.json"),
        "jira": lambda: listed("jira-webhooks/*/*.json"),
        "jenkins": lambda: listed("jenkins/*.json"),
    }.get(name, list)()
    short = [sample for sample in found if len(sample.raw) < 20_000]
    return short[:: len(short) // _MOST_SAMPLES + 1]


def _seeds(name: str) -> Iterator[bytes]:
    for sample in _sampled(name):
        yield b"x-github-event: %b\n\n%b" % (sample.event.encode(), sample.raw)
    yield from (b"\n\n" + sample.raw for source, sample in MADE if source == name)
    yield from _OWN.get(name, ())


_OWN: Final[dict[str, tuple[bytes, ...]]] = {
    "github": (
        FORM + b"payload=%7B%22action%22%3A%22opened%22%7D",
        b'x-github-event: push\n\n{"ref":"refs/heads/a","before":"0000000000","after":"aaaaaaaa"}',
        b'x-github-event: merge_group\n\n{"action":"x","merge_group":{"head_ref":"q/pr-1-ab"}}',
    ),
    "gitlab": (
        b'\n\n{"object_kind":"build","object_kind":"build","build_status":"failed"}',
        b'\n\n{"object_kind":"merge_request","object_attributes":{"iid":3,"action":"open"}}',
    ),
    "slack": (
        FORM + b"team_id=T1&trigger_id=1.2&command=%2Ftow&user_id=U1&text=why+o%2Fn%231",
        FORM + b"payload=%7B%22type%22%3A%22block_actions%22%7D",
        b'\n\n{"type":"event_callback","event":{"type":"app_mention","user":"U1","text":"<@U>"}}',
    ),
    "scheduler": (
        b"x-cloudscheduler-jobname: a\nx-cloudscheduler-scheduletime: 2024-01-01T00:00:00Z\n\n",
    ),
    "jenkins": (
        b'\n\n{"url":"job/a/","build":{"number":1,"phase":"FINALIZED","scm":{"url":"git@h:o/n"}}}',
    ),
    "jira": (b'\n\n{"webhookEvent":"jira:issue_updated","issue":{"key":"A-1"}}',),
}


def _forged_seeds() -> Iterator[bytes]:
    body = b'{"a":1}'
    for sign in SIGNERS.values():
        told = sign(b"another body").items()
        lines = (f"{name}: {value}" for name, value in told if value != SECRET)
        yield "\n".join(lines).encode() + b"\n\n" + body
    yield b"authorization: Basic YTpi\n\n{}"
    yield b"webhook-id: a\nwebhook-timestamp: 1700000000\nwebhook-signature: v1,AAAA v1,B\n\n{}"


def _unsigned_seeds() -> Iterator[bytes]:
    for name in SOURCES:
        yield from list(_seeds(name))[:6]


def _of(name: str) -> Callable[[bytes], None]:
    return partial(genuine, name)


TARGETS: Final = (
    *(
        Target(f"source.{name}", _of(name), partial(_seeds, name), _WORDS)
        for name in sorted(SOURCES)
    ),
    Target("source.forged", forged, _forged_seeds, _WORDS),
    Target("source.unsigned", unsigned, _unsigned_seeds, _WORDS),
)
