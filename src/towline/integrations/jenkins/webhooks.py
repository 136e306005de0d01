"""Notifications of Jenkins builds, as its Notification plugin sends them.

Jenkins sends no delivery id, but a build enters each phase once. The job is named by its full URL,
as two controllers may have jobs of one name, and the queue's number is added where it is sent: a
branch that comes back has its job made anew, and its builds numbered from one again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from towline.events import CheckChanged, Event
from towline.forges import payload as reading
from towline.forges.delivery import Delivery, Headers, Malformed
from towline.forges.payload import QUEUED, RUNNING, Object, Outcome, outcome_of
from towline.forges.signature import authenticate, check_shared
from towline_once import keys

SOURCE: Final = "jenkins"

_STILL: Final[Mapping[str, Outcome]] = {"QUEUED": QUEUED, "STARTED": RUNNING}
_ENDED: Final = frozenset({"COMPLETED", "FINALIZED"})
_PULL_REQUEST_JOB: Final = re.compile(r"(?:^|/)PR-(?P<number>\d{1,15})(?:-(?:head|merge))?/?$")
_NUMBER_PARAMETERS: Final = ("ghprbPullId", "CHANGE_ID", "gitlabMergeRequestIid")
_COMMIT_PARAMETERS: Final = ("ghprbActualCommit", "gitlabMergeRequestLastCommit")


def receive(
    headers: Headers,
    body: bytes,
    secrets: Sequence[str],
    now: float,
    *,
    allow_unsigned: bool = False,
) -> Delivery:
    authenticate(check_shared, headers, body, secrets, now, allow_unsigned=allow_unsigned)
    payload = reading.json_object(body)
    key = _key(payload)
    return Delivery(
        key=key,
        delivery_id=str(key).removeprefix("jenkins:"),
        source=SOURCE,
        event_name=_phase(payload).lower(),
        repo=_repo(payload),
        payload=payload,
        events=read(payload),
    )


def read(payload: Object) -> tuple[Event, ...]:
    """One event for each phase, but for what a job sends of its own accord, outside of any."""
    build = reading.inner(payload, "build")
    outcome = _outcome(_phase(payload), build)
    if outcome is None:
        return ()
    scm, parameters = reading.inner(build, "scm"), reading.inner(build, "parameters")
    number = _number(payload, parameters)
    changed = CheckChanged(
        source=SOURCE,
        repo=_repo(payload),
        occurred_at=reading.moment_of_ms(build, "timestamp"),
        check="build",
        name=_job_path(payload),
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=_first_commit(parameters) or reading.commit(scm, "commit"),
        pr_numbers=(number,) if number else (),
        branch=_branch(scm),
        run_id=reading.ident(build, "number"),
        app="jenkins",
        summary=_log(build),
        url=reading.url(build, "full_url"),
    )
    return (changed,)


def _key(payload: Object) -> keys.Jenkins:
    build = reading.inner(payload, "build")
    number = reading.ident(build, "number")
    if number is None or not _phase(payload):
        raise Malformed("a notification has a build with its number and phase")
    status, queue = reading.text(build, "status", 64), reading.ident(build, "queue_id")
    entered = f"{_phase(payload)}:{status or ''}:{queue or ''}".rstrip(":")
    return keys.Jenkins(_job(payload, number), number, entered)


def _job(payload: Object, number: str) -> str:
    """The job's URL, or as much as was sent of it; a hash of it where that is very long."""
    build = reading.inner(payload, "build")
    full_url = (reading.url(build, "full_url") or "").rstrip("/")
    of_build = full_url.endswith(f"/{number}")
    job = full_url[: -len(number) - 1] if of_build else _job_path(payload)
    return job if len(job) <= reading.LONGEST_ID else reading.body_hash(job.encode())


def _job_path(payload: Object) -> str:
    job = reading.text(payload, "url") or reading.text(payload, "name")
    if not (job or "").strip("/"):
        raise Malformed("a notification has the job's name or url")
    return (job or "").strip("/")


def _phase(payload: Object) -> str:
    return (reading.text(reading.inner(payload, "build"), "phase", 64) or "").upper()


def _outcome(phase: str, build: Object) -> Outcome | None:
    if phase in _ENDED:
        ended = outcome_of(reading.text(build, "status") or "")
        return ended if ended.status == "completed" else None
    return _STILL.get(phase)


def _repo(payload: Object) -> str | None:
    scm = reading.inner(reading.inner(payload, "build"), "scm")
    return reading.repo_of_url(scm.get("url"))


def _number(payload: Object, parameters: Object) -> int | None:
    """The pull request: told by the plugins that build them, or by the name of the branch's job."""
    for name in _NUMBER_PARAMETERS:
        if number := reading.number(parameters, name):
            return number
    job = _PULL_REQUEST_JOB.search(_job_path(payload))
    return int(job["number"]) or None if job else None


def _first_commit(parameters: Object) -> str | None:
    """The head itself, where the build's own commit is a merge of it that only Jenkins knows."""
    found = (reading.commit(parameters, name) for name in _COMMIT_PARAMETERS)
    return next((sha for sha in found if sha), None)


def _branch(scm: Object) -> str | None:
    branch = reading.text(scm, "branch")
    return branch.removeprefix("origin/") if branch else None


def _log(build: Object) -> str:
    """The end of the log, where the job is set to send it: there the failure is named."""
    log = build.get("log")
    return log[-reading.LONGEST_SUMMARY :].replace("\0", "") if isinstance(log, str) else ""
