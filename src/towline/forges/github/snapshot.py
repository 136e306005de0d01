"""What GitHub shows of a pull request, made into a snapshot. Pure.

The objects are in the shape that GitHub's REST API and its webhooks share, and are read by the
same functions that read webhooks: a look and a webhook about the same thing say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from towline.events import CheckChanged, Commented, Event, PullRequestChanged, ReviewSubmitted
from towline.forges import payload as reading
from towline.forges.delivery_log import ForgeUnreadable
from towline.forges.github import webhooks as github
from towline.forges.payload import Object
from towline.forges.snapshot import Snapshot

ACTIONS: Final = "github-actions"
NEWEST_COMMENTS: Final = 30

_SHUT: Final = frozenset({"blocked", "dirty", "behind", "draft"})
_OPEN: Final = frozenset({"clean", "unstable", "has_hooks"})
_OPINIONS: Final = frozenset({"approved", "changes_requested", "dismissed"})

E_ = TypeVar("E_", bound=Event)


class WorkflowRun(NamedTuple):
    """A run of Actions, which has a check suite of its own."""

    id: str
    suite_id: str
    workflow: str | None = None
    attempt: int | None = None
    started_at: float | None = None
    completed: bool = False

    @property
    def runs_again(self) -> bool:
        return not self.completed and (self.attempt or 1) > 1


@dataclass(kw_only=True)
class Seen:
    """Its parts, as far as they are known; reviews and comments are oldest first."""

    repo: str
    pull: Object
    runs: Sequence[Object] = ()
    suites: Sequence[Object] = ()
    statuses: Sequence[Object] = ()
    reviews: Sequence[Object] = ()
    comments: Sequence[Object] = ()
    workflows: Mapping[str, WorkflowRun] = field(default_factory=dict)
    """By the suite's id."""
    review_decision: str | None = None

    @property
    def head_sha(self) -> str | None:
        return reading.commit(reading.inner(self.pull, "head"), "sha")

    @property
    def attempts_known(self) -> bool:
        return any(run.attempt is not None for run in self.workflows.values())

    @property
    def is_open(self) -> bool:
        return self.pull.get("state") == "open"


def snapshot_of(seen: Seen) -> Snapshot:
    pull = seen.pull
    state = (reading.text(pull, "mergeable_state") or "unknown").lower()
    mergeable = reading.flag(pull, "mergeable")
    return Snapshot(
        pull=_pull(seen),
        body=reading.prose(pull, "body", reading.LONGEST_COMMENT),
        checks=(*_check_runs(seen), *_suites(seen), *_statuses(seen)),
        reviews=_reviews(seen),
        comments=_comments(seen),
        conflicts=None if mergeable is None else not mergeable,
        behind=_behind(state),
        blocked=_blocked(state, seen.review_decision) if seen.is_open else None,
    )


def _behind(state: str) -> bool | None:
    """GitHub shows one state by precedence: behind something that blocks, it is not told."""
    return True if state == "behind" else False if state in _OPEN else None


def _blocked(state: str, decision: str | None) -> str | None:
    if state not in _SHUT:
        return None
    if state == "blocked" and decision in ("REVIEW_REQUIRED", "CHANGES_REQUESTED"):
        return f"{state}: {decision.lower()}"
    return state


def _read(kind: type[E_], name: str, repo: str, payload: Object) -> E_ | None:
    events = github.read(name, {**payload, "repository": {"full_name": repo}})
    return next((event for event in events if isinstance(event, kind)), None)


def _pull(seen: Seen) -> PullRequestChanged:
    """Its action is `seen` while it is open; the end of a closed one is told by its state."""
    action = "seen" if seen.is_open else "closed"
    payload: Object = {"action": action, "pull_request": seen.pull}
    pull = _read(PullRequestChanged, "pull_request", seen.repo, payload)
    if pull is None:
        raise ForgeUnreadable("GitHub's pull request has no number")
    return pull


def _check_runs(seen: Seen) -> Iterable[CheckChanged]:
    """The newest run of each name in each workflow; of workflows that share a name, the worst."""
    suites = {reading.ident(suite, "id"): suite for suite in seen.suites}
    branch = reading.text(reading.inner(seen.pull, "head"), "ref")
    newest: dict[tuple[str, str | None, str | None], CheckChanged] = {}
    for run in seen.runs:
        suite_id = reading.ident(reading.inner(run, "check_suite"), "id")
        workflow = seen.workflows.get(suite_id or "")
        payload: Object = {
            "check_run": {**run, "check_suite": {"id": suite_id, "head_branch": branch}}
        }
        if _is_of_an_old_attempt(run, suites.get(suite_id), workflow):
            payload["action"] = "rerequested"
        check = _read(CheckChanged, "check_run", seen.repo, payload)
        if check is None or check.head_sha != seen.head_sha:
            continue
        key = (check.name, check.app, _group(workflow, suite_id))
        if key not in newest or _age(newest[key]) < _age(check):
            newest[key] = check
    return _worst_of_each_name(newest.values())


def _is_of_an_old_attempt(run: Object, suite: Object | None, workflow: WorkflowRun | None) -> bool:
    """Whether a red verdict is one that a person or bot has asked to be reached anew.

    Of Actions the attempt decides. Any other app's suite that is queued again has been asked for
    again, whatever its old runs still show.
    """
    if run.get("status") != "completed" or _passes(run):
        return False
    if workflow is not None:
        ended = reading.moment(run, "completed_at")
        return (
            workflow.runs_again
            and ended is not None
            and workflow.started_at is not None
            and ended <= workflow.started_at
        )
    app = reading.text(reading.inner(run, "app"), "slug")
    return suite is not None and app != ACTIONS and suite.get("status") == "queued"


def needs_workflows(seen: Seen) -> bool:
    """Whether only the runs of Actions, and their attempts, tell if a red verdict still counts.

    It may be of an attempt before the one that is running, or of a run of the same workflow
    before the newest: then its jobs have the same names, or it ended before it had any.
    """
    suites = {reading.ident(one, "id"): one for one in seen.suites if _app(one) == ACTIONS}
    verdicts: dict[str | None, dict[str | None, bool]] = {}
    red, with_runs = set(), set()
    for run in seen.runs:
        suite_id = reading.ident(reading.inner(run, "check_suite"), "id")
        if suite_id in suites:
            with_runs.add(suite_id)
            verdicts.setdefault(reading.text(run, "name"), {})[suite_id] = _passes(run)
            if run.get("status") == "completed" and not _passes(run):
                red.add(suite_id)
    for suite_id, suite in suites.items():
        ended = suite.get("status") == "completed"
        if ended and not _passes(suite) and suite_id not in with_runs and len(suites) > 1:
            return True
        if not ended and suite_id in red:
            return True
    return any(len(set(of_name.values())) > 1 for of_name in verdicts.values())


def last_red_of_actions(seen: Seen) -> float | None:
    """When a job of Actions last failed, if one did: it may have been asked for again since."""
    ended = [
        reading.moment(run, "completed_at") or 0.0
        for run in seen.runs
        if _app(run) == ACTIONS and run.get("status") == "completed" and not _passes(run)
    ]
    return max(ended, default=None)


def _suites(seen: Seen) -> Iterable[CheckChanged]:
    """The newest of each app, and of each workflow of Actions.

    A suite without runs that has not ended was made for an app that has nothing to do here.
    """
    with_runs = {reading.ident(reading.inner(run, "check_suite"), "id") for run in seen.runs}
    newest: dict[tuple[str | None, str | None], CheckChanged] = {}
    for suite in seen.suites:
        suite_id = reading.ident(suite, "id")
        workflow = seen.workflows.get(suite_id or "")
        if suite.get("status") != "completed" and suite_id not in with_runs and workflow is None:
            continue
        payload: Object = {"check_suite": suite}
        if workflow is not None and workflow.runs_again and suite.get("status") == "completed":
            payload["action"] = "rerequested"
        check = _read(CheckChanged, "check_suite", seen.repo, payload)
        if check is None or check.head_sha != seen.head_sha:
            continue
        key = (check.app, _group(workflow, suite_id))
        if key not in newest or _age(newest[key]) < _age(check):
            newest[key] = check
    return newest.values()


def _statuses(seen: Seen) -> Iterable[CheckChanged]:
    newest: dict[str, CheckChanged] = {}
    head = reading.inner(seen.pull, "head")
    ours = reading.inner(head, "repo").get("full_name") == seen.repo
    where: Object = {
        "sha": seen.head_sha,
        "branches": [{"name": head.get("ref")}] if ours else [],
    }
    for status in seen.statuses:
        check = _read(CheckChanged, "status", seen.repo, {**status, **where})
        if check and (check.name not in newest or _age(newest[check.name]) < _age(check)):
            newest[check.name] = check
    return newest.values()


def _worst_of_each_name(checks: Iterable[CheckChanged]) -> Iterable[CheckChanged]:
    """Two workflows may both have a job `build`: one that passed must not hide one that failed."""
    worst: dict[tuple[str, str | None], CheckChanged] = {}
    for check in checks:
        key = (check.name, check.app)
        if key not in worst or _weight(worst[key]) < _weight(check):
            worst[key] = check
    return worst.values()


def _group(workflow: WorkflowRun | None, suite_id: str | None) -> str | None:
    """Within a workflow the newest run counts, be it of another suite; else within a suite."""
    return workflow.workflow if workflow and workflow.workflow else suite_id


def _weight(check: CheckChanged) -> tuple[int, tuple[int, float]]:
    badness = 0 if check.passed else 1 if check.conclusion == "pending" else 2
    return badness, _age(check)


def _age(check: CheckChanged) -> tuple[int, float]:
    """Grows with newer ones: ids count up; what has none has only its time."""
    number = check.run_id or ""
    return int(number) if number.isdecimal() else 0, check.occurred_at or 0.0


def _reviews(seen: Seen) -> tuple[ReviewSubmitted, ...]:
    """The last opinion of each reviewer; one that was dismissed counts no more."""
    pull: Object = {"number": seen.pull.get("number"), "head": seen.pull.get("head")}
    last: dict[str, ReviewSubmitted] = {}
    for review in seen.reviews:
        payload: Object = {"review": review, "pull_request": pull}
        read = _read(ReviewSubmitted, "pull_request_review", seen.repo, payload)
        if read is None or read.reviewer is None or read.state not in _OPINIONS:
            continue
        login = read.reviewer.login
        if login not in last or (last[login].occurred_at or 0) <= (read.occurred_at or 0):
            last[login] = read
    return tuple(review for review in last.values() if review.state != "dismissed")


def _comments(seen: Seen) -> tuple[Commented, ...]:
    issue: Object = {"number": seen.pull.get("number"), "pull_request": {"url": ""}}
    found = []
    for comment in seen.comments[-NEWEST_COMMENTS:]:
        changed = comment.get("updated_at") != comment.get("created_at")
        action = "edited" if changed else "created"
        payload: Object = {"action": action, "issue": issue, "comment": comment}
        read = _read(Commented, "issue_comment", seen.repo, payload)
        if read is not None:
            found.append(read)
    return tuple(found)


def _passes(run: Object) -> bool:
    return run.get("conclusion") in ("success", "neutral", "skipped")


def _app(check: Object) -> str | None:
    return reading.text(reading.inner(check, "app"), "slug")
