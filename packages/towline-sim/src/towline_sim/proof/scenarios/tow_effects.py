"""What really arrived at the simulated world, counted there: nobody's belief."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from towline.pulls.budgets import Strategy
from towline.remediation.strategies import CLOSING_TEXT
from towline_sim.actors.jenkins import Jenkins, JenkinsBuild
from towline_sim.github.entities import Emitted, WorkflowRun
from towline_sim.github.world import World

Key: TypeAlias = tuple[str, int]
OURS: Final = "towline[bot]"
_LABELS: Final[Mapping[str, Strategy]] = {
    "recheck-policy": "retrigger_policy_bot",
    "automerge": "retrigger_automerge_bot",
}
_WORDS: Final[Mapping[str, Strategy]] = {
    "/policy": "retrigger_policy_bot",
    "/approve": "retrigger_approver_bot",
}
_DISPATCHES: Final[Mapping[str, Strategy]] = {
    "policy": "retrigger_sod_check",
    "approval": "retrigger_approver_bot",
    "merge": "retrigger_automerge_bot",
}


def _nobody(key: Key, strategy: Strategy) -> None:
    return None


class Ledger:
    """`made` counts our actions by pull request and strategy; the rest is what became of them.

    `arrived` is called with each of our actions, when it is counted.
    """

    def __init__(
        self,
        world: World,
        jenkins: Jenkins,
        arrived: Callable[[Key, Strategy], None] = _nobody,
    ) -> None:
        self.world = world
        self.made: Counter[tuple[Key, Strategy]] = Counter()
        self.last_made: dict[tuple[Key, Strategy], float] = {}
        self.opened: dict[Key, float] = {}
        self.heads: dict[Key, list[str]] = {}
        """The heads of each, one after the other."""
        self.ended: dict[Key, float] = {}
        self.ended_by: dict[Key, str] = {}
        self.merges: Counter[Key] = Counter()
        self.closed_in_conflict: dict[Key, bool] = {}
        self.said_to_close: set[Key] = set()
        """Those on which we wrote that we close them."""
        self._arrived = arrived
        world.subscribe(self._hear)
        self._watch(jenkins)

    def _watch(self, jenkins: Jenkins) -> None:
        build = jenkins.build

        def counted(job: str, parameters: Mapping[str, str]) -> JenkinsBuild:
            asked = build(job, parameters)
            self._count((asked.repo, asked.pull), "rebuild")
            return asked

        jenkins.build = counted  # type: ignore[method-assign]
        rerun = self.world.rerun

        def rerun_by(repo: str, run_id: int, by: str, *, failed_only: bool = False) -> WorkflowRun:
            """Who asks is not told: a run has the name of whoever began it."""
            run = rerun(repo, run_id, by, failed_only=failed_only)
            for pull in self.world.pulls_of(repo, run.head_sha) if by == OURS else ():
                self._count((pull.repo, pull.number), "rebuild")
            return run

        self.world.rerun = rerun_by  # type: ignore[method-assign]

    def _count(self, key: Key, strategy: Strategy) -> None:
        self.made[key, strategy] += 1
        self.last_made[key, strategy] = self.world.now
        self._arrived(key, strategy)

    def _hear(self, told: Emitted) -> None:
        if told.name == "pull_request" and told.pull is not None:
            self._of_pull(told, (told.pull.repo, told.pull.number))
        if told.sender.login != OURS:
            return
        said = told.comment.body if told.comment is not None else ""
        if CLOSING_TEXT in said and told.pull is not None:
            self.said_to_close.add((told.pull.repo, told.pull.number))
        for key, strategy in self._ours(told):
            self._count(key, strategy)

    def _of_pull(self, told: Emitted, key: Key) -> None:
        pull = told.pull
        if pull is not None and told.action in ("opened", "synchronize"):
            self.heads.setdefault(key, []).append(pull.head_sha)
        if told.action == "opened":
            self.opened[key] = told.at
        elif told.action == "closed" and pull is not None:
            self.ended[key] = told.at
            self.ended_by[key] = told.sender.login
            self.merges[key] += pull.merged
            if not pull.merged:
                self.closed_in_conflict[key] = self.world.conflicts(pull)

    def _ours(self, told: Emitted) -> list[tuple[Key, Strategy]]:
        about = None if told.pull is None else (told.pull.repo, told.pull.number)
        if told.name == "workflow_run":
            return []
        if told.name == "check_suite" and told.action == "rerequested" and told.suite is not None:
            return self._of_commit(told, told.suite.head_sha, "rebuild")
        if told.name == "status" and told.status is not None:
            return self._of_commit(told, told.status.sha, "retrigger_approver_bot")
        if told.name == "repository_dispatch":
            return self._of_dispatch(told)
        found = self._of_words(told)
        return [] if about is None or found is None else [(about, found)]

    def _of_words(self, told: Emitted) -> Strategy | None:
        if told.name == "pull_request" and told.action == "labeled" and told.label is not None:
            return _LABELS.get(told.label.name)
        if told.name == "issue_comment" and told.action == "created" and told.comment is not None:
            return _WORDS.get((told.comment.body.split() or [""])[0])
        if told.name == "pull_request" and told.action == "synchronize":
            return "branch_update"
        if told.name == "pull_request" and told.action == "closed" and told.pull is not None:
            return "retrigger_automerge_bot" if told.pull.merged else "close_and_reopen"
        return None

    def _of_commit(self, told: Emitted, sha: str, strategy: Strategy) -> list[tuple[Key, Strategy]]:
        pulls = self.world.pulls_of(told.repo.full_name, sha)
        return [((pull.repo, pull.number), strategy) for pull in pulls]

    def _of_dispatch(self, told: Emitted) -> list[tuple[Key, Strategy]]:
        payload: Mapping[str, Any] = told.dispatch_payload or {}
        key = (told.repo.full_name, int(payload["number"]))
        return [(key, _DISPATCHES[told.dispatch_type or ""])]
