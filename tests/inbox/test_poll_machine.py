"""Whatever happens at the server, on the wire and to the process: nothing is lost, nothing doubled.

Things appear, change and are talked about; pages fail; the process dies at any step; both clocks
are wrong; webhooks tell of some of it as well. In the end everything is read in peace.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.clocks import ManualClock
from tests.forges.gitlab_place import TOKEN
from tests.inbox.poll_world import GitLabScene, PollWorld, gitlab_scene
from tests.inbox.recovery_world import Crash
from tests.sizes import size
from towline.db import database_for
from towline.forges.gitlab.client import GitLabApi
from towline.forges.gitlab.polling import GitLabPolling
from towline.inbox.poll import PollRules
from towline_once.db.statement import Database

EXAMPLES, STEPS = size(8, 125), 40
OVERLAP = 120
files = itertools.count(1)


class Stage:
    """One loop, one server and one store for all examples; a project of its own for each."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self._stack = contextlib.AsyncExitStack()
        self.database: Database = database_for(url, self.clock)
        self.scene = self.runner.run(self._open())
        place = self.scene.place
        self.api = GitLabApi(f"{place.url}/api/v4", place.clock, TOKEN, 5.0)

    async def _open(self) -> GitLabScene:
        await self.database.connect()
        return cast(GitLabScene, await self._stack.enter_async_context(gitlab_scene()))

    async def _close(self) -> None:
        await self.api.http.aclose()
        await self._stack.aclose()
        await self.database.aclose()

    def close(self) -> None:
        self.runner.run(self._close())
        self.runner.close()


class Polling(RuleBasedStateMachine):
    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        scene = self.stage.scene
        number = next(files)
        project = scene.place.world.add_project(f"octo-org/app-{number}")
        place = scene.place._replace(project=project)
        self.scene = GitLabScene(place, GitLabPolling(self.stage.api, project.path))
        self.world = self._process()
        self.project = project
        self.things: list[str] = []
        self.notes: list[str] = []
        self.skew_us = 0
        self.stamped: set[int] = set()
        self.run(self.world.poll())
        self.scene.clock.advance(OVERLAP)

    def _process(self) -> PollWorld:
        project = self.scene.place.project.path
        rules = PollRules(60, OVERLAP, 2)
        return PollWorld(self.scene, self.stage.database, self.stage.clock, rules, project)

    def run(self, work: Any) -> Any:
        return self.stage.runner.run(work)

    @rule(number=st.integers(1, 3))
    def appear(self, number: int) -> None:
        made = [self.scene.appear() for _ in range(number)]
        self.things += made
        for thing in made:
            self._stamp(thing)

    @rule(pick=st.integers(0, 99), hook=st.sampled_from(["none", "before", "twice"]))
    def talk(self, pick: int, hook: str) -> None:
        """A note, of which a webhook may tell as well."""
        if not self.things:
            return
        thing = self.things[pick % len(self.things)]
        note = self.scene.say(thing, "/copilot fix")
        self._stamp(thing)
        self.notes.append(note)
        if hook != "none":
            self.run(self._hook(thing, note, 2 if hook == "twice" else 1))

    def _stamp(self, thing: str) -> None:
        """By the clock of the machine that wrote it."""
        request = self.project.requests[int(thing)]
        now_us = self.scene.clock.now_us() + self.skew_us
        request.updated_us = now_us
        for note in request.notes[-1:]:
            if note.id not in self.stamped:
                self.stamped.add(note.id)
                note.created_us = note.updated_us = now_us

    async def _hook(self, thing: str, note: str, times: int) -> None:
        payload = {
            "object_kind": "note",
            "user": {"username": "octocat"},
            "project": {"path_with_namespace": self.project.path},
            "object_attributes": {
                "id": int(note.rpartition(":")[2]),
                "note": "/copilot fix",
                "action": "create",
            },
            "merge_request": {"iid": int(thing)},
        }
        for _ in range(times):
            headers = {"idempotency-key": f"hook {note}"}
            body = json.dumps(payload).encode()
            await self.world.ingest.take_in("gitlab", headers, body, verified=True)

    @rule(pick=st.integers(0, 99))
    def push(self, pick: int) -> None:
        if self.things:
            thing = self.things[pick % len(self.things)]
            self.scene.place.world.push(self.project.requests[int(thing)])
            self._stamp(thing)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3, 61, 700]))
    def time_passes(self, seconds: float) -> None:
        self.scene.clock.advance(seconds)
        self.stage.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-5000, 5000]))
    def our_clock_is_set(self, seconds: float) -> None:
        self.stage.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-50, -1, 0, 20, 50]))
    def its_clocks_differ(self, seconds: int) -> None:
        """The clock behind its Date header, and the one that stamps what is written there."""
        self.skew_us = seconds * 1_000_000

    @rule()
    def poll(self) -> None:
        self.run(self.world.poll())

    @rule(where=st.sampled_from(["lists", "comments", "everything"]))
    def poll_in_trouble(self, where: str) -> None:
        self.scene.fail(where)
        self.run(self.world.poll())
        self.scene.fail(None)

    @rule(steps=st.integers(0, 12))
    def poll_and_die(self, steps: int) -> None:
        self.world.fate.left = steps
        with contextlib.suppress(Crash):
            self.run(self.world.poll())
        self.world.fate.left = 10**9
        self.world.new_process()

    @rule()
    def two_poll(self) -> None:
        other = self._process()

        async def both() -> None:
            await asyncio.gather(self.world.poll(), other.poll())

        self.run(both())

    @rule()
    def act(self) -> None:
        self.run(self._act())

    async def _act(self) -> None:
        await self.world.act()
        times = [told[1] for told in self.world.acted]
        assert len(times) == len(set(times)), "a note was acted on for two deliveries"

    def teardown(self) -> None:
        self.run(self._in_peace())

    async def _in_peace(self) -> None:
        self.scene.fail(None)
        self.world.new_process()
        for _ in range(60):
            report = await self.world.later(OVERLAP)
            assert report.trouble is None
            if report.ended:
                break
        await self._act()
        own = f"note:{self.project.id}:"
        assert await self.world.ids(own) == sorted(self.notes)
        heads = {
            f"review:{self.project.id}:{thing}:{self.project.requests[int(thing)].sha}"
            for thing in self.things
        }
        assert heads <= set(await self.world.ids("review:"))
        acted = {told[1] for told in self.world.acted}
        assert acted >= {note.rpartition(":")[2] for note in self.notes}


@pytest.mark.slow
@pytest.mark.full_size
def test_nothing_is_lost_and_nothing_acts_twice(sql_url: str) -> None:
    """Over random lives of a server and a process, on each SQL store."""
    stage = Stage(sql_url)
    machine = type("Life", (Polling,), {"stage": stage})
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        stage.close()
