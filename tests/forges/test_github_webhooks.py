"""GitHub: every real payload is read, and what it carries is found."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.forges.samples import (
    GUID,
    NOW,
    OLD_SECRET,
    SECRET,
    Sample,
    each,
    github_headers,
    indexed,
)
from towline.events import (
    CheckChanged,
    Commented,
    Event,
    MergeGroupChanged,
    Pinged,
    PullRequestChanged,
    Pushed,
    ReviewSubmitted,
)
from towline.forges.delivery import BadSignature, Delivery, Malformed
from towline.forges.github import webhooks as github
from towline_once import keys

SAMPLES = [
    sample._replace(event="create" if sample.event == "create_or_delete" else sample.event)
    for sample in indexed("github-webhooks", "event")
]
GITHUB_CONCLUSIONS = {
    *("success", "failure", "neutral", "cancelled", "skipped", "timed_out"),
    *("action_required", "stale", "startup_failure"),
}


def receive(raw: bytes, event: str, **changed: str) -> Delivery:
    headers = github_headers(raw, event) | {k.replace("_", "-"): v for k, v in changed.items()}
    return github.receive(headers, raw, [SECRET], NOW)


def only(payload: Any, event: str) -> Event:
    (found,) = receive(json.dumps(payload).encode(), event).events
    return found


def repo_of(payload: Any) -> str | None:
    repository = payload.get("repository")
    if not repository:
        return None
    return repository.get("full_name") or f"{repository['owner']['login']}/{repository['name']}"


def expected_conclusion(payload: Any, check: Any) -> str:
    if payload["action"] == "rerequested" or check["status"] != "completed":
        return "pending"
    told: str = check["conclusion"]
    return told if told in GITHUB_CONCLUSIONS else "action_required"


def check_pull_request(event: Event, payload: Any) -> None:
    assert isinstance(event, PullRequestChanged)
    pull = payload["pull_request"]
    merged = bool(pull.get("merged"))
    action = "merged" if merged and payload["action"] == "closed" else payload["action"]
    assert (event.number, event.head_sha) == (pull["number"], pull["head"]["sha"])
    assert (event.head_ref, event.base_ref) == (pull["head"]["ref"], pull["base"]["ref"])
    assert (event.action, event.merged) == (action, merged)
    closed = payload["action"] == "closed" or pull["state"] == "closed"
    assert event.state == ("merged" if merged else "closed" if closed else "open")
    assert event.author is not None
    assert event.author.login == pull["user"]["login"]
    assert event.title == pull["title"]
    assert event.labels == tuple(label["name"] for label in pull.get("labels", []))
    assert event.draft == pull.get("draft", False)
    assert event.merge_commit_sha == (pull["merge_commit_sha"] if merged else None)
    assert event.url == pull.get("html_url")
    assert (event.occurred_at is None) == ("updated_at" not in pull)


def check_check(event: Event, payload: Any, name: str) -> None:
    assert isinstance(event, CheckChanged)
    check = payload[name]
    assert event.check == name
    assert event.head_sha == check["head_sha"]
    assert event.conclusion == expected_conclusion(payload, check)
    assert (event.status == "completed") == (event.conclusion != "pending")
    assert event.pr_numbers == tuple(pull["number"] for pull in check.get("pull_requests", []))
    assert event.run_id == str(check["run_id"] if name == "workflow_job" else check["id"])
    assert event.attempt == check.get("run_attempt")


def check_comment(event: Event, payload: Any, number: int) -> None:
    assert isinstance(event, Commented)
    assert event.number == number
    assert (event.action, event.comment_id) == (payload["action"], str(payload["comment"]["id"]))
    assert event.body == payload["comment"]["body"]
    assert event.author is not None
    assert event.author.login == payload["comment"]["user"]["login"]


def check_review(event: Event, payload: Any) -> None:
    assert isinstance(event, ReviewSubmitted)
    pull, review = payload["pull_request"], payload["review"]
    assert (event.number, event.state) == (pull["number"], review["state"].lower())
    assert (event.head_sha, event.reviewed_sha) == (pull["head"]["sha"], review.get("commit_id"))
    assert event.reviewer is not None
    assert event.reviewer.login == review["user"]["login"]


def check_push(event: Event, payload: Any) -> None:
    assert isinstance(event, Pushed)
    zero = "0" * 40
    assert event.ref == payload["ref"]
    assert (event.before or zero, event.after or zero) == (payload["before"], payload["after"])
    assert (event.forced, event.deleted) == (payload["forced"], payload["deleted"])
    assert event.pusher == payload["pusher"]["name"]


def check_status(event: Event, payload: Any) -> None:
    assert isinstance(event, CheckChanged)
    told = {"error": "failure"}.get(payload["state"], payload["state"])
    assert (event.head_sha, event.conclusion) == (payload["sha"], told)
    assert (event.check, event.name) == ("status", payload["context"])
    assert event.url == payload["target_url"]


def check_merge_group(event: Event, payload: Any) -> None:
    assert isinstance(event, MergeGroupChanged)
    group = payload["merge_group"]
    assert (event.action, event.reason) == (payload["action"], payload.get("reason"))
    assert (event.head_sha, event.base_sha) == (group["head_sha"], group["base_sha"])
    assert f"/pr-{event.number}-" in group["head_ref"]


def check_events(events: tuple[Event, ...], payload: Any, name: str) -> None:
    """Compare with what the raw JSON says, by the type of the event."""
    interesting = {
        *("pull_request", "pull_request_review", "pull_request_review_comment", "push", "ping"),
        *("status", "merge_group", "check_run", "check_suite", "workflow_run", "workflow_job"),
    }
    if name == "issue_comment" and payload["issue"].get("pull_request"):
        check_comment(events[0], payload, payload["issue"]["number"])
    elif name not in interesting or payload.get(name, "none of its own") is None:
        assert events == ()
        return
    elif name in {"check_run", "check_suite", "workflow_run", "workflow_job"}:
        check_check(events[0], payload, name)
    elif name == "pull_request":
        check_pull_request(events[0], payload)
    elif name == "pull_request_review":
        check_review(events[0], payload)
    elif name == "pull_request_review_comment":
        check_comment(events[0], payload, payload["pull_request"]["number"])
    elif name == "push":
        check_push(events[0], payload)
    elif name == "status":
        check_status(events[0], payload)
    elif name == "merge_group":
        check_merge_group(events[0], payload)
    else:
        assert isinstance(events[0], Pinged)
        assert events[0].hook_id == str(payload["hook_id"])
    assert len(events) == 1


@each(SAMPLES)
def test_real_payload(sample: Sample) -> None:
    """Repository, number, commit and outcome are those of the raw JSON; the rest gives nothing."""
    delivery = receive(sample.raw, sample.event)
    payload = sample.json
    assert delivery.repo == repo_of(payload)
    assert (delivery.delivery_id, delivery.event_name) == (GUID, sample.event)
    assert str(delivery.key) == f"github:12:{GUID}"
    assert keys.parse(str(delivery.key)) == delivery.key
    assert delivery.payload == payload
    check_events(delivery.events, payload, sample.event)
    for event in delivery.events:
        assert (event.source, event.repo) == ("github", repo_of(payload))
        sender = (payload.get("sender") or {}).get("login")
        assert (event.actor.login if event.actor else None) == sender


@each(SAMPLES)
def test_real_payload_as_a_form(sample: Sample) -> None:
    """A hook set to form encoding gives the same delivery; its signature is that of the form."""
    form = urlencode({"payload": sample.raw.decode()}).encode()
    as_form = receive(form, sample.event, content_type="application/x-www-form-urlencoded")
    assert as_form == receive(sample.raw, sample.event)


@each(SAMPLES)
def test_real_payload_wrongly_signed(sample: Sample) -> None:
    """A changed byte, another secret and no signature are refused; the secret before is not."""
    headers = github_headers(sample.raw, sample.event)
    middle = len(sample.raw) // 2
    tampered = bytearray(sample.raw)
    tampered[middle] ^= 1
    with pytest.raises(BadSignature):
        github.receive(headers, bytes(tampered), [SECRET], NOW)
    with pytest.raises(BadSignature):
        github.receive(headers, sample.raw, ["another"], NOW)
    headers.pop("x-hub-signature-256")
    with pytest.raises(BadSignature):
        github.receive(headers, sample.raw, [SECRET], NOW)
    old = github_headers(sample.raw, sample.event, secret=OLD_SECRET)
    assert github.receive(old, sample.raw, [SECRET, OLD_SECRET], NOW).delivery_id == GUID


def test_all_payloads_were_seen() -> None:
    """The table above is not empty by mistake."""
    if not SAMPLES:
        pytest.skip("the folder with real payloads is not there")
    found = [event for s in SAMPLES for event in receive(s.raw, s.event).events]
    assert (len(SAMPLES), len(found)) == (145, 106)


@pytest.mark.parametrize("name", ["x_github_delivery", "x_github_event"])
@pytest.mark.parametrize("value", ["", "x" * 256, "a\nb", "ä", "\udc80"])
def test_headers_that_must_be_there(name: str, value: str) -> None:
    """Without a usable delivery id and event name there is nothing to deduplicate or to read."""
    with pytest.raises(Malformed, match=name.replace("_", "-")):
        receive(b"{}", "ping", **{name: value})


def test_key_names_the_hook_or_the_app() -> None:
    """Two hooks, or a hook and an App of one number, never share a key; nameless ones can be."""
    repository = {"x_github_hook_installation_target_type": "repository"}
    app = {"x_github_hook_installation_target_type": "integration"}
    target = {"x_github_hook_installation_target_id": "12"}
    found = [
        receive(b"{}", "ping").key,
        receive(b"{}", "ping", **repository, **target, x_github_hook_id="13").key,
        receive(b"{}", "ping", **app, **target).key,
        receive(b"{}", "ping", **app).key,
        receive(b"{}", "ping", x_github_hook_id="").key,
    ]
    ends = ["12:", "13:", "app-12:", "12:", ""]
    assert [str(key) for key in found] == [f"github:{end}{GUID}" for end in ends]
    assert all(keys.parse(str(key)) == key for key in found)


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"",
            b"[]",
            b"null",
            b"1",
            b"\xff",
            b"{",
            b'{"a":1,"a":2}',
            b'{"a":NaN}',
            b"\xef\xbb\xbf{}",
        ),
        *(b'{"a":' * 300 + b"1" + b"}" * 300, b'{"a":"\\ud800"}', b'{"a":1e999}', b"[" * 100_000),
    ],
)
def test_bodies_that_are_not_a_json_object(body: bytes) -> None:
    """Other JSON, broken JSON, duplicate names, NaN, surrogates and deep nesting are a 400."""
    with pytest.raises(Malformed) as refused:
        receive(body, "pull_request")
    assert (refused.value.status, refused.value.code) == (400, "malformed")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"a=b",
        b"payload=",
        b"payload={}&payload={}",
        b"payload=%ff",
        b"payload=\xff",
        b"a&" * 200,
    ],
)
def test_forms_without_a_payload(body: bytes) -> None:
    """A form that does not hold exactly one readable payload is a 400."""
    with pytest.raises(Malformed):
        receive(body, "ping", content_type="application/x-www-form-urlencoded; charset=utf-8")


def test_curl_calls_json_a_form() -> None:
    """JSON is read as such under the content type that curl gives it."""
    assert receive(b"{}", "ping", content_type="application/x-www-form-urlencoded").events


def test_signature_comes_before_parsing() -> None:
    """What is not signed is a 401, however broken it is."""
    with pytest.raises(BadSignature):
        github.receive({}, b"\xff", [SECRET], NOW)
