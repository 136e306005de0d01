"""CI: a workflow with jobs for each head of a pull request, which ends as its fate has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from towline_sim.actors.base import Actor, Habit
from towline_sim.failure_logs import OUTAGE, PASSED, PERSISTENT, TRANSIENT
from towline_sim.github.entities import Emitted, Job, Pull, RunConclusion, WorkflowRun
from towline_sim.github.fault_dice import Outage, Seconds
from towline_sim.github.world import ACTIONS_APP, World

Fate: TypeAlias = Literal["pass", "persistent", "transient", "flaky", "never", "hang"]
"""`persistent` fails until a person pushes; `transient` and `hang` befall the first attempt;
`flaky` fails now and then; `never` does not start by itself, only after another push."""

Fates: TypeAlias = Mapping[tuple[str, int], Fate]
Chances: TypeAlias = Mapping[Fate, float]


class Fated:
    """Deals each pull request its fate, once, unless it is given one."""

    def __init__(self, chances: Chances, given: Fates) -> None:
        self.chances = dict(chances) or {"pass": 1.0}
        self.given: dict[tuple[str, int], Fate] = dict(given)

    def of(self, pull_key: tuple[str, int], actor: Actor) -> Fate:
        fate = self.given.get(pull_key)
        if fate is None:
            fates, weights = list(self.chances), list(self.chances.values())
            fate = self.given[pull_key] = actor.dice.choices(fates, weights)[0]
        return fate

    def heal(self, pull_key: tuple[str, int]) -> None:
        self.given[pull_key] = "pass"

    def hear(self, told: Emitted, actor: Actor) -> None:
        """A push wakes what never started; one by a person who is not its author repairs it."""
        pull = told.pull
        if pull is None or told.action != "synchronize":
            return
        fate = self.of((pull.repo, pull.number), actor)
        by_a_person = told.sender.kind == "User" and told.sender != pull.author
        if fate == "never" or (fate == "persistent" and by_a_person):
            self.heal((pull.repo, pull.number))


class Ci(Actor):
    def __init__(
        self,
        world: World,
        *,
        workflow: str = "ci",
        jobs: tuple[str, ...] = ("build", "test"),
        chances: Chances | None = None,
        fates: Fates | None = None,
        flakiness: float = 0.5,
        lasts: Seconds = (60.0, 300.0),
        habit: Habit | None = None,
        outages: tuple[Outage, ...] = (),
    ) -> None:
        super().__init__(world, "github-actions[bot]", habit or Habit(delay=(2.0, 15.0)))
        self.workflow = workflow
        self.job_names = jobs
        self.fated = Fated(chances or {}, fates or {})
        self.flakiness = flakiness
        self.lasts = lasts
        self.outages = outages

    def hear(self, told: Emitted) -> None:
        if told.name == "pull_request" and told.pull is not None:
            if told.action in ("opened", "reopened", "synchronize"):
                self._head_came(told, told.pull)
        elif told.name == "workflow_run" and told.workflow_run is not None:
            run = told.workflow_run
            if told.action == "requested" and run.run_attempt > 1 and run.name == self.workflow:
                self.later(lambda: self._run_jobs(run))
        elif told.action == "rerequested" and _is_of_actions(told):
            self._again(told)

    def _head_came(self, told: Emitted, pull: Pull) -> None:
        key = (pull.repo, pull.number)
        self.fated.hear(told, self)
        never = self.fated.of(key, self) == "never"
        if never or self.misses() or not self.world.triggers_workflows(told):
            return
        self.later(lambda: self._start(pull, told))

    def _start(self, pull: Pull, told: Emitted) -> None:
        if self.current(pull) is not None:
            run = self.world.start_workflow(
                pull.repo,
                pull.head_sha,
                self.workflow,
                self.job_names,
                told.sender.login,
                branch=pull.head_ref,
            )
            self._run_jobs(run)

    def _again(self, told: Emitted) -> None:
        """A suite or one of its runs was asked for once more."""
        suite = told.suite
        run = None if suite is None else self.world.workflow_of(suite.repo, suite.id)
        if run is None or run.name != self.workflow or self.misses(poked=True):
            return
        self.world.set_permission(run.repo, self.login, "write")
        if told.run is not None:
            job_id = told.run.id
            self.later(lambda: _done(self.world.rerun_job(run.repo, job_id, self.login)))
        else:
            self.later(lambda: _done(self.world.rerun(run.repo, run.id, self.login)))

    def _run_jobs(self, run: WorkflowRun) -> None:
        jobs = self.world.jobs(run.repo, run.id)
        waiting = [job for job in jobs if job.status == "queued"]
        for job in waiting:
            self.world.begin_job(run.repo, job.id)
        fate = self._fate_of(run)
        victim = self.dice.choice(waiting) if waiting else None
        for job in waiting:
            self._end_later(job, fate if job is victim else "pass")

    def _fate_of(self, run: WorkflowRun) -> Fate:
        numbers = run.pulls or tuple(
            pull.number for pull in self.world.pulls_of(run.repo, run.head_sha)
        )
        if not numbers:
            return "pass"
        fate = self.fated.of((run.repo, numbers[0]), self)
        if fate in ("transient", "hang"):
            self.fated.heal((run.repo, numbers[0]))
        if fate == "flaky":
            return "transient" if self.dice.random() < self.flakiness else "pass"
        return fate

    def _end_later(self, job: Job, fate: Fate) -> None:
        if fate == "hang":
            return
        log, conclusion = self._end(fate)
        self.later(lambda: self._finish(job, conclusion, log), self.lasts)

    def _end(self, fate: Fate) -> tuple[str, RunConclusion]:
        if fate == "persistent":
            return self.dice.choice(PERSISTENT), "failure"
        if fate == "transient":
            return self.dice.choice(TRANSIENT), "failure"
        return PASSED, "success"

    def _finish(self, job: Job, conclusion: RunConclusion, log: str) -> None:
        if any(outage.holds(self.world.now) for outage in self.outages):
            conclusion, log = "timed_out", OUTAGE
        self.world.finish_job(job.repo, job.id, conclusion, log)


class LaterCheck(Actor):
    """Another App, whose check of a head may begin long after the first ones have passed.

    GitHub announces no suite of it before. Some of its checks are done as soon as they are there,
    some fail, and some of these are run again.
    """

    def __init__(
        self,
        world: World,
        *,
        name: str = "licence",
        app: str = "legal",
        begins: Seconds = (1.0, 120.0),
        lasts: Seconds = (1.0, 30.0),
        fails: float = 0.25,
    ) -> None:
        super().__init__(world, f"{app}[bot]", Habit(delay=begins))
        self.name = name
        self.app = app
        self.lasts = lasts
        self.fails = fails

    def hear(self, told: Emitted) -> None:
        pull, comes = told.pull, told.action in ("opened", "reopened", "synchronize")
        if told.name == "pull_request" and pull is not None and comes:
            self.later(lambda: self._begin(pull))

    def _begin(self, pull: Pull) -> None:
        if self.current(pull) is None:
            return
        repo, sha = pull.repo, pull.head_sha
        if self.dice.random() < 0.2:
            self.world.create_run(repo, sha, self.name, self.app, conclusion="success")
            return
        run = self.world.create_run(repo, sha, self.name, self.app, status="in_progress")
        self.later(lambda: self._end(pull, run.id), self.lasts)

    def _end(self, pull: Pull, run_id: int) -> None:
        failed = self.dice.random() < self.fails
        self.world.update_run(pull.repo, run_id, conclusion="failure" if failed else "success")
        if failed and self.dice.random() < 0.6:
            self.later(lambda: self._begin(pull))


def _is_of_actions(told: Emitted) -> bool:
    return told.suite is not None and told.suite.app.slug == ACTIONS_APP


def _done(_: object) -> None:
    """The outcome is told by the forge."""
