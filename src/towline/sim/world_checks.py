"""Commit statuses, check suites and check runs: two systems, and both are read.

A suite is an app's for one commit; its status follows from the newest run of each name in it.
Nothing is overwritten when a check runs again: the earlier attempt stays on record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from towline.sim.entities import (
    PASSING,
    CheckRun,
    CheckSuite,
    CombinedStatus,
    RunConclusion,
    RunStatus,
    Status,
    StatusState,
    User,
    WorldRefusal,
)
from towline.sim.world_base import ACTIONS_APP, RepoState, not_found
from towline.sim.world_refs import HEADS, WorldRefs

_MOST_STATUSES: Final = 1000


class WorldChecks(WorldRefs):
    # statuses

    def set_status(
        self,
        repo: str,
        sha: str,
        context: str,
        state: StatusState,
        by: str,
        *,
        description: str | None = None,
        target_url: str | None = None,
    ) -> Status:
        held = self._state(repo)
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, f"No commit found for SHA: {sha}")
        known = held.statuses.setdefault(sha, [])
        if len(known) >= _MOST_STATUSES:
            raise WorldRefusal(422, "This SHA and context has reached the maximum of statuses.")
        status = Status(
            id=self._new_id(),
            repo=held.repo.full_name,
            sha=sha,
            context=context,
            state=state,
            description=description,
            target_url=target_url,
            creator=self.user(by),
            created_at=self.now,
            updated_at=self.now,
        )
        known.append(status)
        branches = tuple(
            ref[len(HEADS) :]
            for ref, tip in held.refs.items()
            if tip == sha and ref.startswith(HEADS)
        )
        self._emit(
            repo,
            "status",
            None,
            status.creator,
            status=status,
            commit=self.objects.facts(sha),
            branches=branches,
        )
        return status

    def statuses(self, repo: str, sha: str) -> list[Status]:
        return self._state(repo).statuses.get(sha, [])[::-1]

    def combined(self, repo: str, sha: str) -> CombinedStatus:
        latest = {status.context: status for status in self._state(repo).statuses.get(sha, [])}
        states = {status.state for status in latest.values()}
        if states & {"failure", "error"}:
            return CombinedStatus("failure", tuple(latest.values()))
        passed = states == {"success"}
        return CombinedStatus("success" if passed else "pending", tuple(latest.values()))

    # suites

    def create_suite(self, repo: str, sha: str, app: str) -> CheckSuite:
        """The same one, if the app has one for this commit."""
        held = self._state(repo)
        for suite in self.suites(repo, sha):
            if suite.app.slug == app and app != ACTIONS_APP:
                return suite
        if not self.objects.is_commit(sha):
            raise WorldRefusal(422, f"No commit found for SHA: {sha}")
        suite = CheckSuite(
            id=self._new_id(),
            repo=held.repo.full_name,
            head_sha=sha,
            head_branch=self._branch_of(held, sha),
            app=self.app(app),
            before=next(iter(self.objects.facts(sha).parents), None),
            pulls=self._numbers(held, sha),
            created_at=self.now,
            updated_at=self.now,
        )
        held.suites[suite.id] = suite
        held.suites_of.setdefault(sha, []).append(suite.id)
        self._emit(repo, "check_suite", "requested", self._bot(app), suite=suite)
        return suite

    def suite(self, repo: str, suite_id: int) -> CheckSuite:
        found = self._state(repo).suites.get(suite_id)
        if found is None:
            raise not_found()
        return found

    def suites(self, repo: str, sha: str) -> list[CheckSuite]:
        held = self._state(repo)
        return [held.suites[suite_id] for suite_id in held.suites_of.get(sha, ())]

    def rerequest_suite(self, repo: str, suite_id: int, by: str, *, app: str | None = None) -> None:
        """Asks the suite's app to run it again; an app may ask only itself."""
        suite = self.suite(repo, suite_id)
        _must_own(suite.app.slug, app)
        self._emit(repo, "check_suite", "rerequested", self.user(by), suite=suite)

    # runs

    def create_run(
        self,
        repo: str,
        sha: str,
        name: str,
        app: str,
        *,
        status: RunStatus = "queued",
        conclusion: RunConclusion | None = None,
        title: str | None = None,
        summary: str | None = None,
        text: str | None = None,
        external_id: str = "",
        details_url: str | None = None,
        suite_id: int | None = None,
    ) -> CheckRun:
        suite = (
            self.create_suite(repo, sha, app) if suite_id is None else self.suite(repo, suite_id)
        )
        held = self._state(repo)
        earlier = [run for run in self._all_runs(held, suite.id) if run.name == name]
        ended = conclusion is not None or status == "completed"
        run = CheckRun(
            id=self._new_id(),
            repo=suite.repo,
            suite_id=suite.id,
            head_sha=sha,
            name=name,
            app=suite.app,
            status="completed" if ended else status,
            conclusion=(conclusion or "neutral") if ended else None,
            attempt=len(earlier) + 1,
            started_at=self.now,
            completed_at=self.now if ended else None,
            title=title,
            summary=summary,
            text=text,
            external_id=external_id,
            details_url=details_url,
            pulls=self._numbers(held, sha),
        )
        held.runs_of.setdefault(suite.id, []).append(run.id)
        self._put_run(held, run, "completed" if ended else "created", is_new=True)
        return run

    def update_run(
        self,
        repo: str,
        run_id: int,
        *,
        status: RunStatus | None = None,
        conclusion: RunConclusion | None = None,
        title: str | None = None,
        summary: str | None = None,
        text: str | None = None,
    ) -> CheckRun:
        held, run = self._state(repo), self.run(repo, run_id)
        wanted = "completed" if conclusion is not None else status or run.status
        ended = wanted == "completed"
        if ended and conclusion is None and run.conclusion is None:
            raise WorldRefusal(422, "A completed check run needs a conclusion.")
        run = replace(
            run,
            status=wanted,
            conclusion=(conclusion or run.conclusion) if ended else None,
            completed_at=self.now if ended else None,
            title=title if title is not None else run.title,
            summary=summary if summary is not None else run.summary,
            text=text if text is not None else run.text,
        )
        self._put_run(held, run, "completed" if ended else "created")
        return run

    def run(self, repo: str, run_id: int) -> CheckRun:
        found = self._state(repo).runs.get(run_id)
        if found is None:
            raise not_found()
        return found

    def runs(self, repo: str, sha: str, *, latest: bool = True) -> list[CheckRun]:
        held = self._state(repo)
        found = [
            run
            for suite_id in held.suites_of.get(sha, ())
            for run in self._all_runs(held, suite_id)
        ]
        return _newest(found) if latest else found

    def suite_runs(self, repo: str, suite_id: int, *, latest: bool = True) -> list[CheckRun]:
        self.suite(repo, suite_id)
        found = self._all_runs(self._state(repo), suite_id)
        return _newest(found) if latest else found

    def rerequest_run(self, repo: str, run_id: int, by: str, *, app: str | None = None) -> None:
        run = self.run(repo, run_id)
        _must_own(run.app.slug, app)
        if run.status != "completed":
            raise WorldRefusal(422, "This check run is not rerequestable")
        self._emit(
            repo,
            "check_run",
            "rerequested",
            self.user(by),
            run=run,
            suite=self.suite(repo, run.suite_id),
        )

    def _all_runs(self, held: RepoState, suite_id: int) -> list[CheckRun]:
        return [held.runs[run_id] for run_id in held.runs_of.get(suite_id, ())]

    def _put_run(
        self, held: RepoState, run: CheckRun, action: str, *, is_new: bool = False
    ) -> None:
        held.runs[run.id] = run
        bot = self._bot(run.app.slug)
        suite = held.suites[run.suite_id]
        latest = _newest(self._all_runs(held, suite.id))
        status, conclusion = _together(latest)
        now = replace(suite, status=status, conclusion=conclusion, updated_at=self.now)
        held.suites[suite.id] = now
        ended = action == "completed"
        of_run = ["created", "completed"] if self.unordered and is_new and ended else [action]
        told = [("check_run", one) for one in of_run]
        if status == "completed" and ended:
            told.append(("check_suite", "completed"))
        if self.unordered:
            self._disorder.shuffle(told)
        for name, what in told:
            about: dict[str, Any] = {"suite": now} if name == "check_suite" else {"run": run}
            self._emit(held.repo.full_name, name, what, bot, **{"suite": now, **about})

    def _bot(self, app: str) -> User:
        return self.user(f"{app}[bot]")

    def _branch_of(self, held: RepoState, sha: str) -> str | None:
        for number in held.open_pulls:
            if held.pulls[number].head_sha == sha:
                return held.pulls[number].head_ref
        return next((ref[len(HEADS) :] for ref, tip in held.refs.items() if tip == sha), None)

    def _numbers(self, held: RepoState, sha: str) -> tuple[int, ...]:
        """The open pull requests with this head; one from a fork is not listed."""
        return tuple(
            number
            for number in held.open_pulls
            if held.pulls[number].head_sha == sha and not held.pulls[number].from_fork
        )

    def verdicts(self, repo: str, sha: str) -> dict[str, str]:
        """What each check of a commit says now, of both systems: its conclusion, or `pending`."""
        found: dict[str, str] = {
            run.name: run.conclusion or "pending" for run in self.runs(repo, sha)
        }
        for status in self.combined(repo, sha).statuses:
            found[status.context] = status.state
        return found


def _must_own(owner: str, asking: str | None) -> None:
    if asking is not None and asking != owner:
        raise WorldRefusal(403, "Resource not accessible by integration")


def _newest(runs: Iterable[CheckRun]) -> list[CheckRun]:
    return list({(run.suite_id, run.name): run for run in runs}.values())


def _together(runs: list[CheckRun]) -> tuple[RunStatus, RunConclusion | None]:
    if any(run.status != "completed" for run in runs):
        busy = any(run.status != "queued" for run in runs)
        return ("in_progress" if busy else "queued"), None
    worst = [run.conclusion for run in runs if run.conclusion not in PASSING]
    if worst:
        return "completed", worst[0]
    return "completed", "success" if any(r.conclusion == "success" for r in runs) else "neutral"
