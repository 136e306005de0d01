"""Workflow runs and their jobs, and the events that start some of them."""

from __future__ import annotations

from typing import Final

from towline_sim.github.problems import invalid
from towline_sim.github.rest.calls import Answer, Call, Route, listed

_REPO: Final = "/repos/{owner}/{repo}"
_RUN: Final = f"{_REPO}/actions/runs/{{run_id}}"
_JOB: Final = f"{_REPO}/actions/jobs/{{job_id}}"


def list_runs(call: Call) -> Answer:
    query = call.query
    runs = [
        run
        for run in call.world.workflow_runs(
            call.repo_name,
            head_sha=query.get("head_sha"),
            branch=query.get("branch"),
            status=query.get("status"),
        )
        if query.get("event", run.event) == run.event
    ]
    return listed(call, runs, call.show.workflow_run, "workflow_runs")


def get_run(call: Call) -> Answer:
    run = call.world.workflow_run(call.repo_name, call.number("run_id"))
    return Answer(call.show.workflow_run(run))


def list_jobs(call: Call) -> Answer:
    latest = call.query.get("filter", "latest") != "all"
    jobs = call.world.jobs(call.repo_name, call.number("run_id"), latest=latest)
    return listed(call, jobs, call.show.job, "jobs")


def get_job(call: Call) -> Answer:
    return Answer(call.show.job(call.world.job(call.repo_name, call.number("job_id"))))


def job_logs(call: Call) -> Answer:
    """GitHub redirects to another host for a minute; here the log is one more hop away."""
    job = call.world.job(call.repo_name, call.number("job_id"))
    return Answer(status=302, headers={"location": f"{call.root}/_logs/{call.repo_name}/{job.id}"})


def log_text(call: Call) -> Answer:
    job = call.world.job(call.repo_name, call.number("job_id"))
    return Answer(job.log.encode())


def rerun(call: Call) -> Answer:
    call.world.rerun(call.repo_name, call.number("run_id"), call.by)
    return Answer({}, 201)


def rerun_failed(call: Call) -> Answer:
    call.world.rerun(call.repo_name, call.number("run_id"), call.by, failed_only=True)
    return Answer({}, 201)


def rerun_job(call: Call) -> Answer:
    call.world.rerun_job(call.repo_name, call.number("job_id"), call.by)
    return Answer({}, 201)


def cancel(call: Call) -> Answer:
    call.world.cancel_workflow(call.repo_name, call.number("run_id"), call.by)
    return Answer({}, 202)


def dispatch(call: Call) -> Answer:
    payload = call.field("client_payload", dict, {})
    if len(payload) > 10:
        invalid("client_payload", "invalid", "No more than 10 properties are allowed.")
    call.world.dispatch(call.repo_name, call.given("event_type"), payload, call.by)
    return Answer(status=204)


ROUTES: Final = (
    Route("GET", f"{_REPO}/actions/runs", list_runs),
    Route("GET", _RUN, get_run),
    Route("GET", f"{_RUN}/jobs", list_jobs),
    Route("POST", f"{_RUN}/rerun", rerun),
    Route("POST", f"{_RUN}/rerun-failed-jobs", rerun_failed),
    Route("POST", f"{_RUN}/cancel", cancel),
    Route("GET", _JOB, get_job),
    Route("GET", f"{_JOB}/logs", job_logs),
    Route("POST", f"{_JOB}/rerun", rerun_job),
    Route("POST", f"{_REPO}/dispatches", dispatch),
    Route("GET", "/_logs/{owner}/{repo}/{job_id}", log_text),
)
