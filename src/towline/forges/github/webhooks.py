"""GitHub webhooks.

The key holds the delivery's GUID and the hook it came through, since two hooks may send different
payloads under one GUID. A hook of an App is named by the App, as that is what is known when its
delivery log is compared with the inbox. Neither header is signed, only the body is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from towline.events import (
    Actor,
    AdvisoryReported,
    CheckChanged,
    CommentAction,
    Commented,
    Event,
    InstallationChanged,
    MergeGroupChanged,
    Pinged,
    PullRequestChanged,
    PullRequestState,
    Pushed,
    ReviewState,
    ReviewSubmitted,
)
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers, Malformed
from towline.forges.payload import QUEUED, Object, Outcome, outcome_of, outcome_of_two
from towline.forges.signature import authenticate, check_github
from towline_once import keys

# ------------------------------------------------------------------ checks
# GitHub's five ways to tell how a commit fares: two kinds of checks, statuses, and Actions.
#
# The numbers of pull requests are taken as listed: for a fork they are not, and the commit decides.


def check_run(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    run = reading.inner(payload, "check_run")
    suite, output = reading.inner(run, "check_suite"), reading.inner(run, "output")
    head_sha = reading.commit(run, "head_sha")
    name = reading.text(run, "name")
    if head_sha is None or name is None:
        return None
    outcome = _outcome(payload, run)
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(run, "completed_at") or reading.moment(run, "started_at"),
        actor=actor,
        check="check_run",
        name=name,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        pr_numbers=_numbers(run) or _numbers(suite),
        branch=reading.text(suite, "head_branch"),
        run_id=reading.ident(run, "id"),
        suite_id=reading.ident(suite, "id"),
        app=_app(run),
        summary=_summary(output),
        url=reading.url(run, "details_url") or reading.url(run, "html_url"),
    )


def check_suite(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    suite = reading.inner(payload, "check_suite")
    head_sha = reading.commit(suite, "head_sha")
    if head_sha is None:
        return None
    outcome = _outcome(payload, suite)
    suite_id, app = reading.ident(suite, "id"), _app(suite)
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(suite, "updated_at"),
        actor=actor,
        check="check_suite",
        name=app or "check suite",
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        pr_numbers=_numbers(suite),
        branch=reading.text(suite, "head_branch"),
        run_id=suite_id,
        suite_id=suite_id,
        app=app,
    )


def commit_status(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    head_sha = reading.commit(payload, "sha")
    context = reading.text(payload, "context")
    state = reading.text(payload, "state")
    if head_sha is None or context is None or state is None:
        return None
    outcome = outcome_of(state)
    branches = reading.objects(payload, "branches")
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(payload, "updated_at"),
        actor=actor,
        check="status",
        name=context,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        branch=reading.text(branches[0], "name") if len(branches) == 1 else None,
        run_id=reading.ident(payload, "id"),
        summary=reading.prose(payload, "description"),
        url=reading.url(payload, "target_url"),
    )


def workflow_run(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    run = reading.inner(payload, "workflow_run")
    head_sha = reading.commit(run, "head_sha")
    if head_sha is None:
        return None
    outcome = _outcome(payload, run)
    workflow = reading.inner(payload, "workflow")
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(run, "updated_at"),
        actor=actor,
        check="workflow_run",
        name=reading.text(run, "name") or reading.text(workflow, "name") or "workflow",
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        pr_numbers=_numbers(run),
        branch=reading.text(run, "head_branch"),
        run_id=reading.ident(run, "id"),
        attempt=reading.number(run, "run_attempt"),
        suite_id=reading.ident(run, "check_suite_id"),
        app="github-actions",
        url=reading.url(run, "html_url"),
        logs_url=reading.url(run, "logs_url"),
    )


def workflow_job(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    job = reading.inner(payload, "workflow_job")
    head_sha = reading.commit(job, "head_sha")
    name = reading.text(job, "name")
    if head_sha is None or name is None:
        return None
    outcome = _outcome(payload, job)
    return CheckChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(job, "completed_at") or reading.moment(job, "started_at"),
        actor=actor,
        check="workflow_job",
        name=name,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=head_sha,
        branch=reading.text(job, "head_branch"),
        run_id=reading.ident(job, "run_id"),
        attempt=reading.number(job, "run_attempt"),
        job_id=reading.ident(job, "id"),
        app="github-actions",
        url=reading.url(job, "html_url"),
    )


def _outcome(payload: Object, check: Object) -> Outcome:
    """How the check stands. One that is asked for again still shows its old end: not a verdict."""
    if payload.get("action") == "rerequested":
        return QUEUED
    return outcome_of_two(reading.text(check, "status"), reading.text(check, "conclusion"))


def _numbers(check: Object) -> tuple[int, ...]:
    found = (reading.number(pull, "number") for pull in reading.objects(check, "pull_requests"))
    return tuple(number for number in found if number)


def _app(check: Object) -> str | None:
    app = reading.inner(check, "app")
    return reading.text(app, "slug") or reading.text(app, "name")


def _summary(output: Object) -> str:
    parts = (reading.prose(output, "title"), reading.prose(output, "summary"))
    return "\n".join(part for part in parts if part)[: reading.LONGEST_SUMMARY]


# ------------------------------------------------------------------ deliveries

SOURCE: Final = "github"

RepoReader: TypeAlias = Callable[[Object, str, Actor | None], Event | None]

_MOST_REPOS: Final = 10_000
_OPEN_ALERTS: Final = frozenset({"created", "reopened", "reintroduced", "auto_reopened"})
_QUEUE_REF: Final = re.compile(r"/pr-(?P<number>\d{1,15})-[0-9a-f]+$")
_REVIEW_STATES: Final[Mapping[str, ReviewState]] = {
    "approved": "approved",
    "changes_requested": "changes_requested",
    "commented": "commented",
    "dismissed": "dismissed",
}
_COMMENT_ACTIONS: Final[Mapping[str, CommentAction]] = {
    "created": "created",
    "edited": "edited",
    "deleted": "deleted",
}


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
) -> Delivery:
    authenticate(check_github, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    delivery_id = reading.required_header(headers, "x-github-delivery")
    event_name = reading.required_header(headers, "x-github-event")
    payload = reading.json_object(_json_of(headers, body))
    repo = _repo(payload)
    return Delivery(
        key=keys.GitHub(delivery_id, hook_id=_hook(headers)),
        delivery_id=delivery_id,
        source=SOURCE,
        event_name=event_name,
        repo=repo,
        payload=payload,
        events=_read(event_name, payload, repo),
    )


def read(event_name: str, payload: Object) -> tuple[Event, ...]:
    """The events of a payload; none if it is of no interest, or lacks what would identify it."""
    return _read(event_name, payload, _repo(payload))


def _read(event_name: str, payload: Object, repo: str | None) -> tuple[Event, ...]:
    actor = reading.actor(payload, "sender")
    if event_name in _READERS:
        event = _READERS[event_name](payload, repo, actor) if repo else None
    elif event_name == "ping":
        hook_id = reading.ident(payload, "hook_id")
        event = Pinged(source=SOURCE, repo=repo, actor=actor, hook_id=hook_id)
    elif event_name in {"installation", "installation_repositories"}:
        event = _installation(payload, actor)
    else:
        event = None
    return () if event is None else (event,)


def _json_of(headers: Headers, body: bytes) -> bytes | str:
    if not reading.is_form(headers, body):
        return body
    payload = reading.form_fields(body).get("payload")
    if payload is None:
        raise Malformed("the form has no field named payload")
    return payload


def _hook(headers: Headers) -> str | None:
    if headers.get("x-github-hook-installation-target-type") == "integration":
        app = reading.header(headers, "x-github-hook-installation-target-id")
        if app is not None:
            return f"app-{app}"
    return reading.header(headers, "x-github-hook-id")


def _repo(payload: Object) -> str | None:
    return _full_name(reading.inner(payload, "repository"))


def _full_name(repository: Object) -> str | None:
    if "full_name" in repository:
        return reading.repo_name(repository["full_name"])
    owner = reading.inner(repository, "owner")
    login = reading.text(owner, "login") or reading.text(owner, "name")
    return reading.repo_name(f"{login}/{reading.text(repository, 'name')}") if login else None


def _pull_request(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    pull = reading.inner(payload, "pull_request")
    number = reading.number(pull, "number") or reading.number(payload, "number")
    action = reading.text(payload, "action")
    if number is None or action is None:
        return None
    state = _state(action, pull)
    head, base = reading.inner(pull, "head"), reading.inner(pull, "base")
    return PullRequestChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(pull, "updated_at"),
        actor=actor,
        number=number,
        action="merged" if action == "closed" and state == "merged" else action,
        state=state,
        head_sha=reading.commit(head, "sha"),
        before_sha=reading.commit(payload, "before"),
        head_ref=reading.text(head, "ref"),
        base_ref=reading.text(base, "ref"),
        author=reading.actor(pull, "user"),
        title=reading.prose(pull, "title"),
        labels=_names(pull, "labels"),
        label=reading.text(reading.inner(payload, "label"), "name"),
        draft=reading.flag(pull, "draft") or False,
        from_fork=_from_fork(head, base),
        merge_commit_sha=reading.commit(pull, "merge_commit_sha") if state == "merged" else None,
        url=reading.url(pull, "html_url"),
    )


def _state(action: str, pull: Object) -> PullRequestState:
    if reading.flag(pull, "merged") or reading.text(pull, "merged_at"):
        return "merged"
    return "closed" if "closed" in {action, reading.text(pull, "state")} else "open"


def _from_fork(head: Object, base: Object) -> bool | None:
    """A head without its repository is that of a fork which was deleted since."""
    if "repo" not in head:
        return None
    ours = _full_name(reading.inner(base, "repo"))
    return None if ours is None else _full_name(reading.inner(head, "repo")) != ours


def _names(node: Object, name: str) -> tuple[str, ...]:
    found = (reading.text(item, "name") for item in reading.objects(node, name))
    return tuple(label for label in found if label)


def _review(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    pull, review = reading.inner(payload, "pull_request"), reading.inner(payload, "review")
    number = reading.number(pull, "number")
    state = _REVIEW_STATES.get((reading.text(review, "state") or "").lower())
    if number is None or state is None:
        return None
    return ReviewSubmitted(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(review, "updated_at") or reading.moment(review, "submitted_at"),
        actor=actor,
        number=number,
        state="dismissed" if payload.get("action") == "dismissed" else state,
        reviewer=reading.actor(review, "user"),
        head_sha=reading.commit(reading.inner(pull, "head"), "sha"),
        reviewed_sha=reading.commit(review, "commit_id"),
        body=reading.prose(review, "body", reading.LONGEST_COMMENT),
        url=reading.url(review, "html_url"),
    )


def _issue_comment(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    """A comment in the conversation; pull requests are issues which say that they are one."""
    issue = reading.inner(payload, "issue")
    if not reading.inner(issue, "pull_request"):
        return None
    return _comment(payload, repo, actor, reading.number(issue, "number"), None)


def _review_comment(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    pull = reading.inner(payload, "pull_request")
    head_sha = reading.commit(reading.inner(pull, "head"), "sha")
    return _comment(payload, repo, actor, reading.number(pull, "number"), head_sha, in_review=True)


def _comment(
    payload: Object,
    repo: str,
    actor: Actor | None,
    number: int | None,
    head_sha: str | None,
    *,
    in_review: bool = False,
) -> Event | None:
    comment = reading.inner(payload, "comment")
    comment_id = reading.ident(comment, "id")
    action = _COMMENT_ACTIONS.get(reading.text(payload, "action") or "")
    if number is None or comment_id is None or action is None:
        return None
    return Commented(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(comment, "updated_at"),
        actor=actor,
        number=number,
        action=action,
        comment_id=comment_id,
        author=reading.actor(comment, "user"),
        body=reading.prose(comment, "body", reading.LONGEST_COMMENT),
        in_review=in_review,
        head_sha=head_sha,
        url=reading.url(comment, "html_url"),
    )


def _push(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    ref = reading.text(payload, "ref")
    if ref is None or not reading.has_hashes(payload, "before", "after"):
        return None
    return Pushed(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(reading.inner(payload, "repository"), "pushed_at"),
        actor=actor,
        ref=ref,
        before=reading.commit(payload, "before"),
        after=reading.commit(payload, "after"),
        forced=reading.flag(payload, "forced"),
        pusher=reading.text(reading.inner(payload, "pusher"), "name"),
    )


def _merge_group(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    group = reading.inner(payload, "merge_group")
    action = reading.text(payload, "action")
    if action is None or not group:
        return None
    head_ref = reading.text(group, "head_ref")
    queued = _QUEUE_REF.search(head_ref or "")
    return MergeGroupChanged(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(reading.inner(group, "head_commit"), "timestamp"),
        actor=actor,
        action=action,
        head_sha=reading.commit(group, "head_sha"),
        head_ref=head_ref,
        base_sha=reading.commit(group, "base_sha"),
        base_ref=reading.text(group, "base_ref"),
        number=int(queued["number"]) if queued else None,
        reason=reading.text(payload, "reason"),
    )


def _advisory(payload: Object, repo: str, actor: Actor | None) -> Event | None:
    """A Dependabot alert that stands; one that was fixed or dismissed asks for nothing."""
    alert = reading.inner(payload, "alert")
    told = reading.inner(alert, "security_advisory")
    weak = reading.inner(alert, "security_vulnerability")
    of_manifest = reading.inner(reading.inner(alert, "dependency"), "package")
    package = reading.inner(weak, "package") or of_manifest
    advisory_id = reading.line(told, "cve_id") or reading.line(told, "ghsa_id")
    name = reading.line(package, "name")
    if reading.text(payload, "action") not in _OPEN_ALERTS or not advisory_id or not name:
        return None
    return AdvisoryReported(
        source=SOURCE,
        repo=repo,
        occurred_at=reading.moment(alert, "updated_at"),
        actor=actor,
        advisory_id=advisory_id,
        package=name,
        ecosystem=reading.line(package, "ecosystem") or "pip",
        vulnerable=reading.line(weak, "vulnerable_version_range"),
        fixed=reading.line(reading.inner(weak, "first_patched_version"), "identifier") or None,
        severity=reading.line(weak, "severity"),
        summary=reading.line(told, "summary"),
        url=reading.url(alert, "html_url"),
        branch=reading.line(reading.inner(payload, "repository"), "default_branch"),
    )


def _installation(payload: Object, actor: Actor | None) -> Event | None:
    installation = reading.inner(payload, "installation")
    installation_id = reading.ident(installation, "id")
    action = reading.text(payload, "action")
    if installation_id is None or action is None:
        return None
    listed = _repos(payload, "repositories")
    return InstallationChanged(
        source=SOURCE,
        occurred_at=reading.moment(installation, "updated_at"),
        actor=actor,
        action=action,
        installation_id=installation_id,
        account=reading.text(reading.inner(installation, "account"), "login"),
        added=_repos(payload, "repositories_added") or (() if action == "deleted" else listed),
        removed=_repos(payload, "repositories_removed") or (listed if action == "deleted" else ()),
    )


def _repos(payload: Object, name: str) -> tuple[str, ...]:
    found = (_full_name(repository) for repository in reading.objects(payload, name, _MOST_REPOS))
    return tuple(repo for repo in found if repo)


_READERS: Final[Mapping[str, RepoReader]] = {
    "pull_request": _pull_request,
    "pull_request_review": _review,
    "pull_request_review_comment": _review_comment,
    "issue_comment": _issue_comment,
    "push": _push,
    "merge_group": _merge_group,
    "check_run": check_run,
    "check_suite": check_suite,
    "status": commit_status,
    "workflow_run": workflow_run,
    "workflow_job": workflow_job,
    "dependabot_alert": _advisory,
}
