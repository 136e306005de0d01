"""Words about one pull request, as a forge would tell them; times are seconds, counted from one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from towline.events import (
    Actor,
    CheckChanged,
    Commented,
    Event,
    MergeGroupChanged,
    PullRequestChanged,
    ReviewSubmitted,
)
from towline.forges.snapshot import Snapshot
from towline.pulls.apply_event import fold
from towline.pulls.facts import Facts
from towline.pulls.lifecycle import State
from towline.pulls.model import PullRecord, Tracked
from towline.pulls.signals import Signals, Towing
from towline.pulls.transitions import Context, Entry, decide, opened

REPO = "octo-org/app"
HEAD, NEXT = "a" * 40, "b" * 40
BOT, PERSON = Actor("dependabot[bot]", "bot"), Actor("octocat", "user")
APPROVER = Actor("approver[bot]", "bot")
CONTEXT = Context(
    towing=Towing(authors=frozenset({"dependabot[bot]"}), labels=frozenset({"tow"})),
    ours=frozenset({"towline[bot]"}),
)
SECOND_US = 1_000_000
START_US = 1_700_000_000 * SECOND_US


def pull(action: str = "opened", at: float | None = 1, **fields: Any) -> PullRequestChanged:
    known: dict[str, Any] = {
        "source": "github",
        "repo": REPO,
        "number": 7,
        "state": "open",
        "head_sha": HEAD,
        "head_ref": "dependabot/pip/CVE-2024-12345",
        "base_ref": "main",
        "author": BOT,
        "actor": BOT,
        "title": "Bump a library",
        "url": "https://forge.example/octo-org/app/pull/7",
    }
    return PullRequestChanged(action=action, occurred_at=at, **known | fields)


def pushed(at: float | None = 50, by: Actor = BOT, sha: str = NEXT) -> PullRequestChanged:
    return pull("synchronize", at, head_sha=sha, before_sha=HEAD, actor=by)


def check(
    conclusion: str = "pending", at: float | None = 10, name: str = "build", **fields: Any
) -> CheckChanged:
    status = fields.pop("status", "in_progress" if conclusion == "pending" else "completed")
    known: dict[str, Any] = {"source": "github", "repo": REPO, "check": "check_run"}
    known |= {"head_sha": HEAD, "run_id": "100", "suite_id": "1", "app": "ci"}
    known |= {"name": name, "status": status, "conclusion": conclusion, "occurred_at": at}
    return CheckChanged(**known | fields)


def suite(status: str = "queued", at: float | None = 5, **fields: Any) -> CheckChanged:
    conclusion = fields.pop("conclusion", "success" if status == "completed" else "pending")
    return check(conclusion, at, "ci", check="check_suite", status=status, run_id="1", **fields)


def policy(
    conclusion: str, at: float | None = 30, summary: str = "", **fields: Any
) -> CheckChanged:
    known = {"check": "status", "run_id": None, "suite_id": None, "app": None}
    return check(conclusion, at, "policy-bot: main", summary=summary, **known | fields)


def review(
    state: str = "approved", at: float | None = 40, by: Actor = APPROVER, sha: str | None = HEAD
) -> ReviewSubmitted:
    return ReviewSubmitted(
        source="github", repo=REPO, number=7, state=state, reviewer=by, actor=by,  # type: ignore[arg-type]
        head_sha=sha, reviewed_sha=sha, occurred_at=at,
    )  # fmt: skip


def comment(body: str, at: float | None = 35, by: Actor = PERSON) -> Commented:
    return Commented(
        source="github", repo=REPO, number=7, action="created", comment_id=f"c{at}", author=by,
        actor=by, body=body, occurred_at=at,
    )  # fmt: skip


def queue(action: str = "checks_requested", at: float = 45, reason: str | None = None) -> Event:
    return MergeGroupChanged(
        source="github", repo=REPO, number=7, action=action, reason=reason, occurred_at=at
    )


def merged(at: float = 60) -> PullRequestChanged:
    return pull("merged", at, state="merged", merge_commit_sha="c" * 40)


def closed(at: float = 60, by: Actor = PERSON) -> PullRequestChanged:
    return pull("closed", at, state="closed", actor=by)


def snapshot(*words: Event, **fields: Any) -> Snapshot:
    """A look that shows these; the pull request is open unless one of them says otherwise."""
    pulls = [word for word in words if isinstance(word, PullRequestChanged)] or [pull("edited")]
    return Snapshot(
        pull=pulls[-1],
        checks=tuple(word for word in words if isinstance(word, CheckChanged)),
        reviews=tuple(word for word in words if isinstance(word, ReviewSubmitted)),
        comments=tuple(word for word in words if isinstance(word, Commented)),
        **fields,
    )


def facts(*words: Event, signals: Signals | None = None) -> Facts:
    known = Facts()
    for word in words or (pull(),):
        known = fold(known, word, signals or CONTEXT.signals)
    return known


def entry(key: str = "delivery:0", after: float = 0) -> Entry:
    return Entry(key=key, source="github-webhook", now_us=START_US + round(after * SECOND_US))


def new_record(state: State = "CREATED", **fields: Any) -> PullRecord:
    """In a state, with no word on anything but the pull request itself."""
    return opened(pull(), CONTEXT, entry()).record._replace(
        state=state, path=("CREATED",) if state == "CREATED" else ("CREATED", state), version=1
    )._replace(**fields)  # fmt: skip


def after(
    record: PullRecord | None, words: Iterable[Event], context: Context = CONTEXT
) -> tuple[PullRecord | None, list[str]]:
    """Each word in turn; the record, and the types of the lines that were written."""
    lines: list[str] = []
    for place, word in enumerate(words):
        tracked = decide(record, word, context, entry(f"d{place}:0", place))
        if tracked is not None:
            record = tracked.record._replace(version=(record.version if record else 0) + 1)
            lines += [event.event_type for event in tracked.events]
    return record, lines


def told(record: PullRecord | None, word: Event, context: Context = CONTEXT) -> Tracked:
    tracked = decide(record, word, context, entry(after=100))
    assert tracked is not None
    return tracked


def hoped(state: State, *words: Event, **fields: Any) -> PullRecord:
    """As a remedy leaves it, a minute after these words were heard."""
    tried_us = START_US + 60 * SECOND_US
    known = facts(pull(), *words)
    heard = {name: replace(word, heard_us=START_US) for name, word in known.checks.items()}
    known = replace(known, checks=heard, policy_heard_us=START_US)
    judged = {n: replace(word, heard_us=START_US) for n, word in known.policy_checks.items()}
    known = replace(known, policy_checks=judged)
    fields = {"since_us": tried_us, "last_remediation_us": tried_us, **fields}
    return new_record(state, facts=known, **fields)
