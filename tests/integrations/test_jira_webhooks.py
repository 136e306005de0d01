"""Jira: issues and comments of every real payload, and ids with and without the header."""

from __future__ import annotations

import pytest

from tests.forges.samples import NOW, OLD_SECRET, SECRET, Sample, each, listed, shared_headers
from towline.events import IssueChanged
from towline.forges.delivery import BadSignature, Delivery, Malformed
from towline.integrations.jira import webhooks as jira
from towline_once import keys

SAMPLES = listed("jira-webhooks/*/*.json")
ACTIONS = {
    "jira:issue_created": "created",
    "jira:issue_updated": "updated",
    "jira:issue_deleted": "deleted",
    "comment_created": "commented",
    "comment_updated": "comment_edited",
    "comment_deleted": "comment_deleted",
}


def receive(raw: bytes, **more: str) -> Delivery:
    headers = shared_headers(raw) | {k.replace("_", "-"): v for k, v in more.items()}
    return jira.receive(headers, raw, [SECRET], NOW)


@each(SAMPLES)
def test_real_payload(sample: Sample) -> None:
    """The issue, what happened, its state and who did it; nothing where no issue is named."""
    delivery, payload = receive(sample.raw), sample.json
    assert keys.parse(str(delivery.key)) == delivery.key
    assert delivery.event_name == payload.get("webhookEvent", "unknown")
    action = ACTIONS.get(payload.get("webhookEvent"))
    if action is None or "issue" not in payload:
        assert delivery.events == ()
        return
    (event,) = delivery.events
    assert isinstance(event, IssueChanged)
    fields = payload["issue"]["fields"]
    assert (event.issue, event.action) == (payload["issue"]["key"], action)
    assert event.summary == fields["summary"]
    assert event.status == fields.get("status", {}).get("name")
    assert event.changed == tuple(i["field"] for i in payload.get("changelog", {}).get("items", []))
    assert event.comment == payload.get("comment", {}).get("body", "")
    assert event.occurred_at == payload["timestamp"] / 1000
    who = payload.get("user") or payload["comment"]["updateAuthor"]
    assert event.actor is not None
    assert event.actor.login == who["accountId"]


@each(SAMPLES)
def test_real_payload_wrongly_signed(sample: Sample) -> None:
    """Tampered, unsigned and badly signed ones are refused; both active secrets work."""
    headers = shared_headers(sample.raw)
    with pytest.raises(BadSignature):
        jira.receive(headers, sample.raw + b" ", [SECRET], NOW)
    with pytest.raises(BadSignature):
        jira.receive({}, sample.raw, [SECRET], NOW)
    old = shared_headers(sample.raw, secret=OLD_SECRET)
    with pytest.raises(BadSignature):
        jira.receive(old, sample.raw, [SECRET], NOW)
    assert jira.receive(old, sample.raw, [SECRET, OLD_SECRET], NOW).source == "jira"


def test_all_payloads_were_seen() -> None:
    """The anomalous one, the unknown one and the comment without its issue give nothing."""
    if not SAMPLES:
        pytest.skip("the folder with real payloads is not there")
    assert (len(SAMPLES), sum(len(receive(s.raw).events) for s in SAMPLES)) == (13, 10)


def test_delivery_id() -> None:
    """The header names the event; without it, the same body is the same event."""
    named = {"x_atlassian_webhook_identifier": "id-1"}
    assert str(receive(b"{}", **named).key) == "jira:id-1"
    assert receive(b"{}").key == receive(b"{}").key != receive(b'{"a":1}').key


def test_what_is_not_an_object_is_refused() -> None:
    """A payload without any known member is accepted, one that is no object is not."""
    assert receive(b"{}").events == ()
    for body in [b"", b"[]", b'{"a":1,"a":1}']:
        with pytest.raises(Malformed):
            receive(body)
