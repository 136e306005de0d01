"""Check runs, check suites and commit statuses."""

from __future__ import annotations

from typing import Any, Final, get_args

from towline_sim.github.entities import CheckRun, CheckSuite, RunConclusion, RunStatus, StatusState
from towline_sim.github.problems import Problem, invalid
from towline_sim.github.rest.calls import Answer, Call, Route, listed

_REPO: Final = "/repos/{owner}/{repo}"
_RUN: Final = f"{_REPO}/check-runs/{{run_id}}"
_SUITE: Final = f"{_REPO}/check-suites/{{suite_id}}"
_REF: Final = f"{_REPO}/commits/{{ref*}}"


def create_run(call: Call) -> Answer:
    status, conclusion = _progress(call)
    output = call.field("output", dict, {})
    run = call.world.create_run(
        call.repo_name,
        call.world.resolve(call.repo_name, call.given("head_sha")),
        call.given("name"),
        _app(call),
        status=status or "queued",
        conclusion=conclusion,
        title=output.get("title"),
        summary=output.get("summary"),
        text=output.get("text"),
        external_id=call.field("external_id", default=""),
        details_url=call.field("details_url"),
    )
    return Answer(call.show.run(run), 201)


def update_run(call: Call) -> Answer:
    run = call.world.run(call.repo_name, call.number("run_id"))
    if run.app.slug != _app(call):
        raise Problem(403, "Invalid app_id. Check run is owned by another app.")
    status, conclusion = _progress(call)
    output = call.field("output", dict, {})
    updated = call.world.update_run(
        call.repo_name,
        run.id,
        status=status,
        conclusion=conclusion,
        title=output.get("title"),
        summary=output.get("summary"),
        text=output.get("text"),
    )
    return Answer(call.show.run(updated))


def _app(call: Call) -> str:
    slug = call.caller.app_slug
    if slug is None:
        raise Problem(403, "You must authenticate via a GitHub App.")
    return slug


def _progress(call: Call) -> tuple[Any, Any]:
    """Status and conclusion, of which the second implies the first."""
    status, conclusion = call.field("status"), call.field("conclusion")
    if status not in (None, *get_args(RunStatus)):
        invalid("status", "invalid")
    if conclusion not in (None, *get_args(RunConclusion)):
        invalid("conclusion", "invalid")
    if status == "completed" and conclusion is None:
        invalid("conclusion", "missing_field")
    return ("completed" if conclusion else status), conclusion


def get_run(call: Call) -> Answer:
    return Answer(call.show.run(call.world.run(call.repo_name, call.number("run_id"))))


def rerequest_run(call: Call) -> Answer:
    call.world.rerequest_run(
        call.repo_name, call.number("run_id"), call.by, app=call.caller.app_slug
    )
    return Answer({}, 201)


def runs_of_ref(call: Call) -> Answer:
    sha = call.world.resolve(call.repo_name, call.params["ref"])
    latest = call.query.get("filter", "latest") != "all"
    runs = call.world.runs(call.repo_name, sha, latest=latest)
    return listed(call, [one for one in runs if _wanted(call, one)], call.show.run, "check_runs")


def runs_of_suite(call: Call) -> Answer:
    latest = call.query.get("filter", "latest") != "all"
    runs = call.world.suite_runs(call.repo_name, call.number("suite_id"), latest=latest)
    return listed(call, [one for one in runs if _wanted(call, one)], call.show.run, "check_runs")


def _wanted(call: Call, run: CheckRun) -> bool:
    query = call.query
    return (
        query.get("check_name", run.name) == run.name
        and query.get("status", run.status) == run.status
        and query.get("app_id", str(run.app.id)) == str(run.app.id)
    )


def suites_of_ref(call: Call) -> Answer:
    sha = call.world.resolve(call.repo_name, call.params["ref"])
    app_id = call.query.get("app_id")
    suites = [
        one
        for one in call.world.suites(call.repo_name, sha)
        if app_id is None or str(one.app.id) == app_id
    ]
    return listed(call, suites, call.show.suite, "check_suites")


def create_suite(call: Call) -> Answer:
    app = _app(call)
    sha = call.world.resolve(call.repo_name, call.given("head_sha"))
    known = any(one.app.slug == app for one in call.world.suites(call.repo_name, sha))
    suite = call.world.create_suite(call.repo_name, sha, app)
    return Answer(call.show.suite(suite), 200 if known else 201)


def _suite(call: Call) -> CheckSuite:
    return call.world.suite(call.repo_name, call.number("suite_id"))


def get_suite(call: Call) -> Answer:
    return Answer(call.show.suite(_suite(call)))


def rerequest_suite(call: Call) -> Answer:
    call.world.rerequest_suite(
        call.repo_name, call.number("suite_id"), call.by, app=call.caller.app_slug
    )
    return Answer({}, 201)


def create_status(call: Call) -> Answer:
    state = call.given("state")
    if state not in get_args(StatusState):
        invalid("state", "invalid")
    status = call.world.set_status(
        call.repo_name,
        call.world.resolve(call.repo_name, call.params["sha"]),
        call.field("context", default="default"),
        state,
        call.by,
        description=call.field("description"),
        target_url=call.field("target_url"),
    )
    return Answer(call.show.status(status), 201)


def combined_status(call: Call) -> Answer:
    sha = call.world.resolve(call.repo_name, call.params["ref"])
    combined = call.world.combined(call.repo_name, sha)
    return Answer(call.show.combined(call.repo, sha, combined))


def list_statuses(call: Call) -> Answer:
    sha = call.world.resolve(call.repo_name, call.params["ref"])
    return listed(call, call.world.statuses(call.repo_name, sha), call.show.status)


ROUTES: Final = (
    Route("POST", f"{_REPO}/check-runs", create_run),
    Route("GET", _RUN, get_run),
    Route("PATCH", _RUN, update_run),
    Route("POST", f"{_RUN}/rerequest", rerequest_run),
    Route("POST", f"{_REPO}/check-suites", create_suite),
    Route("GET", _SUITE, get_suite),
    Route("GET", f"{_SUITE}/check-runs", runs_of_suite),
    Route("POST", f"{_SUITE}/rerequest", rerequest_suite),
    Route("POST", f"{_REPO}/statuses/{{sha}}", create_status),
    Route("GET", f"{_REF}/check-runs", runs_of_ref),
    Route("GET", f"{_REF}/check-suites", suites_of_ref),
    Route("GET", f"{_REF}/status", combined_status),
    Route("GET", f"{_REF}/statuses", list_statuses),
)
