"""GitLab: every real payload is read, signed either way, and the delivery id is a stable one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.forges.samples import (
    GUID,
    NOW,
    OLD_SECRET,
    SECRET,
    SIGNING_SECRET,
    Sample,
    each,
    gitlab_headers,
    indexed,
    standard_webhooks_headers,
)
from towline.events import (
    CheckChanged,
    Commented,
    Event,
    PullRequestChanged,
    Pushed,
    ReviewSubmitted,
)
from towline.forges.delivery import BadSignature, Delivery, Malformed
from towline.forges.gitlab import webhooks as gitlab
from towline_once import keys

SAMPLES = indexed("gitlab-webhooks", "kind")
KEY = b"thirty-two bytes of a signing key"
CONCLUSIONS = {"success": "success", "created": "pending", "running": "pending"}
ACTIONS = {"open": "opened", "merge": "merged", "close": "closed", "reopen": "reopened"}


def receive(raw: bytes, **changed: str) -> Delivery:
    headers = gitlab_headers(raw) | {k.replace("_", "-"): v for k, v in changed.items()}
    return gitlab.receive(headers, raw, [SECRET], NOW)


def only(payload: Any) -> Event:
    (found,) = receive(json.dumps(payload).encode()).events
    return found


def kind_of(payload: Any) -> str:
    return str(payload.get("object_kind") or payload.get("event_name"))


def repo_of(payload: Any) -> str | None:
    if "path_with_namespace" in payload:
        return str(payload["path_with_namespace"])
    if payload.get("project", {}).get("path_with_namespace"):
        return str(payload["project"]["path_with_namespace"])
    home = payload.get("repository", {}).get("homepage")
    return "/".join(home.split("/")[3:]) if home else None


def check_merge_request(event: Event, payload: Any) -> None:
    request = payload["object_attributes"]
    clean = {name.strip(): value for name, value in request.items()}
    assert isinstance(event, PullRequestChanged)
    assert (event.number, event.head_sha) == (clean["iid"], request["last_commit"]["id"])
    assert event.state == clean["state"].strip().replace("opened", "open")
    assert event.head_ref == request.get("source_branch")
    assert event.base_ref == request.get("target_branch")
    if request.get("action") in ACTIONS:
        assert event.action == ACTIONS[request["action"]]
    assert event.labels == tuple(label["title"] for label in payload.get("labels") or [])
    if "source_project_id" in request:
        assert event.from_fork == (request["source_project_id"] != request["target_project_id"])


def check_note(events: tuple[Event, ...], payload: Any) -> None:
    if payload["object_attributes"]["noteable_type"] != "MergeRequest":
        assert events == ()
        return
    (event,) = events
    assert isinstance(event, Commented)
    assert (event.number, event.action) == (payload["merge_request"]["iid"], "created")
    assert event.body == payload["object_attributes"]["note"]
    assert event.head_sha == payload["merge_request"]["last_commit"]["id"]
    assert event.author is not None
    assert event.author.login == payload["user"]["username"]


def check_pipeline(event: Event, payload: Any) -> None:
    assert isinstance(event, CheckChanged)
    pipeline = payload["object_attributes"]
    assert (event.check, event.head_sha) == ("pipeline", pipeline["sha"])
    assert event.conclusion == CONCLUSIONS[pipeline["status"]]
    assert event.pr_numbers == (payload["merge_request"]["iid"],)
    assert (event.run_id, event.branch) == (str(pipeline["id"]), pipeline["ref"])


def check_job(event: Event, payload: Any) -> None:
    assert isinstance(event, CheckChanged)
    assert (event.check, event.name) == ("job", payload["build_name"])
    assert (event.head_sha, event.job_id) == (payload["sha"], str(payload["build_id"]))
    assert event.conclusion == CONCLUSIONS[payload["build_status"]]


def check_push(event: Event, payload: Any) -> None:
    assert isinstance(event, Pushed)
    assert event.ref == payload["ref"]
    assert (event.before or "0" * 40, event.after) == (payload["before"], payload["after"])
    assert event.pusher == payload.get("user_username", payload["user_name"])


@each(SAMPLES)
def test_real_payload(sample: Sample) -> None:
    """Repository, number, commit and outcome are those of the raw JSON; the rest gives nothing."""
    delivery, payload = receive(sample.raw), sample.json
    kind = kind_of(payload)
    assert (delivery.event_name, delivery.repo) == (kind, repo_of(payload))
    assert delivery.key == keys.GitLab(GUID, hook_id="hook")
    assert keys.parse(str(delivery.key)) == delivery.key
    assert all(event.repo == repo_of(payload) for event in delivery.events)
    if kind == "note":
        check_note(delivery.events, payload)
        return
    checks = {
        "merge_request": check_merge_request,
        "pipeline": check_pipeline,
        "build": check_job,
        "push": check_push,
        "tag_push": check_push,
    }
    assert len(delivery.events) == (kind in checks)
    for event in delivery.events:
        checks[kind](event, payload)


@each(SAMPLES)
def test_real_payload_signed(sample: Sample) -> None:
    """A signed delivery is the same as one with a token, and tampering with it is noticed."""
    headers = standard_webhooks_headers(sample.raw, KEY)
    delivery = gitlab.receive(headers, sample.raw, [SIGNING_SECRET], NOW)
    assert str(delivery.key) == "gitlab:msg_1"
    assert delivery.events == receive(sample.raw).events
    for body, secrets in [(sample.raw + b" ", [SIGNING_SECRET]), (sample.raw, [SECRET])]:
        with pytest.raises(BadSignature):
            gitlab.receive(headers, body, secrets, NOW)


@each(SAMPLES)
def test_real_payload_with_a_token(sample: Sample) -> None:
    """Both active tokens are good; another one, or none, is refused."""
    old = gitlab_headers(sample.raw, token=OLD_SECRET)
    assert gitlab.receive(old, sample.raw, [SECRET, OLD_SECRET], NOW).delivery_id == GUID
    with pytest.raises(BadSignature):
        gitlab.receive(old, sample.raw, [SECRET], NOW)
    old.pop("x-gitlab-token")
    with pytest.raises(BadSignature):
        gitlab.receive(old, sample.raw, [SECRET], NOW)


def test_all_payloads_were_seen() -> None:
    """The table above is not empty by mistake."""
    if not SAMPLES:
        pytest.skip("the folder with real payloads is not there")
    assert (len(SAMPLES), sum(len(receive(s.raw).events) for s in SAMPLES)) == (60, 19)


def test_repeated_members() -> None:
    """A member that is repeated is harmless if it says the same, and else a 400."""
    assert receive(b'{"a":[1,{}],"a":[1,{}]}').payload == {"a": [1, {}]}
    for body in [b'{"a":1,"a":2}', b'{"a":1,"a":true}', b'{"a":1,"a":1.0}', b'{"a":NaN,"a":NaN}']:
        with pytest.raises(Malformed):
            receive(body)
    for body in [b'{"a":1,"a":1,"b":"\\ud800"}', b'{"a":1,"a":1,"b":1e999}', b"\xff", b"[" * 9999]:
        with pytest.raises(Malformed):
            receive(body)


def test_delivery_id_is_the_best_there_is() -> None:
    """Signed id, then key, then unsigned id, then event and body: each only without the former."""
    raw, other = b'{"a":1}', b'{"a":2}'
    signed = standard_webhooks_headers(raw, KEY) | {"idempotency-key": "forged"}
    assert gitlab.receive(signed, raw, [SIGNING_SECRET], NOW).delivery_id == "msg_1"
    assert receive(raw, webhook_id="w").delivery_id == GUID
    assert receive(raw, idempotency_key="", webhook_id="w").delivery_id == "w"
    event = {"idempotency_key": "", "x_gitlab_event_uuid": "event"}
    assert receive(raw, **event).key == receive(raw, **event).key
    assert receive(raw, **event).key != receive(other, **event).key
    assert receive(raw, **event).delivery_id.startswith("event:sha256-")
    assert receive(raw, idempotency_key="").delivery_id.startswith("sha256-")
    with pytest.raises(Malformed):
        receive(raw, idempotency_key="x" * 256)


@pytest.mark.parametrize(
    "repository",
    [
        {"homepage": "https://gitlab.example/group/sub/name"},
        {"git_http_url": "https://gitlab.example/group/sub/name.git"},
        {"git_ssh_url": "git@gitlab.example:group/sub/name.git"},
        {"git_ssh_url": "ssh://git@gitlab.example:2222/group/sub/name.git"},
    ],
)
def test_jobs_of_older_instances(repository: Any) -> None:
    """Where no project is sent, any address of the repository tells its path."""
    assert receive(json.dumps({"repository": repository}).encode()).repo == "group/sub/name"


def test_recursive_hooks_are_not_duplicates() -> None:
    """Two hooks of one event have two keys, by the hook's id."""
    assert receive(b"{}").key != receive(b"{}", x_gitlab_webhook_uuid="other").key


REQUEST = {
    "object_kind": "merge_request",
    "user": {"id": 3, "username": "u"},
    "project": {"path_with_namespace": "group/sub/name"},
}


def request_event(changes: Any = None, **attributes: Any) -> Event:
    payload = {"object_attributes": {"iid": 4} | attributes, "changes": changes}
    return only(REQUEST | payload)


@pytest.mark.parametrize(
    ("attributes", "changes", "action"),
    [
        ({"action": "update", "oldrev": "a" * 40}, {"labels": {}}, "synchronize"),
        ({"action": "update", "draft": True}, {"draft": {}}, "converted_to_draft"),
        ({"action": "update", "work_in_progress": False}, {"draft": {}}, "ready_for_review"),
        ({"action": "update"}, {"labels": {}}, "labeled"),
        ({"action": "update"}, {"title": {}}, "edited"),
        ({}, None, "edited"),
    ],
)
def test_what_kind_of_update(attributes: Any, changes: Any, action: str) -> None:
    """An update is told in GitHub's words."""
    event = request_event(changes, **attributes)
    assert isinstance(event, PullRequestChanged)
    assert (event.repo, event.action) == ("group/sub/name", action)


def test_approvals_are_reviews() -> None:
    """An approval and its withdrawal are told by the merge request, of the head it has."""
    for action, state in [("approved", "approved"), ("unapproval", "dismissed")]:
        event = request_event(action=action, last_commit={"id": "b" * 40})
        assert isinstance(event, ReviewSubmitted)
        assert (event.number, event.state, event.reviewed_sha) == (4, state, "b" * 40)
        assert event.reviewer is not None


def test_the_author_is_named_only_if_known() -> None:
    """The payload has the author's number: it is the actor's name if that is the actor's."""
    for author, known in [(3, True), (8, False)]:
        event = request_event(author_id=author)
        assert isinstance(event, PullRequestChanged)
        assert (event.author is not None) == known


def test_system_notes_are_not_comments() -> None:
    """What GitLab writes itself into a merge request is no person's command."""
    payload = REQUEST | {"object_kind": "note", "merge_request": {"iid": 4}}
    note = {"id": 1, "note": "/rebuild", "action": "update", "type": "DiffNote"}
    event = only(payload | {"object_attributes": note})
    assert isinstance(event, Commented)
    assert (event.action, event.in_review, event.body) == ("edited", True, "/rebuild")
    system = payload | {"object_attributes": note | {"system": True}}
    assert receive(json.dumps(system).encode()).events == ()


@pytest.mark.parametrize(
    ("status", "allowed", "conclusion"),
    [
        ("failed", False, "failure"),
        ("failed", True, "neutral"),
        ("manual", False, "action_required"),
        ("manual", True, "neutral"),
        ("canceled", True, "cancelled"),
        ("skipped", False, "skipped"),
        ("waiting_for_resource", False, "pending"),
        ("canceling", False, "pending"),
        ("brand_new", True, "action_required"),
    ],
)
def test_outcomes_of_jobs(status: str, allowed: bool, conclusion: str) -> None:
    """A job that may fail does not count as failed; a word that is not known never passes."""
    event = only(
        REQUEST
        | {
            "object_kind": "build",
            "sha": "c" * 40,
            "build_name": "test",
            "build_status": status,
            "build_allow_failure": allowed,
            "build_failure_reason": "runner_system_failure",
            "retries_count": 2,
        }
    )
    assert isinstance(event, CheckChanged)
    assert (event.conclusion, event.attempt) == (conclusion, 3)
    assert (event.summary != "") == (conclusion != "pending")
