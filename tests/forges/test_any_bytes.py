"""Whatever comes in, a source answers with a delivery or with a 4xx, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.forges.samples import NOW, SECRET, SIGNERS, Sample, indexed, listed
from tests.sizes import size
from tests.test_tidy import impurity, nodes
from towline.events import CONCLUSIONS, EVENTS, Actor, CheckChanged, Event
from towline.forges.delivery import Delivery, DeliveryRejected
from towline.inbox.sources import SOURCES
from towline_once import keys
from towline_once.keys import REDELIVERY_SECONDS

NAMES = sorted(SOURCES)
HEADERS = [
    *("content-type", "authorization", "idempotency-key", "x-request-id", "x-towline-token"),
    *("x-github-delivery", "x-github-event", "x-github-hook-id", "x-hub-signature-256"),
    *("x-github-hook-installation-target-type", "x-github-hook-installation-target-id"),
    *("x-gitlab-token", "x-gitlab-event", "x-gitlab-event-uuid", "x-gitlab-webhook-uuid"),
    *("webhook-id", "webhook-timestamp", "webhook-signature", "x-slack-signature"),
    *("x-slack-request-timestamp", "x-slack-retry-num", "x-hub-signature"),
    *(
        "x-atlassian-webhook-identifier",
        "x-cloudscheduler-jobname",
        "x-cloudscheduler-scheduletime",
    ),
]
FORM = "application/x-www-form-urlencoded"

values = st.text(max_size=40) | st.sampled_from(
    ["", "\udc80", "integration", "sha256=", "v0=", FORM]
)
headers = st.dictionaries(st.sampled_from(HEADERS), values, max_size=8)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**300), max_value=10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["\0", "a" * 5000, "0" * 40, "f" * 40, "completed", "javascript:x", "9" * 400]
    )
)
values_of_json = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)


def storable(value: object) -> bool:
    if isinstance(value, str):
        return "\0" not in value and bool(value.encode() or True) and len(value) <= 16_384
    if isinstance(value, tuple):
        return all(map(storable, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 < value < 2**53
    return value is None or isinstance(value, bool | float)


def check_event(event: Event) -> None:
    """Every field can be stored, and holds one of the words that it may hold."""
    assert EVENTS[event.kind] is type(event)
    for field in fields(event):
        assert storable(getattr(event, field.name)), field.name
        if field.name in {"url", "logs_url", "response_url"}:
            address = getattr(event, field.name)
            assert address is None or address.startswith(("http://", "https://"))
    assert event.actor is None or isinstance(event.actor, Actor)
    if isinstance(event, CheckChanged):
        assert event.conclusion in CONCLUSIONS
        assert (event.conclusion == "pending") == (event.status != "completed")


def check_refusal(refused: DeliveryRejected) -> None:
    assert refused.status in {400, 401}
    assert refused.code
    assert 0 < len(str(refused)) < 400


def check_answer(name: str, given: dict[str, str], body: bytes, secrets: list[str]) -> None:
    try:
        delivery = SOURCES[name].receive(given, body, secrets, NOW, allow_unsigned=True)
    except DeliveryRejected as refused:
        check_refusal(refused)
        return
    assert isinstance(delivery, Delivery)
    assert keys.parse(str(delivery.key)) == delivery.key
    assert delivery.source == delivery.key.source == name
    assert "\0" not in str(delivery.key)
    assert len(str(delivery.key)) < 1500
    assert 0 < len(delivery.delivery_id) < 1500
    for event in delivery.events:
        check_event(event)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(given_headers=headers, body=st.binary(max_size=200), signed=st.booleans())
@example(given_headers={}, body=b"[" * 100_000, signed=True)
@example(given_headers={}, body=b'{"a":' * 400 + b"1" + b"}" * 400, signed=True)
@example(given_headers={}, body=b'{"a":' + b"9" * 5000 + b"}", signed=True)
@example(given_headers={}, body=b'{"a":NaN}', signed=True)
@example(given_headers={}, body=b'{"a":1,"a":2}', signed=True)
@example(given_headers={"content-type": FORM}, body=b"payload=%ff", signed=True)
@example(given_headers={"content-type": FORM}, body=b"a=\xff", signed=True)
def test_any_bytes_and_headers(
    name: str, given_headers: dict[str, str], body: bytes, signed: bool
) -> None:
    """Random bytes under random headers, judged with and without a secret."""
    check_answer(name, given_headers, body, [])
    check_answer(name, given_headers, body, [SECRET])
    if signed:
        check_answer(name, given_headers | SIGNERS[name](body), body, [SECRET])


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(payload=values_of_json, given_headers=headers)
def test_any_json(name: str, payload: Any, given_headers: dict[str, str]) -> None:
    """Random JSON, well signed."""
    body = json.dumps(payload).encode()
    check_answer(name, given_headers | SIGNERS[name](body), body, [SECRET])


REAL: list[tuple[str, Sample]] = [
    *(("github", sample) for sample in indexed("github-webhooks", "event")),
    *(("gitlab", sample) for sample in indexed("gitlab-webhooks", "kind")),
    *(("slack", sample) for sample in listed("slack/bolt-payloads/*.json")),
    *(("jira", sample) for sample in listed("jira-webhooks/*/*.json")),
    *(("jenkins", sample) for sample in listed("jenkins/*.json")),
]
RUN = (
    b'{"repo":"o/n","run_id":1,"attempt":1,"conclusion":"x","head_sha":"aaaaaaa","pr":1,'
    b'"provider":"p","logs_url":"https://a.example"}'
)
TICK = b'{"schedule_id":"a","execution_time":"2024-01-01T00:00:00Z"}'
MADE = [("ci", Sample("run", "", RUN)), ("scheduler", Sample("tick", "", TICK))]


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value, with each of its names or positions."""
    for name in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, name
        if isinstance(node[name], dict | list):
            yield from places(node[name])


def mutated(payload: Any, dice: random.Random, replacement: Any) -> Any:
    """Delete a node, or put something else in its place."""
    container, name = dice.choice(list(places(payload)))
    if isinstance(container, dict) and dice.random() < 0.3:
        del container[name]
    else:
        container[name] = replacement
    return payload


@settings(max_examples=size(80, 1_250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(which=st.integers(0, 10**6), dice=st.randoms(use_true_random=False), data=st.data())
def test_mutated_payloads(which: int, dice: random.Random, data: st.DataObject) -> None:
    """Real payloads in which nodes were deleted, or replaced by something of another type."""
    name, sample = (REAL + MADE)[which % len(REAL + MADE)]
    payload = sample.json
    for _ in range(dice.randint(1, 8)):
        if payload:
            payload = mutated(payload, dice, data.draw(values_of_json))
    body = json.dumps(payload).encode()
    given_headers = SIGNERS[name](body) | {"x-github-event": sample.event or "push"}
    check_answer(name, given_headers, body, [SECRET])


@pytest.mark.parametrize(
    "swapped", [None, True, 0, -1, 2**70, 1.5, "", "x", "\0", [], [None], {}, {"id": {}}]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_node_in_turn(name: str, swapped: Any) -> None:
    """In one payload of each kind, sixty nodes are replaced by each odd value, one at a time."""
    kinds = {sample.event or sample.name: sample for found, sample in REAL + MADE if found == name}
    for sample in kinds.values():
        count = len(list(places(sample.json)))
        for index in range(0, count, max(1, count // 60)):
            payload = sample.json
            container, member = list(places(payload))[index]
            container[member] = swapped
            body = json.dumps(payload).encode()
            given_headers = SIGNERS[name](body) | {"x-github-event": sample.event or "push"}
            check_answer(name, given_headers, body, [SECRET])


def test_every_source_has_its_horizon() -> None:
    """The table names all sources that have keys, but for our own API's, and their horizons."""
    assert set(SOURCES) == set(keys.SCHEMES) - {"api"}
    for name, source in SOURCES.items():
        assert source.redelivery_seconds == REDELIVERY_SECONDS.get(name, 0)


def test_sources_are_pure() -> None:
    """No clock, no dice, no I/O, nothing asynchronous."""
    offenders = [
        f"{name}:{getattr(node, 'lineno', 0)}: {reason}"
        for name, node in nodes("src/towline/forges", "src/towline/integrations")
        if name.endswith("webhooks.py") and (reason := impurity(node))
    ]
    assert not offenders


def test_events_are_told_apart_by_kind() -> None:
    """Each kind of event has a name of its own."""
    assert len(EVENTS) == 12
    assert all(EVENTS[name].kind == name for name in EVENTS)
