"""GitLab webhooks, of projects, groups and the whole instance.

The delivery id is the `webhook-id` of a signed delivery, which is the only one that is signed;
else the `Idempotency-Key`, which has the same value and is stable across retries (17.4 and
newer). Older instances name only the event, in `X-Gitlab-Event-UUID`. A hook that is called
because of what another hook did carries the event of the first, so that this alone would drop
the second: the body's hash is added. `X-Gitlab-Webhook-UUID` names the hook.

Old versions, and what stands between, are sloppy in places: a member is repeated, a name has a
blank at its end. A merge request is therefore also known by its page, and its state by the action.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from towline.events import (
    Actor,
    CheckChanged,
    CommentAction,
    Commented,
    Event,
    PullRequestChanged,
    PullRequestState,
    Pushed,
    ReviewState,
    ReviewSubmitted,
)
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers
from towline.forges.payload import Object, Outcome, outcome_of
from towline.forges.signature import authenticate, check_gitlab, is_signed
from towline_once import keys

SOURCE: Final = "gitlab"

RepoReader: TypeAlias = Callable[[Object, str, Actor | None], Event | None]

_ACTIONS: Final[Mapping[str, str]] = {
    "open": "opened",
    "reopen": "reopened",
    "close": "closed",
    "merge": "merged",
}
_REVIEWS: Final[Mapping[str, ReviewState]] = {
    "approved": "approved",
    "approval": "approved",
    "unapproved": "dismissed",
    "unapproval": "dismissed",
}
_NOTE_ACTIONS: Final[Mapping[str, CommentAction]] = {"create": "created", "update": "edited"}
_STATES: Final[Mapping[str, PullRequestState]] = {
    "open": "open",
    "reopen": "open",
    "close": "closed",
    "closed": "closed",
    "merge": "merged",
    "merged": "merged",
}
_PAGE: Final = re.compile(r"/merge_requests/(?P<number>[1-9]\d{0,14})(?:#|$)")


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
) -> Delivery:
    authenticate(check_gitlab, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    delivery_id = _delivery_id(headers, body)
    hook_id = reading.header(headers, "x-gitlab-webhook-uuid")
    payload = reading.json_object_with_repeats(body)
    return Delivery(
        key=keys.GitLab(delivery_id, hook_id=hook_id),
        delivery_id=delivery_id,
        source=SOURCE,
        event_name=_kind(payload) or reading.header(headers, "x-gitlab-event") or "unknown",
        repo=_repo(payload),
        payload=payload,
        events=read(payload),
    )


def read(payload: Object) -> tuple[Event, ...]:
    """The events of a payload, which tells by itself of what kind it is."""
    reader, repo = _READERS.get(_kind(payload) or ""), _repo(payload)
    if reader is None or repo is None:
        return ()
    event = reader(payload, repo, reading.actor(payload, "user", login="username"))
    return () if event is None else (event,)


def _delivery_id(headers: Headers, body: bytes) -> str:
    message_id = reading.header(headers, "webhook-id")
    if message_id and is_signed(headers):
        return message_id
    given = reading.header(headers, "idempotency-key") or message_id
    if given:
        return given
    event = reading.header(headers, "x-gitlab-event-uuid")
    digest = reading.body_hash(body)
    return f"{event}:{digest}" if event else digest


def _kind(payload: Object) -> str | None:
    """System hooks for pushes have no `object_kind`."""
    return reading.text(payload, "object_kind", reading.LONGEST_ID) or reading.text(
        payload, "event_name", reading.LONGEST_ID
    )


def _repo(payload: Object) -> str | None:
    """Events of jobs had no project until 2023, but always the repository's page."""
    project, repository = reading.inner(payload, "project"), reading.inner(payload, "repository")
    return (
        reading.repo_name(project.get("path_with_namespace"))
        or reading.repo_name(payload.get("path_with_namespace"))
        or reading.repo_of_url(repository.get("homepage"))
        or reading.repo_of_url(repository.get("git_http_url"))
        or reading.repo_of_url(repository.get("git_ssh_url"))
    )


def _merge_request(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    request = reading.inner(payload, "object_attributes")
    number, action = _number(request), reading.text(request, "action") or ""
    if number is None:
        return None
    if action in _REVIEWS:
        return _review(request, repo, actor, number, _REVIEWS[action])
    return PullRequestChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(request, "updated_at"),
        actor=actor,
        number=number,
        action=_ACTIONS.get(action) or _update(payload, request),
        state=_STATES.get(action) or _STATES.get(reading.text(request, "state") or "") or "open",
        head_sha=_head(request),
        before_sha=reading.commit(request, "oldrev"),
        head_ref=reading.text(request, "source_branch"),
        base_ref=reading.text(request, "target_branch"),
        author=_author(payload, request, actor),
        title=reading.prose(request, "title"),
        labels=_labels(payload) or _labels(request),
        draft=_is_draft(request),
        from_fork=_from_fork(request),
        merge_commit_sha=reading.commit(request, "merge_commit_sha"),
        url=reading.url(request, "url"),
    )


def _review(
    request: Object, repo: str, actor: Actor | None, number: int, state: ReviewState
) -> Event:
    """An approval or its withdrawal, which GitLab tells as a change of the merge request."""
    head_sha = _head(request)
    return ReviewSubmitted(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(request, "updated_at"),
        actor=actor,
        number=number,
        state=state,
        reviewer=actor,
        head_sha=head_sha,
        reviewed_sha=head_sha,
        url=reading.url(request, "url"),
    )


def _number(request: Object) -> int | None:
    page = _PAGE.search(reading.url(request, "url") or "")
    return reading.number(request, "iid") or (int(page["number"]) if page else None)


def _update(payload: Object, request: Object) -> str:
    """What kind of update it is, in GitHub's words, the gravest first."""
    changes = reading.inner(payload, "changes")
    if reading.commit(request, "oldrev"):
        return "synchronize"
    if "draft" in changes or "work_in_progress" in changes:
        return "converted_to_draft" if _is_draft(request) else "ready_for_review"
    return "labeled" if "labels" in changes else "edited"


def _author(payload: Object, request: Object, actor: Actor | None) -> Actor | None:
    """GitLab gives the author's number only, so that a name is known just for the actor's own."""
    author_id = reading.ident(request, "author_id")
    actor_id = reading.ident(reading.inner(payload, "user"), "id")
    return actor if author_id is not None and author_id == actor_id else None


def _head(request: Object) -> str | None:
    return reading.commit(reading.inner(request, "last_commit"), "id")


def _is_draft(request: Object) -> bool:
    draft = reading.flag(request, "draft")
    return (reading.flag(request, "work_in_progress") or False) if draft is None else draft


def _from_fork(request: Object) -> bool | None:
    source = reading.ident(request, "source_project_id")
    target = reading.ident(request, "target_project_id")
    return source != target if source and target else None


def _labels(node: Object) -> tuple[str, ...]:
    found = (reading.text(label, "title") for label in reading.objects(node, "labels"))
    return tuple(label for label in found if label)


def _note(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    """A comment on a merge request; what GitLab itself notes there is none."""
    note, request = (
        reading.inner(payload, "object_attributes"),
        reading.inner(payload, "merge_request"),
    )
    number, comment_id = _number(request), reading.ident(note, "id")
    if number is None or comment_id is None or reading.flag(note, "system"):
        return None
    return Commented(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(note, "updated_at"),
        actor=actor,
        number=number,
        action=_NOTE_ACTIONS.get(reading.text(note, "action") or "", "created"),
        comment_id=comment_id,
        author=actor,
        body=reading.prose(note, "note", reading.LONGEST_COMMENT),
        in_review=reading.text(note, "type") == "DiffNote",
        head_sha=_head(request),
        url=reading.url(note, "url"),
    )


def _pipeline(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    pipeline = reading.inner(payload, "object_attributes")
    head_sha, status = reading.commit(pipeline, "sha"), reading.text(pipeline, "status")
    if head_sha is None or status is None:
        return None
    outcome = outcome_of(status)
    number = _number(reading.inner(payload, "merge_request"))
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(pipeline, "finished_at")
        or reading.moment(pipeline, "created_at"),
        actor=actor,
        check="pipeline",
        name=reading.text(pipeline, "name") or "pipeline",
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        pr_numbers=(number,) if number else (),
        branch=reading.text(pipeline, "ref"),
        run_id=reading.ident(pipeline, "id"),
        summary=reading.prose(pipeline, "detailed_status"),
        url=reading.url(pipeline, "url"),
    )


def _job(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    head_sha, name = reading.commit(payload, "sha"), reading.text(payload, "build_name")
    status = reading.text(payload, "build_status")
    if head_sha is None or name is None or status is None:
        return None
    outcome = _job_outcome(payload, status)
    retries = payload.get("retries_count")
    failed = outcome.conclusion not in {"pending", "success"}
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(payload, "build_finished_at")
        or reading.moment(payload, "build_started_at")
        or reading.moment(payload, "build_created_at"),
        actor=actor,
        check="job",
        name=name,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        branch=reading.text(payload, "ref"),
        run_id=reading.ident(payload, "pipeline_id"),
        attempt=retries + 1 if type(retries) is int and 0 <= retries < 10_000 else None,
        job_id=reading.ident(payload, "build_id"),
        summary=reading.prose(payload, "build_failure_reason") if failed else "",
    )


def _job_outcome(payload: Object, status: str) -> Outcome:
    """A job that may fail, or may be left out, does not hold its pipeline up."""
    outcome = outcome_of(status)
    if reading.flag(payload, "build_allow_failure") and status in {"failed", "manual"}:
        return Outcome("completed", "neutral")
    return outcome


def _push(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    ref = reading.text(payload, "ref")
    if ref is None or not reading.has_hashes(payload, "before", "after"):
        return None
    pusher = reading.text(payload, "user_username") or reading.text(payload, "user_name")
    return Pushed(
        source=SOURCE,
        repo=repo,
        actor=Actor(pusher) if pusher else actor,
        ref=ref,
        before=reading.commit(payload, "before"),
        after=reading.commit(payload, "after"),
        pusher=pusher,
    )


_READERS: Final[Mapping[str, RepoReader]] = {
    "merge_request": _merge_request,
    "note": _note,
    "pipeline": _pipeline,
    "build": _job,
    "push": _push,
    "tag_push": _push,
}
