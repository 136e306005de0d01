"""The front door over real HTTP: who may come in, what is told them, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.app.control_plane import is_problem
from tests.forges.samples import OLD_SECRET, github_headers
from tests.http.front_door import (
    FORM,
    FrontDoor,
    Knock,
    check,
    events_told,
    front_door,
    github,
    gitlab,
    head_of,
    ping,
    push,
    run_of,
    served,
    shared,
    slack,
    until,
)
from towline.app.web import apps_of
from towline.fix.model import RunState
from towline.jobs.model import OWN_QUEUE

SHA = "c0ffee" * 6 + "beef"
TICK = {"schedule_id": "daily-cleanup", "execution_time": "2024-12-19T00:00:00Z"}
MALFORMED = [
    b'{"a": 1, "a": 2}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": 1e999}',
    b'{"a": "\\ud800"}',
    b'{"a": "\xff"}',
    b"\xef\xbb\xbf{}",
    b"[]",
    b"7",
    b"",
    b"not JSON",
    b'{"a":' * 2000,
]
PLENTY = {"repo_flood_per_minute": 10_000}


def comment(number: int, text: str, comment_id: int) -> Knock:
    return github(
        "issue_comment",
        {
            "action": "created",
            "issue": {"number": number, "pull_request": {"url": "https://a.example"}},
            "comment": {"id": comment_id, "body": text, "user": {"login": "kim"}},
            "repository": {"full_name": "acme/app"},
        },
    )


def pull(number: int, action: str = "synchronize", sha: str = SHA) -> Knock:
    about = {"number": number, "state": "open", "head": {"sha": sha, "ref": "fix"}}
    repository = {"repository": {"full_name": "acme/app"}}
    return github("pull_request", {"action": action, "pull_request": about} | repository)


async def test_accepted_then_ignored(sql_url: str) -> None:
    """202 with the delivery and its job; the same again is 200, about the same job."""
    async with front_door(sql_url) as door:
        knock = push()
        first, second = await door.post(knock), await door.post(knock)
        assert (first.status_code, second.status_code) == (202, 200)
        assert first.headers["content-type"] == "application/json"
        (job,) = await door.jobs()
        said = {"delivery_id": knock.headers["x-github-delivery"], "job_id": job.id}
        assert first.json() == {"status": "accepted"} | said
        assert second.json() == {"status": "duplicate_ignored"} | said
        (stored,) = await door.inbox()
        assert (stored.copies, stored.job_id, stored.repo) == (1, job.id, "acme/app")


async def test_many_at_once_are_one(sql_url: str) -> None:
    """Of forty copies that arrive together one is accepted, and there is one job."""
    async with front_door(sql_url) as door:
        knock = push()
        answers = await asyncio.gather(*(door.post(knock) for _ in range(40)))
        assert Counter(answer.status_code for answer in answers) == {202: 1, 200: 39}
        assert len({answer.json()["job_id"] for answer in answers}) == 1
        assert len(await door.jobs()) == 1


def forgeries(knock: Knock) -> list[Knock]:
    """With another secret, without any, and with a body that was changed on its way."""
    forged = {
        name: value[:-3] + "bad" if "signature" in name or "token" in name else value
        for name, value in knock.headers.items()
    }
    bare = {"content-type": "application/json"}
    made = [knock._replace(headers=forged), knock._replace(headers=bare)]
    signs_the_body = "x-gitlab-token" not in knock.headers
    return made + ([knock._replace(body=knock.body + b" ")] if signs_the_body else [])


async def test_a_wrong_signature_is_refused_before_anything(sql_url: str) -> None:
    """401 with a code, at every source; nothing is stored, nothing queued."""
    knocks = [ping(), gitlab({}), slack(b"{}"), shared("scheduler", TICK)]
    knocks += [shared(path, run_of(1)) for path in ("jira", "jenkins", "ci/x")]
    async with front_door(sql_url) as door:
        for knock in knocks:
            for forgery in forgeries(knock):
                assert is_problem(await door.post(forgery), 401, "bad_signature"), knock.path
        assert (await door.inbox(), await door.jobs()) == ([], [])


async def test_each_active_secret_opens(sqlite_url: str) -> None:
    """The new secret and the old one are good at once, and no third."""
    async with front_door(sqlite_url) as door:
        for secret, status in [(OLD_SECRET, 202), ("another", 401), ("", 401)]:
            knock = ping()
            ours = {"x-github-delivery": f"signed-with-{secret}"}
            signed = github_headers(knock.body, "ping", secret) | ours
            assert (await door.post(knock._replace(headers=signed))).status_code == status
        assert len(await door.inbox()) == 1


async def test_unsigned_only_where_it_is_allowed(sqlite_url: str) -> None:
    """A source without a secret lets nobody in, unless the settings say that it may."""
    unsigned = {"x-github-delivery": "1", "x-github-event": "ping"}
    knock = Knock("/webhooks/github", b"{}", unsigned)
    run = Knock("/webhooks/ci/drone", json.dumps(run_of(1)).encode(), {})
    async with front_door(sqlite_url, github={}, ci={"allow_unsigned": True}) as door:
        assert is_problem(await door.post(knock), 401, "no_secret")
        assert (await door.post(run)).status_code == 202
        assert [stored.source for stored in await door.inbox()] == ["ci"]


async def test_a_secret_beats_the_permission(sqlite_url: str) -> None:
    """Where there is a secret it is asked for, also if unsigned deliveries are allowed."""
    both = {"webhook_secrets": ["a s3cret"], "allow_unsigned": True}
    async with front_door(sqlite_url, ci=both) as door:
        run = Knock("/webhooks/ci/drone", json.dumps(run_of(1)).encode(), {})
        assert is_problem(await door.post(run), 401, "bad_signature")


@pytest.mark.parametrize("source", ["github", "gitlab", "slack", "jira", "jenkins", "ci/x"])
async def test_malformed_is_400(sqlite_url: str, source: str) -> None:
    """Well signed, but no JSON object with one meaning: a problem, and nothing is stored."""
    async with front_door(sqlite_url) as door:
        for body in MALFORMED:
            signers = {"github": github("ping", body), "gitlab": gitlab(body), "slack": slack(body)}
            answer = await door.post(signers.get(source, shared(source, body)))
            assert is_problem(answer, 400, "malformed"), body[:40]
        assert await door.inbox() == []


async def test_a_missing_header_is_400(sqlite_url: str) -> None:
    """Without its id a delivery could not be told from another; the header is named."""
    async with front_door(sqlite_url) as door:
        for missing in ("x-github-delivery", "x-github-event"):
            knock = ping()
            del knock.headers[missing]
            answer = await door.post(knock)
            assert is_problem(answer, 400, "malformed")
            assert missing in answer.json()["detail"]


async def test_an_unknown_source_is_404(sqlite_url: str) -> None:
    """The answer names the sources that there are."""
    async with front_door(sqlite_url) as door:
        for name in ("bitbucket", "", "github/extra", "ci/", "%00", "GitHub"):
            answer = await door.post(ping()._replace(path=f"/webhooks/{name}"))
            assert is_problem(answer, 404, "unknown_source"), name
            assert "github, gitlab" in answer.json()["detail"]
        assert await door.inbox() == []


async def test_only_post(sqlite_url: str) -> None:
    """405 says which method is allowed, and stores nothing."""
    async with front_door(sqlite_url) as door:
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            knock = ping()
            answer = await door.client.request(
                method, knock.path, content=knock.body, headers=knock.headers
            )
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            assert method == "HEAD" or is_problem(answer, 405, "method_not_allowed")
        assert await door.inbox() == []


async def test_any_ci_by_its_name(sqlite_url: str) -> None:
    """The route names the provider, with whatever printable characters; each is its own."""
    names = ["drone", "build%20kite", "a/b", "a:b", "100%25", "~", "x" * 255]
    async with front_door(sqlite_url, ingest=PLENTY) as door:
        for name in names:
            knock = shared(f"ci/{name}", run_of(1))
            answers = [(await door.post(knock)).status_code for _ in range(2)]
            assert answers == [202, 200], name
        keys = {stored.key.split(":")[1] for stored in await door.inbox()}
        assert keys == {"drone", "build kite", "a/b", "a%3Ab", "100%25", "~", "x" * 255}
        for name in ("x" * 256, "%C3%BC", "%00", "%0A", "%FF"):
            answer = await door.post(shared(f"ci/{name}", run_of(1)))
            assert is_problem(answer, 400, "malformed"), name
        assert len(await door.inbox()) == len(names)


async def test_the_provider_may_be_in_the_body(sqlite_url: str) -> None:
    """`/webhooks/ci` takes it from there, and asks for it if it is not."""
    async with front_door(sqlite_url) as door:
        named = await door.post(shared("ci", run_of(1) | {"provider": "drone"}))
        assert named.status_code == 202
        assert (await door.post(shared("ci/drone", run_of(1)))).json()["status"] == (
            "duplicate_ignored"
        )
        assert is_problem(await door.post(shared("ci", run_of(1))), 400, "malformed")


async def test_a_scheduler_outside(sqlite_url: str) -> None:
    """A tick happens once, however its time is written, from the body or from headers."""
    async with front_door(sqlite_url, working=True) as door:
        answers = [
            await door.post(shared("scheduler", TICK)),
            await door.post(shared("scheduler", TICK | {"execution_time": "2024-12-19T01:00+01"})),
            await door.post(
                shared(
                    "scheduler",
                    b"",
                    x_cloudscheduler_jobname="daily-cleanup",
                    x_cloudscheduler_scheduletime="2024-12-19T00:00:00Z",
                )
            ),
        ]  # fmt: skip
        assert [answer.status_code for answer in answers] == [202, 200, 200]
        assert [stored.key for stored in await door.inbox()] == [
            "scheduler:daily-cleanup:2024-12-19T00:00:00Z"
        ]
        (event,) = events_told(await door.finished())["daily-cleanup:2024-12-19T00:00:00Z"]
        assert event == {"kind": "ticked"}
        assert is_problem(await door.post(shared("scheduler", {})), 400, "malformed")


async def test_slack_hears_what_it_expects(sqlite_url: str) -> None:
    """Commands (with a word for who typed them) and interactions 200, events 202, the challenge."""
    fields = {"team_id": "T", "trigger_id": "1", "command": "/tow", "user_id": "U", "text": "x"}
    command = slack(urlencode(fields).encode(), FORM)
    pressed = {"type": "shortcut", "team": {"id": "T"}, "trigger_id": "2"}
    interaction = slack(urlencode({"payload": json.dumps(pressed)}).encode(), FORM)
    event: Any = {"type": "event_callback", "team_id": "T", "event_id": "E", "event": {}}
    challenge = slack(b'{"type": "url_verification", "challenge": "3eZb\xc3\xbc"}')
    async with front_door(sqlite_url) as door:
        for knock, first in [
            (command, 200),
            (interaction, 200),
            (slack(json.dumps(event).encode()), 202),
        ]:
            answers = [await door.post(knock) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [first, 200]
            assert [a.json()["status"] for a in answers] == ["accepted", "duplicate_ignored"]
            is_told = ["no commands from Slack" in a.json().get("text", "") for a in answers]
            assert is_told == [knock is command] * 2
        answer = await door.post(challenge)
        assert (answer.status_code, answer.text) == (200, "3eZbü")
        assert len(await door.inbox()) == 3


async def test_beyond_the_flood_limit_a_repository_waits(sql_url: str) -> None:
    """200 throttled_delayed; the excess is stored at once, runs later, and nothing is dropped."""
    async with front_door(sql_url, working=True, ingest={"repo_flood_per_minute": 2}) as door:
        knocks = [push() for _ in range(5)]
        answers = [await door.post(knock) for knock in knocks]
        assert [answer.status_code for answer in answers] == [202, 202, 200, 200, 200]
        assert {answer.json()["status"] for answer in answers[2:]} == {"throttled_delayed"}
        again = await door.post(knocks[4])
        assert again.json() == answers[4].json() | {"status": "duplicate_ignored"}
        for knock in (push("acme/other"), comment(7, "/why", 1)):
            assert (await door.post(knock)).status_code == 202
        assert sum(stored.throttled for stored in await door.inbox()) == 3
        await until(lambda: left(door, 3), "what is within the limit has run")
        for turn in range(1, 4):
            door.clock.advance(30)
            door.service.bell.ring()
            await until(lambda: left(door, 3 - turn), "one more has its turn")  # noqa: B023
        jobs = await door.finished()
        assert Counter(job.state for job in jobs) == {"done": 7}
        assert len(events_told(jobs)) == 7


def failure(repo: str, run: int) -> Knock:
    """CI fails on the default branch."""
    told: dict[str, Any] = {"id": run, "head_sha": SHA, "name": "ci", "status": "completed"}
    told |= {"conclusion": "failure", "check_suite": {"head_branch": "main"}}
    about = {"action": "completed", "check_run": told, "repository": {"full_name": repo}}
    return github("check_run", about)


async def test_over_its_rate_a_repository_starts_runs_in_turn(sql_url: str) -> None:
    """The delivery is worked on at once, and its fix run starts when its turn comes."""
    fix = {"repos": ["acme/app"]}
    rate = {"repo_rate_per_minute": 2}
    async with front_door(sql_url, working=True, ingest=rate, fix=fix) as door:
        answers = [await door.post(failure("acme/app", run)) for run in range(1, 5)]
        assert [answer.status_code for answer in answers] == [202, 202, 200, 200]
        for knock in (failure("acme/not-fixed", 9), check(SHA), push(), pull(7)):
            assert (await door.post(knock)).status_code == 202
        runs = door.service.fix.store

        async def so_many(state: RunState | None, count: int) -> bool:
            door.service.bell.ring()
            return len(await runs.listing(None, state, "", 100)) == count

        await until(lambda: so_many(None, 4), "each failure has its run")
        scheduled = sorted(
            one.starts_us or 0 for one in await runs.listing(None, "scheduled", "", 100)
        )
        assert len(scheduled) == 2
        assert 29_900_000 < scheduled[1] - scheduled[0] <= 30_000_000
        await until(lambda: left(door, 2), "only the two runs that wait for their turns are left")
        for rest in (1, 0):
            door.clock.advance(30)
            await until(lambda: so_many("scheduled", rest), "one more starts")  # noqa: B023
        await until(lambda: so_many("blocked", 4), "without a token, all four end")


async def test_over_its_rate_an_organisation_waits(sql_url: str) -> None:
    """The same over all of its repositories, by the setting for it; other owners do not notice."""
    names = ["acme/one", "acme/two", "acme/three", "others/one"]
    tables: dict[str, Any] = {"ingest": {"org_rate_per_minute": 2}, "fix": {"repos": names}}
    async with front_door(sql_url, **tables) as door:
        answers = [await door.post(failure(name, 1)) for name in names]
        assert [answer.status_code for answer in answers] == [202, 202, 200, 202]
        assert answers[2].json()["status"] == "throttled_delayed"
        assert len(await door.inbox()) == 4


async def left(door: FrontDoor, count: int) -> bool:
    depth = await door.service.jobs.depth(OWN_QUEUE)
    return (depth.queued, depth.running) == (count, 0)


async def test_deliveries_about_one_thing_share_a_job(sql_url: str) -> None:
    """Of a commit's checks and of a pull request's changes one job each; it tells of them all."""
    async with front_door(sql_url) as door:
        about = [check(SHA, word) for word in ("failure", "success", "cancelled")]
        about += [pull(7, action) for action in ("opened", "labeled", "synchronize")]
        about += [check(SHA, repo="acme/other"), pull(8)]
        answers = [(await door.post(knock)).json() for knock in about]
        assert {answer["status"] for answer in answers} == {"accepted"}
        jobs = [answer["job_id"] for answer in answers]
        assert len(set(jobs[:3])) == len(set(jobs[3:6])) == 1
        assert len(set(jobs)) == 4
        door.service.start()
        told = events_told(await door.finished())
        checks = [told[knock.headers["x-github-delivery"]][0] for knock in about[:3]]
        assert [event["conclusion"] for event in checks] == ["failure", "success", "cancelled"]
        assert len(told) == len(about)
        assert (await door.post(check(SHA))).json()["job_id"] not in jobs


async def test_what_people_order_is_never_joined(sql_url: str) -> None:
    """Each comment and each command has a job of its own, ahead of everything else."""
    async with front_door(sql_url, ingest=PLENTY) as door:
        await door.post(check(SHA))
        for number in range(4):
            await door.post(comment(7, "/rebuild", number))
            fields = {"team_id": "T", "trigger_id": str(number), "command": "/t", "user_id": "U"}
            await door.post(slack(urlencode(fields).encode(), FORM))
        jobs = await door.jobs()
        assert Counter((job.passengers, job.priority > 0) for job in jobs) == {
            (1, True): 8,
            (1, False): 1,
        }


async def test_numbers_of_any_size_and_any_space_around(sql_url: str) -> None:
    """JSON that begins with a blank, has an integer of 300 digits or comes in a form, is read."""
    large = b'\n {"repo": "acme/app", "run_id": 1, "status": "failed", "n": ' + b"9" * 300 + b"}"
    body = urlencode({"payload": b'{"zen": "x", "n": ' + b"9" * 300 + b"}"}).encode()
    form = github("ping", body)
    form.headers["content-type"] = FORM
    async with front_door(sql_url, working=True) as door:
        for knock in (shared("ci/drone", large), form):
            assert [(await door.post(knock)).status_code for _ in range(2)] == [202, 200]
        assert {job.state for job in await door.finished()} == {"done"}


async def test_gitlab_may_repeat_a_member(sql_url: str) -> None:
    """With one value it has one meaning: the delivery is taken in, and its job ends well."""
    project = b'"project": {"path_with_namespace": "acme/app", "path_with_namespace": "acme/app"}'
    push_event = (
        b'{"object_kind": "push", "ref": "refs/heads/x", "before": "%b", "after": "%b", %b}'
    )
    async with front_door(sql_url, working=True) as door:
        knock = gitlab(push_event % (b"a" * 40, b"b" * 40, project))
        assert (await door.post(knock)).status_code == 202
        (job,) = await door.finished()
        assert (job.state, job.error) == ("done", None)
        assert events_told([job]) == {
            knock.headers["idempotency-key"]: [{"kind": "pushed", "repo": "acme/app"}]
        }


async def test_headers_of_any_bytes(sqlite_url: str) -> None:
    """Bytes that are no ASCII do no harm; in the id of a delivery they are 400."""
    async with front_door(sqlite_url) as door, door.wire() as wire:
        knock = ping()
        await wire.send(head_of(knock, "x-other: \xff\xfe", "x-github-hook: \xe9") + knock.body)
        assert (await wire.reply()).status == 202
        odd = ping()
        odd.headers["x-github-delivery"] = "\xfc"
        await wire.send(head_of(odd) + odd.body)
        assert (await wire.reply()).status == 400


async def test_the_data_plane_alone_has_nothing_else(sqlite_url: str) -> None:
    """Beside webhooks and mesh only the probes and its own OpenAPI are there; and vice versa."""
    async with front_door(sqlite_url, serve={"control_port": 0}) as door:
        for path in ("/api/deliveries", "/metrics", "/docs", "/"):
            assert is_problem(await door.client.get(path), 404, "not_found")
        for path in ("/healthz", "/readyz"):
            assert (await door.client.get(path)).status_code == 200
        assert (await door.post(ping())).status_code == 202
        async with served(apps_of(door.service)[1]) as (_, control):
            knock = ping()
            refused = await control.post(knock.path, content=knock.body, headers=knock.headers)
            assert is_problem(refused, 404, "not_found")
            assert (await control.get("/metrics")).status_code in (200, 401)
        assert len(await door.inbox()) == 1
