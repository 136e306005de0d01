"""Slack: commands, events, verification and interactions, each real payload among them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.forges.samples import (
    DATA,
    NOW,
    OLD_SECRET,
    SECRET,
    Sample,
    each,
    listed,
    needs_data,
    slack_headers,
)
from towline.events import CommandGiven
from towline.forges.delivery import BadSignature, Delivery, Malformed, OutsideWindow
from towline.integrations import slack
from towline_once import keys

SAMPLES = listed("slack/bolt-payloads/*.json")
FORM = "application/x-www-form-urlencoded"
COMMAND = {
    "team_id": "T1",
    "trigger_id": "1.2.x",
    "command": "/towline",
    "text": "rebuild o/n#7",
    "user_id": "U1",
    "channel_id": "C1",
    "response_url": "https://hooks.slack.com/commands/T1/1/x",
}


def receive(raw: bytes, content_type: str = "application/json", **more: str) -> Delivery:
    headers = slack_headers(raw, content_type=content_type) | more
    return slack.receive(headers, raw, [SECRET], NOW)


def receive_form(fields: Any) -> Delivery:
    return receive(urlencode(fields).encode(), FORM)


def expected_key(payload: Any) -> tuple[str, str | None]:
    team = payload.get("team_id") or payload["team"]["id"]
    return team, payload.get("event_id") or payload.get("trigger_id")


@each(SAMPLES)
def test_real_payload(sample: Sample) -> None:
    """Each has the key of its workspace and its event or trigger; mentions become commands."""
    delivery, payload = receive(sample.raw), sample.json
    assert keys.parse(str(delivery.key)) == delivery.key
    if payload["type"] == "url_verification":
        assert delivery.reply == payload["challenge"].encode()
        assert delivery.events == ()
        return
    team, trigger = expected_key(payload)
    assert isinstance(delivery.key, keys.Slack)
    assert delivery.key.team_id == team
    assert delivery.key.trigger_id == trigger or (
        trigger is None and "sha256-" in str(delivery.key)
    )
    assert delivery.reply is None
    event = payload.get("event", {})
    assert delivery.event_name == event.get("type", payload["type"])
    if event.get("type") != "app_mention":
        assert delivery.events == ()
    else:
        (given,) = delivery.events
        assert isinstance(given, CommandGiven)
        assert (given.user, given.channel) == (event["user"], event["channel"])
        assert event["text"].endswith(given.text)
        assert "<@" not in given.text


@each(SAMPLES)
def test_real_payload_as_an_interaction(sample: Sample) -> None:
    """Interactions come as a form with the JSON in it, and mean the same."""
    form = receive_form({"payload": sample.raw.decode()})
    plain = receive(sample.raw)
    assert (form.events, form.event_name, form.reply) == (
        plain.events,
        plain.event_name,
        plain.reply,
    )


@each(SAMPLES)
def test_real_payload_wrongly_signed(sample: Sample) -> None:
    """Tampered, unsigned, badly signed and late ones are refused; both active secrets work."""
    headers = slack_headers(sample.raw)
    with pytest.raises(BadSignature):
        slack.receive(headers, sample.raw + b" ", [SECRET], NOW)
    with pytest.raises(BadSignature):
        slack.receive({}, sample.raw, [SECRET], NOW)
    with pytest.raises(BadSignature):
        slack.receive(headers, sample.raw, ["another"], NOW)
    with pytest.raises(OutsideWindow):
        slack.receive(headers, sample.raw, [SECRET], NOW + 301)
    old = slack_headers(sample.raw, secret=OLD_SECRET)
    assert slack.receive(old, sample.raw, [SECRET, OLD_SECRET], NOW).source == "slack"


@needs_data
def test_official_vector_is_a_command() -> None:
    """The example in Slack's documentation is verified and read."""
    vector = json.loads((DATA / "slack/official_signature_vector.json").read_bytes())
    headers = {
        "content-type": FORM,
        "x-slack-request-timestamp": vector["timestamp"],
        "x-slack-signature": vector["signature"],
    }
    now = float(vector["timestamp"]) + 60
    delivery = slack.receive(headers, vector["body"].encode(), [vector["signing_secret"]], now)
    (given,) = delivery.events
    assert isinstance(given, CommandGiven)
    assert (given.command, given.text, given.user) == ("/webhook-collect", "", "U2CERLKJA")
    assert str(delivery.key).startswith("slack:T1DC2JH3J:398738663015.")


@needs_data
def test_real_slash_command() -> None:
    """A command's words, person, channel and answer address are found."""
    delivery = receive((DATA / "slack/bolt_slash_command_body.txt").read_bytes().strip(), FORM)
    (given,) = delivery.events
    assert isinstance(given, CommandGiven)
    assert (given.command, given.text, given.team) == ("/hello-world", "Hi", "T111")
    assert (given.user, given.channel) == ("W111", "C111")
    assert given.response_url == "https://hooks.slack.com/commands/T111/111/xxxxx"
    assert delivery.key == keys.Slack("T111", "111.111.xxx")


def test_slash_command() -> None:
    """The key is the workspace and the trigger; nothing else makes two commands one."""
    delivery = receive_form(COMMAND)
    assert (str(delivery.key), delivery.event_name) == ("slack:T1:1.2.x", "slash_command")
    assert receive_form(COMMAND | {"trigger_id": "1.3.x"}).key != delivery.key


@pytest.mark.parametrize("missing", ["team_id", "trigger_id", "command", "user_id"])
def test_a_command_without_its_id_is_refused(missing: str) -> None:
    """Two commands that cannot be told apart would be one: say so instead."""
    for fields in [COMMAND | {missing: ""}, {k: v for k, v in COMMAND.items() if k != missing}]:
        with pytest.raises(Malformed):
            receive_form(fields)


@pytest.mark.parametrize(
    "address",
    ["http://hooks.slack.com/x", "https://hooks.slack.com.evil.example/", "https://10.0.0.1/", ""],
)
def test_answers_go_to_slack_only(address: str) -> None:
    """An address that is not Slack's is dropped: we would post to it."""
    (given,) = receive_form(COMMAND | {"response_url": address}).events
    assert isinstance(given, CommandGiven)
    assert given.response_url is None


def test_retries_are_deliveries() -> None:
    """A retry has the key of the first try, and is not dropped here."""
    raw = b'{"type":"event_callback","team_id":"T","event_id":"E","event":{"type":"message"}}'
    retry = {"x-slack-retry-num": "3", "x-slack-retry-reason": "http_timeout"}
    assert receive(raw, **retry) == receive(raw)


def test_bots_give_no_commands() -> None:
    """A mention by a bot is ignored, so that two bots cannot keep each other busy."""
    event = {"type": "app_mention", "user": "U", "text": "<@B1> rebuild", "channel": "C"}
    body = {"type": "event_callback", "team_id": "T", "event_id": "E", "event": event}
    (given,) = receive(json.dumps(body).encode()).events
    assert isinstance(given, CommandGiven)
    assert given.text == "rebuild"
    body["event"] = event | {"bot_id": "B2"}
    assert receive(json.dumps(body).encode()).events == ()


def test_verification_is_verified() -> None:
    """The challenge is answered only to who knows the secret, and only if there is one."""
    raw = b'{"type":"url_verification","challenge":"abc"}'
    assert receive(raw).reply == b"abc"
    with pytest.raises(BadSignature):
        slack.receive(slack_headers(raw, secret="other"), raw, [SECRET], NOW)
    with pytest.raises(Malformed):
        receive(b'{"type":"url_verification"}')
