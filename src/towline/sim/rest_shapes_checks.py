"""How check runs, suites, statuses and workflow runs look in the REST API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from towline.sim.entities import (
    App,
    CheckRun,
    CheckSuite,
    CombinedStatus,
    Job,
    Repo,
    Status,
    WorkflowRun,
)
from towline.sim.rest_shapes_base import maybe_when, when
from towline.sim.rest_shapes_pulls import PullShapes


class CheckShapes(PullShapes):
    def app(self, app: App) -> dict[str, Any]:
        rights = {"checks": "write", "contents": "write", "metadata": "read", "issues": "write"}
        return {
            "id": app.id,
            "slug": app.slug,
            "node_id": f"A_{app.id}",
            "owner": self.user(app.owner),
            "name": app.name,
            "description": None,
            "external_url": f"{self.root}/apps/{app.slug}",
            "html_url": f"{self.root}/apps/{app.slug}",
            "created_at": when(0),
            "updated_at": when(0),
            "permissions": rights,
            "events": ["check_run", "check_suite", "pull_request", "push"],
        }

    def pulls_listed(self, repo: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self.pull_minimal(repo, number) for number in numbers]

    def run(self, run: CheckRun) -> dict[str, Any]:
        url = f"{self.repo_url(run.repo)}/check-runs/{run.id}"
        page = f"{self.page_url(run.repo)}/runs/{run.id}"
        return {
            "id": run.id,
            "node_id": f"CR_{run.id}",
            "name": run.name,
            "head_sha": run.head_sha,
            "external_id": run.external_id,
            "url": url,
            "html_url": page,
            "details_url": run.details_url or page,
            "status": run.status,
            "conclusion": run.conclusion,
            "started_at": when(run.started_at),
            "completed_at": maybe_when(run.completed_at),
            "output": {
                "title": run.title,
                "summary": run.summary,
                "text": run.text,
                "annotations_count": 0,
                "annotations_url": f"{url}/annotations",
            },
            "check_suite": {"id": run.suite_id},
            "app": self.app(run.app),
            "pull_requests": self.pulls_listed(run.repo, run.pulls),
        }

    def suite(self, suite: CheckSuite) -> dict[str, Any]:
        url = f"{self.repo_url(suite.repo)}/check-suites/{suite.id}"
        return {
            "id": suite.id,
            "node_id": f"CS_{suite.id}",
            "head_branch": suite.head_branch,
            "head_sha": suite.head_sha,
            "status": suite.status,
            "conclusion": suite.conclusion,
            "url": url,
            "before": suite.before,
            "after": suite.head_sha,
            "pull_requests": self.pulls_listed(suite.repo, suite.pulls),
            "app": self.app(suite.app),
            "repository": self.repo(self.world.repo(suite.repo)),
            "created_at": when(suite.created_at),
            "updated_at": when(suite.updated_at),
            "head_commit": self.simple_commit(suite.repo, suite.head_sha),
            "latest_check_runs_count": len(self.world.suite_runs(suite.repo, suite.id)),
            "check_runs_url": f"{url}/check-runs",
            "rerequestable": True,
        }

    def status(self, status: Status) -> dict[str, Any]:
        return {**self.status_short(status), "creator": self.user(status.creator)}

    def status_short(self, status: Status) -> dict[str, Any]:
        return {
            "url": f"{self.repo_url(status.repo)}/statuses/{status.sha}",
            "avatar_url": f"{self.root}/avatars/u/{status.creator.id}",
            "id": status.id,
            "node_id": f"SC_{status.id}",
            "state": status.state,
            "description": status.description,
            "target_url": status.target_url,
            "context": status.context,
            "created_at": when(status.created_at),
            "updated_at": when(status.updated_at),
        }

    def combined(self, repo: Repo, sha: str, combined: CombinedStatus) -> dict[str, Any]:
        url = f"{self.repo_url(repo.full_name)}/commits/{sha}"
        return {
            "state": combined.state,
            "statuses": [self.status_short(one) for one in combined.statuses],
            "sha": sha,
            "total_count": len(combined.statuses),
            "repository": self.repo(repo),
            "commit_url": url,
            "url": f"{url}/status",
        }

    def workflow_run(self, run: WorkflowRun) -> dict[str, Any]:
        repo = self.world.repo(run.repo)
        url, base = f"{self.repo_url(run.repo)}/actions/runs/{run.id}", self.repo_url(run.repo)
        below = ("jobs", "logs", "cancel", "rerun", "artifacts")
        return {
            "id": run.id,
            "name": run.name,
            "node_id": f"WFR_{run.id}",
            "check_suite_id": run.suite_id,
            "check_suite_node_id": f"CS_{run.suite_id}",
            "head_branch": run.head_branch,
            "head_sha": run.head_sha,
            "path": run.path,
            "run_number": run.run_number,
            "run_attempt": run.run_attempt,
            "event": run.event,
            "display_title": run.title,
            "status": run.status,
            "conclusion": run.conclusion,
            "workflow_id": run.workflow_id,
            "url": url,
            "html_url": f"{self.page_url(run.repo)}/actions/runs/{run.id}",
            "pull_requests": self.pulls_listed(run.repo, run.pulls),
            "created_at": when(run.created_at),
            "updated_at": when(run.updated_at),
            "run_started_at": when(run.started_at),
            "actor": self.user(run.actor),
            "triggering_actor": self.user(run.actor),
            **{f"{name}_url": f"{url}/{name}" for name in below},
            "check_suite_url": f"{base}/check-suites/{run.suite_id}",
            "workflow_url": f"{base}/actions/workflows/{run.workflow_id}",
            "previous_attempt_url": _previous(url, run.run_attempt),
            "head_commit": self.simple_commit(run.repo, run.head_sha),
            "repository": self.repo(repo),
            "head_repository": self.repo(repo),
        }

    def job(self, job: Job) -> dict[str, Any]:
        base = self.repo_url(job.repo)
        runner = ("runner_id", "runner_name", "runner_group_id", "runner_group_name")
        return {
            "id": job.id,
            "run_id": job.run_id,
            "run_url": f"{base}/actions/runs/{job.run_id}",
            "run_attempt": job.run_attempt,
            "node_id": f"JOB_{job.id}",
            "head_sha": job.head_sha,
            "url": f"{base}/actions/jobs/{job.id}",
            "html_url": f"{self.page_url(job.repo)}/actions/runs/{job.run_id}/job/{job.id}",
            "status": job.status,
            "conclusion": job.conclusion,
            "created_at": when(job.created_at),
            "started_at": when(job.started_at),
            "completed_at": maybe_when(job.completed_at),
            "name": job.name,
            "steps": [],
            "check_run_url": f"{base}/check-runs/{job.check_run_id}",
            "labels": ["ubuntu-latest"],
            **dict.fromkeys(runner),
            "workflow_name": job.workflow_name,
            "head_branch": job.head_branch,
        }


def _previous(url: str, attempt: int) -> str | None:
    return f"{url}/attempts/{attempt - 1}" if attempt > 1 else None
