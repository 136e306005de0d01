"""What hooks are sent: readable by our own sources, and what GitHub sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from towline.events import Actor
from towline.forges.github import webhooks as github
from towline_sim.actors.scenario import Customs, Town
from towline_sim.github.entities import Emitted
from towline_sim.github.webhooks import payload_of
from towline_sim.in_process import ROOT

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
HOOKS = SHARED / "github-webhooks"


def busy_town() -> Town:
    """One in which everything that can be told is told."""
    town = Town(2, Customs(ci={"transient": 1.0}, rulings={"sod": 1.0}, announces="merging"))
    world, repo = town.world, town.repo
    pull = town.open_fix("CVE-2024-1001")
    world.run_until(world.now + 3600)
    suite = world.suites(repo, pull.head_sha)[0]
    run = world.suite_runs(repo, suite.id)[0]
    world.rerequest_suite(repo, suite.id, "octo-org")
    world.rerequest_run(repo, run.id, "octo-org")
    world.run_until(world.now + 3600)
    comment = world.comment(repo, pull.number, "octocat", "/policy")
    world.edit_comment(repo, comment.id, "octocat", "/policy please")
    world.delete_comment(repo, comment.id, "octocat")
    world.dispatch(repo, "policy", {"number": pull.number}, "octo-org")
    world.run_until(world.now + 3600)
    assert world.pull(repo, pull.number).merged
    other = town.open_fix("CVE-2024-1002")
    world.edit_pull(repo, other.number, "octocat", title="Better", state="closed")
    world.edit_pull(repo, other.number, "octocat", state="open")
    world.set_draft(repo, other.number, "octocat", draft=True)
    review = world.review(repo, other.number, "octocat", "REQUEST_CHANGES", "no")
    world.dismiss_review(repo, other.number, review.id, "octo-org")
    world.create_run(repo, other.head_sha, "lint", "lint-app", title="T", summary="S")
    world.write_files(repo, other.head_ref, {"a": b"1"}, "more", "octocat")
    world.delete_ref(repo, f"refs/heads/{other.head_ref}", "octocat")
    return town


@pytest.fixture(scope="module")
def town() -> Town:
    return busy_town()


def test_every_event_can_be_read_from_its_payload(town: Town) -> None:
    """By our source, of the repository and by the person that it tells of."""
    names, read = set(), set[str]()
    for told in town.world.outbox:
        payload = json.loads(json.dumps(payload_of(town.world, ROOT, told)))
        sender = Actor(told.sender.login, told.sender.kind.lower())  # type: ignore[arg-type]
        for event in github.read(told.name, payload):
            assert (event.repo, event.actor) == (told.repo.full_name, sender), told.name
            read.add(told.name)
        names.add((told.name, told.action))
    assert len({name for name, _ in names}) == 10
    assert read == {name for name, _ in names} - {"repository_dispatch"}
    assert len(names) >= 27


def test_rendering_leaves_the_world_as_it_is(town: Town) -> None:
    """However often, and however late."""
    told = town.world.outbox[1]
    due = town.world.next_due()
    first = payload_of(town.world, ROOT, told)
    for one in town.world.outbox:
        payload_of(town.world, ROOT, one)
    assert payload_of(town.world, ROOT, told) == first
    assert town.world.next_due() == due


def real_payloads(name: str) -> Iterator[dict[str, Any]]:
    for entry in json.loads((HOOKS / "INDEX.json").read_text()):
        if entry.get("event") == name:
            yield json.loads((HOOKS / entry["file"]).read_text())


@pytest.mark.skipif(not HOOKS.exists(), reason="the collection of real payloads is not here")
@pytest.mark.parametrize(
    ("name", "inner"),
    [
        ("pull_request", "pull_request"),
        ("pull_request_review", "review"),
        ("issue_comment", "comment"),
        ("check_run", "check_run"),
        ("check_suite", "check_suite"),
        ("workflow_run", "workflow_run"),
        ("workflow_job", "workflow_job"),
        ("push", "repository"),
        ("status", "commit"),
    ],
)
def test_our_payloads_have_what_all_real_ones_have(town: Town, name: str, inner: str) -> None:
    """Of whatever event: the members that every recorded payload of it has, ours has too."""
    real = [payload for payload in real_payloads(name) if inner in payload]
    assert real
    told = [one for one in town.world.outbox if one.name == name]
    for path in ((), (inner,), ("repository",), ("sender",)):
        always = set.intersection(*(set(_within(payload, path)) for payload in real))
        for one in told:
            ours = set(_within(payload_of(town.world, ROOT, one), path))
            missing = always - ours - _LEFT_OUT
            assert not missing, f"{name} {path}: {sorted(missing)}"


_LEFT_OUT = frozenset({"installation", "organization", "enterprise", "marketplace_purchase"})


def _within(payload: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path:
        payload = payload.get(name) or {}
    return payload


def test_a_late_delivery_shows_the_world_as_it_was(town: Town) -> None:
    """The first word on a pull request that is long merged still calls it open."""
    opened: Emitted = next(one for one in town.world.outbox if one.action == "opened")
    shown = payload_of(town.world, ROOT, opened)["pull_request"]
    assert (shown["state"], shown["merged"], shown["mergeable"]) == ("open", False, None)
