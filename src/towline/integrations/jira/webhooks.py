"""Jira webhooks, of Cloud and Data Center.

Cloud names each event in `X-Atlassian-Webhook-Identifier`, the same for all its retries. Where
that is missing the body is the id: it holds the time of the event to the millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from towline.events import Actor, Event, IssueChanged
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers
from towline.forges.payload import Object
from towline.forges.signature import authenticate, check_shared
from towline_once import keys

SOURCE: Final = "jira"

_ACTIONS: Final[Mapping[str, str]] = {
    "jira:issue_created": "created",
    "jira:issue_updated": "updated",
    "jira:issue_deleted": "deleted",
    "comment_created": "commented",
    "comment_updated": "comment_edited",
    "comment_deleted": "comment_deleted",
}


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
) -> Delivery:
    authenticate(check_shared, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    given = reading.header(headers, "x-atlassian-webhook-identifier")
    delivery_id = given or reading.body_hash(body)
    payload = reading.json_object(body)
    return Delivery(
        key=keys.Jira(delivery_id),
        delivery_id=delivery_id,
        source=SOURCE,
        event_name=reading.text(payload, "webhookEvent", reading.LONGEST_ID) or "unknown",
        repo=None,
        payload=payload,
        events=read(payload),
    )


def read(payload: Object) -> tuple[Event, ...]:
    """One event if the payload names the issue and says what happened to it."""
    issue = reading.inner(payload, "issue")
    key = reading.text(issue, "key", reading.LONGEST_ID)
    action = _ACTIONS.get(reading.text(payload, "webhookEvent") or "")
    if key is None or action is None:
        return ()
    fields, comment = reading.inner(issue, "fields"), reading.inner(payload, "comment")
    changed = IssueChanged(
        source=SOURCE,
        occurred_at=reading.moment_of_ms(payload, "timestamp"),
        actor=_actor(payload),
        issue=key,
        action=action,
        project=reading.text(reading.inner(fields, "project"), "key")
        or key.rpartition("-")[0]
        or None,
        issue_type=reading.text(reading.inner(fields, "issuetype"), "name"),
        status=reading.text(reading.inner(fields, "status"), "name"),
        summary=reading.prose(fields, "summary"),
        labels=reading.texts(fields, "labels"),
        changed=_changed(payload),
        comment=reading.prose(comment, "body", reading.LONGEST_COMMENT),
        comment_id=reading.ident(comment, "id"),
        updated_at=reading.moment(fields, "updated"),
    )
    return (changed,)


def _actor(payload: Object) -> Actor | None:
    """Cloud has account ids, older versions names; a comment's event has only its author."""
    who = reading.inner(payload, "user")
    if not who:
        comment = reading.inner(payload, "comment")
        who = reading.inner(comment, "updateAuthor") or reading.inner(comment, "author")
    known_as = reading.text(who, "accountId") or reading.text(who, "name")
    return Actor(known_as) if known_as else None


def _changed(payload: Object) -> tuple[str, ...]:
    changes = reading.objects(reading.inner(payload, "changelog"), "items")
    found = (reading.text(change, "field") for change in changes)
    return tuple(field for field in found if field)
