"""Slack: slash commands, the Events API, its URL verification, and interactions.

A retry is a delivery like any other, with the same id: to drop what carries `X-Slack-Retry-Num`
would lose every event whose first try failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from towline.events import Actor, CommandGiven, Event
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers, Malformed
from towline.forges.payload import Object
from towline.forges.signature import authenticate, check_slack
from towline_once import keys

SOURCE: Final = "slack"
SLASH_COMMAND: Final = "slash_command"

_EVENT: Final = "event_callback"
_LONGEST_TEXT: Final = 4000
_RESPONSE_HOSTS: Final = ("https://hooks.slack.com/", "https://hooks.slack-gov.com/")
_MENTION: Final = re.compile(r"\s*<@[^>]{1,64}>\s*")


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
) -> Delivery:
    authenticate(check_slack, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    if not reading.is_form(headers, body):
        return _from_json(body, reading.json_object(body))
    fields = reading.form_fields(body)
    if "payload" in fields:
        return _from_json(body, reading.json_object(fields["payload"]))
    return _from_command(fields)


def _from_command(fields: Mapping[str, str]) -> Delivery:
    """A slash command. Without a trigger nothing would tell two of them apart."""
    payload: Object = {**fields}
    team, trigger = reading.ident(payload, "team_id"), reading.ident(payload, "trigger_id")
    events = read_command(payload)
    if team is None or trigger is None or not events:
        raise Malformed("a slash command has team_id, trigger_id, command and user_id")
    return _delivery(team, trigger, SLASH_COMMAND, payload, events)


def read_command(payload: Object) -> tuple[Event, ...]:
    """The command of a form that was sent for one."""
    command, user = reading.text(payload, "command"), reading.ident(payload, "user_id")
    if command is None or user is None:
        return ()
    given = CommandGiven(
        source=SOURCE,
        actor=Actor(user, "user"),
        command=command,
        text=reading.prose(payload, "text", _LONGEST_TEXT),
        user=user,
        channel=reading.ident(payload, "channel_id"),
        team=reading.ident(payload, "team_id"),
        response_url=_response_url(payload),
    )
    return (given,)


def _from_json(body: bytes, payload: Object) -> Delivery:
    kind = reading.text(payload, "type", reading.LONGEST_ID) or "unknown"
    if kind == "url_verification":
        return _verification(body, payload)
    team = _team(payload) or "unknown"
    if kind == _EVENT:
        event = reading.inner(payload, "event")
        event_id = reading.ident(payload, "event_id") or reading.body_hash(body)
        name = reading.text(event, "type", reading.LONGEST_ID) or kind
        return _delivery(team, event_id, name, payload, read(payload))
    trigger = reading.ident(payload, "trigger_id") or reading.body_hash(body)
    return _delivery(team, trigger, kind, payload, ())


def read(payload: Object) -> tuple[Event, ...]:
    """A mention of our app is a command as well; what bots write is not, lest they loop."""
    event = reading.inner(payload, "event")
    user = reading.ident(event, "user")
    if payload.get("type") != _EVENT or event.get("type") != "app_mention":
        return ()
    if user is None or event.get("bot_id"):
        return ()
    said = reading.prose(event, "text", _LONGEST_TEXT)
    mention = _MENTION.match(said)
    given = CommandGiven(
        source=SOURCE,
        occurred_at=reading.moment(payload, "event_time"),
        actor=Actor(user, "user"),
        command="app_mention",
        text=said[mention.end() :] if mention else said,
        user=user,
        channel=reading.ident(event, "channel"),
        team=_team(payload),
    )
    return (given,)


def _verification(body: bytes, payload: Object) -> Delivery:
    challenge = reading.text(payload, "challenge")
    if challenge is None:
        raise Malformed("a url_verification has a challenge")
    return Delivery(
        key=keys.Slack("url_verification", reading.body_hash(body)),
        delivery_id="url_verification",
        source=SOURCE,
        event_name="url_verification",
        repo=None,
        payload=payload,
        reply=challenge.encode(),
    )


def _team(payload: Object) -> str | None:
    """The workspace, or the organisation where the app is installed for all of it."""
    return (
        reading.ident(payload, "team_id")
        or reading.ident(reading.inner(payload, "team"), "id")
        or reading.ident(payload, "enterprise_id")
        or reading.ident(reading.inner(payload, "enterprise"), "id")
    )


def _response_url(payload: Object) -> str | None:
    """Only Slack's own hosts: we shall post to it."""
    address = reading.url(payload, "response_url")
    return address if address and address.startswith(_RESPONSE_HOSTS) else None


def _delivery(
    team: str, trigger: str, event_name: str, payload: Object, events: tuple[Event, ...]
) -> Delivery:
    return Delivery(
        key=keys.Slack(team, trigger),
        delivery_id=trigger,
        source=SOURCE,
        event_name=event_name,
        repo=None,
        payload=payload,
        events=events,
    )
