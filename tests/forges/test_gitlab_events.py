"""A look at GitLab and its webhooks tell the same of one thing, on payloads of real instances."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from towline.events import CheckChanged, Commented, Event, PullRequestChanged
from towline.forges.gitlab import webhooks as gitlab
from towline.forges.gitlab.snapshots import comment_of, job_of, pipeline_of, pull_of

PAYLOADS = Path(__file__).resolve().parents[3] / "shared/data/gitlab-webhooks"
FILES = sorted(PAYLOADS.rglob("*.json"))
ONLY_WEBHOOKS = {"actor", "action", "before_sha", "label"}
"""Who did what just now: of a look nobody can say."""

pytestmark = pytest.mark.skipif(not FILES, reason="the shared data is not here")


def payloads(kind: type[Event], check: str | None = None) -> list[Any]:
    """Those which tell of this kind of thing, each with its event."""
    found = []
    for file in FILES:
        payload = json.loads(file.read_text())
        for event in gitlab.read(payload) if isinstance(payload, dict) else ():
            if type(event) is kind and getattr(event, "check", None) == check:
                name = f"{file.parent.name}-{file.stem}"
                found.append(pytest.param(payload, event, id=name))
    return found


def differences(webhook: Event, look: Event | None, but: set[str]) -> dict[str, object]:
    assert look is not None
    told, seen = asdict(webhook), asdict(look)
    return {
        name: (told[name], seen[name]) for name in told.keys() - but if told[name] != seen[name]
    }


def a_pull(repo: str, number: int, head_sha: str | None) -> PullRequestChanged:
    return PullRequestChanged(
        source="gitlab", repo=repo, number=number, action="seen", state="open", head_sha=head_sha
    )


@pytest.mark.parametrize(("payload", "webhook"), payloads(PullRequestChanged))
def test_a_merge_request_is_read_alike(
    payload: dict[str, Any], webhook: PullRequestChanged
) -> None:
    """Its details by the REST API give the event that its webhook gave."""
    told = payload["object_attributes"]
    labels = payload.get("labels") or told.get("labels") or []
    author = payload["user"] if told.get("author_id") == payload["user"].get("id") else None
    node = {
        **{name: told[name] for name in told.keys() & {"iid", "title", "state", "updated_at"}},
        **{name: told[name] for name in told if name.startswith(("source_", "target_"))},
        "iid": webhook.number,
        "draft": webhook.draft,
        "sha": told["last_commit"]["id"],
        "merge_commit_sha": told.get("merge_commit_sha"),
        "labels": [label["title"] for label in labels],
        "author": author,
        "web_url": told.get("url"),
    }
    look = pull_of(webhook.repo, node)
    assert differences(webhook, look, ONLY_WEBHOOKS | {"state"}) == {}
    assert look.action == ("seen" if look.state == "open" else look.state)


@pytest.mark.parametrize(("payload", "webhook"), payloads(CheckChanged, "pipeline"))
def test_a_pipeline_is_read_alike(payload: dict[str, Any], webhook: CheckChanged) -> None:
    """As the head pipeline of a merge request it gives the event that its webhook gave."""
    told = payload["object_attributes"]
    number = webhook.pr_numbers[0] if webhook.pr_numbers else 1
    node = {
        **{name: told.get(name) for name in ("id", "ref", "status", "created_at", "finished_at")},
        "web_url": told.get("url"),
        "user": payload.get("user"),
        "detailed_status": {"text": told.get("detailed_status")},
    }
    look = pipeline_of(a_pull(webhook.repo or "", number, webhook.head_sha), node, told.get("name"))
    assert differences(webhook, look, {"pr_numbers"}) == {}


@pytest.mark.parametrize(("payload", "webhook"), payloads(CheckChanged, "job"))
def test_a_job_is_read_alike(payload: dict[str, Any], webhook: CheckChanged) -> None:
    """The REST API's job gives the event that its webhook gave, and its page in addition."""
    parts = ("id", "name", "status", "allow_failure", "failure_reason")
    moments = ("finished_at", "started_at", "created_at")
    node = {name: payload.get(f"build_{name}") for name in (*parts, *moments)}
    node |= {"ref": payload["ref"], "user": payload.get("user")}
    pull = a_pull(webhook.repo or "", 1, webhook.head_sha)
    look = job_of(pull, webhook.run_id or "7", node)
    but = {"pr_numbers", "url", "attempt"} | (set() if webhook.run_id else {"run_id"})
    assert differences(webhook, look, but) == {}


@pytest.mark.parametrize(("payload", "webhook"), payloads(Commented))
def test_a_note_is_read_alike(payload: dict[str, Any], webhook: Commented) -> None:
    """A note on a merge request gives the comment that its webhook gave."""
    told = payload["object_attributes"]
    node = {
        **{name: told.get(name) for name in ("id", "created_at", "updated_at", "system", "type")},
        "body": told["note"],
        "author": payload["user"],
    }
    pull = a_pull(webhook.repo, webhook.number, webhook.head_sha)
    assert differences(webhook, comment_of(pull, node), {"url"}) == {}
