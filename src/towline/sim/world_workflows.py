"""Workflow runs and their jobs, each of which is also a check run of the same name.

A rerun is a new attempt of the same run. Its new jobs show a little later: until then the old
verdicts are all that is seen, so `run_attempt` must be compared before one judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from towline.sim.entities import (
    PASSING,
    Emitted,
    Job,
    Pull,
    RunConclusion,
    WorkflowRun,
    WorldRefusal,
)
from towline.sim.world_base import ACTIONS_APP, WORKFLOW_LOGIN, RepoState, not_found
from towline.sim.world_checks import WorldChecks

_MOST_ATTEMPTS: Final = 51
_RERUN_SECONDS: Final = 30 * 86_400.0


class WorldWorkflows(WorldChecks):
    def triggers_workflows(self, told: Emitted) -> bool:
        """Not by what the workflow token did, nor while the pull request conflicts."""
        if told.sender.login == WORKFLOW_LOGIN:
            return told.repo.options.token_triggers_workflows
        return told.pull is None or not self.conflicts(told.pull)

    def conflicts(self, pull: Pull) -> bool:
        """The truth, which the forge tells later."""
        return False

    def start_workflow(
        self,
        repo: str,
        sha: str,
        name: str,
        jobs: Sequence[str],
        by: str,
        *,
        event: str = "pull_request",
        branch: str | None = None,
    ) -> WorkflowRun:
        held = self._state(repo)
        suite = self.create_suite(repo, sha, ACTIONS_APP)
        workflow_id = held.workflow_ids.setdefault(name, self._new_id())
        earlier = sum(run.workflow_id == workflow_id for run in held.workflow_runs.values())
        run = WorkflowRun(
            id=self._new_id(),
            repo=held.repo.full_name,
            workflow_id=workflow_id,
            name=name,
            path=f".github/workflows/{name}.yml",
            run_number=earlier + 1,
            event=event,
            head_sha=sha,
            head_branch=branch or suite.head_branch,
            suite_id=suite.id,
            actor=self.user(by),
            pulls=suite.pulls,
            title=self.objects.facts(sha).message.partition("\n")[0],
            created_at=self.now,
            started_at=self.now,
            updated_at=self.now,
        )
        held.workflow_of_suite[suite.id] = run.id
        self._put_workflow(held, run, "requested")
        for job_name in jobs:
            self._add_job(held, run, job_name)
        return run

    def workflow_run(self, repo: str, run_id: int) -> WorkflowRun:
        found = self._state(repo).workflow_runs.get(run_id)
        if found is None:
            raise not_found()
        return found

    def workflow_runs(
        self,
        repo: str,
        *,
        head_sha: str | None = None,
        branch: str | None = None,
        status: str | None = None,
    ) -> list[WorkflowRun]:
        return [
            run
            for run in reversed(self._state(repo).workflow_runs.values())
            if head_sha in (None, run.head_sha)
            and branch in (None, run.head_branch)
            and status in (None, run.status, run.conclusion)
        ]

    def workflow_of(self, repo: str, suite_id: int) -> WorkflowRun | None:
        held = self._state(repo)
        run_id = held.workflow_of_suite.get(suite_id)
        return None if run_id is None else held.workflow_runs[run_id]

    # jobs

    def jobs(self, repo: str, run_id: int, *, latest: bool = True) -> list[Job]:
        self.workflow_run(repo, run_id)
        held = self._state(repo)
        found = [held.jobs[job_id] for job_id in held.jobs_of.get(run_id, ())]
        return list({job.name: job for job in found}.values()) if latest else found

    def job(self, repo: str, job_id: int) -> Job:
        found = self._state(repo).jobs.get(job_id)
        if found is None:
            raise not_found()
        return found

    def job_of_run(self, repo: str, check_run_id: int) -> Job | None:
        return self._state(repo).jobs.get(check_run_id)

    def begin_job(self, repo: str, job_id: int) -> Job:
        held, job = self._state(repo), self.job(repo, job_id)
        if job.status != "queued":
            return job
        run = held.workflow_runs[job.run_id]
        if run.status == "queued":
            self._put_workflow(held, replace(run, status="in_progress"), "in_progress")
        job = replace(job, status="in_progress", started_at=self.now)
        self._put_job(held, job, "in_progress")
        self.update_run(repo, job.check_run_id, status="in_progress")
        return job

    def finish_job(self, repo: str, job_id: int, conclusion: RunConclusion, log: str = "") -> Job:
        held, job = self._state(repo), self.job(repo, job_id)
        if job.status == "completed":
            return job
        job = replace(
            job, status="completed", conclusion=conclusion, completed_at=self.now, log=log
        )
        self._put_job(held, job, "completed")
        self.update_run(repo, job.check_run_id, conclusion=conclusion)
        self._settle(held, job)
        return job

    def _settle(self, held: RepoState, job: Job) -> None:
        """The run has ended if all its jobs have."""
        run = held.workflow_runs[job.run_id]
        jobs = self.jobs(held.repo.full_name, run.id)
        if job.run_attempt != run.run_attempt or any(j.status != "completed" for j in jobs):
            return
        bad = [j.conclusion for j in jobs if j.conclusion not in PASSING]
        conclusion: RunConclusion = "success"
        if bad:
            conclusion = "failure" if "failure" in bad or bad[0] is None else bad[0]
        self._put_workflow(
            held, replace(run, status="completed", conclusion=conclusion), "completed"
        )

    # again

    def rerun(self, repo: str, run_id: int, by: str, *, failed_only: bool = False) -> WorkflowRun:
        names = [
            job.name
            for job in self.jobs(repo, run_id)
            if not failed_only or job.conclusion not in PASSING
        ]
        return self._rerun(repo, run_id, by, names)

    def rerun_job(self, repo: str, job_id: int, by: str) -> WorkflowRun:
        job = self.job(repo, job_id)
        return self._rerun(repo, job.run_id, by, [job.name])

    def _rerun(self, repo: str, run_id: int, by: str, names: list[str]) -> WorkflowRun:
        self._must(repo, by, "write")
        held, run = self._state(repo), self.workflow_run(repo, run_id)
        if run.status != "completed":
            raise WorldRefusal(403, "This workflow is already running")
        if not names:
            raise WorldRefusal(403, "This workflow run cannot be retried")
        if run.run_attempt >= _MOST_ATTEMPTS or self.now - run.created_at > _RERUN_SECONDS:
            raise WorldRefusal(403, "Unable to retry this workflow run because it is too old")
        run = replace(
            run,
            run_attempt=run.run_attempt + 1,
            status="queued",
            conclusion=None,
            started_at=self.now,
        )
        held.workflow_runs[run.id] = replace(run, updated_at=self.now)
        self.after_some(held.repo.options.rerun_delay, lambda: self._begin_rerun(held, run, names))
        return held.workflow_runs[run.id]

    def _begin_rerun(self, held: RepoState, run: WorkflowRun, names: list[str]) -> None:
        now = held.workflow_runs[run.id]
        if now.run_attempt == run.run_attempt and now.status == "queued":
            self._put_workflow(held, now, "requested")
            for name in names:
                self._add_job(held, now, name)

    def cancel_workflow(self, repo: str, run_id: int, by: str) -> None:
        run = self.workflow_run(repo, run_id)
        if run.status == "completed":
            raise WorldRefusal(409, "Cannot cancel a workflow run that is completed.")
        for job in self.jobs(repo, run_id):
            self.finish_job(repo, job.id, "cancelled", "##[error]The operation was canceled.\n")

    # keeping

    def _add_job(self, held: RepoState, run: WorkflowRun, name: str) -> None:
        check = self.create_run(run.repo, run.head_sha, name, ACTIONS_APP, suite_id=run.suite_id)
        job = Job(
            id=check.id,
            repo=run.repo,
            run_id=run.id,
            run_attempt=run.run_attempt,
            name=name,
            workflow_name=run.name,
            head_sha=run.head_sha,
            head_branch=run.head_branch,
            check_run_id=check.id,
            created_at=self.now,
            started_at=self.now,
        )
        held.jobs_of.setdefault(run.id, []).append(job.id)
        self._put_job(held, job, "queued")

    def _put_job(self, held: RepoState, job: Job, action: str) -> None:
        held.jobs[job.id] = job
        run = held.workflow_runs[job.run_id]
        self._emit(
            run.repo, "workflow_job", action, self._bot(ACTIONS_APP), job=job, workflow_run=run
        )

    def _put_workflow(self, held: RepoState, run: WorkflowRun, action: str) -> None:
        run = replace(run, updated_at=self.now)
        held.workflow_runs[run.id] = run
        self._emit(run.repo, "workflow_run", action, run.actor, workflow_run=run)
