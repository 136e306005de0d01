"""Jenkins: builds each head, tells it as a commit status, and builds again when it is asked to.

While it is down, what is being built fails with timeouts, and no request is answered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from towline_sim.actors.base import Actor, Habit
from towline_sim.actors.ci import Chances, Fate, Fated, Fates
from towline_sim.failure_logs import OUTAGE, PASSED, PERSISTENT, TRANSIENT
from towline_sim.github.entities import Emitted, Pull, WorldRefusal
from towline_sim.github.fault_dice import Outage, Seconds
from towline_sim.github.world import World

BuildState: TypeAlias = Literal["queued", "running", "succeeded", "failed", "cancelled"]
_JOB_NUMBER: Final = re.compile(r"(?:PR|MR)-(\d+)$", re.IGNORECASE)
_NUMBERS: Final = ("number", "pr", "pr_number", "pull_number", "pull_request", "change_id")
_BRANCHES: Final = ("branch", "branch_name", "head_ref", "git_branch")


class JenkinsDown(Exception):
    """It does not answer."""


class JenkinsRefusal(Exception):
    """There is no such job, or nothing that it could build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JenkinsBuild:
    number: int
    job: str
    repo: str
    pull: int
    sha: str
    state: BuildState = "queued"
    log: str = ""
    queued_at: float
    ended_at: float | None = None


class Jenkins(Actor):
    def __init__(
        self,
        world: World,
        *,
        context: str = "jenkins/build",
        root: str = "https://jenkins.example",
        chances: Chances | None = None,
        fates: Fates | None = None,
        flakiness: float = 0.5,
        lasts: Seconds = (60.0, 600.0),
        outages: tuple[Outage, ...] = (),
        habit: Habit | None = None,
    ) -> None:
        super().__init__(world, "jenkins[bot]", habit or Habit(delay=(2.0, 20.0)))
        self.context = context
        self.root = root
        self.fated = Fated(chances or {}, fates or {})
        self.flakiness = flakiness
        self.lasts = lasts
        self.outages = outages
        self.builds: dict[int, JenkinsBuild] = {}
        self.asked = 0

    @property
    def down(self) -> bool:
        return any(outage.holds(self.world.now) for outage in self.outages)

    def hear(self, told: Emitted) -> None:
        pull = told.pull
        if told.name != "pull_request" or pull is None:
            return
        if told.action in ("opened", "reopened", "synchronize"):
            self.fated.hear(told, self)
            never = self.fated.of((pull.repo, pull.number), self) == "never"
            if not never and not self.misses():
                self._begin_later(self._queue(pull, f"{pull.repo}/PR-{pull.number}"), pull)

    def build(self, job: str, parameters: Mapping[str, str]) -> JenkinsBuild:
        """Asked for over its API: which pull request is read from the parameters or the job."""
        if self.down:
            raise JenkinsDown("no answer")
        self.asked += 1
        pull = self._wanted(job, parameters)
        build = self._queue(pull, job)
        self._begin_later(build, pull)
        return build

    def _wanted(self, job: str, parameters: Mapping[str, str]) -> Pull:
        given = {name.lower(): value for name, value in parameters.items()}
        named = _JOB_NUMBER.search(job)
        numbers = [given[name] for name in _NUMBERS if name in given]
        numbers += [named[1]] if named else []
        branches = [given[name] for name in _BRANCHES if name in given] or [job]
        for repo in self.world.repos():
            if given.get("repo", repo.full_name) != repo.full_name:
                continue
            for pull in self.world.pulls(repo.full_name):
                by_branch = any(one.endswith(pull.head_ref) for one in branches)
                fits = str(pull.number) in numbers if numbers else by_branch
                if fits and ("repo" in given or not named or repo.name in job):
                    return pull
        raise JenkinsRefusal(f"{job}: nothing to build")

    def _queue(self, pull: Pull, job: str) -> JenkinsBuild:
        build = JenkinsBuild(
            number=len(self.builds) + 1,
            job=job,
            repo=pull.repo,
            pull=pull.number,
            sha=pull.head_sha,
            queued_at=self.world.now,
        )
        self.builds[build.number] = build
        return build

    def _begin_later(self, build: JenkinsBuild, pull: Pull) -> None:
        self.later(lambda: self._begin(build, pull))

    def _begin(self, build: JenkinsBuild, pull: Pull) -> None:
        self.builds[build.number] = replace(build, state="running")
        self._say(build, "pending", "Build started")
        fate = self._fate(pull)
        if fate != "hang":
            self.later(lambda: self._end(build, fate), self.lasts)

    def _fate(self, pull: Pull) -> Fate:
        key = (pull.repo, pull.number)
        fate = self.fated.of(key, self)
        if fate in ("transient", "hang"):
            self.fated.heal(key)
        if fate == "flaky":
            return "transient" if self.dice.random() < self.flakiness else "pass"
        return fate

    def _end(self, build: JenkinsBuild, fate: Fate) -> None:
        log, words, passed = PASSED, "Build finished", True
        if self.down:
            log, words, passed = OUTAGE, "Build timed out: no agent answered", False
        elif fate == "transient":
            log, words, passed = self.dice.choice(TRANSIENT), "Agent went offline", False
        elif fate == "persistent":
            log, words, passed = self.dice.choice(PERSISTENT), "1 test failed", False
        self.builds[build.number] = replace(
            build,
            state="succeeded" if passed else "failed",
            log=log,
            ended_at=self.world.now,
        )
        self._say(build, "success" if passed else "failure", words)

    def _say(
        self, build: JenkinsBuild, state: Literal["pending", "success", "failure"], words: str
    ) -> None:
        try:
            self.world.set_status(
                build.repo,
                build.sha,
                self.context,
                state,
                self.login,
                description=words,
                target_url=self.url(build),
            )
        except WorldRefusal:
            return

    def url(self, build: JenkinsBuild) -> str:
        return f"{self.root}/job/{build.job}/{build.number}/"
