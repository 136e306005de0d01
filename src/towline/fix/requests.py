"""What asks for a fix: a failed check, a comment, an issue, an advisory, or the tow itself.

Two events about one failure have the same `run_key`, whichever came first: GitHub tells of one
failed job as a check run and as a workflow job, both with the job's id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from towline.events import AdvisoryReported, CheckChanged, Commented, Event, IssueChanged
from towline.fix.model import (
    BRANCH_PREFIX,
    Advisory,
    Errand,
    FixPolicy,
    FixRules,
    IssueRule,
    digest_of,
)
from towline.forges.payload import line
from towline.forges.registry import FORGES

FAILED: Final = frozenset({"failure", "timed_out"})
SINGLE: Final = frozenset({"check_run", "workflow_job", "status", "job", "build"})
"""Kinds of checks that are one job. A suite, a workflow or a pipeline repeats what its jobs say."""
LONGEST_TITLE: Final = 120
_ISSUE_ACTIONS: Final = frozenset({"created", "updated", "commented", "found"})


class Started(NamedTuple):
    """An errand, and the key that it has however often it is asked for."""

    run_key: str
    errand: Errand


def starts_of(events: Sequence[Event], rules: FixRules) -> list[tuple[str, Started]]:
    """The fix runs that a delivery asks for, each with the name that it has within the delivery.

    One with an advisory asks for nothing else.
    """
    if not rules.repos:
        return []
    asked = [
        ("advisory" if isinstance(event, AdvisoryReported) else str(place), started)
        for place, event in enumerate(events)
        if (started := errand_of(event, rules)) is not None
    ]
    return [one for one in asked if one[0] == "advisory"] or asked


def is_counted(started: Started) -> bool:
    """Whether the rate of its repository counts it; a run that a person asks for starts at once."""
    return "comment" not in started.errand.more


def errand_of(event: Event, rules: FixRules) -> Started | None:
    """What an event asks for; None if it is nothing to us."""
    if isinstance(event, CheckChanged):
        return _failed(event, rules)
    if isinstance(event, Commented):
        return _asked(event, rules)
    if isinstance(event, IssueChanged):
        return _wanted(event, rules)
    if isinstance(event, AdvisoryReported):
        return _advised(event, rules)
    return None


# ------------------------------------------------------------------ failures


def _failed(event: CheckChanged, rules: FixRules) -> Started | None:
    policy = rules.repos.get(event.repo or "")
    if policy is None or event.repo is None or not _may_start(event, policy):
        return None
    branch = event.branch or ""
    own = event.check in ("check_run", "workflow_job")
    which = (event.job_id or event.run_id) if own else (event.run_id, event.job_id, event.attempt)
    if not any(which or ()):
        which = event.head_sha
    more = {"source": event.source, "kind": event.check}
    of_pull = not _on_base(branch, policy) and len(event.pr_numbers) == 1
    if of_pull:
        more["number"] = str(event.pr_numbers[0])
    for name, value in (("attempt", event.attempt), ("app", event.app), ("suite", event.suite_id)):
        if value is not None:
            more[name] = str(value)
    errand = Errand(
        cause="failure",
        forge=policy.forge,
        repo=event.repo,
        base_ref=branch,
        head_ref=branch if of_pull else None,
        sha=event.head_sha,
        title=f"Fix {event.name} on {branch}"[:LONGEST_TITLE],
        check=event.name,
        conclusion=event.conclusion,
        run_id=event.run_id,
        job_id=event.job_id,
        logs_url=event.logs_url,
        summary=event.summary,
        url=event.url,
        more=more,
    )
    return Started(digest_of("check", event.source, event.repo, event.name, which), errand)


def _may_start(event: CheckChanged, policy: FixPolicy) -> bool:
    if event.status != "completed" or event.conclusion not in FAILED or event.check not in SINGLE:
        return False
    if event.source in FORGES and event.source != policy.forge:
        return False
    branch = event.branch
    if branch is None or branch.startswith(BRANCH_PREFIX):
        return False
    if not any(fnmatchcase(event.name, glob) for glob in policy.checks):
        return False
    return policy.on_pulls or _on_base(branch, policy)


def _on_base(branch: str, policy: FixPolicy) -> bool:
    return any(fnmatchcase(branch, glob) for glob in policy.base_branches)


def check_of(errand: Errand) -> CheckChanged:
    """The failed check again, as its forge is asked for its log."""
    more = errand.more
    attempt = more.get("attempt", "")
    kind: Any = more.get("kind", "check_run")
    conclusion: Any = errand.conclusion or "failure"
    return CheckChanged(
        source=more.get("source", errand.forge),
        repo=errand.repo,
        check=kind,
        name=errand.check or "",
        status="completed",
        conclusion=conclusion,
        head_sha=errand.sha,
        branch=errand.base_ref,
        run_id=errand.run_id,
        attempt=int(attempt) if attempt.isdecimal() else None,
        job_id=errand.job_id,
        suite_id=more.get("suite"),
        app=more.get("app"),
        summary=errand.summary,
        url=errand.url,
        logs_url=errand.logs_url,
    )


# ------------------------------------------------------------------ the store


def _asked(event: Commented, rules: FixRules) -> Started | None:
    """A comment with our command, by anybody but ourselves; whether they may is looked up later."""
    policy = rules.repos.get(event.repo)
    login = event.author.login if event.author is not None else None
    if policy is None or policy.forge != event.source or event.action != "created":
        return None
    if login is None or login in rules.own_logins:
        return None
    instruction = instruction_in(event, rules.command)
    if instruction is None:
        return None
    errand = Errand(
        cause="request",
        forge=event.source,
        repo=event.repo,
        base_ref="",
        title=_title(instruction) or f"Work on #{event.number}",
        instruction=instruction,
        requested_by=login,
        url=event.url,
        more={"number": str(event.number), "comment": event.comment_id, "source": event.source},
    )
    key = digest_of("note", event.source, event.repo, event.number, event.comment_id)
    return Started(key, errand)


def instruction_in(event: Commented, command: str) -> str | None:
    """What follows the command, to the end of the comment; None if it is not given."""
    word = f"/{command}"
    if word not in event.given.unknown:
        return None
    lines = event.body.splitlines()
    for place, text in enumerate(lines):
        first, _, rest = text.strip().partition(" ")
        if first == word:
            return "\n".join([rest.strip(), *lines[place + 1 :]]).strip()
    return ""


def _wanted(event: IssueChanged, rules: FixRules) -> Started | None:
    rule = next((rule for rule in rules.issues if _matches(rule, event)), None)
    policy = rules.repos.get(rule.repo) if rule is not None else None
    if rule is None or policy is None:
        return None
    errand = Errand(
        cause="request",
        forge=policy.forge,
        repo=rule.repo,
        base_ref="",
        title=_title(f"{event.issue}: {event.summary}"),
        instruction="\n\n".join(part for part in (event.summary, event.comment) if part),
        requested_by=event.actor.login if event.actor is not None else None,
        more={"issue": event.issue, "source": event.source},
    )
    return Started(digest_of("issue", event.source, event.issue), errand)


def _matches(rule: IssueRule, event: IssueChanged) -> bool:
    if event.action not in _ISSUE_ACTIONS or rule.project != event.project:
        return False
    if not rule.labels and not rule.statuses:
        return False
    labelled = not rule.labels or not rule.labels.isdisjoint(event.labels)
    status = (event.status or "").casefold()
    return labelled and (not rule.statuses or status in rule.statuses)


# ------------------------------------------------------------------ advisories


def _advised(event: AdvisoryReported, rules: FixRules) -> Started | None:
    advisory = Advisory(
        id=event.advisory_id,
        package=event.package,
        ecosystem=event.ecosystem,
        vulnerable=event.vulnerable,
        fixed=event.fixed,
        severity=event.severity,
        summary=event.summary,
        url=event.url,
    )
    return _advisory(event.repo, advisory, event.branch, rules)


def _advisory(repo: str, advisory: Advisory, base_ref: str, rules: FixRules) -> Started | None:
    policy = rules.repos.get(repo)
    if policy is None:
        return None
    return Started(
        digest_of("advisory", repo, advisory.id, advisory.package, advisory.fixed),
        vulnerable(policy.forge, repo, advisory, base_ref),
    )


def audited(
    repo: str, advisory: Advisory, base_ref: str, rules: FixRules
) -> tuple[Started, str] | None:
    """What an audit found, and the name of that: the same, however often it is found."""
    started = _advisory(repo, advisory, base_ref, rules)
    return None if started is None else (started, f"audit:{started.run_key}")


def vulnerable(forge: str, repo: str, advisory: Advisory, base_ref: str = "") -> Errand:
    to = f" to {advisory.fixed}" if advisory.fixed else ""
    return Errand(
        cause="vulnerability",
        forge=forge,
        repo=repo,
        base_ref=base_ref,
        title=_title(f"Bump {advisory.package}{to} ({advisory.id})"),
        summary=advisory.summary,
        advisory=advisory,
        vulnerability_id=advisory.id,
        url=advisory.url,
    )


# ---------------------------------------------------------------------- the tow


def replacing(params: Mapping[str, Any]) -> Started | None:
    """What close-and-reopen asks for: a fresh pull request for the same thing."""
    repo, forge = line(params, "repo"), line(params, "forge")
    number = params.get("replaces")
    if not repo or not forge or type(number) is not int:
        return None
    vulnerability = line(params, "vulnerability_id") or None
    title = line(params, "title")
    errand = Errand(
        cause="vulnerability" if vulnerability else "request",
        forge=forge,
        repo=repo,
        base_ref=line(params, "base_ref"),
        title=title,
        instruction=title,
        vulnerability_id=vulnerability,
        replaces=number,
    )
    return Started(digest_of("replace", forge, repo, number), errand)


def _title(text: str) -> str:
    return " ".join(text.split())[:LONGEST_TITLE].rstrip()
