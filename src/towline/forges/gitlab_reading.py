"""GitLab's REST objects, put in the words of its webhooks and read by the reader of those.

So a look and a webhook cannot tell two things of one merge request. What the webhooks leave out,
such as the page of a job, is added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from towline.core.canonical import JsonValue
from towline.core.events import (
    CheckChanged,
    Commented,
    Event,
    PullRequestChanged,
    ReviewState,
    ReviewSubmitted,
)
from towline.core.snapshot import Snapshot
from towline.ports.forge import ForgeUnreadable, Permission
from towline.sources import gitlab, reading
from towline.sources.outcomes import outcome_of
from towline.sources.reading import Object

_ACTIONS: Final[Mapping[str, str]] = {"merged": "merge", "closed": "close"}
_WAITING: Final = frozenset({"preparing", "checking", "unchecked", "cannot_be_merged_recheck"})
_CONFLICT: Final = frozenset({"conflict", "cannot_be_merged"})
_BEHIND: Final = "need_rebase"
_FREE: Final = frozenset({"mergeable", "can_be_merged", "not_open", _BEHIND, *_WAITING, *_CONFLICT})
_LEVELS: Final[Sequence[tuple[int, Permission]]] = (
    (50, "admin"),
    (40, "maintain"),
    (30, "write"),
    (15, "triage"),
    (10, "read"),
)


class Mergeability(NamedTuple):
    conflicts: bool | None
    behind: bool | None
    blocked: str | None


class MergeRequest(NamedTuple):
    """What the writes go by; `status` is GitLab's `detailed_merge_status`."""

    state: str
    sha: str | None
    status: str
    source_branch: str | None
    source_project: str | None
    labels: tuple[str, ...]
    rebasing: bool
    merge_error: str
    mergeability: Mergeability

    @property
    def is_open(self) -> bool:
        return self.state in ("opened", "locked")


def merge_request(node: Object) -> MergeRequest:
    if reading.number(node, "iid") is None or reading.text(node, "state") is None:
        raise ForgeUnreadable("GitLab's answer is not a merge request")
    return MergeRequest(
        state=reading.text(node, "state") or "",
        sha=reading.commit(node, "sha"),
        status=_status(node),
        source_branch=reading.text(node, "source_branch"),
        source_project=reading.ident(node, "source_project_id"),
        labels=reading.texts(node, "labels"),
        rebasing=reading.flag(node, "rebase_in_progress") or False,
        merge_error=reading.prose(node, "merge_error", 200),
        mergeability=mergeability(node),
    )


def _status(node: Object) -> str:
    return reading.text(node, "detailed_merge_status") or reading.text(node, "merge_status") or ""


def mergeability(node: Object) -> Mergeability:
    """One word is all that GitLab says, the gravest; other fields tell what it hides."""
    word = _status(node)
    conflicts = reading.flag(node, "has_conflicts")
    if word in _CONFLICT:
        conflicts = True
    elif not _WAITING.isdisjoint((word, reading.text(node, "merge_status"))):
        conflicts = None
    diverged = node.get("diverged_commits_count")
    behind = diverged > 0 if type(diverged) is int else None
    return Mergeability(
        conflicts,
        True if word == _BEHIND else behind,
        word if word and word not in _FREE else None,
    )


def is_waiting(word: str) -> bool:
    """Whether GitLab is still working out if it can be merged."""
    return word in _WAITING


def permission(member: Object) -> Permission:
    level = member.get("access_level")
    if type(level) is not int or reading.text(member, "state") not in (None, "active"):
        return "none"
    return next((word for least, word in _LEVELS if level >= least), "none")


def is_active(pipeline: Object) -> bool:
    return outcome_of(reading.text(pipeline, "status") or "").status != "completed"


def pull_of(repo: str, node: Object) -> PullRequestChanged:
    """Its action is `seen` while it is open."""
    state = reading.text(node, "state") or ""
    author = node.get("author")
    attributes: Object = {
        **{name: node.get(name) for name in _SHARED},
        "action": _ACTIONS.get(state, "open"),
        "url": node.get("web_url"),
        "author_id": reading.inner(node, "author").get("id"),
        "last_commit": {"id": node.get("sha")},
        "merge_commit_sha": node.get("merge_commit_sha") or node.get("squash_commit_sha"),
    }
    labels: list[JsonValue] = [{"title": label} for label in reading.texts(node, "labels")]
    pull = _read(repo, "merge_request", user=author, object_attributes=attributes, labels=labels)
    if not isinstance(pull, PullRequestChanged):
        raise ForgeUnreadable("GitLab's answer is not a merge request")
    return replace(pull, actor=None, action="seen" if pull.state == "open" else pull.action)


_SHARED: Final = (
    *("iid", "title", "source_branch", "target_branch", "source_project_id", "target_project_id"),
    *("updated_at", "draft", "work_in_progress"),
)


def snapshot_of(repo: str, node: Object) -> Snapshot:
    """Without checks, reviews and comments."""
    standing = mergeability(node)
    return Snapshot(
        pull=pull_of(repo, node),
        body=reading.prose(node, "description", reading.LONGEST_COMMENT),
        conflicts=standing.conflicts,
        behind=standing.behind,
        blocked=standing.blocked,
    )


def pipeline_of(pull: PullRequestChanged, node: Object, name: str | None) -> CheckChanged | None:
    told = reading.text(reading.inner(node, "detailed_status"), "text")
    attributes: Object = {
        **node,
        "sha": pull.head_sha,
        "name": name,
        "url": node.get("web_url"),
        "detailed_status": told,
    }
    mine: Object = {"iid": pull.number}
    event = _read(
        pull.repo,
        "pipeline",
        user=node.get("user"),
        object_attributes=attributes,
        merge_request=mine,
    )
    if not isinstance(event, CheckChanged):
        return None
    errors = reading.prose(node, "yaml_errors")
    return replace(event, summary=errors) if errors else event


def job_of(pull: PullRequestChanged, pipeline_id: str, node: Object) -> CheckChanged | None:
    event = _read(
        pull.repo,
        "build",
        user=node.get("user"),
        sha=pull.head_sha,
        ref=node.get("ref"),
        pipeline_id=pipeline_id,
        build_id=node.get("id"),
        build_name=node.get("name"),
        build_status=node.get("status"),
        build_allow_failure=node.get("allow_failure"),
        build_failure_reason=node.get("failure_reason"),
        build_finished_at=node.get("finished_at"),
        build_started_at=node.get("started_at"),
        build_created_at=node.get("created_at"),
    )
    if not isinstance(event, CheckChanged):
        return None
    return replace(event, pr_numbers=(pull.number,), url=reading.url(node, "web_url"))


def status_of(pull: PullRequestChanged, node: Object) -> CheckChanged | None:
    """A status that another system set: no webhook tells of it."""
    name, word = reading.text(node, "name"), reading.text(node, "status")
    if name is None or word is None:
        return None
    outcome = outcome_of(word)
    return CheckChanged(
        source=gitlab.SOURCE,
        repo=pull.repo,
        occurred_at=reading.moment(node, "finished_at")
        or reading.moment(node, "started_at")
        or reading.moment(node, "created_at"),
        actor=reading.actor(node, "author", login="username"),
        check="status",
        name=name,
        status=outcome.status,
        conclusion=outcome.conclusion,
        head_sha=pull.head_sha,
        pr_numbers=(pull.number,),
        branch=reading.text(node, "ref"),
        run_id=reading.ident(node, "pipeline_id"),
        summary=reading.prose(node, "description"),
        url=reading.url(node, "target_url"),
    )


def comment_of(pull: PullRequestChanged, node: Object) -> Commented | None:
    """None for what GitLab itself notes."""
    edited = node.get("updated_at") not in (None, node.get("created_at"))
    attributes: Object = {
        "id": node.get("id"),
        "note": node.get("body"),
        "system": node.get("system"),
        "type": node.get("type"),
        "action": "update" if edited else "create",
        "updated_at": node.get("updated_at") or node.get("created_at"),
        "url": f"{pull.url}#note_{node.get('id')}" if pull.url else None,
    }
    request: Object = {"iid": pull.number, "last_commit": {"id": pull.head_sha}}
    event = _read(
        pull.repo,
        "note",
        user=node.get("author"),
        object_attributes=attributes,
        merge_request=request,
    )
    return event if isinstance(event, Commented) else None


def review_of(pull: PullRequestChanged, node: Object, state: ReviewState) -> ReviewSubmitted | None:
    """GitLab lists an approval for as long as it counts, and does not say for which commit."""
    who = reading.actor(node, "user", login="username")
    if who is None:
        return None
    return ReviewSubmitted(
        source=gitlab.SOURCE,
        repo=pull.repo,
        occurred_at=reading.moment(node, "approved_at") or reading.moment(node, "updated_at"),
        actor=who,
        number=pull.number,
        state=state,
        reviewer=who,
        head_sha=pull.head_sha,
        reviewed_sha=pull.head_sha,
        url=pull.url,
    )


def _read(repo: str, kind: str, **payload: JsonValue) -> Event | None:
    project: Object = {"path_with_namespace": repo}
    events = gitlab.read({"object_kind": kind, "project": project, **payload})
    return events[0] if events else None
