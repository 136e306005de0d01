"""GitHub's five ways to tell how a commit fares: two kinds of checks, statuses, and Actions.

The numbers of pull requests are taken as listed: for a fork they are not, and the commit decides.
"""

from __future__ import annotations

from typing import Final

from towline.core.events import Actor, CheckChanged, Event
from towline.sources import reading
from towline.sources.outcomes import QUEUED, Outcome, outcome_of, outcome_of_two
from towline.sources.reading import Object

SOURCE: Final = "github"


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
