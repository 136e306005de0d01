"""A webhook and a poller tell of the same thing: it acts once, whoever comes first."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.clocks import ManualClock
from tests.forges.gitlab_place import REPO
from tests.inbox.poll_world import GitLabScene, JiraScene, PollWorld, gitlab_scene, jira_scene
from towline.events import Commented, Pushed
from towline.inbox.dispatch import events_of_stored
from towline.inbox.poll_dedup import FirstTold, Owners, thing_of
from towline.pulls.parking_store import Parking
from towline.pulls.signals import Towing
from towline.pulls.store import PullStore
from towline.pulls.tracker import Tracker
from towline.pulls.transitions import Context
from towline_once.db.statement import Database
from towline_sim.jira import issue_shape


@pytest.fixture
async def gitlab(database: Database, clock: ManualClock) -> AsyncIterator[PollWorld]:
    async with gitlab_scene() as scene:
        made = PollWorld(scene, database, clock)
        await made.later()
        yield made


@pytest.fixture
async def jira(database: Database, clock: ManualClock) -> AsyncIterator[PollWorld]:
    async with jira_scene() as scene:
        made = PollWorld(scene, database, clock)
        await made.later()
        yield made


async def gitlab_hook(world: PollWorld, payload: dict[str, Any], uuid: str) -> None:
    headers = {
        "x-gitlab-event": "Note Hook",
        "idempotency-key": uuid,
        "x-gitlab-webhook-uuid": "7d9a1c2e-0000-4000-8000-000000000001",
    }
    body = json.dumps(payload).encode()
    await world.ingest.take_in("gitlab", headers, body, verified=True)


async def jira_hook(world: PollWorld, payload: dict[str, Any], identifier: str) -> None:
    headers = {"x-atlassian-webhook-identifier": identifier}
    body = json.dumps(payload).encode()
    await world.ingest.take_in("jira", headers, body, verified=True)


def note_payload(scene: GitLabScene, iid: str, note_id: str, body: str) -> dict[str, Any]:
    """As GitLab 17 sends it."""
    request = scene.place.project.requests[int(iid)]
    return {
        "object_kind": "note",
        "event_type": "note",
        "user": {"id": 1, "name": "octocat", "username": "octocat"},
        "project": {"id": scene.place.project.id, "path_with_namespace": REPO},
        "object_attributes": {
            "id": int(note_id),
            "note": body,
            "noteable_type": "MergeRequest",
            "created_at": "2024-12-19 10:00:00 UTC",
            "updated_at": "2024-12-19 10:00:00 UTC",
            "system": False,
            "type": None,
            "action": "create",
        },
        "merge_request": {"iid": int(iid), "last_commit": {"id": request.sha}},
    }


@pytest.mark.parametrize("first", ["webhook", "poller"])
async def test_a_note_acts_once(gitlab: PollWorld, first: str) -> None:
    """Both are taken in, and the first of them acts, however often the jobs run."""
    scene = cast(GitLabScene, gitlab.scene)
    thing = scene.appear()
    note = scene.say(thing, "/copilot fix the lint").rpartition(":")[2]
    payload = note_payload(scene, thing, note, "/copilot fix the lint")
    if first == "webhook":
        await gitlab_hook(gitlab, payload, "one")
        await gitlab.act()
    await gitlab.later(5)
    await gitlab.act()
    if first == "poller":
        await gitlab_hook(gitlab, payload, "one")
    for _ in range(2):
        await gitlab.act()
    (acted,) = gitlab.acted
    assert acted[:2] == ("comment", note)
    assert acted[2].startswith("gitlab:poll:") == (first == "poller")
    assert len([one for one in await gitlab.stored() if one.event_name == "note"]) == 2


async def test_a_note_that_its_owner_could_not_act_on(gitlab: PollWorld) -> None:
    """Its job fails and runs again: the note is still its own."""
    scene = cast(GitLabScene, gitlab.scene)
    note = scene.say(scene.appear(), "/copilot fix").rpartition(":")[2]
    await gitlab.later(5)
    (row,) = [one for one in await gitlab.stored() if one.event_name == "note"]
    (stored,) = await gitlab.inbox.find(row.delivery_id)

    async def dies(*_: object) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await FirstTold(dies, Owners(gitlab.database))(stored, events_of_stored(stored))
    await gitlab.act()
    assert [told[1] for told in gitlab.acted] == [note]


async def test_what_was_told_is_forgotten_in_the_end(gitlab: PollWorld) -> None:
    """After a week, which no sender outlasts."""
    owners = Owners(gitlab.database)
    track = FirstTold(gitlab._track, owners)
    assert await owners.is_owner("note:x", "one", 604_800_000_000)
    assert not await owners.is_owner("note:x", "two", 604_800_000_000)
    (chore,) = track.chores()
    await chore.work()
    assert not await owners.is_owner("note:x", "two", 604_800_000_000)
    gitlab.clock.advance(604_801)
    await chore.work()
    assert await owners.is_owner("note:x", "two", 604_800_000_000)


@pytest.mark.parametrize("first", ["webhook", "poller"])
async def test_an_issue_acts_once_for_each_change(jira: PollWorld, first: str) -> None:
    """The webhook has the issue's own time in it, and the comment's own number."""
    scene = cast(JiraScene, jira.scene)
    key = scene.appear()
    created = shown(scene, key)
    scene.clock.advance(3)
    comment = scene.say(key, "/copilot fix").rpartition(":")[2]
    hooks: list[dict[str, Any]] = [
        {"webhookEvent": "jira:issue_updated", "timestamp": 1, "issue": shown(scene, key)},
        {
            "webhookEvent": "comment_created",
            "timestamp": 2,
            "issue": {"key": key, "fields": {"summary": "Fix it"}},
            "comment": {"id": comment, "body": "/copilot fix", "author": {"name": "octocat"}},
        },
    ]

    async def send() -> None:
        for number, payload in enumerate(hooks):
            await jira_hook(jira, payload, f"event-{number}")

    if first == "webhook":
        await send()
        await jira.act()
    await jira.later(5)
    await jira.act()
    if first == "poller":
        await send()
    await jira.act()
    change = "updated" if first == "webhook" else "created"
    assert sorted(told[0] for told in jira.acted) == ["commented", change]
    early = {"webhookEvent": "jira:issue_created", "timestamp": 0, "issue": created}
    await jira_hook(jira, early, "event-early")
    await jira.act()
    assert len(jira.acted) == 3, "another change of the issue is another thing"


def shown(scene: JiraScene, key: str) -> dict[str, Any]:
    return issue_shape(scene.world.issues[key])


@pytest.mark.parametrize("first", ["webhook", "poller"])
async def test_a_merge_request_that_is_told_twice_changes_nothing(
    gitlab: PollWorld, first: str
) -> None:
    """By the webhook and by the poller, in either order: one record, and nothing is odd."""
    scene = cast(GitLabScene, gitlab.scene)
    thing = scene.appear()
    request = scene.place.project.requests[int(thing)]
    await gitlab.later(5)
    at = scene.clock.now_us() // 10**6 - 5
    opened = {
        "object_kind": "merge_request",
        "user": {"id": 9, "username": request.author},
        "project": {"id": scene.place.project.id, "path_with_namespace": REPO},
        "object_attributes": {
            "iid": request.iid,
            "action": "open",
            "state": "opened",
            "author_id": 9,
            "source_branch": request.source_branch,
            "target_branch": "main",
            "last_commit": {"id": request.sha},
            "updated_at": at,
        },
    }
    await gitlab_hook(gitlab, opened, "mr")
    pulls = PullStore(gitlab.database)
    towing = Towing(authors=frozenset({request.author}))
    context = Context(towing=towing)
    tracker = FirstTold(
        Tracker(pulls, Parking(gitlab.database), lambda repo: context),
        Owners(gitlab.database),
    )
    rows = sorted(await gitlab.stored(), key=lambda one: "poll" in one.key)
    for row in rows if first == "webhook" else reversed(rows):
        (stored,) = await gitlab.inbox.find(row.delivery_id)
        await tracker(stored, events_of_stored(stored))
    record = await pulls.read(REPO, request.iid)
    assert record is not None
    assert (record.state, record.head_sha) == ("CREATED", request.sha)
    events = await pulls.events(REPO, request.iid)
    assert "anomaly" not in json.dumps([dict(event.payload) for event in events], default=str)
    assert {event.event_type for event in events} == {"PR_OPENED"}


def test_what_is_no_single_thing() -> None:
    """Edited and deleted comments, and events of other kinds, pass."""
    said = Commented(source="gitlab", repo=REPO, number=1, action="edited", comment_id="7")
    pushed = Pushed(source="gitlab", repo=REPO, ref="refs/heads/main", before=None, after="a" * 40)
    assert thing_of(said) is None
    assert thing_of(pushed) is None
