"""GitHub: what no real payload here shows, but GitHub or an attacker may send."""

from __future__ import annotations

import json
from typing import Any

from tests.forges.test_github_webhooks import only, receive
from towline.events import (
    Actor,
    CheckChanged,
    InstallationChanged,
    PullRequestChanged,
    ReviewSubmitted,
)

PULL = {
    "number": 7,
    "state": "open",
    "head": {"sha": "a" * 40, "ref": "fix", "repo": {"full_name": "o/n"}},
    "base": {"ref": "main", "repo": {"full_name": "o/n"}},
}
REPOSITORY = {"full_name": "o/n"}


def pull_event(pull: Any, **more: Any) -> PullRequestChanged:
    event = only(
        {"action": "opened", "repository": REPOSITORY, "pull_request": pull} | more, "pull_request"
    )
    assert isinstance(event, PullRequestChanged)
    return event


def test_forks() -> None:
    """A head in another repository, or in one that is gone, is a fork's; without word, unknown."""
    head = PULL["head"]
    assert isinstance(head, dict)
    for repository, from_fork in [({"full_name": "o/n"}, False), ({"full_name": "f/n"}, True)]:
        assert pull_event(PULL | {"head": head | {"repo": repository}}).from_fork is from_fork
    assert pull_event(PULL | {"head": head | {"repo": None}}).from_fork is True
    assert pull_event(PULL | {"head": {"sha": "b" * 40}}).from_fork is None
    assert pull_event(PULL | {"base": {}}).from_fork is None


def test_who_acts() -> None:
    """Bots are told from people, by type or by name; a deleted account is nobody."""
    for sender, actor in [
        ({"login": "a", "type": "User"}, Actor("a", "user")),
        ({"login": "renovate[bot]", "type": "Bot"}, Actor("renovate[bot]", "bot")),
        ({"login": "renovate[bot]"}, Actor("renovate[bot]", "bot")),
        ({"login": "a"}, Actor("a")),
        (None, None),
        ({}, None),
    ]:
        assert pull_event(PULL, sender=sender).actor == actor


def test_a_rerequested_check_shows_no_old_verdict() -> None:
    """Between a rerun and its first check the old end is still in the payload, and ignored."""
    run = {"head_sha": "a" * 40, "name": "build", "status": "completed", "conclusion": "failure"}
    for action, conclusion in [("completed", "failure"), ("rerequested", "pending")]:
        payload = {"action": action, "repository": REPOSITORY, "check_run": run}
        event = only(payload, "check_run")
        assert isinstance(event, CheckChanged)
        assert (event.conclusion, event.passed) == (conclusion, False)


def test_dismissed_review() -> None:
    """A dismissal is told by the action, whatever state the review shows."""
    review = {"state": "APPROVED", "user": {"login": "r"}}
    payload = {"action": "dismissed", "repository": REPOSITORY, "pull_request": PULL}
    event = only(payload | {"review": review}, "pull_request_review")
    assert isinstance(event, ReviewSubmitted)
    assert event.state == "dismissed"


def test_installations() -> None:
    """An App's repositories are told as added or removed, more than a page of them too."""
    listed = [{"full_name": f"o/n{number}"} for number in range(300)]
    names = tuple(f"o/n{number}" for number in range(300))
    installation = {"id": 5, "account": {"login": "o"}}
    cases: list[tuple[str, Any, tuple[str, ...], tuple[str, ...]]] = [
        ("installation", {"action": "created", "repositories": listed}, names, ()),
        ("installation", {"action": "deleted", "repositories": listed}, (), names),
        ("installation_repositories", {"repositories_added": listed}, names, ()),
        ("installation_repositories", {"repositories_removed": listed}, (), names),
    ]
    for name, payload, added, removed in cases:
        event = only({"action": "x", "installation": installation} | payload, name)
        assert isinstance(event, InstallationChanged)
        assert (event.installation_id, event.account) == ("5", "o")
        assert (event.added, event.removed) == (added, removed)


def test_hostile_fields_read_as_nothing() -> None:
    """What could not be stored or shown, or stand in a path, does not get into an event."""
    event = pull_event(
        PULL
        | {
            "html_url": "javascript:alert(1)",
            "title": "a\0b" + "x" * 9999,
            "user": {"login": "a\0"},
        }
    )
    assert (event.url, event.author) == (None, None)
    assert event.title.startswith("abx")
    assert len(event.title) < 2100
    for repository in ["../n", "o/..", "o", "o/n\n", "o/n?x", "", 1, "o/" + "n" * 300]:
        payload = {"action": "x", "pull_request": PULL, "repository": {"full_name": repository}}
        assert receive(json.dumps(payload).encode(), "pull_request").events == ()
